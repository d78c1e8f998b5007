"""What runs each step: the steps, what they call, what processes their results, their streams."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.init.proposal import Confidence, Key, ProposedEntry
from fmcheck.lint.model.expressions import is_name, keywords, last_name
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace
    from fmcheck.init.relay_entries import RelayCandidate

#: Names of functions that run one step, and of those that process the results of one.
_STEP = re.compile(
    r"_*((run|execute|launch|forward)_(batch|model|step|iteration)|step|overlap_forward)$"
)
_RESULTS = re.compile(
    r"_*(process|handle|post_?process|update_from)_(batch_)?(results?|outputs?)\w*$"
)
_HOST = re.compile(r"\bself\.(\w+(_cpu|_host|_pinned|_np|_cpu_tensor))\s*(?::[^=\n]+)?=")
_DEFINED = re.compile(r"\bdef (\w+)\(")
_MOST = 6
_MOST_CALLED = 24


def steps(tree: EngineTree, relays: Sequence[RelayCandidate]) -> Sequence[FunctionPlace]:
    """Returns the functions that run a step, by their names.

    A `while` loop calls them, or their class writes or gathers rows of a relay.
    """
    users = {
        one.place.class_ for relay in relays for each in relay.accesses.values() for one in each
    }
    called: dict[str, set[str]] = {}
    for place in tree.places((("while ",), ("run_", "execute_", "launch_", "step(", "forward_"))):
        for node in place.function.nodes:
            if not isinstance(node, cst.While):
                continue
            for call in place.function.part.nodes(node.body):
                if isinstance(call, cst.Call) and _STEP.match(last_name(call.func)):
                    own = isinstance(call.func, cst.Attribute) and is_name(call.func.value, "self")
                    called.setdefault(last_name(call.func), set()).add(place.owner if own else "")
    found: list[FunctionPlace] = []
    for name, owners in called.items():
        if name == "step" and owners == {""}:
            continue  # everybody has one
        for place in tree.places(((f"def {name}(",),)):
            is_called = place.owner in owners or ("" in owners and _works(place))
            if place.function.name == name and place.owner and is_called:
                found.append(place)
    for source in tree.sources:
        names = {name for name in _DEFINED.findall(source.text) if _STEP.match(name)} - {"step"}
        for place in source.places((tuple(f"def {name}(" for name in names),)) if names else ():
            if place.class_ in users and place.function.name in names and _works(place):
                found.append(place)
    return list(dict.fromkeys(found))


def _works(place: FunctionPlace) -> bool:
    """Tells whether a method is more than a declaration, or a wrapper of another one."""
    return len(place.function.calls) > 3


def step_entries(begun: Sequence[FunctionPlace]) -> Iterator[ProposedEntry]:
    """Yields an entry for the functions that begin a step."""
    for place in begun[:_MOST]:
        node = place.function.node.name
        why = ("Does each call begin a step?",)
        keys = {"functions": [place.name]}
        yield ProposedEntry("steps", dict(keys), place.at(node), Confidence.MEDIUM, why)


def launch_keys(tree: EngineTree, begun: Sequence[FunctionPlace]) -> Iterator[Key]:
    """Yields what the host does between two steps."""
    per_step = [place.name for place in begun]
    for place in begun[:_MOST]:
        called = (place.function.called(call) for call in place.function.calls)
        per_step += [
            f"{place.class_}.{one.name}" for one in called if one is not None and one.calls
        ]
    per_step = list(dict.fromkeys(per_step))[:_MOST_CALLED]
    if per_step:
        yield Key(
            "launches",
            "per_step",
            per_step,
            begun[0].at(begun[0].function.node.name),
            Confidence.MEDIUM,
            ["The steps and what they call: which of them must not wait for the device?"],
        )
    endings: dict[str, str] = {}
    for source in tree.sources:
        for match in _HOST.finditer(source.text):
            line = source.text.count("\n", 0, match.start()) + 1
            endings.setdefault(f"*{match[2]}", f"{source.shown}:{line}")
    if endings:
        first = next(iter(endings.values()))
        why = ["Names of tensors on the host. Is everything host memory that is called so?"]
        yield Key("launches", "host_values", sorted(endings), first, Confidence.MEDIUM, why)


def late_keys(tree: EngineTree) -> Iterator[Key]:
    """Yields the functions that process the results of a step."""
    found: dict[str, str] = {}
    names = {name for source in tree.sources for name in _DEFINED.findall(source.text)}
    wanted = tuple(f"def {name}(" for name in sorted(filter(_RESULTS.match, names)))
    for place in tree.places((wanted,)) if wanted else ():
        loops = any(isinstance(node, cst.For) for node in place.function.nodes)
        if loops and _RESULTS.match(place.function.name):
            found[place.name] = place.at(place.function.node.name)
    if found:
        why = ["They apply results to requests while the next step runs; which of them do?"]
        first = next(iter(found.values()))
        yield Key("late_results", "functions", list(found), first, Confidence.LOW, why)


def lends(tree: EngineTree) -> Iterator[ProposedEntry]:
    """Yields the functions that call `record_stream` on what they are handed."""
    for place in tree.places(((".record_stream(",),)):
        parameters = set(place.function.parameters) - {"self", "cls"}
        for call in place.function.calls:
            if last_name(call.func) != "record_stream" or not isinstance(call.func, cst.Attribute):
                continue
            handed = {place.code(call.func.value), *(place.code(one.value) for one in call.args)}
            if len(handed) == 2 and handed <= parameters:
                keys = {"functions": [place.name]}
                yield ProposedEntry("streams.lend", dict(keys), place.at(call), Confidence.HIGH)
                break


def guards(tree: EngineTree) -> Iterator[ProposedEntry]:
    """Yields the context managers that wait for an event, and record it again when left."""
    for place in tree.places((("contextmanager",), (".record(",), (".synchronize(", ".wait("))):
        if not any("contextmanager" in place.code(one) for one in place.function.node.decorators):
            continue
        name = place.function.name
        covers = sorted(
            {
                last_name(call.func)
                for user in tree.places(((f"self.{name}(",),))
                for node in user.function.nodes
                if isinstance(node, cst.With) and f"self.{name}(" in user.code(node.items[0].item)
                for call in user.function.part.nodes(node.body)
                if isinstance(call, cst.Call) and user.code(call.func).startswith("self._")
            }
        )
        if covers:
            why = ("Which of these write the host buffers that the guard protects?",)
            keys = {"name": name, "covers": covers}
            at = place.at(place.function.node.name)
            yield ProposedEntry("streams.guard", dict(keys), at, Confidence.MEDIUM, why)


def stream_keys(tree: EngineTree) -> Iterator[Key]:
    """Yields the events that each step waits for again, and the methods that start an upload."""
    recorded: dict[str, tuple[str, str]] = {}
    waited: dict[str, str] = {}
    uploads: dict[str, str] = {}
    for place in tree.places((("self.",), (".record(", ".wait(", ".synchronize(", "non_blocking"))):
        for call in place.function.calls:
            func = call.func
            if not isinstance(func, cst.Attribute) or not isinstance(func.value, cst.Attribute):
                continue
            name, word = func.value.attr.value, func.attr.value
            if not is_name(func.value.value, "self"):
                continue
            if word == "record":
                recorded.setdefault(name, (place.name, place.at(call)))
            elif word in ("wait", "synchronize"):
                waited.setdefault(name, place.name)
            elif word == "copy_" and _is_upload(place, call):
                uploads.setdefault(place.function.name, place.at(call))
    events = [
        name
        for name, (by, _) in recorded.items()
        if name in waited
        and waited[name] != by
        and not re.search(r"start|end|begin|stop|time", name)
    ]
    if events:
        why = ["Does each step wait for a record of its own? Then a second wait is a bug."]
        at = recorded[events[0]][1]
        yield Key("streams", "consumed_once", events, at, Confidence.LOW, why)
    if uploads:
        why = ["They start an asynchronous copy from the host half of a buffer."]
        at = next(iter(uploads.values()))
        yield Key("streams", "uploads", list(uploads), at, Confidence.MEDIUM, why)


def _is_upload(place: FunctionPlace, call: cst.Call) -> bool:
    """Tells whether `self.gpu.copy_(self.cpu, non_blocking=True)` is all that a method is about."""
    blocking = keywords(call).get("non_blocking")
    source = place.code(call.args[0].value) if call.args else ""
    is_half = bool(re.match(r"self\.\w*(cpu|host|pin|np)", source))
    return is_half and blocking is not None and is_name(blocking, "True")


def device_keys(tree: EngineTree) -> Iterator[Key]:
    """Yields the folders whose code asks for the device's module, and names no accelerator."""
    asked: dict[str, str] = {}
    named: set[str] = set()
    for source in tree.sources:
        folder = "/".join(source.name.split(".")[:-1]) + "/*.py"
        if "get_device_module(" in source.text or "torch.accelerator." in source.text:
            asked.setdefault(folder, f"{source.shown}:1")
        if re.search(r"torch\.cuda\.(?!is_available)\w", source.text):
            named.add(folder)
    agnostic = [folder for folder in asked if folder not in named and not folder.startswith("/")]
    mixed = [folder for folder in asked if folder in named and not folder.startswith("/")]
    for folders, sure in ((agnostic, Confidence.MEDIUM), (mixed, Confidence.LOW)):
        if folders:
            why = ["Is this code meant to run on every device?"]
            if sure is Confidence.LOW:
                why.append("It names torch.cuda as well as the device's own module.")
            yield Key("device", "agnostic", folders, asked[folders[0]], sure, why)
            return

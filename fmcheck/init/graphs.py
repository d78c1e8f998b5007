"""Graph runners: the methods that copy a batch into static inputs, pad it and replay a graph."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmcheck.init.proposal import Confidence, ProposedEntry
from fmcheck.init.tensors import first_dimension
from fmcheck.lint.graph_inputs.fills import Filling, WriteKind
from fmcheck.lint.model.expressions import is_name, last_name, number, targets
from fmcheck.lint.model.names import ANY
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fmcheck.init.engine_tree import EngineModule, EngineTree, FunctionPlace
    from fmcheck.init.proposal import Value
    from fmcheck.lint.graph_inputs.fills import RegionWrite

_COPIES = (".copy_(", "foreach_copy", "_copy_(", "copy_batch")
_GRAPHS = re.compile(r"[Gg]raph|replay|capture")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\w[\w.]*|\*)\])*")
_REPLAYS = re.compile(r"replay|launch_graph|run_graph")
_CAPTURES = re.compile(r"^_?capture(_one\w*|_graph\w*)?$")
_MOST = re.compile(
    r"\bself\.(max_(?:\w*_)?(?:bs|batch_size|num_seqs|num_reqs|batch|seqs|requests))\s*="
)


@dataclass
class RunnerCandidate:
    """A method that fills static inputs: what a contract says of it, as far as it is seen."""

    place: FunctionPlace
    method: str
    inputs: str
    names: Sequence[str]
    raw: str
    padded: str
    capacity: str = ""
    settled_by: Sequence[str] = ()
    captured_by: Sequence[str] = ()
    holds: Mapping[str, str | int] = field(default_factory=dict)
    writes: Sequence[RegionWrite] = ()
    at: str = ""


def runners(tree: EngineTree) -> Sequence[RunnerCandidate]:
    """Returns the fills of the tree, one for each method."""
    found: dict[tuple[str, str, str], RunnerCandidate] = {}
    for source in tree.sources:
        if not _GRAPHS.search(source.text):
            continue
        for place in source.places((_COPIES, ("[:", "[ :", "narrow("), ("self",))):
            if place.owner:
                for one in _of(tree, place):
                    found.setdefault((one.place.class_, one.method, one.inputs), one)
    return list(found.values())


def _of(tree: EngineTree, place: FunctionPlace) -> Iterator[RunnerCandidate]:
    filling = Filling(place.function)
    copies = [one for one in filling.fills if _path(one.region.path)]
    by_holder: dict[str, list[RegionWrite]] = {}
    for one in copies:
        by_holder.setdefault(_holder(one), []).append(one)
    for holder, writes in by_holder.items():
        names = list(dict.fromkeys(one.region.leaf for one in writes))
        if len(names) < 2 or not holder.startswith("self"):
            continue
        runner = RunnerCandidate(
            place,
            place.function.name,
            holder,
            names,
            raw=_raw(place, writes),
            padded=_padded(place, filling),
            writes=writes,
            at=place.at(writes[0].site),
        )
        runner.holds = dict(_held(place, filling, holder, names))
        yield _completed(tree, runner)


def _holder(write: RegionWrite) -> str:
    return (
        write.region.path.removesuffix(f".{write.region.leaf}") if "." in write.region.path else ""
    )


def _path(text: str) -> bool:
    return ANY not in text and "(" not in text and bool(_PATH.fullmatch(text))


def _raw(place: FunctionPlace, writes: Sequence[RegionWrite]) -> str:
    """Returns the path of the real size, by what most of the copies are cut to."""
    stops = Counter(place.code(one.region.stop) for one in writes if one.region.stop is not None)
    for text, _ in stops.most_common():
        if path := _rooted(place, text):
            return path
    return ""


def _rooted(place: FunctionPlace, text: str) -> str:
    """Returns a path from a parameter to what a local name holds, "" if there is none."""
    first, fallback = text, ""
    for _ in range(3):
        root = re.split(r"[.\[]", text)[0]
        if _path(text) and _names(text) <= {*place.function.parameters}:
            return fallback if root == text and text != first and fallback else text
        fallback = fallback or _kept(place, text)
        values = place.function.names.values(text) if text.isidentifier() else ()
        if len(values) != 1:
            break
        text = _size_path(place, values[0])
    return fallback


def _names(path: str) -> set[str]:
    """Returns the names that a path starts from: its root, and those of its subscripts."""
    inside = re.findall(r"\[([A-Za-z_]\w*)", path)
    return {re.split(r"[.\[]", path)[0], *inside}


def _size_path(place: FunctionPlace, value: cst.CSTNode) -> str:
    """Returns the path that a size is read from: `len(x)` and `x.size(0)` are `x.shape[0]`."""
    if isinstance(value, cst.Call) and value.args:
        if is_name(value.func, "len"):
            return f"{place.code(value.args[0].value)}.shape[0]"
        if isinstance(value.func, cst.Attribute) and value.func.attr.value == "size":
            return f"{place.code(value.func.value)}.shape[{place.code(value.args[0].value)}]"
        if is_name(value.func, "int"):
            return place.code(value.args[0].value)
    return place.code(value)


def _kept(place: FunctionPlace, text: str) -> str:
    """Returns the attribute of the instance that a local value is kept under."""
    for node in place.function.nodes:
        if isinstance(node, cst.Assign) and place.code(node.value) == text:
            for one in targets(node):
                if isinstance(one, cst.Attribute) and is_name(one.value, "self"):
                    return place.code(one)
    return ""


def _padded(place: FunctionPlace, filling: Filling) -> str:
    sizes = sorted(filling.sizes.padded, key=lambda one: (not one.isidentifier(), one))
    return next((path for one in sizes if (path := _rooted(place, one))), "")


def _held(
    place: FunctionPlace, filling: Filling, holder: str, names: Sequence[str]
) -> Iterator[tuple[str, str | int]]:
    """Yields what a whole input is set to ahead of the copies, where that is not zero."""
    for write in filling.resets:
        region = write.region
        if write.kind is not WriteKind.CONSTANT or not region.is_whole or region.leaf not in names:
            continue
        if _holder(write) != holder:
            continue
        call = place.function.parents.get(write.site)
        while call is not None and not isinstance(call, (cst.Call, cst.BaseSmallStatement)):
            call = place.function.parents.get(call)
        if isinstance(call, cst.Call) and last_name(call.func) == "fill_" and call.args:
            value = number(call.args[0].value)
            path = _rooted(place, place.code(call.args[0].value))
            if value or path:
                yield write.region.leaf, value or path


def _completed(tree: EngineTree, runner: RunnerCandidate) -> RunnerCandidate:
    """Follows a fill to the method that replays, and finds the capacity and the captures."""
    family = [runner.place.source, *_bases(tree, runner.place)]
    runner.settled_by = _settled(tree, runner.place)
    if not runner.settled_by:
        _follow(tree, runner)
    runner.capacity = _capacity(runner, family)
    texts = [(source, _class_text(source, name)) for source, name in _line(tree, runner.place)]
    runner.captured_by = [
        name
        for _, text in texts
        for name in re.findall(r"def (\w+)\(", text)
        if _CAPTURES.search(name)
    ][:1]
    return runner


def _settled(tree: EngineTree, place: FunctionPlace) -> Sequence[str]:
    """Returns the calls of a method that replay a graph, as `settled_by` names them."""
    own: list[str] = []
    other: list[str] = []
    for call in place.function.calls:
        word = last_name(call.func)
        if not _REPLAYS.search(word) or not isinstance(call.func, cst.Attribute):
            continue
        if is_name(call.func.value, "self"):
            own.append(word)
        elif "graph" in place.code(call.func.value).lower():
            other += _graphs(tree, word) or ["torch.cuda.graphs:CUDAGraph.replay"]
    return list(dict.fromkeys(own or other))


def _graphs(tree: EngineTree, word: str) -> Sequence[str]:
    """Returns the methods of this name of the tree's own classes of graphs."""
    pattern = re.compile(
        rf"^class (\w*Graph)\b[^\n]*:\n(?:[ \t]+[^\n]*\n|\n)*?[ \t]+def {word}\(", re.MULTILINE
    )
    return [
        f"{source.name}:{owner}.{word}"
        for source in tree.sources
        if f"def {word}(" in source.text
        for owner in pattern.findall(source.text)
        if "Protocol" not in _class_text(source, owner).partition("\n")[0]
    ][:3]


def _follow(tree: EngineTree, runner: RunnerCandidate) -> None:
    """Moves a fill to the method that calls it and replays then, if its classes have one."""
    fill = runner.place
    for source, owner in _line(tree, fill):
        for place in source.places(((f".{fill.function.name}(",), ("replay", "graph"))):
            if place.owner != owner or place.function.name == fill.function.name:
                continue
            for call in place.function.calls:
                if last_name(call.func) != fill.function.name:
                    continue
                settled = _settled(tree, place)
                if settled:
                    _move(runner, place, call, settled)
                    return


def _move(
    runner: RunnerCandidate, place: FunctionPlace, call: cst.Call, settled: Sequence[str]
) -> None:
    from fmcheck.init.row_accesses import arguments_of

    parameters = runner.place.function.parameters
    given = arguments_of(call, parameters[1:])
    moved = {}
    for key in ("raw", "padded"):
        path: str = getattr(runner, key)
        root, dot, rest = path.partition(".")
        if root in given:
            text = _rooted(place, place.code(given[root]))
            moved[key] = f"{text}{dot}{rest}" if text else ""
        else:
            moved[key] = path if root == "self" else ""
    runner.raw, runner.padded = moved["raw"], moved["padded"]
    runner.holds = {
        name: value
        for name, value in runner.holds.items()
        if not isinstance(value, str) or value.startswith("self")
    }
    runner.place, runner.method, runner.settled_by = place, place.function.name, settled


def _line(tree: EngineTree, place: FunctionPlace) -> Iterator[tuple[EngineModule, str]]:
    """Yields a class and those it is derived from, as far as the tree has them."""
    yield place.source, place.owner
    seen = {place.owner}
    left = [(place.source, place.owner)]
    while left and len(seen) < 6:
        source, owner = left.pop()
        bases = re.search(rf"^class {owner}\(([^)]*)\)", source.text, re.MULTILINE)
        for base in re.findall(r"\w+", bases[1]) if bases else ():
            for other in tree.classes.get(base, ())[:1] if base not in seen else ():
                seen.add(base)
                left.append((other, base))
                yield other, base


def _bases(tree: EngineTree, place: FunctionPlace) -> Sequence[EngineModule]:
    return [source for source, _ in _line(tree, place)][1:]


def _class_text(source: EngineModule, owner: str) -> str:
    match = re.search(
        rf"^class {owner}\b.*?(?=^[^\s#)\"']|\Z)", source.text, re.MULTILINE | re.DOTALL
    )
    return match[0] if match else ""


def _capacity(runner: RunnerCandidate, family: Sequence[EngineModule]) -> str:
    """Returns the path of the size that the inputs are created with."""
    sizes: Counter[str] = Counter()
    for source in family:
        for place in source.places((tuple(runner.names), ("self.",))):
            for node in place.function.nodes:
                if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call):
                    continue
                for one in targets(node):
                    text = place.code(one)
                    if text.rpartition(".")[2] in runner.names:
                        size = first_dimension(place, node.value)
                        if size.startswith("self.") and _path(size):
                            sizes[size] += 1
    if sizes:
        return sizes.most_common(1)[0][0]
    for source in family:
        match = _MOST.search(source.text)
        if match:
            return f"self.{match[1]}"
    return ""


def entry(runner: RunnerCandidate) -> ProposedEntry:
    """Returns the proposal for a fill."""
    missing = [key for key in ("raw", "padded", "capacity") if not getattr(runner, key)]
    axis: dict[str, str | int] = {
        "raw": runner.raw or "FILL_IN",
        "padded": runner.padded or "FILL_IN",
        "capacity": runner.capacity or "FILL_IN",
    }
    keys: dict[str, Value] = {
        "class": runner.place.class_,
        "methods": [runner.method],
        "inputs": runner.inputs,
        "axis.rows": axis,
    }
    if runner.settled_by:
        keys["settled_by"] = runner.settled_by
    if runner.holds:
        keys["holds"] = runner.holds
    guessed: dict[str, Value] = (
        {"captured_by": list(runner.captured_by)} if runner.captured_by else {}
    )
    why = [f"fills {', '.join(runner.names[:8])}{', ...' if len(runner.names) > 8 else ''}"]
    if missing:
        why.append(f"no path was found for {', '.join(missing)}")
    if not runner.settled_by:
        why.append("no replay was found: without settled_by, the tails are checked when it returns")
    is_sure = not missing and runner.settled_by
    sure = Confidence.HIGH if is_sure else Confidence.MEDIUM if len(missing) < 2 else Confidence.LOW
    return ProposedEntry("graph_inputs.fill", keys, runner.at, sure, why, guessed)

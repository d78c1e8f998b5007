"""FM404: the host reads what an asynchronous copy has not delivered yet."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.lint import Edit, Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.pinned import makes_pinned
from fmcheck.lint.model.expressions import (
    bound_names,
    dotted,
    is_name,
    keywords,
    last_name,
    non_blocking,
    receiver,
    squeezed,
)
from fmcheck.lint.model.function import bound_in_class, functions
from fmcheck.lint.model.sieve import Sieve, any_between
from fmcheck.lint.model.vocabulary import CLASS, NON_BLOCKING, ON_HOST, VIEWS
from fmcheck.lint.source.changes import replaced, without
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.effects import returns_copy, waits_at, waits_on_host
from fmcheck.lint.streams.function_streams import (
    ANYTHING,
    HOST,
    AsyncCopy,
    FunctionStreams,
    goes_to_host,
    streams_of,
)
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part

#: Methods of a host tensor or array that read its values at once. Views are none of them.
_READS = frozenset(
    (
        *("abs", "all", "any", "argmax", "argmin", "argsort", "astype", "bincount", "clone"),
        *("cumsum", "double", "eq", "exp", "float", "half", "item", "log", "max", "mean", "min"),
        *("ne", "nonzero", "norm", "prod", "round", "sort", "std", "sum", "tobytes", "tolist"),
        *("topk", "unique"),
    )
)
#: Functions of `torch` and NumPy that compute on the host where their arguments are there.
_COMPUTES = frozenset(
    (
        *("allclose", "argsort", "cat", "concat", "concatenate", "cumsum", "equal", "hstack"),
        *("isnan", "mean", "save", "stack", "sum", "unique", "vstack", "where"),
    )
)
_LIBRARIES = ("torch.", "numpy.", "np.", "pickle.")
#: Built-in functions that do.
READERS = frozenset({"int", "float", "bool", "sum", "max", "min", "any", "all", "sorted"})
#: Expressions whose value is, or holds, that of a part.
_DISPLAYS = frozenset(
    (
        *("Dict", "DictComp", "DictElement", "Element", "GeneratorExp", "IfExp", "List"),
        *("ListComp", "NamedExpr", "Subscript", "Tuple"),
    )
)
#: What is pinned by its name.
_PINNED = regex(r"(^|_|\b)(pin|pinned)(_|\b|$)")
#: What calls itself asynchronous leaves the wait to its caller.
_ASYNC = regex(r"async|non_?block|future|pending|handle", re.IGNORECASE)


class HostReadBeforeSync(FunctionRule):
    """The host reads the target of an asynchronous copy before the copy is done.

    ## What it does
    Looks for copies to the host with `non_blocking=True`: `x.to("cpu", non_blocking=True)`, and
    `host.copy_(x, non_blocking=True)` where `host` is pinned, by its name or where it is made:
    a copy to other memory of the host returns when it is done. It flags a read of the values
    (`tolist`, `item`, `int(...)`, `float()` and other computing on the host, arithmetic, a
    truth test, a comparison, `torch.cat` of a list that copies were appended to, `.numpy()` that
    is assigned to a part of an array), of a list of copies in a loop over it too, that no
    `synchronize`, `query` or other wait precedes (by itself, by a function or method of the
    package, by a value that is read from the device, or by a call that nothing is known of and
    whose name says that it waits or ends something, as `flush` and `finish` do), and an object that
    is created from such a copy in a function that neither records an event nor waits. Views
    (`[...]`, `unbind`, `numpy`) are no reads. `int(...)` or `bool(...)` of a buffer that an object
    keeps is a poll, whose answer may be old, and is left alone; so is what calls itself
    asynchronous.

    ## Why is this bad
    The copy is only enqueued when the call returns. The host sees what the memory held before:
    wrong tokens or lengths, mostly right on an idle device and wrong under load. `.to("cpu",
    non_blocking=True)` allocates pinned memory, so this is no matter of pageable buffers.

    ## Example
    ```python
    lens = seq_lens.to("cpu", non_blocking=True)
    total = int(lens.sum())
    ```

    ## Use instead
    ```python
    lens = seq_lens.to("cpu", non_blocking=True)
    done = device_module.Event()
    done.record()
    ...  # what does not need the lengths
    done.synchronize()
    total = int(lens.sum())
    ```
    """

    code = "FM404"
    name = "host-read-before-sync"
    severity = Severity.WARNING
    words = (NON_BLOCKING, ("copy_(", '"cpu"', "'cpu'", '"cpu:0"', "'cpu:0'"))
    seen_in = (
        "https://github.com/vllm-project/vllm/pull/31584",
        "https://github.com/vllm-project/vllm/issues/36942",
    )
    bad = (
        Example(
            """\
def total(seq_lens):
    lens = seq_lens.to("cpu", non_blocking=True)
    return int(lens.sum())
""",
            at=((3, 16),),
        ),
        Example(
            """\
import torch

def tokens(self, sampled, ready):
    host = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=True)
    host[: len(sampled)].copy_(sampled, non_blocking=True)
    ready.record()
    rows = host[:2].numpy().tolist()
    ready.synchronize()
    return rows
""",
            at=((7, 12),),
        ),
        Example(
            """\
def is_zero(scale, shift):
    return not (
        scale.any().to("cpu", non_blocking=True) or shift.any().to(device="cpu", non_blocking=True)
    )
""",
            at=((3, 9), (3, 53)),
            fixed="""\
def is_zero(scale, shift):
    return not (
        scale.any().to("cpu") or shift.any().to(device="cpu")
    )
""",
        ),
        Example(
            """\
def pool(self, hidden):
    pooled = self.pooler(hidden)
    return RunnerOutput(pooled=[one.to("cpu", non_blocking=True) for one in pooled])
""",
            at=((3, 12),),
        ),
    )
    good = (
        Example(
            """\
def splits(sent, received):
    sent_host = sent.to(torch.device("cpu"), non_blocking=True)
    received_host = received.to(torch.device("cpu"), non_blocking=False)
    return sent_host.tolist(), received_host.tolist()
"""
        ),
        Example(
            """\
def total(seq_lens, ready):
    lens = seq_lens.to("cpu", non_blocking=True)
    ready.record()
    ready.synchronize()
    return int(lens.sum())
"""
        ),
        Example(
            """\
class AsyncPooled:
    def get_output(self, ready):
        rows = self.pooled.to("cpu", non_blocking=True).unbind(0)
        part = rows[0][:2].numpy()
        ready.synchronize()
        return part.tolist(), rows[1].item()
"""
        ),
        Example(
            """\
class Watch:
    def record(self, hits):
        self.pinned_hits.copy_(hits, non_blocking=True)
        return int(self.pinned_hits[0])
"""
        ),
        Example(
            """\
def upload(self, lens_cpu):
    self.lens.copy_(lens_cpu, non_blocking=True)
    rows = lens_cpu.to(self.device, non_blocking=True)
    return lens_cpu.tolist(), rows.sum()
"""
        ),
        Example(
            """\
def to_cpu_nonblocking(self):
    return LogprobsTensors(self.ids.to("cpu", non_blocking=True))

def lengths(self):
    lens = self.lens.to("cpu", non_blocking=True)
    self.flags.tolist()
    return lens.sum()
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 2, 2), Judged("vllm 0.20.2", 1, 1))

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._ordered_by = {name for one in contracts for name in one.streams.ordered_by}

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each read that may come before the values."""
        # A loop over several copies is one read of all.
        return iter({one.span: one for one in self._every(part)}.values())

    def _every(self, part: Part) -> Iterator[Finding]:
        for function in functions(part):
            streams = streams_of(function, self._ordered_by)
            for copy in streams.copies:
                if _is_to_host(copy, streams):
                    yield from self._read(copy, streams, part)
            if returns_copy(function):
                for caller, call in function.callers():
                    copies = streams_of(caller, self._ordered_by)
                    copy = AsyncCopy(call, call, None, copies.order[call])
                    yield from self._read(copy, copies, caller.part)

    def _read(self, copy: AsyncCopy, streams: FunctionStreams, part: Part) -> Iterator[Finding]:
        """Yields a finding for the first read that nothing waits before."""
        has_waited = False
        for use in _uses(copy, streams):
            has_waited = has_waited or _has_waited(copy, streams.order[use.node], streams)
            if has_waited and not streams.makes_objects:
                return  # whatever reads it later
            if use.is_made and not _is_left_alone(use, streams):
                message = f"`{use.word}` is created from an asynchronous copy that may not be done"
                note = "there is no wait or event here"
            elif not (use.is_made or has_waited or _waits_itself(use, streams)):
                message = f"{use.word} reads an asynchronous copy to the host that may not be done"
                note = ""
            else:
                continue
            yield part.finding(
                self,
                use.node,
                message,
                note=note,
                help=(
                    "record an event after the copy and `synchronize()` it before reading the "
                    "values, or drop `non_blocking=True`"
                ),
                related=[(copy.node, "the copy is only enqueued here")],
                edits=_blocking(copy, part) if use.is_at_once else (),
            )
            return


class Use(Struct, frozen=True):
    """A read of a copied tensor's values by `word`, or an object of class `word` made of it.

    `is_at_once` tells that it is read in the expression that copies it.
    """

    node: CSTNode
    word: str
    is_made: bool = False
    is_at_once: bool = False


def _blocking(copy: AsyncCopy, part: Part) -> Sequence[Edit]:
    """Returns the edit that lets a copy block: what is read at once has nothing to overlap with."""
    if "non_blocking" not in keywords(copy.node):
        return ()
    return (replaced(part, copy.node, without(copy.node, "non_blocking")),)


def _is_to_host(copy: AsyncCopy, streams: FunctionStreams) -> bool:
    """Tells whether a copy goes from the device to the host, and returns before it is done.

    One to memory that is not pinned returns when it is done, whatever it was asked for.
    """
    if copy.target is None:
        return goes_to_host(copy.node) and not _comes_from_host(copy.node, streams)
    if ON_HOST.search(streams.part.code(copy.source)):
        return False
    if _PINNED.search(streams.part.code(copy.target)):
        return True
    names = streams.holders(copy.target)
    return any(
        "pin_memory" in streams.part.code(value)
        for name in names
        for value in streams.names.unlike(name)
    ) or any(_is_kept_pinned(name, streams.part) for name in names)


def _comes_from_host(node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether a chain of methods starts on the host: then nothing is copied."""
    copied = node
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node is not copied and _is_made_on_host(node):
            return True
        if node.func.attr.value == "cuda" or (
            last_name(node.func) == "to" and not goes_to_host(node)
        ):
            return False
        node = node.func.value
    values = streams.names.bound(node) if isinstance(node, cst.Name) else ()
    return any(map(_is_made_on_host, values))


def _is_made_on_host(node: CSTNode) -> bool:
    """Tells whether a call gives a tensor of the host, which is there when it returns."""
    return isinstance(node, cst.Call) and (
        last_name(node.func) in ("cpu", "from_numpy")
        or (goes_to_host(node) and not is_name(non_blocking(node), "True"))
    )


def _is_kept_pinned(name: str, part: Part) -> bool:
    """Tells whether the class makes an attribute of this name in pinned memory."""
    return name.startswith("self.") and any(
        makes_pinned(value, function.part) for value, function in bound_in_class(name, part)
    )


def _uses(copy: AsyncCopy, streams: FunctionStreams) -> Iterator[Use]:
    """Yields what reads the copy: in its own expression, or later by the names that hold it."""
    if copy.target is None:
        use, names, is_held = _outwards(copy.node, streams)
        if use is not None:
            yield use if use.is_made else replace(use, is_at_once=True)
            return
    else:
        names, is_held = streams.holders(copy.target), False
    lists: list[tuple[str, CSTNode]] = []
    if copy.target is None:
        lists.append((_grown(copy.node, streams), copy.node))
    flow = streams.flow
    by_order: Iterable[CSTNode] = streams.naming(names, copy.order, None)
    if copy.target is None:
        by_order = _named(names, copy.order, streams, only=is_held)
    for node in by_order:
        if flow.may_follow(copy.node, node) and not flow.excludes(copy.node, node):
            use, _, _ = _outwards(node, streams)
            outer = streams.parents.get(node)
            if (
                use is not None
                and is_held
                and not (isinstance(outer, cst.Subscript) or use.is_made)
            ):
                # Of a container of copies only an element has values to read.
                if isinstance(outer, (cst.For, cst.CompFor)):
                    yield from _of_elements(outer, streams)
                continue
            if use is not None and not _is_poll(copy, use):
                yield use
            elif use is None and copy.target is None:
                lists.append((_grown(node, streams), node))
    yield from _joined([one for one in lists if one[0]], streams)


def _of_elements(loop: cst.For | cst.CompFor, streams: FunctionStreams) -> Iterator[Use]:
    """Yields what reads the elements of a container that a loop goes over."""
    whole = loop if isinstance(loop, cst.For) else streams.parents[loop]
    names = set(bound_names(loop.target))
    for node in streams.naming(names, streams.order[whole], streams.end(whole)):
        use, _, _ = _outwards(node, streams)
        if use is not None:
            yield use


def _named(
    names: set[str], after: int, streams: FunctionStreams, *, only: bool
) -> Sequence[CSTNode]:
    """Returns where a copy is named, and, but for `only`, where a view of it is that has a name.

    In the order of the source.
    """
    found: set[CSTNode] = set()
    to_follow = [(names, after)]
    for held, since in to_follow:
        for node in streams.naming(held, since, _rebound(held, since, streams)):
            _, bound, is_container = _outwards(node, streams)
            is_view = bound and not (only or is_container) and _is_certain(node, streams)
            if node not in found and is_view:
                to_follow.append((bound, streams.order[node]))
            found.add(node)
    return sorted(found, key=streams.order.__getitem__)


def _is_certain(node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether what a name stands for is bound there whatever a test says."""
    while not isinstance(node, (cst.BaseSmallStatement, cst.BaseStatement)):
        if isinstance(node, (cst.IfExp, cst.BooleanOperation)):
            return False
        node = streams.parents[node]
    return True


def _rebound(names: set[str], after: int, streams: FunctionStreams) -> int | None:
    """Returns from where on names that were bound by then stand for something else."""
    found = [
        streams.end(these[place])
        for these in (streams.bound_by_text.get(name, ()) for name in names)
        for place in [bisect_right(these, after, key=streams.order.__getitem__)]
        if place < len(these)
    ]
    return min(found, default=None)


def _outwards(node: CSTNode, streams: FunctionStreams) -> tuple[Use | None, set[str], bool]:
    """Follows a tensor outwards, through views and displays, to what reads it or holds it.

    The last of the three tells that what holds it is a container, or may be.
    """
    is_array = is_held = was_held = False
    element: CSTNode | None = None
    while True:
        inner, node = node, streams.parents.get(node, streams.function.node)
        if isinstance(node, cst.Attribute):
            call = streams.parents.get(node)
            word = node.attr.value
            if not isinstance(call, cst.Call) or call.func is not node:
                return None, set(), False
            if word in _READS:
                return Use(call, f"`{word}()`"), set(), False
            if word not in VIEWS and word not in ("unbind", "split", "chunk"):
                return None, set(), False
            is_array |= word == "numpy"
            node = call
        elif isinstance(node, cst.Arg):
            call = streams.parents[node]
            word = last_name(call.func) if isinstance(call, cst.Call) else ""
            if word in READERS or (isinstance(call, cst.Call) and _computes(call, streams)):
                return Use(call, f"`{word}()`"), set(), False
            if CLASS.match(word):
                is_async = node.keyword is not None and _ASYNC.search(node.keyword.value)
                return None if is_async else Use(call, word, is_made=True), set(), False
            if word not in ("list", "tuple"):
                return None, set(), False
            node = call
        elif isinstance(node, (cst.For, cst.CompFor)) and inner is node.iter:
            # A loop over a container of copies reads none of them.
            return None if is_held else Use(inner, "this loop"), set(), False
        elif _tests(node, inner):
            is_sum = isinstance(node, cst.BinaryOperation)
            return Use(inner, "this expression" if is_sum else "this test"), set(), False
        elif isinstance(node, (cst.Assign, cst.AnnAssign)) and inner is node.value:
            targets = node.targets if isinstance(node, cst.Assign) else [node]
            if is_array and any(_is_region(one.target) for one in targets):
                return Use(inner, "this assignment"), set(), False
            bound = [name for one in targets for name in _unpacked(one.target, inner, element)]
            if any(isinstance(one.target, cst.Tuple) for one in targets):
                is_held = was_held  # the names hold what was in the container
            return None, {squeezed(streams.part.code(one)) for one in bound}, is_held
        elif type(node).__name__ not in _DISPLAYS or inner is getattr(node, "slice", None):
            return None, set(), False
        elif isinstance(node, cst.Element):
            element = node
        elif not isinstance(node, (cst.IfExp, cst.NamedExpr)):
            was_held, is_held = is_held, not isinstance(node, cst.Subscript)


def _unpacked(target: CSTNode, value: CSTNode, element: CSTNode | None) -> Iterator[CSTNode]:
    """Yields what an assignment binds to an element of `value`; to any of them where it is None."""
    if not isinstance(target, cst.Tuple):
        yield target
        return
    for number, one in enumerate(target.elements):
        if not isinstance(value, cst.Tuple) or element in value.elements[number : number + 1]:
            yield one.value


def _is_region(target: CSTNode) -> bool:
    """Tells whether a target is a part of an array, which takes the values and keeps no name."""
    if not isinstance(target, cst.Subscript):
        return False
    given = [one.slice for one in target.slice]
    values = [one.value for one in given if isinstance(one, cst.Index)]
    return len(values) < len(given) or any(
        isinstance(one, cst.Ellipsis)
        or (isinstance(one, cst.Call) and last_name(one.func) in ("ix_", "slice", "tuple"))
        for one in values
    )


def _computes(call: cst.Call, streams: FunctionStreams) -> bool:
    """Tells whether a call computes on the host what it is handed, or writes it away."""
    name = streams.part.module.resolve(dotted(call.func) or "")
    if name in ("pickle.dump", "pickle.dumps", "PIL.Image.fromarray", "Image.fromarray"):
        return True
    return name.startswith(_LIBRARIES) and last_name(call.func) in _COMPUTES


def _grown(node: CSTNode, streams: FunctionStreams) -> str:
    """Returns the list that an expression is appended to, "" for none."""
    arg = streams.parents.get(node)
    call = streams.parents.get(arg) if isinstance(arg, cst.Arg) else None
    held = receiver(call) if isinstance(call, cst.Call) else None
    is_append = isinstance(call, cst.Call) and last_name(call.func) == "append"
    return str(held.value) if is_append and isinstance(held, cst.Name) else ""


def _joined(lists: Sequence[tuple[str, CSTNode]], streams: FunctionStreams) -> Iterator[Use]:
    """Yields what makes one tensor of a list that holds copies."""
    for name, grown in lists:
        computed = streams.named_sieve(name, "joined", passes=partial(_joins, streams))
        for node in computed.between(streams.order[grown]):
            call = streams.parents[streams.parents[node]]
            assert isinstance(call, cst.Call)
            if streams.flow.may_follow(grown, call) and not streams.flow.excludes(grown, call):
                yield Use(call, f"`{last_name(call.func)}()`")


def _joins(streams: FunctionStreams, node: CSTNode) -> bool:
    """Tells whether a name stands as the first argument of a call that computes on the host."""
    arg = streams.parents[node]
    call = streams.parents[arg] if isinstance(arg, cst.Arg) and arg.value is node else None
    return isinstance(call, cst.Call) and call.args[0] is arg and _computes(call, streams)


def _tests(node: CSTNode, inner: CSTNode) -> bool:
    """Tells whether `node` asks for the truth of `inner`, compares it or computes with it."""
    if isinstance(node, (cst.If, cst.While, cst.Assert, cst.IfExp)):
        return inner is node.test
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Not)
    if isinstance(node, cst.BinaryOperation):
        # A list or a dict is joined with another one, a string is formatted.
        is_joined = isinstance(node.operator, (cst.Modulo, cst.BitOr))
        return not is_joined and type(inner).__name__ not in _DISPLAYS - {"Subscript"}
    if isinstance(node, cst.Comparison):
        kinds = (cst.Is, cst.IsNot)
        return not any(isinstance(one.operator, kinds) for one in node.comparisons)
    return isinstance(node, cst.BooleanOperation)


def _is_poll(copy: AsyncCopy, use: Use) -> bool:
    """Tells whether one value of a buffer that an object keeps is asked for: it may be old."""
    base = copy.target
    while isinstance(base, cst.Subscript):
        base = base.value
    return isinstance(base, cst.Attribute) and use.word in ("`int()`", "`bool()`")


def _has_waited(copy: AsyncCopy, end: int, streams: FunctionStreams) -> bool:
    """Tells whether the host waits between a copy and a place, or reads the device itself."""
    return (
        streams.wait_sieve("host", passes=lambda one: one.waiter in (HOST, ANYTHING)).first(
            copy.order, end
        )
        is not None
        or any_between(streams.awaits, copy.order, end)  # for what, nobody knows
        or _is_out(copy, end, streams)
        or streams.call_sieve("waits", passes=partial(_waits, streams)).first(copy.order, end)
        is not None
        or _device_reads(streams).first(copy.order, end) is not None
    )


def _is_out(copy: AsyncCopy, end: int, streams: FunctionStreams) -> bool:
    """Tells whether a `with` that a copy stands in has been left, and waits by then."""
    for item in streams.left(copy.node, end):
        wait, left = streams.wait_at.get(item), streams.function.leaves(item)
        # A context whose name says that it waits.
        if (wait is not None and wait.waiter == ANYTHING) or (left and waits_on_host(left)):
            return True
    return False


def _waits(streams: FunctionStreams, call: cst.Call) -> bool:
    return waits_at(call, streams.function)


def _waits_itself(use: Use, streams: FunctionStreams) -> bool:
    """Tells whether what a call is handed, which is computed first, reads the device."""
    args = use.node.args if isinstance(use.node, cst.Call) else ()
    if not args:
        return False
    first, end = streams.order[args[0]] - 1, streams.end(args[-1])
    return _device_reads(streams).first(first, end) is not None


def _device_reads(streams: FunctionStreams) -> Sieve[cst.Call]:
    """Returns the calls that read the device themselves, and no copy of it."""

    @cache
    def copied() -> set[str]:
        return {name for one in streams.copies for name in _names_of(one, streams)}

    def passes(call: cst.Call) -> bool:
        return (
            streams.reads_values(call)
            # What is computed of a copy, `host.sum().item()`, is on the host as the copy is.
            and all(
                copied().isdisjoint(streams.holders(one))
                for one in walk(call)
                if isinstance(one, (cst.Name, cst.Attribute))
            )
        )

    return streams.call_sieve("device reads", passes=passes)


def _names_of(copy: AsyncCopy, streams: FunctionStreams) -> set[str]:
    if copy.target is not None:
        return streams.holders(copy.target)
    return _outwards(copy.node, streams)[1]


def _is_left_alone(use: Use, streams: FunctionStreams) -> bool:
    """Tells whether an object that is made of a copy may be waited for by whoever gets it."""
    return bool(
        streams.waits
        or streams.records
        or streams.contexts
        or _ASYNC.search(streams.function.name)
        or _ASYNC.search(use.word)
    )

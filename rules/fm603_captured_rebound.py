"""FM603: a tensor that a captured graph reads is replaced by a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.graph_inputs.fills import Filling, WriteKind, fillings
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import classes, functions
from fmcheck.lint.model.once import Once
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.lint.graph_inputs.fills import RegionWrite
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family, Part

#: Functions of torch and methods of a tensor that return memory of their own.
MAKERS = frozenset(
    {
        "arange",
        "cat",
        "clone",
        "cumsum",
        "empty",
        "empty_like",
        "full",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "repeat_interleave",
        "stack",
        "tensor",
        "zeros",
        "zeros_like",
    }
)
#: How an attribute is given one.
_MADE = tuple(f".~ = *{one}(" for one in sorted(MAKERS))
_GRAPH = regex(r"graph|replay|capture", re.IGNORECASE)
#: Names of methods that run before there is a graph, or make a new one.
_FIRST = (
    r"__|(^|_)(init|capture|captured|create|alloc|allocate|build|make|setup|warmup|warm|reset|"
    r"resize|grow|ensure|load|register|preallocate|destroy|close|release)(_|$)"
)
_BEFORE = regex(_FIRST)
#: Names of the others.
_AFTER = regex(f"(?!.*({_FIRST}))")
#: Names of methods and of their parameters that speak of a replay.
_REPLAYS = regex(r"replay|realloc")
_RUNS = regex(r"__call__$|_?(forward|run|compute|decode)(_|$)")


class CapturedRebound(ClassRule):
    """A tensor that a captured graph reads is replaced by a new one.

    ## What it does
    Looks for an attribute that is assigned a newly made tensor (`torch.empty`, `cumsum`,
    `clone`, …) by a method that runs after the capture. Either the class replays a graph, by its
    name or those of its methods, and fills the same attribute in place: then it is a static
    buffer. Or the method learns of a replay by its name or a parameter (`replay`,
    `forbid_realloc`) and `forward` reads the attribute. Methods whose names speak of making or
    capturing are left alone, and so are assignments under a test of the attribute or of a replay,
    and those that a first call alone makes: `if self.is_made: return` comes before, and the method
    then sets `self.is_made`.
    Off by default: released engines have given nothing to judge it by.

    ## Why is this bad
    A graph has the address of capture time baked in. What is filled after the assignment is the
    new tensor; the replay goes on reading the old one, which still holds an earlier batch or has
    been given to somebody else. No error, and a test that captures after it prepares is green.

    ## Example
    ```python
    def prepare(self, lengths, forbid_realloc=False):
        self.cu_lengths = torch.cumsum(lengths, 0)
    ```

    ## Use instead
    ```python
    def prepare(self, lengths, forbid_realloc=False):
        self.cu_lengths[: len(lengths)].copy_(torch.cumsum(lengths, 0))
    ```
    """

    code = "FM603"
    name = "captured-rebound"
    severity = Severity.ERROR
    words = (
        ("graph", "Graph", "replay", "realloc", "capture"),
        _MADE,
    )
    seen_in = ("https://github.com/alibaba/rtp-llm/pull/1259",)
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    on_by_default = False
    bad = (
        Example(
            """\
class Attention:
    def prepare(self, lengths, forbid_realloc=False):
        self.cu_lengths = torch.cumsum(lengths, 0)

    def forward(self, q):
        return attend(q, self.cu_lengths)
""",
            at=((3, 9),),
        ),
        Example(
            """\
class DecodeRunner(GraphRunner):
    def fill(self, batch, raw_bs, bs):
        buffers = self.buffers
        buffers.rows = torch.zeros_like(buffers.rows)
        buffers.rows[:raw_bs].copy_(batch.rows)
""",
            at=((4, 9),),
        ),
    )
    good = (
        Example(
            """\
class Attention:
    def prepare(self, lengths, forbid_realloc=False):
        if self.rows is None:
            self.rows = torch.empty(64)
        if not forbid_realloc:
            self.cu_lengths = torch.cumsum(lengths, 0)
        self.unread = torch.cumsum(lengths, 0)

    def prepare_eager(self, lengths):
        self.cu_lengths = torch.cumsum(lengths, 0)

    def forward(self, q):
        return attend(q, self.cu_lengths, self.rows)
"""
        ),
        Example(
            """\
class LazyRunner(GraphRunner):
    def first_use(self, size):
        if self.is_made:
            return
        self.is_made = True
        self.rows = torch.zeros(size)

    def fill(self, batch, raw_bs):
        self.rows[:raw_bs].copy_(batch.rows)

    def sleep(self):
        self.is_made = False
"""
        ),
        Example(
            """\
class DecodeRunner(GraphRunner):
    def __init__(self, size):
        self.rows = torch.zeros(size)

    def init_buffers(self, size):
        self.slots = torch.zeros(size)

    def fill(self, batch, raw_bs):
        self.rows[:raw_bs].copy_(batch.rows)
        self.slots[:raw_bs] = batch.slots
        self.batch_rows = torch.cat(batch.parts)

class Pool:
    def clear(self):
        self.free = torch.arange(64)

    def give_back(self, rows):
        self.free[: len(rows)] = rows
"""
        ),
    )

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each such assignment."""
        # By its text, for to parse a class costs: most of those that speak of graphs run none.
        names_graphs = any(map(_GRAPH.search, family.names_defined))
        if not family.is_class or not (names_graphs or _REPLAYS.search(family.text)):
            return
        after = (one for part in family.near((_MADE,), _AFTER) for one in functions(part))
        captured = [
            (method, write)
            for method in fillings(after)
            for write in _rebound(method)
            if _is_static(write, family) or (_knows_of_replay(method) and _is_read(write, family))
        ]
        if captured:
            yield from self._class(captured, family)

    def _class(
        self, captured: Sequence[tuple[Filling, RegionWrite]], family: Family
    ) -> Iterator[Finding]:
        ((name, methods),) = classes(family)
        names = (name, *family.bases, *(one.name for one in methods))
        replays = any(map(_GRAPH.search, names))
        once = Once({one.name: one for one in reversed(methods)}, _BEFORE.search)
        for method, write in captured:
            function = method.function
            if (
                (replays or (_knows_of_replay(method) and _is_read(write, family)))
                and not _is_left(write, function, once)
                and not once.makes_once(write.site, _paths(write), function)
            ):
                yield self._finding(write, method.part)

    def _finding(self, write: RegionWrite, part: Part) -> Finding:
        leaf = write.region.leaf
        return part.finding(
            self,
            write.site,
            f"`{leaf}` is rebound here, but a captured graph reads the old tensor",
            help=f"copy into it: `{leaf}[:...].copy_(...)`",
        )


def _rebound(method: Filling) -> Iterator[RegionWrite]:
    """Yields where a method that runs after the capture gives an attribute a newly made tensor."""
    if not _AFTER.match(method.name) or method.function.node is not method.part.node:
        return
    made = {
        target.target
        for node in method.function.of(cst.Assign)
        if isinstance(node.value, cst.Call) and last_name(node.value.func) in MAKERS
        for target in node.targets
    }
    for write in method.writes if made else ():
        is_own = write.kind is WriteKind.REBOUND and write.region.path.startswith("self.")
        if is_own and write.site in made and not _is_asked(write, method.part):
            yield write


def _is_static(write: RegionWrite, family: Family) -> bool:
    """Tells whether a method of the class fills a part of the same attribute in place."""
    return any(
        write.region.path in method.filled_in_part for method in fillings(_naming(write, family))
    )


def _is_read(write: RegionWrite, family: Family) -> bool:
    """Tells whether what runs in each step reads the attribute."""
    return any(
        _RUNS.match(function.name) is not None and write.region.path in function.named
        for function in _naming(write, family)
    )


def _naming(write: RegionWrite, family: Family) -> Iterator[Function]:
    """Yields the methods of a class that name what is assigned."""
    for part in family.naming(write.region.leaf):
        yield from (one for one in functions(part) if one.node is part.node)


def _knows_of_replay(method: Filling) -> bool:
    """Tells whether a method knows of a replay, by its name or a parameter."""
    params = method.function.node.params
    names = [one.name.value for one in (*params.params, *params.kwonly_params)]
    return any(_REPLAYS.search(name) for name in (method.name, *names))


def _is_asked(write: RegionWrite, part: Part) -> bool:
    """Tells whether an assignment stands under a test of its attribute, or of a replay."""
    texts = [part.code(test) for test, _ in write.tests]
    return any(
        write.region.leaf in text or _GRAPH.search(text) or _REPLAYS.search(text) for text in texts
    )


def _is_left(write: RegionWrite, function: Function, once: Once) -> bool:
    """Tells whether a return before an assignment asks how long its attribute is, or replays."""
    known = function.flow.known(write.site) if function.flow.contains(write.site) else ()
    left = [one for one in known if one.leaves]
    held = tuple(f"{path}." for path in _paths(write))
    if any(
        (dotted(inner) or "").startswith(held)
        for one in left
        for inner in walk(one.test)
        if isinstance(inner, cst.Attribute)
    ):
        return True
    return any(
        not found.is_there and (_GRAPH.search(found.path) or _REPLAYS.search(found.path))
        for one in left
        for found in once.asked(one.test, one.holds)
    )


def _paths(write: RegionWrite) -> set[str]:
    """Returns the names of what is assigned, as they stand and with local names replaced."""
    return {write.region.path, dotted(write.site) or ""}

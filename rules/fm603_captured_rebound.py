"""FM603: a tensor that a captured graph reads is replaced by a new one."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.graph_inputs import Filling, Kind
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted, last_name
from fmcheck.lint.nodes import FUNCTIONS, gather, walk
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.words import GAP, defined

if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst
    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.graph_inputs import Write

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
#: What stands in the text of every assignment of a made tensor to an attribute, in brackets or not.
_MAKES = re.compile(rf"\.(?:[\s\\]|#.*\n)*(?:{'|'.join(sorted(MAKERS))}){GAP}\(")
_ASSIGNS = re.compile(rf"\.(?:[\s\\]|#.*\n)*\w+{GAP}=(?!=)")
_GRAPH = re.compile(r"graph|replay|capture", re.IGNORECASE)
#: Names of methods that run before there is a graph, or make a new one.
_BEFORE = re.compile(
    r"__|(^|_)(init|capture|captured|create|alloc|allocate|build|make|setup|warmup|warm|reset|"
    r"resize|grow|ensure|load|register|preallocate|destroy|close|release)(_|$)"
)
#: Names of methods and of their parameters that speak of a replay.
_REPLAYS = re.compile(r"replay|realloc")
_RUNS = re.compile(r"__call__$|_?(forward|run|compute|decode)(_|$)")


class CapturedRebound(Rule):
    """A tensor that a captured graph reads is replaced by a new one.

    ## What it does
    Looks for an attribute that is assigned a newly made tensor (`torch.empty`, `cumsum`,
    `clone`, …) by a method that runs after the capture. Either the class replays a graph, by its
    name or those of its methods, and fills the same attribute in place: then it is a static
    buffer. Or the method is told of a replay by its name or a parameter (`replay`,
    `forbid_realloc`) and `forward` reads the attribute. Methods whose names speak of making or
    capturing are left alone, and so are assignments under a test of the attribute or of a replay.
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
    scope = Scope.CLASS
    needles = (
        (b"graph", b"Graph", b"replay", b"realloc", b"capture"),
        tuple(sorted(name.encode() for name in MAKERS)),
    )
    anchors = needles[0]
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

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for an attribute that is assigned, for what makes a tensor, and for a graph."""
        return _may_bind(text) and bool(_GRAPH.search(text) or _REPLAYS.search(text))

    def looks_into(self, text: str) -> bool:
        """Of a class, asks for the methods that may bind a made tensor outside of their start."""
        return not all(map(_BEFORE.search, defined(text))) and _may_bind(text)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears all but classes that bind a made tensor outside of their start and read it.

        Of methods without their class, it clears those that bind none.
        """
        methods = [one for one in getattr(node, "body", ()) if isinstance(one, FUNCTIONS)]
        if isinstance(node, ast.Module):
            return any(True for one in methods for _ in _bound(one))
        if not isinstance(node, ast.ClassDef):
            return False
        bases = [getattr(one, "attr", getattr(one, "id", "")) for one in node.bases]
        names = [node.name, *bases, *(one.name for one in methods)]
        replays = any(map(_GRAPH.search, names))
        bound = {name for one in methods if replays or _may_be_told(one) for name in _bound(one)}
        return any(
            isinstance(inner, ast.Attribute)
            and inner.attr in bound
            and isinstance(inner.ctx, ast.Load)
            for one in (methods if bound else ())
            for inner in walk(one)
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each such assignment."""
        for node in block.module.body:
            if isinstance(node, cst.ClassDef):
                yield from self._class(node, block)

    def _class(self, node: libcst.ClassDef, block: Block) -> Iterator[Finding]:
        spans = [block.span(one) for one in node.body.body if isinstance(one, cst.FunctionDef)]
        methods = [Filling(block.part(one.line, one.end_line), lambda _: False) for one in spans]
        names = [node.name.value, *(last_name(base.value) for base in node.bases)]
        replays = any(_GRAPH.search(name) for name in (*names, *(one.name for one in methods)))
        static = {
            write.region.path
            for one in methods
            for write in one.writes
            if write.kind is Kind.COPY and not write.region.is_whole
        }
        read = {
            dotted(inner)
            for one in methods
            if _RUNS.match(one.name)
            for inner in one.block.nodes(one.function.body)
            if isinstance(inner, cst.Attribute)
        }
        for method in methods:
            if not _BEFORE.search(method.name):
                captured = (static if replays else set()) | (read if _is_told(method) else set())
                made = _made(method)
                for write in method.writes:
                    path = write.region.path
                    is_new = write.kind is Kind.REBOUND and write.site in made
                    if (
                        is_new
                        and path.startswith("self.")
                        and path in captured
                        and not _is_asked(write, method.block)
                    ):
                        yield self._finding(write, method.block)

    def _finding(self, write: Write, block: Block) -> Finding:
        leaf = write.region.leaf
        return block.finding(
            self,
            write.site,
            f"`{leaf}` is a new tensor here, and a captured graph goes on reading the old one",
            help=f"copy into it: `{leaf}[:...].copy_(...)`",
        )


def _may_bind(text: str) -> bool:
    """Tells whether source text may assign a made tensor to an attribute."""
    return _MAKES.search(text) is not None and _ASSIGNS.search(text) is not None


def _bound(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yields the attributes to which a method assigns a made tensor, but for one of the start."""
    assigns = gather(method, (ast.Assign,))[ast.Assign]
    for inner in assigns if not _BEFORE.search(method.name) else ():
        if isinstance(inner.value, ast.Call) and getattr(inner.value.func, "attr", "") in MAKERS:
            yield from (one.attr for one in inner.targets if isinstance(one, ast.Attribute))


def _may_be_told(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tells what `_is_told` does, of a function that is not yet a tree."""
    args = (*method.args.args, *method.args.kwonlyargs)
    return any(map(_REPLAYS.search, (method.name, *(arg.arg for arg in args))))


def _made(method: Filling) -> set[CSTNode]:
    """Returns the targets to which a method assigns a newly made tensor."""
    return {
        target.target
        for node in method.block.nodes(method.function.body)
        if isinstance(node, cst.Assign)
        and isinstance(node.value, cst.Call)
        and last_name(node.value.func) in MAKERS
        for target in node.targets
    }


def _is_told(method: Filling) -> bool:
    """Tells whether a method knows of a replay, by its name or a parameter."""
    params = method.function.params
    names = [one.name.value for one in (*params.params, *params.kwonly_params)]
    return any(_REPLAYS.search(name) for name in (method.name, *names))


def _is_asked(write: Write, block: Block) -> bool:
    """Tells whether an assignment stands under a test of its attribute, or of a replay."""
    texts = [block.code(test) for test, _ in write.tests]
    return any(
        write.region.leaf in text or _GRAPH.search(text) or _REPLAYS.search(text) for text in texts
    )

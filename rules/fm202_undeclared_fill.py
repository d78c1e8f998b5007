"""FM202: padded rows get another value than the one that is declared for them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.buffers import ANY, Names
from fmcheck.lint.declared import functions
from fmcheck.lint.front_words import HELD
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted, fits, last_name, literal, number
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.words import has_word, words_around

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts


SUFFIX = "_fill_value"
#: The functions that are looked at.
ASKED = ("fill_", "clamp")
#: The functions of torch that make a buffer of one value.
MAKERS = ("ones", "zeros")
#: `fill_` with a number after its bracket, or with an attribute of `self`; or with a comment.
_FILLED = re.compile(r"fill_[\s\\)]*\([\s\\(+-]*(?:\w+\s*=[\s\\(+-]*)?[\d#]")
_DECLARED = re.compile(r"fill_[\s\\)]*\([\s\\(]*(?:\w+\s*=[\s\\(]*)?(?:self|#)")
_FILL = re.compile(r"fill_[\s\\)]*\(")
_MADE = re.compile(r"torch[\s\\]*\.[\s\\]*(?:ones|zeros)\b")
_LITERALS = (ast.Constant, ast.UnaryOp)


class UndeclaredFill(Rule):
    """Padded rows get another value than the one that is declared for them.

    ## What it does
    Looks for a class with an attribute like `self.seq_len_fill_value` that sets a buffer whose name
    starts likewise (`seq_lens`, `seq_lens_cpu`) to a literal: by `fill_`, or, where `fill_` is
    given the attribute, by `torch.ones` and the like when it makes the buffer. And for a literal
    that differs from the contract's `graph_inputs.holds`, in `fill_`, or in a
    `clamp(min=...)` that lifts the declared value to another one.

    ## Why is this bad
    The backend says which value its kernels skip, and it is not the same for all of them. A literal
    that was right for one makes padded rows attend to something, or write to a live row; capture
    and replay that disagree are the same fault.

    ## Example
    ```python
    self.seq_len_fill_value = backend.get_cuda_graph_seq_len_fill_value()
    self.seq_lens.fill_(1)
    ```

    ## Use instead
    ```python
    self.seq_len_fill_value = backend.get_cuda_graph_seq_len_fill_value()
    self.seq_lens.fill_(self.seq_len_fill_value)
    ```
    """

    code = "FM202"
    name = "undeclared-fill"
    severity = Severity.WARNING
    scope = Scope.CLASS
    # The contracts' buffers count too: see `concerns`.
    needles: tuple[tuple[bytes, ...], ...] = ()
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/1469",
        "https://github.com/sgl-project/sglang/pull/7233",
        "https://github.com/lightseekorg/tokenspeed/pull/700",
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
class Runner:
    def __init__(self, backend, size):
        self.seq_len_fill_value = backend.fill_value()
        self.seq_lens = torch.ones((size,))

    def replay(self, batch, raw_bs):
        lengths = self.seq_lens
        lengths.fill_(self.seq_len_fill_value)
        self.seq_lens_cpu.fill_(1)
""",
            at=((4, 25), (9, 33)),
        ),
        Example(
            """\
def pad(self, rows):
    self.state_indices.fill_(0)
    return self.state_indices[:rows].clamp(min=0)
""",
            at=((2, 30), (3, 12)),
            contract="""\
engine.name = "mine"
[graph_inputs.holds]
state_indices = -1
""",
        ),
    )
    good = (
        Example(
            """\
class Runner:
    def __init__(self, backend, size):
        self.seq_len_fill_value = backend.fill_value()
        self.seq_lens = torch.full((size,), self.seq_len_fill_value)
        self.sequence = torch.ones((size,))

    def replay(self, batch, raw_bs):
        self.seq_lens.fill_(self.seq_len_fill_value)
        self.positions.fill_(1)
"""
        ),
        Example(
            """\
class Runner:
    def replay(self, batch, raw_bs):
        self.seq_lens.fill_(1)
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._declared = [pair for one in contracts for pair in one.graph_inputs.holds.items()]
        self._names = [name for name, _ in self._declared]
        # Of a glob, what it asks for literally.
        self._told = [SUFFIX, *map(literal, self._names)]
        self.anchors = tuple(name.encode() for name in ASKED)
        # A declared value, the class's own or a contract's.
        self.needles = (tuple(word.encode() for word in self._told), self.anchors)

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for a function that is given a literal, or makes one, and for a declared value."""
        return self._may_differ(text) and any(
            name.endswith(SUFFIX) or fits(name, self._names)
            for word in self._told
            for name in words_around(word, text)
        )

    def _may_differ(self, text: str) -> bool:
        if self._names and "clamp" in words_around("clamp", text):
            return True
        return has_word(_FILLED, text) or (has_word(_DECLARED, text) and has_word(_MADE, text))

    def looks_into(self, text: str) -> bool:
        """Of a class, asks for the methods that fill, make a buffer or name what is declared."""
        return (
            any(word in text for word in self._told)
            or has_word(_FILL, text)
            or has_word(_MADE, text)
            or (bool(self._names) and "clamp" in text)
        )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that give no literal to what is declared, and fill nothing made of one."""
        literal: list[ast.expr] = []
        filled: list[ast.expr] = []
        made: set[str] = set()
        named: set[str] = set()
        stems: set[str] = set()
        for inner in all_below(node):
            if isinstance(inner, ast.Attribute):
                named.add(inner.attr)
                if inner.attr.endswith(SUFFIX) and getattr(inner.value, "id", "") == "self":
                    stems.add(inner.attr.removesuffix(SUFFIX))
            elif isinstance(inner, ast.Name):
                named.add(inner.id)
            elif isinstance(inner, ast.Constant):
                named.add(str(inner.value))
            elif isinstance(inner, ast.Call):
                if isinstance(inner.func, ast.Attribute) and inner.func.attr in ASKED:
                    given = [*inner.args, *(one.value for one in inner.keywords)]
                    if any(isinstance(one, _LITERALS) for one in given):
                        literal.append(inner.func.value)
                    if any(getattr(one, "attr", "").endswith(SUFFIX) for one in given):
                        filled.append(inner.func.value)
            elif isinstance(inner, ast.Assign) and _is_made(inner.value):
                target = inner.targets[0]
                made.add(getattr(target, "attr", getattr(target, "id", "")))
        return any(
            self._is_declared(leaf, stems) for one in literal for leaf in _leaves(one, named)
        ) or any(not made.isdisjoint(_leaves(one, named)) for one in filled)

    def _is_declared(self, leaf: str, stems: set[str]) -> bool:
        """Tells whether a buffer of this name, or one in a container of it, is to hold a value."""
        is_named = fits(leaf, self._names) or fits(leaf + ANY, self._names)
        return is_named or "" in stems or _stem(leaf, stems) != ""

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each literal that is not the declared value."""
        nodes = list(block.nodes())
        stems = {
            name.removesuffix(SUFFIX): block.code(node)
            for node in nodes
            if isinstance(node, cst.Attribute)
            and (name := node.attr.value).endswith(SUFFIX)
            and dotted(node.value) == "self"
        }
        filled: set[str] = set()
        for call, leaf in _named(block):
            if last_name(call.func) == "clamp":
                yield from self._clamped(call, leaf, block)
            elif call.args:
                given = call.args[0].value
                value, declared = number(given), stems.get(_stem(leaf, stems))
                if value is None and declared == block.code(given):
                    filled.add(leaf)
                elif value is not None:
                    yield from self._differs(given, leaf, value, declared, block)
        for node in nodes:
            if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
                leaf = (dotted(node.targets[0].target) or "").rpartition(".")[2]
                if leaf in filled and dotted(node.value.func) in ("torch.ones", "torch.zeros"):
                    declared = stems[_stem(leaf, stems)]
                    yield self._finding(node.value, leaf, declared, block)

    def _differs(
        self, node: CSTNode, leaf: str, value: int, declared: str | None, block: Block
    ) -> Iterator[Finding]:
        told = [value for name, value in self._declared if fits(leaf, [name])]
        if told and value not in told:
            yield self._finding(node, leaf, str(told[0]), block)
        elif not told and declared is not None:
            yield self._finding(node, leaf, declared, block)

    def _clamped(self, call: libcst.Call, leaf: str, block: Block) -> Iterator[Finding]:
        least = [
            number(arg.value)
            for position, arg in enumerate(call.args)
            if (arg.keyword.value == "min" if arg.keyword else position == 0)
        ]
        for name, value in self._declared:
            if fits(leaf, [name]) and least and least[0] is not None and value < least[0]:
                yield self._finding(call, leaf, str(value), block)

    def _finding(self, node: CSTNode, leaf: str, declared: str, block: Block) -> Finding:
        return block.finding(
            self,
            node,
            f"padded rows of `{leaf}` get another value than the declared `{declared}`",
            help=f"use `{declared}`, and leave it as it is",
        )


def _named(block: Block) -> Iterator[tuple[libcst.Call, str]]:
    """Yields the calls of `fill_` and `clamp` with the name of each buffer that they may be of."""
    for function in functions(block):
        names = Names(function, block)
        for node in block.nodes(function):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                regions = names.regions(node.func.value) if _is_asked(node.func) else ()
                for leaf in dict.fromkeys(one.leaf for one in regions):
                    yield node, leaf


def _leaves(buffer: ast.expr, named: set[str]) -> set[str]:
    """Returns the buffer's name where an expression tells it by itself, else all that is named."""
    while isinstance(buffer, ast.Subscript) and isinstance(buffer.slice, ast.Slice):
        buffer = buffer.value
    if isinstance(buffer, ast.Attribute) and buffer.attr not in HELD:
        return {buffer.attr}
    return named


def _is_made(value: ast.expr) -> bool:
    """Tells a call of `torch.ones` or its like."""
    return isinstance(value, ast.Call) and getattr(value.func, "attr", "") in MAKERS


def _is_asked(method: libcst.Attribute) -> bool:
    return method.attr.value in ASKED


def _stem(leaf: str, stems: Iterable[str]) -> str:
    """Returns the declared stem of a buffer's name: `seq_len` of `seq_lens` and `seq_lens_cpu`."""
    return next((one for one in stems if leaf in (one, f"{one}s", f"{one}s_cpu")), "")

"""FM202: padded rows get another value than the one that is declared for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, is_name, last_name, number
from fmcheck.lint.model.function import functions_near
from fmcheck.lint.model.vocabulary import BEFORE_REPLAY
from fmcheck.lint.source.globs import fits, literal
from fmcheck.lint.source.walking import below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family, Part


SUFFIX = "_fill_value"
#: The functions that are looked at.
ASKED = ("fill_", "clamp")
#: The functions of torch that make a buffer of one value.
MAKERS = ("ones", "zeros")


class UndeclaredFill(ClassRule):
    """Padded rows are filled with a value other than the declared one.

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
        words = (SUFFIX, *map(literal, self._names))
        self.words = (words, ASKED)

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each literal that is not the declared value."""
        stems = dict(_stems(family))
        filled: set[str] = set()
        near = (*self._names, *stems)
        for function in functions_near(family, ASKED, tuple(map(literal, near))):
            if fits(function.name, BEFORE_REPLAY):
                continue  # what a capture fills, each replay writes again
            for call, leaf in _named(function):
                if last_name(call.func) == "clamp":
                    yield from self._clamped(call, leaf, function.part)
                elif call.args:
                    given = call.args[0].value
                    value, declared = number(given), stems.get(_stem(leaf, stems))
                    if value is None and declared == function.part.code(given):
                        filled.add(leaf)
                    elif value is not None:
                        yield from self._differs(given, leaf, value, declared, function.part)
        for part in family.near((MAKERS, tuple(filled))) if filled else ():
            for node in part.nodes():
                if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
                    leaf = (dotted(node.targets[0].target) or "").rpartition(".")[2]
                    if leaf in filled and dotted(node.value.func) in ("torch.ones", "torch.zeros"):
                        yield self._finding(node.value, leaf, stems[_stem(leaf, stems)], part)

    def _differs(
        self, node: CSTNode, leaf: str, value: int, declared: str | None, part: Part
    ) -> Iterator[Finding]:
        values = [value for name, value in self._declared if fits(leaf, [name])]
        if values and value not in values:
            yield self._finding(node, leaf, str(values[0]), part)
        elif not values and declared is not None:
            yield self._finding(node, leaf, declared, part)

    def _clamped(self, call: cst.Call, leaf: str, part: Part) -> Iterator[Finding]:
        least = [
            number(arg.value)
            for position, arg in enumerate(call.args)
            if (arg.keyword.value == "min" if arg.keyword else position == 0)
        ]
        for name, value in self._declared:
            if fits(leaf, [name]) and least and least[0] is not None and value < least[0]:
                yield self._finding(call, leaf, str(value), part)

    def _finding(self, node: CSTNode, leaf: str, declared: str, part: Part) -> Finding:
        return part.finding(
            self,
            node,
            f"padding of `{leaf}` is not the declared `{declared}`",
            help=f"use `{declared}` and do not change it",
        )


def _stems(family: Family) -> Iterator[tuple[str, str]]:
    """Yields what a class calls its own fill values, with the name of what each is for."""
    for part in family.near(((SUFFIX,),)):
        for node in below(part.node, cst.Attribute):
            if is_name(node.value, "self") and node.attr.value.endswith(SUFFIX):
                yield node.attr.value.removesuffix(SUFFIX), part.code(node)


def _named(function: Function) -> Iterator[tuple[cst.Call, str]]:
    """Yields the calls of `fill_` and `clamp` with the name of each buffer that they may be of."""
    for node in function.calls:
        if isinstance(node.func, cst.Attribute) and _is_asked(node.func):
            for leaf in dict.fromkeys(one.leaf for one in function.names.regions(node.func.value)):
                yield node, leaf


def _is_asked(method: cst.Attribute) -> bool:
    return method.attr.value in ASKED


def _stem(leaf: str, stems: Iterable[str]) -> str:
    """Returns the declared stem of a buffer's name: `seq_len` of `seq_lens` and `seq_lens_cpu`."""
    return next((one for one in stems if leaf in (one, f"{one}s", f"{one}s_cpu")), "")

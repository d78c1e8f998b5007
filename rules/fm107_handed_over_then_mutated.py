"""FM107: a tensor that was handed to the worker is advanced in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.model.function import functions, functions_near

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family

#: In-place arithmetic; `copy_` and its like refill static buffers, which are meant to be shared.
ADVANCES = frozenset({"add_", "sub_", "mul_", "div_"})


class HandedOverThenMutated(ClassRule):
    """A tensor that was passed to the worker is modified in place.

    ## What it does
    Looks for a class that gives an attribute of its own away as it is, `other.x = self.x` or
    `Batch(x=self.x)`, and advances it in place elsewhere, `self.x.add_(1)`, other than on a branch
    beside one that rebinds it.

    ## Why is this bad
    With overlap the worker computes with what it was handed while the scheduler prepares the next
    step. Both hold the same tensor: the worker sees lengths of a step that has not begun.

    ## Example
    ```python
    worker_batch.seq_lens = self.seq_lens
    ...
    self.seq_lens.add_(1)
    ```

    ## Use instead
    ```python
    worker_batch.seq_lens = self.seq_lens
    ...
    self.seq_lens = self.seq_lens + 1  # the worker keeps the old tensor
    ```
    """

    code = "FM107"
    name = "handed-over-then-mutated"
    severity = Severity.WARNING
    words = (tuple(f"self.*{one}(" for one in sorted(ADVANCES)),)
    seen_in = ("https://github.com/sgl-project/sglang/pull/1712",)
    on_by_default = False

    bad = (
        Example(
            """\
class ScheduleBatch:
    def hand_over(self, worker_batch):
        worker_batch.seq_lens = self.seq_lens
        return Forward(positions=self.positions)

    def prepare_for_next(self):
        self.seq_lens.add_(1)
        if self.has_positions:
            self.positions.add_(1)
""",
            at=((7, 9), (9, 13)),
        ),
    )
    good = (
        Example(
            """\
class ScheduleBatch:
    def hand_over(self, worker_batch):
        worker_batch.seq_lens = self.seq_lens
        worker_batch.positions = self.positions.clone()
        self.last = self.steps
        return Forward(rows=self.req_pool_indices)

    def prepare_for_next(self):
        if self.overlap:
            self.seq_lens = self.seq_lens + 1
        else:
            self.seq_lens.add_(1)
        self.positions.add_(1)
        self.steps.add_(1)
        self.req_pool_indices.copy_(self.next_rows)
"""
        ),
        Example(
            """\
class Given:
    def hand_over(self, worker_batch):
        worker_batch.seq_lens = self.seq_lens

class Mutated:
    def prepare_for_next(self):
        self.seq_lens.add_(1)
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each advance of a tensor that somebody else holds."""
        if not family.is_class:
            return
        advancing = [one for one in functions_near(family, *self.words) if any(_advances(one))]
        names = {name for one in advancing for name, _ in _advances(one)}
        methods = [one for part in family.naming(*names) for one in functions(part)]
        given = {name: (node, one) for one in methods for name, node in _given(one)}
        for method in advancing if given else ():
            yield from self._in_method(method, given)

    def _in_method(
        self, method: Function, given: Mapping[str, tuple[CSTNode, Function]]
    ) -> Iterator[Finding]:
        advances = [one for one in _advances(method) if one[0] in given]
        if not advances:
            return
        flow = method.flow
        rebound = [(name, node) for node in method.nodes for name in _rebinds(node)]
        for name, call in advances:
            beside = [node for other, node in rebound if other == name and flow.contains(node)]
            if flow.contains(call) and not any(flow.excludes(one, call) for one in beside):
                yield method.part.finding(
                    self,
                    call,
                    f"`self.{name}` is modified in place after it was passed on without a copy",
                    help=f"pass on `self.{name}.clone()`, or rebind: `self.{name} = ...`",
                    related=[(given[name][1].part.span(given[name][0]), "passed on here")],
                )


def _own_attribute(node: CSTNode) -> str:
    """Returns `x` for `self.x`, "" for anything else."""
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
        return node.attr.value if node.value.value == "self" else ""
    return ""


def _given(method: Function) -> Iterator[tuple[str, CSTNode]]:
    """Yields the attributes that a method gives away as they are, and where."""
    for inner in method.nodes:
        if isinstance(inner, cst.Assign):
            name = _own_attribute(inner.value)
            others = [one.target for one in inner.targets if isinstance(one.target, cst.Attribute)]
            if name and any(not _own_attribute(one) for one in others):
                yield name, inner
        elif isinstance(inner, cst.Arg) and inner.keyword is not None:
            name = _own_attribute(inner.value)
            if name and inner.keyword.value == name:
                yield name, inner


def _advances(method: Function) -> Iterator[tuple[str, cst.Call]]:
    for node in method.calls:
        if isinstance(node.func, cst.Attribute):
            name = _own_attribute(node.func.value)
            if name and node.func.attr.value in ADVANCES:
                yield name, node


def _rebinds(node: CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Assign):
        for target in node.targets:
            name = _own_attribute(target.target)
            if name:
                yield name

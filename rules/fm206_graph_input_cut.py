"""FM206: a static buffer is handed to a graph cut to the batch."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.buffers import Names, Region
from fmcheck.lint.graph_inputs import Filling, Kind
from fmcheck.lint.lazy import cst
from fmcheck.lint.nodes import FUNCTIONS, walk
from fmcheck.lint.outline import outlines_at
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.words import defined
from fmcheck.lint.write_words import may_fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

_GRAPH = re.compile(r"graph|replay", re.IGNORECASE)


class GraphInputCut(Rule):
    """A static buffer is handed to a graph cut to the batch.

    ## What it does
    Looks in functions whose names speak of a graph or a replay: for a buffer that is filled up to a
    length, `buf[:n].copy_(...)`, and handed on up to the same length, `meta.rows = buf[:n]`, while
    another one is handed on whole or up to another length. Off by default: whether the length is
    that of the batch or of the graph, its name says at best.

    ## Why is this bad
    The graph was captured on the whole buffer, or on its padded part. What is handed on here has
    the size of this batch: a first capture is made for the wrong extent, and what is computed from
    the length of the slice leaves the tail at the values of an earlier batch.

    ## Example
    ```python
    buf[:n].copy_(rows)
    meta.rows = buf[:n]
    meta.slots = slots[:padded]
    ```

    ## Use instead
    ```python
    buf[:n].copy_(rows)
    meta.rows = buf[:padded]
    meta.slots = slots[:padded]
    ```
    """

    code = "FM206"
    name = "graph-input-cut"
    severity = Severity.WARNING
    scope = Scope.FUNCTION
    needles = ((b"graph", b"replay"),)
    seen_in = (
        "https://github.com/InternLM/lmdeploy/pull/4005",
        "https://github.com/PaddlePaddle/FastDeploy/pull/3457",
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    on_by_default = False
    bad = (
        Example(
            """\
class Runner:
    def replay(self, meta, rows, slots, n, padded):
        self.rows[:n].copy_(rows)
        self.slots[:n].copy_(slots)
        meta.rows = self.rows[:n]
        meta.slots = self.slots[:padded]
""",
            at=((5, 21),),
        ),
    )
    good = (
        Example(
            """\
class Runner:
    def replay(self, meta, rows, slots, n, padded):
        self.rows[:n].copy_(rows)
        self.slots[:n].copy_(slots)
        meta.rows = self.rows[:padded]
        meta.slots = self.slots[:padded]

    def replay_padded(self, meta, rows, slots, n):
        self.rows[:n].copy_(rows)
        self.slots[:n].copy_(slots)
        meta.rows = self.rows[:n]
        meta.slots = self.slots[:n]
        meta.names = self.names
"""
        ),
    )

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for a function of such a name, and for what may fill a buffer's front."""
        return any(map(_GRAPH.search, defined(text))) and may_fill(text)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears what hands no slice on in a function of such a name."""
        return any(
            isinstance(inner, ast.Assign)
            and isinstance(inner.targets[0], (ast.Attribute, ast.Subscript))
            and isinstance(inner.value, ast.Subscript)
            for function in walk(node)
            if isinstance(function, FUNCTIONS) and _GRAPH.search(function.name)
            for inner in walk(function)
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each buffer that is handed on as it was filled."""
        for outline in outlines_at(block):
            if outline.fills and _GRAPH.search(outline.name):
                yield from self._function(outline.block(block.facts))

    def _function(self, block: Block) -> Iterator[Finding]:
        filling = Filling(block, lambda _: False)
        filled = {
            (write.region.path, filling.sizes.text(write.region.stop)): write
            for write in filling.writes
            if write.kind is Kind.COPY and write.region.is_head and write.region.stop is not None
        }
        paths = {path for path, _ in filled}
        names = Names(filling.function, block)
        handed: list[tuple[CSTNode, Region, str]] = []
        for node in block.nodes(filling.function.body):
            if isinstance(node, cst.Assign) and _is_held(node.targets[0].target):
                for region in names.regions(node.value):
                    stop = filling.sizes.text(region.stop) if region.stop is not None else ""
                    if region.path in paths:
                        handed.append((node.value, region, stop))
        for value, region, stop in handed:
            write = filled.get((region.path, stop))
            others = [one for one in handed if one[1].path != region.path]
            if write is not None and any((one[1].path, one[2]) not in filled for one in others):
                name = region.leaf or block.code(value)
                yield block.finding(
                    self,
                    value,
                    f"`{name}` is handed to the graph up to `{stop}` only, its siblings "
                    "are handed on for the padded batch",
                    help="hand on what the graph was captured with",
                    related=[(write.site, "filled here")],
                )


def _is_held(target: CSTNode) -> bool:
    """Tells whether a target is an attribute, or an entry under a string."""
    if isinstance(target, cst.Subscript) and len(target.slice) == 1:
        index = target.slice[0].slice
        return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return isinstance(target, cst.Attribute)

"""FM206: a static buffer is handed to a graph cut to the batch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.graph_inputs.fills import Filling, WriteKind, fillings
from fmcheck.lint.model.function import functions
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.names import Region
    from fmcheck.lint.source.module import Part

_GRAPH = regex(r"\w*(graph|replay)", re.IGNORECASE)


class GraphInputCut(FunctionRule):
    """A static buffer is passed to a graph cut to the batch.

    ## What it does
    Looks in functions whose names speak of a graph or a replay: for a buffer that is filled up to a
    length, `buf[:n].copy_(...)`, and passed on up to the same length, `meta.rows = buf[:n]`, while
    another one is passed on whole or up to another length. Off by default: whether the length is
    that of the batch or of the graph, its name says at best.

    ## Why is this bad
    The graph was captured on the whole buffer, or on its padded part. What is passed on here has
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
    words = (("graph", "replay"), ("[:", "narrow("), ("copy_", "] ="))
    seen_in = (
        "https://github.com/InternLM/lmdeploy/pull/4005",
        "https://github.com/PaddlePaddle/FastDeploy/pull/3457",
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    on_by_default = False
    judges = _GRAPH
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

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each buffer that is handed on as it was filled."""
        for function in functions(part):
            if _GRAPH.match(function.name):
                (filling,) = fillings([function])
                yield from self._function(filling, part)

    def _function(self, filling: Filling, part: Part) -> Iterator[Finding]:
        filled = {
            (write.region.path, filling.sizes.text(write.region.stop)): write
            for write in filling.writes
            if write.kind is WriteKind.COPY
            and write.region.is_head
            and write.region.stop is not None
        }
        paths = {path for path, _ in filled}
        names = filling.function.names
        handed: list[tuple[CSTNode, Region, str]] = []
        for node in filling.function.of(cst.Assign):
            if _is_held(node.targets[0].target):
                for region in names.regions(node.value):
                    stop = filling.sizes.text(region.stop) if region.stop is not None else ""
                    if region.path in paths:
                        handed.append((node.value, region, stop))
        for value, region, stop in handed:
            write = filled.get((region.path, stop))
            others = [one for one in handed if one[1].path != region.path]
            if write is not None and any((one[1].path, one[2]) not in filled for one in others):
                name = region.leaf or part.code(value)
                yield part.finding(
                    self,
                    value,
                    f"`{name}` is passed to the graph only up to `{stop}`",
                    note="its siblings cover the padded batch",
                    help="pass on the tensor that the graph was captured with",
                    related=[(write.site, "filled here")],
                )


def _is_held(target: CSTNode) -> bool:
    """Tells whether a target is an attribute, or an entry under a string."""
    if isinstance(target, cst.Subscript) and len(target.slice) == 1:
        index = target.slice[0].slice
        return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return isinstance(target, cst.Attribute)

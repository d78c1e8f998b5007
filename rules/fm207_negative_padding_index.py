"""FM207: rows are chosen by an index whose padding is negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.source.globs import fits, literal
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part

#: Methods that write rows in place, and where their index stands.
WRITES = {"index_copy_": 1, "index_add_": 1, "index_fill_": 1, "scatter_": 1}
#: Those of them that count no row from the end: -1 is an error to them, on a device an assert.
REJECTS = frozenset({"index_copy_", "index_add_", "scatter_"})


class NegativePaddingIndex(FunctionRule):
    """Rows are selected by an index whose padding is negative.

    ## What it does
    Looks for `cache[rows] = value`, and for `index_copy_` and its like, by an index whose padding
    the contract declares to be negative (`graph_inputs.holds`), in a function that neither
    compares the index nor clamps it. Silent without such a contract.

    ## Why is this bad
    To a kernel, -1 says that there is nothing to write. To an index it is the last row: each padded
    entry of a batch writes its values to the last slot of the cache, which is somebody's.
    `index_copy_`, `index_add_` and `scatter_` end the batch on it, by an error or an assert.

    ## Example
    ```python
    cache[slot_mapping] = values
    ```

    ## Use instead
    ```python
    held = slot_mapping >= 0
    cache[slot_mapping[held]] = values[held]
    ```
    """

    code = "FM207"
    name = "negative-padding-index"
    severity = Severity.ERROR
    on_by_default = False
    seen_in = ("https://github.com/vllm-project/vllm/pull/43810",)
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 3, 2),
    )
    bad = (
        Example(
            """\
def store(cache, slot_mapping, values):
    cache[slot_mapping] = values
    cache.view(-1, 8).index_copy_(0, slot_mapping, values)
""",
            at=((2, 11), (3, 38)),
        ),
        Example(
            """\
class Cache:
    def store(self, batch, values):
        self.states[batch.state_rows] = values
""",
            at=((3, 21),),
            contract="""\
engine.name = "mine"
[graph_inputs.holds]
"state_*" = -1
""",
        ),
    )
    good = (
        Example(
            """\
def store(cache, slot_mapping, values):
    held = slot_mapping >= 0
    cache[slot_mapping[held]] = values[held]
    cache[slot_mapping] = values

def clamped(cache, slot_mapping, values):
    cache[slot_mapping.clamp(min=0)] = values

def read(cache, slot_mapping, rows, values):
    cache[rows] = values
    cache[0] = slot_mapping
    return cache[slot_mapping]
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        declared = [pair for one in contracts for pair in one.graph_inputs.holds.items()]
        self._names = [name for name, value in declared if value < 0]
        self.words = (tuple(map(literal, self._names)),)

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each such write."""
        for function in functions(part):
            nodes = walk(function.node)
            asked = {name for node in nodes for name in _asked(node, part)}
            for node in nodes:
                for index in _written_by(node):
                    name = dotted(index) or ""
                    if name not in asked and fits(last_name(index), self._names):
                        by = last_name(node.func) if isinstance(node, cst.Call) else ""
                        what = (
                            f"`{by}` fails on -1" if by in REJECTS else "index -1 is the last row"
                        )
                        yield part.finding(
                            self,
                            index,
                            f"`{name}` is negative in padded rows, and {what}",
                            help=f"write only where `{name} >= 0`",
                        )


def _written_by(node: CSTNode) -> Iterator[CSTNode]:
    """Yields the index of a write to rows."""
    if isinstance(node, cst.Assign):
        for target in node.targets:
            subscript = target.target
            index = subscript.slice[0].slice if isinstance(subscript, cst.Subscript) else None
            if isinstance(index, cst.Index):
                yield index.value
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        at = WRITES.get(node.func.attr.value)
        if at is not None and len(node.args) > at:
            yield node.args[at].value


def _asked(node: CSTNode, part: Part) -> Iterator[str]:
    """Yields the names that a comparison or a call like `clamp` is about."""
    sides: list[CSTNode] = []
    if isinstance(node, cst.Comparison):
        sides = [node.left, *(one.comparator for one in node.comparisons)]
    elif isinstance(node, cst.Call) and last_name(node.func) in ("where", "clamp", "clamp_"):
        receiver = [node.func.value] if isinstance(node.func, cst.Attribute) else []
        sides = [*receiver, *(arg.value for arg in node.args)]
    for side in sides:
        for inner in part.nodes(side):
            name = dotted(inner)
            if name:
                yield name

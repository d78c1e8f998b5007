"""FM501: several gathers by one index, a kernel launch each."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.accesses import Access, Accesses
from fmcheck.lint.declared import functions
from fmcheck.lint.flow import Flow
from fmcheck.lint.relay_rule import RelayRule
from fmcheck.lint.rule import Example, Judged, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

RELAY = "sglang/srt/managers/overlap_utils.py"
#: Fewer launches are not worth a kernel of one's own.
LEAST = 3


class SeveralGathers(RelayRule):
    """Several gathers by one index, a kernel launch each.

    ## What it does
    Counts, on one path through a function, the gathers of different relay buffers by the same
    rows, and the writes; three of a kind are told of.

    ## Why is this bad
    Each is a kernel launch between two steps, where the host is in a hurry and the device is
    idle. One fused kernel, or one compiled function, does the same in one launch.

    ## Example
    ```python
    draft.topk_p = self.topk_p_buf[rows]
    draft.topk_index = self.topk_index_buf[rows]
    draft.bonus_tokens = self.output_tokens_buf[rows]
    ```

    ## Use instead
    ```python
    draft.topk_p, draft.topk_index, draft.bonus_tokens = gather_extras(
        rows, self.topk_p_buf, self.topk_index_buf, self.output_tokens_buf
    )
    ```
    """

    code = "FM501"
    name = "several-gathers"
    severity = Severity.NOTE
    scope = Scope.FUNCTION
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26129",
        "https://github.com/sgl-project/sglang/pull/31329",
    )
    on_by_default = False

    bad = (
        Example(
            """\
class FutureMap:
    def resolve(self, draft):
        rows = draft.rows
        draft.topk_p = self.topk_p_buf[rows]
        draft.topk_index = self.topk_index_buf[rows]
        if draft.needs_hidden:
            draft.hidden = self.hidden_states_buf[draft.rows]
        self.guard(draft.topk_p, self.topk_p_buf, rows)

    def stash(self, rows, draft):
        self.output_tokens_buf[rows] = draft.tokens
        self.topk_p_buf[rows] = draft.topk_p
        self.topk_index_buf[rows] = draft.topk_index
""",
            at=((4, 24), (11, 9)),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def resolve(self, draft, rows, others):
        if draft.by_topk:
            draft.topk_p = self.topk_p_buf[rows]
            draft.topk_index = self.topk_index_buf[rows]
        else:
            draft.tokens = self.output_tokens_buf[rows]
        if draft.needs_hidden and not draft.by_topk:
            draft.hidden = self.hidden_states_buf[rows]
        draft.lengths = self.new_seq_lens_buf[others]
        self.topk_p_buf[others] = self.topk_p_buf[others] * 2
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, draft, rows):
        draft.extras = gather_spec_extras(
            rows, self.topk_p_buf, self.topk_index_buf, self.output_tokens_buf
        )
""",
            path=RELAY,
        ),
    )
    judged = (Judged("sglang 0.5.23", 2, 1), Judged("vllm 0.20.2", 0, 0))

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for a buffer of a contract, and for what holds it."""
        return self.relays.may_be_named(text, facts.identity)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that take and write no rows of a buffer of a contract."""
        return self.relays.may_index(node, facts.identity, ast.Load, ast.Store)

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding at the first access of each group."""
        for function in functions(block):
            accesses = Accesses(function, block, self.relays)
            for group in _groups(accesses.all):
                path = _longest(group, function, block)
                if len(path) >= LEAST:
                    yield self._finding(path, block)

    def _finding(self, path: Sequence[Access], block: Block) -> Finding:
        what, fused = ("writes", "scatter") if path[0].is_write else ("gathers", "gather")
        return block.finding(
            self,
            path[0].node,
            f"{len(path)} {what} by rows `{path[0].index}`, a kernel launch each",
            help=f"one fused {fused} of {', '.join(f'`{one.buffer}`' for one in path)}",
            related=[(one.node, "another launch") for one in path[1:]],
        )


def _groups(accesses: Sequence[Access]) -> Iterator[Sequence[Access]]:
    """Yields accesses of one kind by the same rows, of different buffers."""
    groups: dict[tuple[bool, str], list[Access]] = defaultdict(list)
    for one in accesses:
        group = groups[one.is_write, one.index]
        if not one.is_opaque:
            group.append(one)
    yield from (group for group in groups.values() if len(group) >= LEAST)


def _longest(
    group: Sequence[Access], function: libcst.FunctionDef, block: Block
) -> Sequence[Access]:
    """Returns a longest run of accesses of different buffers that one path passes."""
    flow = Flow(function, block)
    best: list[list[Access]] = []
    for one in group:
        if not flow.contains(one.node):
            continue
        before = [
            path
            for path in best
            if all(_on_one_path(other, one, flow) and other.buffer != one.buffer for other in path)
        ]
        best.append([*max(before, key=len, default=[]), one])
    return max(best, key=len, default=[])


def _on_one_path(first: Access, then: Access, flow: Flow) -> bool:
    if flow.position(first.node) == flow.position(then.node):
        return True
    return flow.may_follow(first.node, then.node) and not flow.excludes(first.node, then.node)

"""FM501: several gathers by one index, a kernel launch each."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity
from fmcheck.lint.model.accesses import RelayAccess, accesses_of
from fmcheck.lint.model.function import functions
from fmcheck.lint.relay_rule import RelayRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.lint.model.flow import Flow
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

RELAY = "sglang/srt/managers/overlap_utils.py"
#: Fewer launches are not worth a kernel of one's own.
LEAST = 3
#: Accesses that one path passes, with their place among those that were found.
_Run = tuple[int, tuple[RelayAccess, ...]]


class SeveralGathers(RelayRule):
    """Several gathers by one index, a kernel launch each.

    ## What it does
    Counts, on one path through a function, the gathers of different relay buffers by the same
    rows, and the writes; three of a kind are reported. Tables with `reads = "many"` do not count.

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

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding at the first access of each group."""
        for function in functions(part):
            accesses = accesses_of(function, self.relays).all
            relayed = [one for one in accesses if not self.relays.stays(one.buffer)]
            for group in _groups(relayed):
                path = _longest(group, function)
                if len(path) >= LEAST:
                    yield self._finding(path, part)

    def _finding(self, path: Sequence[RelayAccess], part: Part) -> Finding:
        what, fused = ("writes", "scatter") if path[0].is_write else ("gathers", "gather")
        return part.finding(
            self,
            path[0].node,
            f"{len(path)} {what} by rows `{path[0].index}`, a kernel launch each",
            help=f"one fused {fused} of {', '.join(f'`{one.buffer}`' for one in path)}",
            related=[(one.node, "another launch") for one in path[1:]],
        )


def _groups(accesses: Sequence[RelayAccess]) -> Iterator[Sequence[RelayAccess]]:
    """Yields accesses of one kind by the same rows, of different buffers."""
    groups: dict[tuple[bool, str], list[RelayAccess]] = defaultdict(list)
    for one in accesses:
        group = groups[one.is_write, one.index]
        if not one.is_opaque:
            group.append(one)
    yield from (group for group in groups.values() if len(group) >= LEAST)


def _longest(group: Sequence[RelayAccess], function: Function) -> Sequence[RelayAccess]:
    """Returns a longest run of accesses of different buffers that one path passes."""
    flow = function.flow
    # By their buffers: of those with the same ones, the first that fits is as long as any.
    kept: dict[frozenset[str], list[_Run]] = {}
    for number, one in enumerate(one for one in group if flow.contains(one.node)):
        before = [
            fitting[0]
            for buffers, runs in kept.items()
            if one.buffer not in buffers
            for fitting in [list(islice((run for run in runs if _leads(run, one, flow)), 1))]
            if fitting
        ]
        _, path = min(before, key=_rank, default=(0, ()))
        buffers = frozenset({one.buffer, *(other.buffer for other in path)})
        kept.setdefault(buffers, []).append((number, (*path, one)))
    return min((run for runs in kept.values() for run in runs), key=_rank, default=(0, ()))[1]


def _rank(run: _Run) -> tuple[int, int]:
    number, path = run
    return -len(path), number


def _leads(run: _Run, then: RelayAccess, flow: Flow) -> bool:
    return all(_on_one_path(one, then, flow) for one in run[1])


def _on_one_path(first: RelayAccess, then: RelayAccess, flow: Flow) -> bool:
    if flow.position(first.node) == flow.position(then.node):
        return True
    return flow.may_follow(first.node, then.node) and not flow.excludes(first.node, then.node)

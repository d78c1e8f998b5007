"""FM203: the padding policy of a graph slot keeps a stale tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.graph_inputs.graph_slots import slots
from fmcheck.lint.source.globs import fits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.graph_inputs.graph_slots import Slot
    from fmcheck.lint.source.module import Part

#: How many of the slots with a policy that resets a finding shows.
SHOWN = 3


class SlotKeepsTail(FunctionRule):
    """The padding policy of a graph slot keeps a stale tail.

    ## What it does
    Looks at the slots of a declarative registry, as the contract's `graph_inputs.registry`
    describes it: a slot for a buffer in `row_indices`, or one in `index_like` where another slot of
    its axis is reset, whose policy keeps the padded tail, be it named or the default.

    ## Why is this bad
    As for FM201: a captured graph reads the padded rows too, and what an earlier, larger batch left
    there are row indices, positions and cache slots of other requests. A default policy makes this
    easy to overlook: the slot looks as complete as its neighbours.

    ## Example
    ```python
    GraphSlot("input_ids", tokens, torch.int64),
    GraphSlot("positions", tokens, torch.int64),
    GraphSlot("out_cache_loc", tokens, torch.int64, padding_policy=PaddingPolicy.ZERO),
    ```

    ## Use instead
    ```python
    GraphSlot("input_ids", tokens, torch.int64),
    GraphSlot("positions", tokens, torch.int64, padding_policy=PaddingPolicy.ZERO),
    GraphSlot("out_cache_loc", tokens, torch.int64, padding_policy=PaddingPolicy.ZERO),
    ```

    ## Severity
    An error for the contract's `graph_inputs.row_indices`, a note for its `tail_is_discarded`,
    a warning for any other buffer; nothing for those in `tail_may_stay`.
    """

    code = "FM203"
    name = "slot-keeps-tail"
    severity = Severity.WARNING
    seen_in = ("https://github.com/sgl-project/sglang/pull/24401",)
    judged = (
        Judged("sglang 0.5.13", 2, 2),
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
def slots(by_token, by_row, kind):
    return [
        GraphSlot("input_ids", by_token, kind, axis="tokens"),
        GraphSlot("positions", by_token, kind, axis="tokens"),
        GraphSlot("out_cache_loc", by_token, kind, padding_policy=PaddingPolicy.ZERO),
        GraphSlot(
            "req_pool_indices", by_row, kind, axis="bs", padding_policy=PaddingPolicy.KEEP_PAD
        ),
    ]
""",
            at=(
                (4, 19),
                (7, 13),
            ),
        ),
    )
    good = (
        Example(
            """\
def slots(by_token, by_row, kind, tracks):
    found = [
        GraphSlot("input_ids", by_token, kind, axis="tokens"),
        GraphSlot("positions", by_token, kind, padding_policy=PaddingPolicy.ZERO),
    ]
    if tracks:
        # Nothing pads this axis: no slot on it is ever reset.
        found.append(GraphSlot("mamba_track_indices", by_row, kind, axis="bs"))
    return found
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        inputs = [one.graph_inputs for one in contracts]
        self._row_indices = [glob for one in inputs for glob in one.row_indices]
        self._index_like = [glob for one in inputs for glob in one.index_like]
        self._discarded = [glob for one in inputs for glob in one.tail_is_discarded]
        self._may_stay = [glob for one in inputs for glob in one.tail_may_stay]
        self._registries = {part.slot_class: part for one in inputs for part in one.registry}
        self.words = (tuple(self._registries),)

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each slot whose policy keeps the padded tail."""
        for found in slots(part, self._registries):
            yield from self._stale_slots(part, found)

    def _stale_slots(self, part: Part, found: Sequence[Slot]) -> Iterator[Finding]:
        reset: dict[str, list[Slot]] = {}
        for one in found:
            if one.is_reset:
                reset.setdefault(one.axis, []).append(one)
        for slot in found:
            leaf = slot.name.rpartition(".")[2]
            siblings = reset.get(slot.axis, ())
            is_wanted = fits(leaf, self._row_indices) or (
                # A registry whose slots are never reset is not padded on this axis.
                bool(siblings) and fits(leaf, self._index_like)
            )
            if slot.is_stale and is_wanted and not fits(leaf, self._may_stay):
                yield self._stale_slot(part, slot, siblings)

    def _stale_slot(self, part: Part, slot: Slot, siblings: Sequence[Slot]) -> Finding:
        policy = f"`{slot.policy}`" if slot.is_explicit else f"the default policy, `{slot.policy}`"
        argument = slot.registry.policy_argument
        written = next((one for one in siblings if one.is_explicit), None)
        return part.finding(
            self,
            slot.node,
            f"slot `{slot.name}` keeps stale values in its padded tail",
            note=f"it has {policy}, and the values are from an earlier replay",
            help=f"use a policy that resets the tail: `{argument}=...`"
            + (f", as `{written.name}` does with `{written.policy}`" if written else ""),
            severity=self._severity(slot.name.rpartition(".")[2]),
            related=[(one.node, f"`{one.name}` has `{one.policy}`") for one in siblings[:SHOWN]],
        )

    def _severity(self, leaf: str) -> Severity:
        if fits(leaf, self._row_indices):
            return Severity.ERROR
        return Severity.NOTE if fits(leaf, self._discarded) else self.severity

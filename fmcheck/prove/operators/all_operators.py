"""The operators, by name, in the order in which they are reported."""

from __future__ import annotations

from fmcheck.prove.operators.fence_mutations import DROP_WAIT, MOVE_WAIT, RECORD_EARLY
from fmcheck.prove.operators.guard_mutations import HARDCODE_DEVICE, MESSAGELESS_ASSERT, WIDEN_BOUND
from fmcheck.prove.operators.relay_mutations import DROP_STASH, GATHER_TWICE, SWAP_PUBLISH_STASH
from fmcheck.prove.operators.tail_mutations import CLEAR_AFTER_COPY, DROP_RESET, NARROW_RESET

OPERATORS = {
    one.name: one
    for one in (
        DROP_RESET,
        CLEAR_AFTER_COPY,
        NARROW_RESET,
        DROP_STASH,
        GATHER_TWICE,
        SWAP_PUBLISH_STASH,
        DROP_WAIT,
        MOVE_WAIT,
        RECORD_EARLY,
        MESSAGELESS_ASSERT,
        WIDEN_BOUND,
        HARDCODE_DEVICE,
    )
}

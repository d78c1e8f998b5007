"""Clock kernels: what each lane did to the rows of a guarded buffer, entered and judged at once.

As the kernels of the ledger, they wait for no host, and no integer makes another kernel. They are
never captured: a replay would go on with the clock of the time of capture.
"""

import triton
import triton.language as tl

from fmcheck.runtime.core import ledger
from fmcheck.runtime.device import ring as findings

SLOTS = tl.constexpr(findings.SLOTS)
NEVER = tl.constexpr(ledger.NEVER)
FIELDS = tl.constexpr(findings.CLASH_FIELDS)
BOOK = tl.constexpr(len(findings.BOOK))
WRITE_READ, READ_WRITE, WRITE_WRITE = (
    tl.constexpr(findings.KINDS.index(kind)) for kind in ("write-read", "read-write", "write-write")
)


@triton.jit
def _clash(
    ring,
    counts,
    capacity,
    late,  # [BLOCK, SLOTS], as all that follow but for scalars
    kind,
    buffer,
    rows,
    slots,
    earlier,
    earlier_number,
    number,
    moment,
    own,
    verb,
    book,
    row_count,
):
    """Appends a record for each access that is not ordered; past the ring's end it only counts."""
    at = tl.atomic_add(counts + tl.zeros_like(rows), 1, mask=late)
    fits = late & (at < capacity)
    place = ring + at * FIELDS
    none = tl.zeros_like(rows)
    tl.store(place, none + buffer, mask=fits)
    tl.store(place + 1, none + kind, mask=fits)
    tl.store(place + 2, rows, mask=fits)
    tl.store(place + 3, slots, mask=fits)
    tl.store(place + 4, earlier, mask=fits)
    tl.store(place + 5, earlier_number, mask=fits)
    tl.store(place + 6, none + number, mask=fits)
    tl.store(place + 7, none + moment, mask=fits)
    tl.store(place + 8, none + own, mask=fits)
    tl.store(place + 9, none + verb, mask=fits)
    for entry in tl.static_range(BOOK):
        said = tl.load(book + entry * row_count + rows, mask=fits, other=0)
        tl.store(place + FIELDS - BOOK + entry, said, mask=fits)


@triton.jit(
    do_not_specialize=[
        "capacity",
        "count",
        "row_count",
        "buffer_number",
        "first_slot",
        "own",
        "known_0",
        "known_1",
        "known_2",
        "known_3",
        "time",
        "moment",
        "number",
        "before",
        "verb",
    ],
    do_not_specialize_on_alignment=["index"],
)
def touch_rows(
    index,  # [count]
    page,  # [6, SLOTS, rows]: time, moment and number of the last write, then of the last read
    owned,
    book,
    ring,
    counts,
    capacity: tl.int64,
    count: tl.int64,
    row_count: tl.int64,
    buffer_number: tl.int64,
    first_slot: tl.int64,
    own: tl.int64,
    known_0: tl.int64,
    known_1: tl.int64,
    known_2: tl.int64,
    known_3: tl.int64,
    time: tl.int64,
    moment: tl.int64,
    number: tl.int64,
    before: tl.int64,
    verb: tl.int64,
    WRITES: tl.constexpr,
    ENTERS: tl.constexpr,  # whether the lane's own slot is in this page
    BLOCK: tl.constexpr,
):
    """A lane touches rows: what other lanes did to them has to be known to it, or is a clash.

    `known_N` is how much the lane knows of the lane that has the page's slot N; `own` is its own
    slot, `time` its own time, `number` says when the access was issued. A page holds the slots from
    `first_slot` on. What was issued at `before` or later is no clash, although it may be there: a
    device runs what nothing orders in any order.

    A lane's own column is never judged, so that the access is entered first: of two launches that
    run side by side at least one sees the other, and a row that stands in the index twice is judged
    by what was there before.
    """
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = entries < count
    rows = tl.load(index + entries, mask=there, other=0)
    rows = tl.where(rows < 0, rows + row_count, rows)
    there = there & (rows >= 0) & (rows < row_count)
    there = there & (tl.load(owned + rows, mask=there, other=0) != 0)

    column = SLOTS * row_count
    if ENTERS:
        place = page + (own - first_slot) * row_count + rows
        if not WRITES:
            place += 3 * column
        tl.store(place + column, tl.zeros_like(rows) + moment, mask=there)
        tl.store(place + 2 * column, tl.zeros_like(rows) + number, mask=there)
        # Who sees the time is to see what goes with it.
        tl.debug_barrier()
        tl.atomic_max(place, tl.zeros_like(rows) + time, mask=there)
        tl.debug_barrier()

    in_page = tl.arange(0, SLOTS)
    known = tl.where(in_page == 0, known_0, known_1)
    known = tl.where(in_page == 2, known_2, known)
    known = tl.where(in_page == 3, known_3, known)
    slots = first_slot + in_page
    others = there[:, None] & (slots != own)[None, :]
    each = page + in_page[None, :] * row_count + rows[:, None]
    rows_each = rows[:, None] + tl.zeros_like(slots)[None, :]
    slots_each = tl.zeros_like(rows)[:, None] + slots[None, :]

    done = tl.load(each, mask=others, other=0, volatile=True)
    late = others & (done > known[None, :])
    earlier = tl.load(each + column, mask=late, other=NEVER, volatile=True)
    its_number = tl.load(each + 2 * column, mask=late, other=0, volatile=True)
    late = late & (its_number < before)
    _clash(
        ring,
        counts,
        capacity,
        late,
        WRITE_WRITE if WRITES else WRITE_READ,
        buffer_number,
        rows_each,
        slots_each,
        earlier,
        its_number,
        number,
        moment,
        own,
        verb,
        book,
        row_count,
    )
    if WRITES:
        done = tl.load(each + 3 * column, mask=others, other=0, volatile=True)
        late = others & (done > known[None, :])
        earlier = tl.load(each + 4 * column, mask=late, other=NEVER, volatile=True)
        its_number = tl.load(each + 5 * column, mask=late, other=0, volatile=True)
        late = late & (its_number < before)
        _clash(
            ring,
            counts,
            capacity,
            late,
            READ_WRITE,
            buffer_number,
            rows_each,
            slots_each,
            earlier,
            its_number,
            number,
            moment,
            own,
            verb,
            book,
            row_count,
        )

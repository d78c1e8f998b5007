"""Kernels: what is done to the ledger of a relay buffer on the device itself, one launch each.

None of them waits for the host, and each may be captured in a graph and replayed: all that changes
from launch to launch lies in device memory, and neither an integer nor where an index begins makes
another kernel, for a capture is no place to compile one. They take the ledger as tensors of one
entry a row (see `guard.py`), of which the `book` has those that a record shows, one behind the
other; `counts` are the ring's. Rows are int64 of any sign; those out of range are left to the
engine's own call.
"""

import triton
import triton.language as tl

from fmcheck.runtime.core import ledger, verdicts
from fmcheck.runtime.device import ring

# LIVE and SPARED have the lowest bit, and no other state has.
EMPTY, LIVE, CONSUMED, SPARED = (tl.constexpr(int(state)) for state in ledger.State)
NEVER = tl.constexpr(ledger.NEVER)
PAST = tl.constexpr(ledger.PAST)

#: The fields of a record in the ring, and a record's kind where it is no check's number.
FIELDS = tl.constexpr(ring.FIELDS)
#: How many of them the ledger's book has, the last ones, and where some of these are in it.
BOOK = tl.constexpr(len(ring.BOOK))
LAST_WRITE, LAST_READ, GENERATION = (
    tl.constexpr(ring.BOOK.index(name)) for name in ("last_write", "last_read", "generation")
)
UNSEEN = tl.constexpr(ring.UNSEEN)
INVALID_WRITE = tl.constexpr(ring.INVALID_WRITE)

# The table of rows, as far as it is the same for every buffer.
LOST, INVALID = tl.constexpr(verdicts.LOST), tl.constexpr(verdicts.INVALID)
UNOWNED, REPEATED = tl.constexpr(verdicts.UNOWNED), tl.constexpr(verdicts.REPEATED)
SINK_CONTENT = tl.constexpr(verdicts.SINK_CONTENT)
LOSSES = tl.constexpr(verdicts.packed_losses())
NOBODYS = tl.constexpr(verdicts.packed_unowned())
IN_FLIGHT = tl.constexpr(verdicts.IN_FLIGHT)
HELD = tl.constexpr(int(verdicts.Allocation.HELD))
WIDTH, BASE = tl.constexpr(verdicts.WIDTH), tl.constexpr(verdicts.BASE)
MASK = tl.constexpr((1 << verdicts.WIDTH) - 1)


@triton.jit
def _record(ring, counts, capacity, wanted, buffer, kind, rows, bits, moment, book, row_count):
    """Appends a record for each row that is wanted, with what the ledger says of it now.

    Past the end of the ring it only counts.
    """
    at = tl.atomic_add(counts + tl.zeros_like(rows), 1, mask=wanted)
    fits = wanted & (at < capacity)
    place = ring + at * FIELDS
    tl.store(place, buffer + tl.zeros_like(rows), mask=fits)
    tl.store(place + 1, tl.zeros_like(rows) + kind, mask=fits)
    tl.store(place + 2, rows, mask=fits)
    tl.store(place + 3, bits.to(tl.int64), mask=fits)
    tl.store(place + 4, moment + tl.zeros_like(rows), mask=fits)
    for entry in tl.static_range(BOOK):
        said = tl.load(book + entry * row_count + rows, mask=fits, other=0)
        tl.store(place + FIELDS - BOOK + entry, said, mask=fits)


@triton.jit(
    do_not_specialize=[
        "capacity",
        "count",
        "row_count",
        "width",
        "row_stride",
        "buffer_number",
        "poison",
        "moment",
    ],
    do_not_specialize_on_alignment=["values", "value_bits", "index", "seen_writes"],
)
def gather_guard(
    values,  # what was gathered: [count, width], as the buffer has it
    value_bits,  # the same memory as integers
    index,  # [count]
    buffer_bits,  # the buffer: [rows, row_stride]
    state,
    owned,
    left_live,
    book,
    reported,
    sink_holds,  # [1]: read if SINKS
    writes,
    seen_writes,  # [count], of the time of the gather: read if RETIRES_LATE
    ring,
    counts,
    capacity: tl.int64,
    count: tl.int64,
    row_count: tl.int64,
    width: tl.int64,
    row_stride: tl.int64,
    buffer_number: tl.int64,
    poison: tl.int64,
    limit: tl.int64,
    moment: tl.int64,
    JUDGES: tl.constexpr,
    RETIRES: tl.constexpr,
    RETIRES_LATE: tl.constexpr,
    SPARES: tl.constexpr,
    FROM_BUFFER: tl.constexpr,
    HAS_POISON: tl.constexpr,
    CHECKS: tl.constexpr,  # of poison, by the row's state: `verdicts.packed`
    SIGN: tl.constexpr,  # of the bound: 0 none, 1 `>=`, 2 `>`
    SINKS: tl.constexpr,  # whether it is said what they hold
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """After a gather: judges what it got, then poisons the rows and takes them out of the ledger.

    The verdict is on the values that the engine got, or `FROM_BUFFER` on those that it is about to
    get: then nothing may retire. A row that stands in the index twice was gathered once: what one
    launch both judges and retires is for one program. Padded entries point at one sink by the
    dozen: of sinks, a program reports the first that is wrong.
    """
    program = tl.program_id(0)
    if JUDGES and program == 0:
        tl.atomic_add(counts + 1, 1)
    entries = program * BLOCK + tl.arange(0, BLOCK)
    there = entries < count
    rows = tl.load(index + entries, mask=there, other=0)
    rows = tl.where(rows < 0, rows + row_count, rows)
    there = there & (rows >= 0) & (rows < row_count)
    is_owned = tl.load(owned + rows, mask=there, other=0) != 0
    sinks = there & ~is_owned
    there = there & is_owned
    held = tl.load(state + rows, mask=there, other=EMPTY)
    live = (held & 1) != 0
    # What was reported when it was written is not reported again.
    silent = live & (tl.load(reported + rows, mask=there, other=0) != 0)
    unseen = there & False
    columns = tl.arange(0, WIDE)

    if JUDGES:
        # Poison and a value that is not valid are two findings, also in one row.
        stale = (tl.load(left_live + rows, mask=there, other=0) != 0).to(tl.int64)
        place = (2 * held.to(tl.int64) + stale) * WIDTH
        check = ((tl.zeros_like(rows) + CHECKS) >> place) & MASK
        with_poison = there & False
        with_invalid = there & False
        its_poison = tl.zeros_like(rows)
        its_invalid = tl.zeros_like(rows)
        for start in range(0, width, WIDE):
            inside = there[:, None] & ((start + columns) < width)[None, :]
            at = entries[:, None] * width + (start + columns)[None, :]
            if FROM_BUFFER:
                at = rows[:, None] * row_stride + (start + columns)[None, :]
            bits = tl.load(value_bits + at, mask=inside, other=0).to(tl.int64)
            is_poison = inside & (bits == poison)
            if not HAS_POISON:
                is_poison = inside & (check != 0)[:, None]
            wrong = is_poison & (check != 0)[:, None]
            if SIGN == 1:
                value = tl.load(values + at, mask=inside, other=0)
                wrong = wrong | (inside & ~(value >= limit))
            if SIGN == 2:
                value = tl.load(values + at, mask=inside, other=0)
                wrong = wrong | (inside & ~(value > limit))
            wrong = wrong & ~silent[:, None]
            newly, first = _first_of(wrong & is_poison, bits, columns)
            its_poison = tl.where(newly & ~with_poison, first, its_poison)
            with_poison = with_poison | newly
            newly, first = _first_of(wrong & ~is_poison, bits, columns)
            its_invalid = tl.where(newly & ~with_invalid, first, its_invalid)
            with_invalid = with_invalid | newly
        unseen = there & ~live & ~with_poison & ~with_invalid & HAS_POISON
        wanted = with_poison | unseen
        _record(
            ring,
            counts,
            capacity,
            wanted,
            buffer_number,
            tl.where(unseen, UNSEEN, BASE + check),
            rows,
            its_poison,
            moment,
            book,
            row_count,
        )
        _record(
            ring,
            counts,
            capacity,
            with_invalid,
            buffer_number,
            INVALID,
            rows,
            its_invalid,
            moment,
            book,
            row_count,
        )
        tl.store(book + LAST_WRITE * row_count + rows, tl.zeros_like(rows) + NEVER, mask=unseen)
        tl.store(reported + rows, tl.zeros_like(held), mask=unseen)

    if JUDGES and SINKS:
        expected = tl.load(sink_holds)
        with_other = there & False
        its_other = tl.zeros_like(rows)
        for start in range(0, width, WIDE):
            inside = sinks[:, None] & ((start + columns) < width)[None, :]
            at = entries[:, None] * width + (start + columns)[None, :]
            if FROM_BUFFER:
                at = rows[:, None] * row_stride + (start + columns)[None, :]
            bits = tl.load(value_bits + at, mask=inside, other=0).to(tl.int64)
            value = tl.load(values + at, mask=inside, other=0)
            newly, first = _first_of(inside & (value != expected), bits, columns)
            its_other = tl.where(newly & ~with_other, first, its_other)
            with_other = with_other | newly
        is_first = tl.arange(0, BLOCK) == tl.argmax(with_other.to(tl.int32), axis=0)
        _record(
            ring,
            counts,
            capacity,
            with_other & is_first,
            buffer_number,
            SINK_CONTENT,
            rows,
            its_other,
            moment,
            book,
            row_count,
        )

    if RETIRES:
        gone = there
        if RETIRES_LATE:
            now = tl.load(writes + rows, mask=there, other=0)
            gone = there & (now == tl.load(seen_writes + entries, mask=there, other=0))
        if HAS_POISON:
            for start in range(0, width, WIDE):
                inside = gone[:, None] & ((start + columns) < width)[None, :]
                at = rows[:, None] * row_stride + (start + columns)[None, :]
                tl.store(buffer_bits + at, poison, mask=inside)
        left = tl.where((held == EMPTY) & ~unseen, EMPTY, CONSUMED)
        tl.store(state + rows, left, mask=gone)
        read = book + LAST_READ * row_count + rows
        tl.store(read, tl.zeros_like(rows) + moment, mask=gone)
    elif SPARES:
        tl.store(state + rows, tl.zeros_like(held) + SPARED, mask=there & (live | unseen))
    elif JUDGES:
        tl.store(state + rows, tl.zeros_like(held) + LIVE, mask=unseen)


@triton.jit(
    do_not_specialize=[
        "capacity",
        "count",
        "row_count",
        "width",
        "row_stride",
        "buffer_number",
        "poison",
        "limit",
        "moment",
        "step",
        "by_owner",
        "by_value",
        "guards",
        "empties",
        "constant",
        "updates",
        "judges",
    ],
    do_not_specialize_on_alignment=["values", "index", "given_bits"],
)
def write_guard(
    index,  # [count]
    values,  # the buffer: [rows, row_stride]
    buffer_bits,  # the same memory as integers
    given_bits,  # [count, width], what each entry was given: read `by_value`
    state,
    owned,
    allocation,
    left_in,
    book,
    reported,
    writes,
    stamps,
    ring,
    counts,
    capacity: tl.int64,
    epoch,
    count: tl.int64,
    row_count: tl.int64,
    width: tl.int64,
    row_stride: tl.int64,
    buffer_number: tl.int64,
    poison: tl.int64,
    limit: tl.int64,
    moment: tl.int64,
    step: tl.int64,  # -1 where nobody counts them
    by_owner: tl.int64,  # whether each row has to be somebody's
    by_value: tl.int64,  # whether a row may have been given two values
    guards: tl.int64,
    empties: tl.int64,
    constant: tl.int64,
    updates: tl.int64,
    judges: tl.int64,
    SIGN: tl.constexpr,  # of the bound: 0 none, 1 `>=`, 2 `>`
    HAS_POISON: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """After a write: the rows are live, unless one that `empties` left nothing but poison there.

    `guards` reports values that were lost, `judges` those that are not valid. What kind of write it
    was is told by numbers, not by constants: each kind's binary would have to be compiled before a
    capture. One program does all rows in order, so that a row that stands in the index twice was
    written once: what it held is read before anything is entered, and a stamp tells what this
    launch has entered itself. An entry whose row holds another value than it was given shares the
    row with one of another value.
    """
    this = tl.load(epoch) + 1
    for begin in range(0, count, BLOCK):
        entries = begin + tl.arange(0, BLOCK)
        there = entries < count
        rows = tl.load(index + entries, mask=there, other=0)
        rows = tl.where(rows < 0, rows + row_count, rows)
        there = there & (rows >= 0) & (rows < row_count)
        is_owned = tl.load(owned + rows, mask=there, other=0) != 0
        sinks = there & ~is_owned
        there = there & is_owned
        held = tl.load(state + rows, mask=there, other=EMPTY)
        has_it = tl.load(allocation + rows, mask=there, other=HELD).to(tl.int64)
        fresh = there & (tl.load(stamps + rows, mask=there, other=0) != this)
        retired = there & False
        if empties != 0:
            columns = tl.arange(0, WIDE)
            filled = tl.zeros([BLOCK], tl.int32)
            for start in range(0, width, WIDE):
                inside = there[:, None] & ((start + columns) < width)[None, :]
                at = rows[:, None] * row_stride + (start + columns)[None, :]
                bits = tl.load(buffer_bits + at, mask=inside, other=0).to(tl.int64)
                filled += tl.sum((inside & (bits == poison)).to(tl.int32), axis=1)
            retired = there & (filled == width)
        if guards != 0:
            lost = (
                fresh
                & ~retired
                & ((((tl.zeros_like(rows) + LOSSES) >> held.to(tl.int64)) & 1) != 0)
            )
            lost = lost & (has_it == HELD)
            _record(
                ring,
                counts,
                capacity,
                lost,
                buffer_number,
                LOST,
                rows,
                tl.load(buffer_bits + rows * row_stride, mask=lost, other=0),
                moment,
                book,
                row_count,
            )
        if by_owner != 0:
            since = step - tl.load(left_in + rows, mask=there, other=0)
            flight = ((step < 0) | (since < IN_FLIGHT)).to(tl.int64)
            nobodys = ((tl.zeros_like(rows) + NOBODYS) >> (2 * has_it + flight)) & 1
            nobodys = there & fresh & ~retired & (nobodys != 0)
            _record(
                ring,
                counts,
                capacity,
                nobodys,
                buffer_number,
                UNOWNED,
                rows,
                tl.load(buffer_bits + rows * row_stride, mask=nobodys, other=0),
                moment,
                book,
                row_count,
            )
        invalid = there & False
        its_invalid = tl.zeros_like(rows)
        judged = judges != 0 if SIGN != 0 else False
        if judged:
            columns = tl.arange(0, WIDE)
            for start in range(0, width, WIDE):
                inside = there[:, None] & ((start + columns) < width)[None, :]
                at = rows[:, None] * row_stride + (start + columns)[None, :]
                bits = tl.load(buffer_bits + at, mask=inside, other=0).to(tl.int64)
                value = tl.load(values + at, mask=inside, other=0)
                wrong = inside & ~(value > limit)
                if SIGN == 1:
                    wrong = inside & ~(value >= limit)
                if HAS_POISON and IS_FLOAT:
                    wrong = wrong & (bits != poison)
                elif HAS_POISON:
                    wrong = wrong & ((bits != poison) | (tl.zeros_like(bits) + constant == 0))
                newly, first = _first_of(wrong, bits, columns)
                its_invalid = tl.where(newly & ~invalid, first, its_invalid)
                invalid = invalid | newly
            invalid = invalid & fresh
            invalid = invalid & ((tl.zeros_like(rows) + updates == 0) | ((held & 1) != 0))
            # A constant over what was gathered marks that there is nothing.
            invalid = invalid & ((tl.zeros_like(rows) + constant == 0) | (held != CONSUMED))
            _record(
                ring,
                counts,
                capacity,
                invalid,
                buffer_number,
                INVALID_WRITE,
                rows,
                its_invalid,
                moment,
                book,
                row_count,
            )
        tl.debug_barrier()
        written = there & ~retired
        tl.store(reported + rows, invalid.to(tl.int8), mask=written & fresh)
        tl.store(state + rows, tl.zeros_like(held) + LIVE, mask=written)
        wrote = book + LAST_WRITE * row_count + rows
        tl.store(wrote, tl.zeros_like(rows) + moment, mask=written | sinks)
        ended = retired & ((held & 1) != 0)
        tl.store(state + rows, tl.zeros_like(held) + CONSUMED, mask=ended)
        read = book + LAST_READ * row_count + rows
        tl.store(read, tl.zeros_like(rows) + moment, mask=ended)
        tl.store(stamps + rows, tl.zeros_like(rows) + this, mask=there)
        tl.store(writes + rows, tl.zeros_like(rows) + this, mask=written)
        tl.debug_barrier()
        if by_value != 0:
            columns = tl.arange(0, WIDE)
            differing = tl.zeros([BLOCK], tl.int32)
            for start in range(0, width, WIDE):
                inside = there[:, None] & ((start + columns) < width)[None, :]
                at = rows[:, None] * row_stride + (start + columns)[None, :]
                bits = tl.load(buffer_bits + at, mask=inside, other=0)
                at = entries[:, None].to(tl.int64) * width + (start + columns)[None, :]
                given = tl.load(given_bits + at, mask=inside, other=0)
                differing += tl.sum((inside & (bits != given)).to(tl.int32), axis=1)
            twice = differing != 0
            _record(
                ring,
                counts,
                capacity,
                twice,
                buffer_number,
                REPEATED,
                rows,
                tl.load(buffer_bits + rows * row_stride, mask=twice, other=0),
                moment,
                book,
                row_count,
            )
    tl.store(epoch, this)
    tl.atomic_add(counts + 2, 1)


@triton.jit
def _first_of(wrong, bits, columns):
    """Returns which rows have an element that is wrong, and the bits of the first one."""
    first = tl.argmax(wrong.to(tl.int32), axis=1)
    is_first = wrong & (columns[None, :] == first[:, None])
    return tl.max(wrong.to(tl.int32), axis=1) != 0, tl.sum(tl.where(is_first, bits, 0), axis=1)


@triton.jit(do_not_specialize=["count", "row_count", "width", "row_stride", "poison"])
def hand_out_rows(
    index,  # [count], each row once
    generations,  # [count]
    buffer_bits,
    state,
    left_live,
    book,
    writes,
    allocation,
    epoch,
    count: tl.int64,
    row_count: tl.int64,
    width: tl.int64,
    row_stride: tl.int64,
    poison: tl.int64,
    HAS_POISON: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The rows go to new owners: empty, with poison over what the old ones left."""
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = entries < count
    rows = tl.load(index + entries, mask=there, other=0)
    held = tl.load(state + rows, mask=there, other=EMPTY)
    was_live = (held & 1) != 0
    tl.store(left_live + rows, was_live.to(tl.int8), mask=there & (held != EMPTY))
    its_generation = book + GENERATION * row_count + rows
    before = tl.load(its_generation, mask=there, other=0)
    # Each of the last accesses is of the past from now on, and belongs to the generation before.
    for entry in tl.static_range(0, GENERATION, 2):
        access = book + entry * row_count + rows
        moment = tl.load(access, mask=there, other=NEVER)
        tl.store(access + row_count, before, mask=there & ((moment & PAST) == 0))
        tl.store(access, moment | PAST, mask=there)
    tl.store(its_generation, tl.load(generations + entries, mask=there, other=0), mask=there)
    tl.store(state + rows, tl.zeros_like(held) + EMPTY, mask=there)
    tl.store(allocation + rows, tl.zeros_like(held).to(tl.int8) + HELD, mask=there)
    # What a gather put off must not retire is told by a write since: so is this.
    tl.store(writes + rows, tl.zeros_like(rows) - 1 - tl.load(epoch), mask=there)
    if HAS_POISON:
        columns = tl.arange(0, WIDE)
        for start in range(0, width, WIDE):
            inside = there[:, None] & ((start + columns) < width)[None, :]
            at = rows[:, None] * row_stride + (start + columns)[None, :]
            tl.store(buffer_bits + at, poison, mask=inside)


@triton.jit(do_not_specialize=["count"])
def spare_rows(
    index,  # [count]
    now_allocated,  # [count]
    now_left_in,  # [count]
    state,
    allocation,
    left_in,
    count: tl.int64,
    BLOCK: tl.constexpr,
):
    """Nobody waits for what the rows hold, whoever has them now."""
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = entries < count
    rows = tl.load(index + entries, mask=there, other=0)
    held = tl.load(state + rows, mask=there, other=EMPTY)
    tl.store(state + rows, tl.zeros_like(held) + SPARED, mask=there & ((held & 1) != 0))
    tl.store(allocation + rows, tl.load(now_allocated + entries, mask=there, other=0), mask=there)
    tl.store(left_in + rows, tl.load(now_left_in + entries, mask=there, other=0), mask=there)

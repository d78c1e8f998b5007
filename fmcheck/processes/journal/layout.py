"""The layout of a journal: two files a process, one of numbers and one of lines.

`HOST-PID-CLOCK.ring` is mapped into memory and holds 64-bit words at fixed places, each written
whole: it is right at any moment that the process may be killed at. `HOST-PID-CLOCK.jsonl` holds
lines of JSON, each appended by one write. A line stands in its file before `COMMITTED` counts it.
Clocks are nanoseconds of `time.monotonic`, which the processes of one host share.
"""

from __future__ import annotations

import functools
import time

import msgspec

from fmcheck.finding import ContractUse, Violation  # noqa: TC001  (msgspec reads them)

#: `fmcheck` and the version of the layout, as one word.
MAGIC = int.from_bytes(b"fmcheck\x01", "little")

# --- words of the ring ---

COMMITTED = 1
#: Lines that could not be written.
LOST = 2
#: A pytest process: the number of the phase of a test that is on, 0 between them.
PHASE = 3
#: A pytest process: how often it asked its children to read their devices; a child: how often it
#: did as it was asked.
ASKED = 4
ANSWERED = 5
#: A child: 1 if it keeps findings on a device, which it must be asked for.
ON_DEVICE = 6
SUPPRESSED = 7  # violations that suppressions took
#: Processes that could not make a journal, counted by them in the shared memory: forks of this one,
#: and what was started by the tests of this one.
UNWATCHED = 31
#: From here on: counts, in the order of `fmcheck.finding.Counts`.
COUNTS = 8
#: From here on: how often each violation was seen, by its slot.
SLOTS = 32
MOST_SLOTS = 4096
WORDS = SLOTS + MOST_SLOTS
SIZE = 8 * WORDS

RING = ".ring"
LINES = ".jsonl"
#: The settings that a pytest process hands on, as `fmcheck.processes.child.run_context` packs them.
CONTEXT = ".context"
#: The facts of a pytest process that say at which clock it last read the others' journals.
LOOKED = "looked"
#: In each run's folder: the processes that were reached, whether or not they wrote a journal.
STARTS = "starts-"


class Head(msgspec.Struct, frozen=True, tag="head"):
    """The first line: who writes. `board` names the pytest process whose tests it belongs to.

    `way` says how it was reached; `test` is PYTEST_CURRENT_TEST as it was at its start.
    """

    pid: int
    parent: int
    host: str
    role: str
    command: tuple[str, ...]
    way: str
    board: str
    test: str
    clock: int
    wall: float


class SessionLine(msgspec.Struct, frozen=True, tag="session"):
    """A pytest process: the session that it runs. `root` is what paths are shown relative to."""

    version: str
    root: str
    mode: str


class Board(msgspec.Struct, frozen=True, tag="board"):
    """A process stamps tests itself from here on, as a fork of pytest does that runs one."""

    name: str


class Role(msgspec.Struct, frozen=True, tag="role"):
    """A better name for the process than that of its head."""

    role: str


class Fact(msgspec.Struct, frozen=True, tag="fact"):
    """A sentence or a name, once: `kind` is a field of `Coverage`, `held`, `dead` or `LOOKED`."""

    kind: str
    text: str


class Untracked(msgspec.Struct, frozen=True, tag="untracked"):
    """How many of something were not followed up to now, as in `Coverage.untracked`.

    The last line of one `what` and `reason` counts.
    """

    what: str
    reason: str
    count: int


class Incomplete(msgspec.Struct, frozen=True, tag="incomplete"):
    """A check that failed itself, in a sentence. The last line of one check counts."""

    check: str
    sentence: str


class UseLine(msgspec.Struct, frozen=True, tag="use"):
    """How far a contract was used up to now. The last line of one contract counts."""

    use: ContractUse


class Reported(msgspec.Struct, frozen=True, tag="violation"):
    """A violation, in the phase that its board was in; its slot of the ring counts it on."""

    violation: Violation
    advice: bool
    slot: int
    phase: int
    clock: int


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A phase of a test begins."""

    phase: int
    test: str
    when: str
    clock: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A phase of a test ended."""

    phase: int
    clock: int


class Reaped(msgspec.Struct, frozen=True, tag="reaped"):
    """A child of this process ended, with this wait status; `command`, if that is Python's."""

    pid: int
    status: int
    clock: int
    command: tuple[str, ...] = ()


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The last line, if the process comes to it.

    `code` is its exit status, None if not known; `notes` are those of its coverage, with counts.
    """

    clock: int
    wall: float
    code: int | None = None
    notes: tuple[str, ...] = ()


_Facts = Fact | Untracked | Incomplete | UseLine
Line = Head | SessionLine | Board | Role | _Facts | Reported | Begun | Ended | Reaped | Goodbye


class StartLine(msgspec.Struct, frozen=True):
    """A process that was reached. `failed` says why it is not watched, "" if it is.

    Written by the standard library alone, before anything else is imported.
    """

    pid: int
    parent: int
    host: str
    command: tuple[str, ...]
    way: str
    clock: int
    wall: float
    failed: str = ""


#: The clock itself: a test may put another one in the place of `time.monotonic_ns`.
_clock = functools.partial(time.monotonic_ns)


def now() -> int:
    """Returns the clock."""
    return _clock()

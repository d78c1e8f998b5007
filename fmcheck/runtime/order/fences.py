"""Fences: the one place that every record, wait and launch of a session passes through.

Whatever follows streams, virtual ones or a device's, says here what the engine did. The host is a
lane as a stream is one: what it did before it launched a piece of work happened before that work,
and what it waited for happened before all that it does next. All of a process's host threads are
one lane: they order each other by means that are out of sight here, and what they do is taken for
ordered.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.finding import Event
from fmcheck.runtime.core.clocks import Clocks, Epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    import numpy.typing as npt

    from fmcheck.runtime.core.tally import Tally

HOST = "host"
#: Happenings that each lane remembers.
REMEMBERED = 64
#: Happenings that are kept for the trace; older ones are counted.
_TRACED = 20_000
#: Records of events whose earlier record is remembered.
_REPLACED = 1024
#: Lanes of streams that are gone while their work may not be done; torch pools as many streams.
_GONE = 32


#: What becomes of a lane or record in a copy or a pickle of the stream or event that it is kept in.
_NONE: tuple[type[None], tuple[()]] = type(None), ()


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened on a lane, in the order of issue.

    `what` is one of `finding.Event`'s words, `launch` or `free`. `moment` says where and in which
    step. `after` is the record that a wait met. `about` is what an access or launch touched: the
    buffer's name, or what the caller says it is. `count` is the lane's own time then.
    """

    number: int
    lane: Lane
    what: str
    moment: int
    count: int
    after: FenceRecord | None = None
    about: Any = None
    ordered: bool = True

    @property
    def epoch(self) -> Epoch:
        """The happening as others' clocks know it."""
        return Epoch(self.lane.number, self.count)


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """What an event was recorded after: the lane's happening, and all that the lane knew then."""

    happening: Happening
    vector: npt.NDArray[np.int64]

    @property
    def lane(self) -> Lane:
        """The lane that the event was recorded on."""
        return self.happening.lane

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return _NONE


@dataclass(eq=False)
class Lane:
    """A stream, or the host.

    `waits` are never changed in place: who keeps them knows what the lane had waited for by then.
    `used` is the lane's own time of the last that it did.
    """

    number: int
    fences: Fences
    naming: Callable[[], str]
    waits: Mapping[int, Happening] = field(default_factory=dict)
    ring: deque[Happening] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    used: int = 0
    _name: str = ""
    _host_seen: int = -1

    @property
    def name(self) -> str:
        """The stream's name, which it gets when it is first asked for."""
        if not self._name:
            self._name = self.fences.unique(self.naming())
        return self._name

    @property
    def name_if_asked(self) -> str:
        """The stream's name, "" while nobody has asked for it."""
        return self._name

    def __repr__(self) -> str:
        return f"<lane {self.number} {self.name}>"

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return _NONE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the lanes had behind them at one access, by their numbers.

    A report may come much later, from a device: by then the lanes have gone on.

    `waits` are a lane's last waits, by the lane that was waited for, `rings` what it remembers,
    `doubts` the reasons to doubt a race. Without `all_waits`, older waits may have been forgotten.
    """

    fences: Fences
    waits: Mapping[int, Mapping[int, Happening]]
    rings: Mapping[int, tuple[Happening, ...]]
    doubts: tuple[str, ...]
    all_waits: bool = True

    def waited(self, lane: Lane) -> list[Happening]:
        """Returns the last wait of a lane for each other lane, oldest first."""
        return sorted(self.waits[lane.number].values(), key=lambda wait: wait.number)

    def history(self, lanes: Iterable[Lane], last: Iterable[Happening] = ()) -> tuple[Event, ...]:
        """Returns what the lanes remember, with the happenings at its end, in order of issue."""
        by_number = {one.number: one for lane in lanes for one in self.rings[lane.number]}
        by_number.update((one.number, one) for one in last)
        return tuple(self.fences.event(by_number[number]) for number in sorted(by_number))

    def before(self, number: int) -> Snapshot:
        """Returns what was behind them before a happening, as far as they still remember it."""
        rings = {
            lane: tuple(one for one in ring if one.number < number)
            for lane, ring in self.rings.items()
        }
        waits = {
            lane: {one.after.lane.number: one for one in ring if one.after is not None}
            for lane, ring in rings.items()
        }
        return replace(self, rings=rings, waits=waits, all_waits=False)

    def out_of_sight(self) -> list[str]:
        """Returns a sentence on each reason to doubt a race."""
        return [f"fences may have been missed: {reason}" for reason in self.doubts]


class Fences:
    """The lanes of a session, their clocks, and who listens.

    Listeners are called with each `Happening`: fences, launches that somebody tells of, and
    accesses. `doubts` are the reasons for which a fence may have been missed: with one, no race
    is certain. `gates` are packages, each with its contract's word on a fence between a read and a
    later write that it makes on some platforms alone. `seed` is what streams are perturbed by, None
    where they are not. `unordered` are the numbers of accesses that turned out to race later.
    """

    def __init__(self, tally: Tally, seed: int | None = None) -> None:
        self.tally = tally
        self.seed = seed
        self.clocks = Clocks()
        self.lanes: list[Lane] = []
        self.listeners: list[Callable[[Happening], None]] = []
        #: Called when the host has waited for a lane in order to read a value.
        self.on_read: list[Callable[[], None]] = []
        self.doubts: dict[str, int] = {}
        self.gates: list[tuple[str, str]] = []
        self.unordered: set[int] = set()
        self._names: set[str] = set()
        self._numbers = itertools.count(1)
        self._free: list[int] = []
        # Of each record, the one of the same event that it took the place of; the last few.
        self._replaced: OrderedDict[int, FenceRecord] = OrderedDict()
        self._host_version = 0
        self.host = self.open(lambda: HOST)

    # --- lanes ---

    def open(self, naming: Callable[[], str], owner: Any = None) -> Lane:
        """Opens a lane. It is used again once its `owner`, the stream, is gone and done."""
        number = self._done()
        if number is not None:
            self.clocks.reopen(number)
            lane = self.lanes[number] = Lane(number, self, naming)
        else:
            lane = Lane(self.clocks.add(), self, naming)
            self.lanes.append(lane)
        if owner is not None:
            weakref.finalize(owner, self._close, lane).atexit = False
        if lane.number:
            self.launch(lane)
        return lane

    def _done(self) -> int | None:
        """Takes the number of a lane that is gone: what it did would be taken for the next one's.

        So the host has to have waited for it, unless too many are gone.
        """
        for at, number in enumerate(self._free):
            used = self.lanes[number].used
            if self.clocks.known(self.host.number, number) >= used or len(self._free) > _GONE:
                return self._free.pop(at)
        return None

    def _close(self, lane: Lane) -> None:
        self._free.append(lane.number)
        self._names.discard(lane.name_if_asked)

    def unique(self, name: str) -> str:
        """Returns a name that no other lane has: the name itself, or with a number."""
        for number in itertools.count(2):
            if name not in self._names:
                break
            name = f"{name.partition(' (')[0]} ({number})"
        self._names.add(name)
        return name

    # --- order ---

    def launch(self, lane: Lane) -> None:
        """The host puts work on a lane: all that it did and waited for so far comes before it."""
        if lane._host_seen != self._host_version:
            # What the host did since the last launch has that epoch; what it does next has not.
            self.clocks.pass_on(self.host.number, lane.number)
            lane._host_seen = self._host_version

    def now(self, lane: Lane) -> Epoch:
        """Returns the epoch of what a lane does now."""
        return Epoch(lane.number, self.time(lane))

    def time(self, lane: Lane) -> int:
        """Returns the lane's own time of what it does now."""
        if lane is self.host:
            self._host_version += 1
        elif lane._host_seen != self._host_version:
            self.launch(lane)
        lane.used = self.clocks.known(lane.number, lane.number)
        return lane.used

    def ordered(self, epoch: Epoch, lane: Lane) -> bool:
        """Tells whether an epoch happened before all that the lane does from now on."""
        if lane is not self.host:
            self.launch(lane)
        return self.clocks.covers(lane.number, epoch)

    def is_done(self, lane: Lane) -> bool:
        """Tells whether the host knows of all that a lane did, and of all that it waited for."""
        known, host = self.clocks.known, self.host.number
        return all(
            min(known(lane.number, other.number), other.used) <= known(host, other.number)
            for other in self.lanes[1:]
        )

    # --- fences ---

    def record(self, lane: Lane, moment: int | None = None) -> FenceRecord:
        """An event is recorded on a lane; the result stands for the event until its next record."""
        return self._release(lane, "record", self._moment(lane) if moment is None else moment)

    def record_again(self, before: FenceRecord, made: FenceRecord) -> None:
        """A record took the place of another one of the same event."""
        self._replaced[made.happening.number] = before
        if len(self._replaced) > _REPLACED:
            self._replaced.popitem(last=False)

    def replaced_by(self, record: FenceRecord) -> FenceRecord | None:
        """Returns the record whose place another one took, None if that is not remembered."""
        return self._replaced.get(record.happening.number)

    def wait(self, lane: Lane, record: FenceRecord | None, what: str = "wait") -> None:
        """A lane waits for a record; for None, an event that was never recorded, it does not."""
        moment = self._moment(lane)
        if record is None:
            self.add_event(lane, what, moment)
            return
        if lane is not self.host:
            self.launch(lane)
        new = self.clocks.acquire(lane.number, record.vector)
        if lane is self.host and new:
            self._host_version += 1
        waited = self.add_event(lane, what, moment, record)
        lane.waits = {**lane.waits, record.lane.number: waited}

    def wait_lane(self, lane: Lane, other: Lane) -> None:
        """A lane waits for all that another has been given so far."""
        if lane is not other:
            self.wait(lane, self._release(other, "record", self._moment(lane)))

    def synchronize(self, record: FenceRecord | None) -> None:
        """The host waits for a record."""
        self.wait(self.host, record, "synchronize")

    def synchronize_lane(self, lane: Lane) -> None:
        """The host waits for all that a lane has been given so far."""
        self.synchronize(self._release(lane, "record", self._moment(self.host)))

    def found_done(self, record: FenceRecord | None) -> None:
        """The host asked, without blocking, and heard that a record had passed."""
        self.wait(self.host, record)

    def found_lane_done(self, lane: Lane) -> None:
        """The host asked, without blocking, and heard that a lane was done."""
        self.wait_lane(self.host, lane)

    def read_by_host(self, lane: Lane) -> None:
        """The host asked for a value: it has waited for all that the current lane was given."""
        self.launch(lane)
        self.clocks.acquire(self.host.number, self.clocks.release(lane.number))
        self._host_version += 1
        for read in self.on_read:
            read()

    def synchronize_all(self) -> None:
        """The host waits for the device."""
        for lane in self.lanes[1:]:
            self.synchronize_lane(lane)

    def settle(self) -> None:
        """All that any lane was given so far comes before all that is done next."""
        for lane in self.lanes[1:]:
            self.clocks.acquire(self.host.number, self.clocks.release(lane.number))
        self._host_version += 1

    def lend(self, tensor: Any, lane: Lane) -> None:
        """A tensor is told to be in use on a lane, by `record_stream`."""
        # What the lane remembers of it must not keep the tensor alive.
        self.add_event(lane, "lend", self._moment(lane), about=weakref.ref(tensor))

    def out_of_sight(self) -> list[str]:
        """Returns a sentence on each reason to doubt a race."""
        return self.snapshot(()).out_of_sight()

    def gate(self, kind: str) -> str:
        """Returns what may have left out the fence of a race on purpose, "" if nothing may."""
        gates = self.gates if kind == "read-write" else ()
        return next((said for package, said in gates if package in sys.modules), "")

    def doubt(self, reason: str) -> None:
        """A fence may have been missed from here on: no race is certain any more."""
        self.doubts[reason] = self.doubts.get(reason, 0) + 1

    # --- what is known for a report ---

    def waited(self, lane: Lane) -> list[Happening]:
        """Returns the last wait of a lane for each other lane, oldest first."""
        return self.snapshot([lane]).waited(lane)

    def history(self, lanes: Iterable[Lane], last: Iterable[Happening] = ()) -> tuple[Event, ...]:
        """Returns what the lanes remember, with the happenings at its end, in order of issue."""
        lanes = tuple(lanes)
        return self.snapshot(lanes).history(lanes, last)

    def snapshot(self, lanes: Iterable[Lane]) -> Snapshot:
        """Returns what some lanes have behind them by now."""
        lanes = tuple(lanes)
        return Snapshot(
            self,
            {lane.number: lane.waits for lane in lanes},
            {lane.number: tuple(lane.ring) for lane in lanes},
            tuple(self.doubts),
        )

    def event(self, one: Happening) -> Event:
        """Returns a happening as reports tell of it."""
        moments = self.tally.moments
        return Event(
            one.number,
            one.lane.name,
            one.what,
            self.tally.site_of(one.moment),
            moments.step_of(one.moment),
            one.after.happening.number if one.after is not None else None,
            one.ordered and one.number not in self.unordered,
            one.about if isinstance(one.about, str) else "",
        )

    # --- events ---

    def add_event(
        self,
        lane: Lane,
        what: str,
        moment: int,
        after: FenceRecord | None = None,
        about: Any = None,
        ordered: bool = True,
    ) -> Happening:
        """Keeps what happened on a lane, and tells the listeners."""
        count = self.clocks.known(lane.number, lane.number)
        happened = Happening(next(self._numbers), lane, what, moment, count, after, about, ordered)
        lane.ring.append(happened)
        for listener in self.listeners:
            listener(happened)
        return happened

    def _release(self, lane: Lane, what: str, moment: int) -> FenceRecord:
        if lane is not self.host:
            self.launch(lane)
        happened = self.add_event(lane, what, moment)
        return FenceRecord(happened, self.clocks.release(lane.number))

    def _moment(self, lane: Lane) -> int:
        tally = self.tally
        return tally.moments.on(lane.name, tally.sites.here(2))


class RecentEvents:
    """The last happenings of a session, kept for the trace."""

    def __init__(self, fences: Fences, kept: int = _TRACED) -> None:
        self.fences = fences
        self.count = 0
        self._kept: deque[Happening] = deque(maxlen=kept)
        fences.listeners.append(self._heard)

    @property
    def dropped(self) -> int:
        """How many happenings were not kept."""
        return self.count - len(self._kept)

    def events(self) -> tuple[Event, ...]:
        """Returns what was kept, oldest first."""
        return tuple(self.fences.event(one) for one in list(self._kept))

    def _heard(self, happened: Happening) -> None:
        if happened.what == "lend":  # a word to the allocator, which runs nowhere
            return
        self.count += 1
        self._kept.append(happened)

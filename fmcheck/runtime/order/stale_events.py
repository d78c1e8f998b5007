"""FR405 stale-event: a wait that meets another record of its event than its producer's.

The contract names events that each step waits for again. Where their producer did not record since,
such a wait orders nothing. Without step functions, a stream that waits for one record twice is
what is reported. And where another stream has recorded the event before anybody waited for the
producer's record, the wait meets the later one, and does not order the producer.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from fmcheck.finding import CHECKS, Violation
from fmcheck.runtime.core.clocks import Epoch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.contract import Contract
    from fmcheck.finding import Site
    from fmcheck.runtime.order.fences import FenceRecord, Fences, Happening

_CODE = "FR405"
_WAITS = frozenset({"wait", "synchronize"})
# Records of the past that may still be met: an engine has few in flight.
_REMEMBERED = 4096


class StaleEvents:
    """Listens to fences. An event is known by the line that waits for it."""

    def __init__(self, fences: Fences, contracts: Iterable[Contract]) -> None:
        self.fences = fences
        self.tally = fences.tally
        names = [name for one in contracts for name in one.streams.consumed_once]
        self._named = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b") if names else None
        self._consumed: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._waited: OrderedDict[int, None] = OrderedDict()
        if names:
            fences.listeners.append(self._heard)

    def _heard(self, happened: Happening) -> None:
        record = happened.after
        if record is None or happened.what not in _WAITS or self._named is None:
            return
        self._waited[record.happening.number] = None
        if len(self._waited) > _REMEMBERED:
            self._waited.popitem(last=False)
        self._look_for_lost(happened, record)
        moments = self.tally.moments
        step = moments.step_of(happened.moment)
        # All that one step waits for is one consumption; without steps, a stream's each wait is.
        lane = -1 if step is not None else happened.lane.number
        key = (record.happening.number, lane)
        first = self._consumed.get(key)
        if first is None:
            self._consumed[key] = happened.moment
            if len(self._consumed) > _REMEMBERED:
                self._consumed.popitem(last=False)
        elif step is None or moments.step_of(first) != step:
            name = self._name_at(self.tally.site_of(happened.moment))
            if name:
                self._report(name, happened, first)

    def _look_for_lost(self, happened: Happening, record: FenceRecord) -> None:
        """Looks whether a record that nobody waited for lost its place to that of another stream.

        One of the same stream comes after it, and orders it as well.
        """
        lost = self.fences.replaced_by(record)
        if lost is None or lost.lane is record.lane or lost.happening.number in self._waited:
            return
        epoch = Epoch(lost.lane.number, lost.happening.count)
        if self.fences.clocks.covers(happened.lane.number, epoch):
            return
        name = self._name_at(self.tally.site_of(happened.moment))
        if name:
            self._waited[lost.happening.number] = None  # it is reported once
            made, where = (
                self.tally.site_of(record.happening.moment),
                self.tally.site_of(lost.happening.moment),
            )
            missing = f"an event for each stream that records `{name}`"
            note = (
                f"this wait met the record of {made.short} on stream `{record.lane.name}`: that "
                f"of {where.short} on stream `{lost.lane.name}` came before it, and nobody waited "
                "for it"
            )
            self._report_wait(
                name, happened, missing, note, (lost.happening, record.happening, happened)
            )

    def _name_at(self, site: Site) -> str:
        """Returns the declared name that a line mentions, "" for any other line."""
        assert self._named is not None
        found = self._named.search(linecache.getline(site.path, site.line))
        return found.group(1) if found else ""

    def _report(self, name: str, happened: Happening, first: int) -> None:
        record = happened.after
        assert record is not None
        made = record.happening
        step = self.tally.moments.step_of(first)
        since = f" in step {step}" if step is not None else ""
        note = (
            f"the record was made at {self.tally.site_of(made.moment).short}, and met at "
            f"{self.tally.site_of(first).short}{since} before: this wait orders nothing"
        )
        missing = f"a record of `{name}` on stream `{record.lane.name}` since then"
        self._report_wait(name, happened, missing, note, (made, happened))

    def _report_wait(
        self,
        name: str,
        happened: Happening,
        missing: str,
        note: str,
        history: tuple[Happening, ...],
    ) -> None:
        tally = self.tally
        access = tally.access(happened.what, happened.moment, happened.lane.name)
        with tally.lock:
            if tally.seen_again((_CODE, name, access.site)):
                return
            lanes = tuple(dict.fromkeys(one.lane for one in history))
            tally.report(
                Violation(
                    code=_CODE,
                    name=CHECKS[_CODE],
                    buffer=name,
                    access=access,
                    test=tally.test,
                    device="cpu",
                    pid=os.getpid(),
                    missing=missing,
                    notes=(note, *self.fences.out_of_sight()),
                    history=self.fences.history(lanes, history),
                    confidence="incomplete" if self.fences.doubts else "",
                )
            )

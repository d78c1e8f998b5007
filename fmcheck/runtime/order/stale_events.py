"""FR405 stale-event: a wait that meets a record which an earlier step has consumed already.

The contract names events that each step waits for anew. Where their producer did not record since,
such a wait orders nothing. Without step functions, a stream that waits for one record twice is
what is reported.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import OrderedDict
from pathlib import PurePath
from typing import TYPE_CHECKING

from fmcheck.finding import CHECKS, Access, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmcheck.contract import Contract
    from fmcheck.finding import Site
    from fmcheck.runtime.order.fences import Fences, Happening

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
        if names:
            fences.listeners.append(self._heard)

    def _heard(self, happened: Happening) -> None:
        record = happened.after
        if record is None or happened.what not in _WAITS or self._named is None:
            return
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
            name = self._name_at(self._site(happened.moment))
            if name:
                self._report(name, happened, first)

    def _name_at(self, site: Site) -> str:
        """Returns the declared name that a line mentions, "" for any other line."""
        assert self._named is not None
        found = self._named.search(linecache.getline(site.path, site.line))
        return found.group(1) if found else ""

    def _report(self, name: str, happened: Happening, first: int) -> None:
        tally, record = self.tally, happened.after
        assert record is not None
        site, made = self._site(happened.moment), record.happening
        with tally.lock:
            if tally.seen_again((_CODE, name, site)):
                return
            recorded = self._site(made.moment)
            step = tally.moments.step_of(first)
            earlier = self._site(first)
            since = f" in step {step}" if step is not None else ""
            tally.report(
                Violation(
                    code=_CODE,
                    name=CHECKS[_CODE],
                    buffer=name,
                    rows=(),
                    row_count=0,
                    values=(),
                    access=self._access(happened),
                    last_write=None,
                    last_read=None,
                    test=tally.test,
                    device="cpu",
                    pid=os.getpid(),
                    missing=f"a record of `{name}` on stream `{record.lane.name}` since then",
                    notes=(
                        f"the record was made at {_line(recorded)}, and met at "
                        f"{_line(earlier)}{since} before: this wait orders nothing",
                        *self.fences.out_of_sight(),
                    ),
                    history=self.fences.history((made.lane, happened.lane), (made, happened)),
                    confidence="incomplete" if self.fences.doubts else "",
                )
            )

    def _access(self, happened: Happening) -> Access:
        moments = self.tally.moments
        site = self._site(happened.moment)
        step = moments.step_of(happened.moment)
        return Access(happened.what, site, step, happened.lane.name)

    def _site(self, moment: int) -> Site:
        return self.tally.sites[self.tally.moments.site(moment)]


def _line(site: Site) -> str:
    return f"{PurePath(site.path).name}:{site.line}"

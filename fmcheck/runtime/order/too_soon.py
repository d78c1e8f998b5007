"""Reports of what came too soon for a stream that was not done: FR402, FR403 and FR404."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fmcheck.finding import CHECKS, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Site
    from fmcheck.runtime.order.blocks import BlockUse
    from fmcheck.runtime.order.fences import Fences


class TooSoon:
    """Tells each gap once: the check, where it showed, and the two lanes."""

    def __init__(self, fences: Fences) -> None:
        self.fences = fences
        self.tally = fences.tally
        # Engines need not lend memory of a CPU: without a first time, nothing says that they would.
        self.lends = False
        self._reported: dict[tuple[str, Site, str, str], tuple[str, str, Site]] = {}

    def begin_test(self) -> None:
        """Tells each gap again, and as the next test's own."""
        self.lends = False
        self._reported.clear()

    def here(self) -> int:
        """Returns the moment of what the host does now."""
        return self.tally.moments.on("host", self.tally.sites.here(2))

    def line(self, moment: int) -> str:
        """Returns the file's name and the line of a moment."""
        site = self.tally.site_of(moment)
        return site.short

    def report(
        self,
        code: str,
        late: BlockUse,
        verb: str,
        early: BlockUse,
        early_verb: str,
        missing: str,
        note: str,
        made: BlockUse | None = None,
        early_writes: bool = False,
        doubt: str = "",
    ) -> None:
        """Reports that `late` came before `early` was done, or counts it where that was reported.

        `made` is the allocation of memory that was freed too soon. `early` is a read unless it is
        said that it `early_writes`. A `doubt` makes it an advisory.
        """
        tally, fences = self.tally, self.fences
        if tally.sites.is_showing():
            return
        site = tally.site_of(late.moment)
        begun = tally.site_of((made or early).moment)
        name = f"memory of {begun.short} in {begun.function}"
        # One line that frees a batch too soon frees many tensors: one report for all of them.
        gap = (code, site, early.lane.name, late.lane.name if made else name)
        with tally.lock:
            key = self._reported.setdefault(gap, (code, name, site))
            if tally.seen_again(key):
                return
            code, name, site = key
            first = fences.add_event(early.lane, early_verb, early.moment, about=name)
            last = fences.add_event(late.lane, verb, late.moment, about=name, ordered=False)
            before = tally.access(early_verb, early.moment, early.lane.name)
            doubts = (doubt, *fences.out_of_sight()) if doubt else tuple(self._doubts(code))
            tally.report(
                Violation(
                    code=code,
                    name=CHECKS[code],
                    buffer=name,
                    access=tally.access(verb, late.moment, late.lane.name),
                    last_write=before if early_writes else None,
                    last_read=None if early_writes else before,
                    test=tally.test,
                    device="cpu",
                    pid=os.getpid(),
                    missing=missing,
                    notes=(note, *doubts),
                    history=fences.history((early.lane, late.lane), (first, last)),
                    confidence="incomplete" if doubts else "",
                )
            )

    def _doubts(self, code: str) -> Iterator[str]:
        yield from self.fences.out_of_sight()
        if code == "FR402" and not self.lends:
            yield "no `record_stream` call was observed; the engine may call it only on GPU"

"""FR601 capture-identity: a graph input that was bound to other memory than its graph reads.

A captured graph reads the memory of capture time. Where the contract says what captures, the inputs
must lie where they lay after the last capture; elsewhere they must not move while they are filled.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from fmcheck.finding import CHECKS, Access, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from fmcheck.finding import Site
    from fmcheck.runtime.open_fill import OpenFill
    from fmcheck.runtime.tally import Tally

_CODE = "FR601"


class Place(NamedTuple):
    """Where a tensor's first element lies, on which device, and how far the tensor reaches.

    A head of a captured buffer, cut to the batch, begins where the graph reads and ends too soon.
    """

    address: int
    device: str
    size: int
    shape: tuple[int, ...]


def place_of(tensor: torch.Tensor) -> Place:
    """Returns where a tensor lies."""
    from fmcheck.runtime.writes import address_of

    shape = tuple(tensor.shape)
    return Place(address_of(tensor), str(tensor.device), tensor.element_size(), shape)


class Captured(NamedTuple):
    """Where the inputs of one runner lay when its graph was captured, and the line that did."""

    places: Mapping[str, Place]
    site: Site


class Captures:
    """What the runners of one declared fill have captured."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._of: dict[int, Captured] = {}

    def capture(self, filler: Any, places: Mapping[str, Place], site: Site) -> None:
        """A graph was captured over inputs that lie at `places`."""
        if id(filler) not in self._of:
            try:
                weakref.finalize(filler, self._of.pop, id(filler), None).atexit = False
            except TypeError:
                return  # nothing would tell of its end
        self._of[id(filler)] = Captured(places, site)

    def judge(self, fill: OpenFill, before: Mapping[str, Place]) -> None:
        """The graph is about to read what was filled: each input has to be where it was."""
        captured = self._of.get(id(fill.filler))
        expected = before if captured is None else captured.places
        now = fill.places()
        for name, place in expected.items():
            if name not in now:
                continue
            # Without a capture there is no telling whether a graph knows how far it reaches.
            parts = 4 if captured is not None else 3
            if now[name][:parts] != place[:parts]:
                self._report(f"{fill.owner}.{name}", fill.site, now[name], captured)

    def _report(self, buffer: str, site: Site, now: Place, captured: Captured | None) -> None:
        tally = self.tally
        note = "it was bound to another tensor while it was filled"
        if captured is not None:
            where = f"{os.path.basename(captured.site.path)}:{captured.site.line}"
            note = f"the graph was captured at {where}, and reads the tensor of that time"
        with tally.lock:
            if tally.seen_again((_CODE, buffer, site)):
                return
            moments = tally.moments
            tally.report(
                Violation(
                    code=_CODE,
                    name=CHECKS[_CODE],
                    buffer=buffer,
                    rows=(),
                    row_count=0,
                    values=(),
                    access=Access("fill", site, moments.step if moments.counts_steps else None),
                    last_write=None,
                    last_read=None,
                    test=tally.test,
                    device=now.device,
                    pid=os.getpid(),
                    expected="the tensor that the graph was captured with",
                    notes=(note,),
                )
            )

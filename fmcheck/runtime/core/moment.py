"""Moments: where, in which step and on which stream an access was made, in one number.

A number costs the ledger eight bytes a row and nothing is kept per access: the step and the
stream stand above the site's number.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SITE_BITS = 24
_STREAM_BITS = 8
_SITES = (1 << _SITE_BITS) - 1
_STREAMS = (1 << _STREAM_BITS) - 1
_STEP_SHIFT = _SITE_BITS + _STREAM_BITS


#: Names the stream of a CPU that is current, while virtual streams stand in for its own.
virtual: Callable[[], str] | None = None
#: Names the stream of a device that is current, by the kind of devices whose streams are followed.
followed: dict[str, Callable[[str], str]] = {}


def current_stream(device: str) -> str:
    """Returns the name of the stream that work on `device` is launched on now.

    On a CPU without virtual streams there is one, `cpu`.
    """
    naming = followed.get(device.partition(":")[0]) if followed else None
    if naming is not None:
        return naming(device)
    if device == "cpu":
        return device if virtual is None else virtual()
    torch = sys.modules["torch"]
    current = getattr(torch.get_device_module(device), "current_stream", lambda device: None)
    stream = current(index_of(device))
    number = getattr(stream, "stream_id", 0)
    return f"{device}/stream {number}" if number else f"{device}/default stream"


@functools.cache
def index_of(device: str) -> int | str:
    """Returns the 0 of `cuda:0`, which torch takes without a look; a name without one as it is."""
    index = device.partition(":")[2]
    return int(index) if index else device


class Moments:
    """Packs moments and takes them apart. `step` counts calls of the contract's step functions."""

    def __init__(self) -> None:
        self.step = 0
        self.counts_steps = False
        self._streams: list[str] = []
        self._numbers: dict[str, int] = {}

    def begin_step(self) -> None:
        """The engine begins its next step."""
        self.step += 1

    def now(self, site: int, device: str) -> int:
        """Returns the moment of an access at a site, by its number."""
        return self.on(current_stream(device), site)

    def on(self, stream: str, site: int) -> int:
        """Returns the moment of what happens on a stream, by its name."""
        number = self._numbers.get(stream)
        if number is None:
            number = self._number(stream)
        return self.step << _STEP_SHIFT | number << _SITE_BITS | site & _SITES

    def _number(self, stream: str) -> int:
        # Past the last number all further streams share it: a name is then one of several.
        number = min(len(self._streams), _STREAMS)
        if number == len(self._streams):
            self._streams.append(stream)
        self._numbers[stream] = number
        return number

    def site(self, moment: int) -> int:
        """Returns the number of a moment's site."""
        return moment & _SITES

    def stream(self, moment: int) -> str:
        """Returns the name of a moment's stream."""
        return self._streams[moment >> _SITE_BITS & _STREAMS]

    def step_of(self, moment: int) -> int | None:
        """Returns the step of a moment, None where no function tells of steps."""
        return moment >> _STEP_SHIFT if self.counts_steps else None

"""Stalls: streams of a device that are held up after their records and waits.

What no fence orders then runs in another order than it is launched in, and an engine's own test has
a chance to notice. What fences order is only later: no result of a healthy engine changes.
"""

from __future__ import annotations

import random
from typing import Any

from fmcheck.runtime.core.unfollowed import unfollowed

#: The longest stall, in cycles of the device: about a millisecond.
LONGEST = 2_000_000


class Stalls:
    """Holds up the streams of a device's module.

    Without a seed each record and each wait is followed by the longest stall. With one, a coin says
    whether there is a stall, and how long it is.
    """

    def __init__(self, module: Any, seed: int | None) -> None:
        self._module = module
        self._random = None if seed is None else random.Random(seed)

    def after(self, stream: Any) -> None:
        """Holds up what is launched next on a stream, the current one for None; no capture ever."""
        cycles = self._drawn()
        module = self._module
        if not cycles:
            return
        with unfollowed(), module.stream(module.current_stream() if stream is None else stream):
            if not module.is_current_stream_capturing():
                module._sleep(cycles)

    def _drawn(self) -> int:
        if self._random is None:
            return LONGEST
        return self._random.choice((0, self._random.randint(1, LONGEST)))

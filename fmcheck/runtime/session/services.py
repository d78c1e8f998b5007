"""Services: what one session has running besides its books, for the parts that ask for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.session.streams import Streams


@dataclass(eq=False)
class Services:
    """The streams that a session follows, and the kinds of devices that its probes were run on."""

    tally: Tally
    streams: Streams | None = None
    probed: set[str] = field(default_factory=set)

    def before_buffers_on(self, kind: str) -> None:
        """Tries the detectors, before the first buffer of a kind of device is adopted."""
        from fmcheck.runtime.session import probes

        probes.load_device(kind)
        if kind not in self.probed:
            self.probed.add(kind)
            probes.prove(self.tally, kind, of_streams=self.streams is not None)

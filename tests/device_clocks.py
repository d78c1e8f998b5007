"""The clocks that a guarded buffer has on its device, in the form that random programs ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.clocks import Conflict
from fmcheck.runtime.device import ring
from fmcheck.runtime.device.device_streams import DeviceStreams
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.followed_streams import FollowedStreams
from tests.happens_before import ROWS

if TYPE_CHECKING:
    from fmcheck.runtime.order.fences import Fences


class OnDevice:
    """A guarded buffer's clocks, with the two verbs of `Shadow`. All is launched on one stream."""

    def __init__(self, fences: Fences, device: str = "cpu") -> None:
        self.fences, self.device = fences, device
        streams = FollowedStreams(fences.tally)
        streams.fences = fences
        kind = torch.device(device).type
        if kind != "cpu":  # its buffers have lanes only where its streams are followed
            module = torch.get_device_module(kind)
            streams.devices[kind] = DeviceStreams(fences, module, kind)
        plain = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.buf = relay_tensor(plain, "b", "m:M", fences.tally, (">=", 0), (), streams=streams)
        streams.ops.stop()  # the program alone says what is done
        self.lanes: Any = self.buf._relay.lanes

    def read(self, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        return self._touch("gather", rows, lane, moment)

    def write(self, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        return self._touch("write", rows, lane, moment)

    def _touch(self, verb: str, rows: list[int], lane: int, moment: int) -> list[Conflict]:
        index = torch.tensor(rows, device=self.device)
        writes = verb == "write"
        self.lanes._enter(verb, index, moment, self.fences.lanes[lane], writes=writes)
        records, lost, _ = self.lanes._ring.drain()
        assert not lost
        slots = self.lanes._lanes
        return [
            Conflict(ring.KINDS[one.kind], slots[one.slot].number, [one.row], [one.earlier])
            for one in records
        ]

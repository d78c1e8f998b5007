"""Device operators: what runs on a device whose streams are followed, and what the host waits for.

Of a device the tensors themselves tell where they are, so that nothing has to be read from the
source as on a CPU. Handed-over tensors are judged as there; what the host waits for orders all that
it launches next. A capture launches nothing, and is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.order.blocks import BlockUse
from fmcheck.runtime.steps import capturing
from fmcheck.runtime.steps.operators import COPIES, MASKS
from fmcheck.runtime.steps.placements import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fmcheck.runtime.device.device_streams import DeviceStreams
    from fmcheck.runtime.order.cross_stream import CrossStreamTensors
    from fmcheck.runtime.order.fences import Fences, Lane
    from fmcheck.runtime.order.lifetimes import Lifetimes
    from fmcheck.runtime.order.ops import OperatorCall

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_BY_INDEX = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


class DeviceOps:
    """Tells fences and handed-over tensors of calls on the devices in `devices`, by their kind."""

    def __init__(
        self, fences: Fences, cross_stream: CrossStreamTensors, devices: Mapping[str, DeviceStreams]
    ) -> None:
        self.fences = fences
        self.cross_stream = cross_stream
        self.devices = devices
        self.lifetimes: Lifetimes | None = None
        self._in_backward: dict[str, set[Lane]] = {}

    def device_of(self, tensors: Iterable[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
        """Returns the followed device that a call runs on, None if it runs on none."""
        for tensor in tensors:
            if tensor.device.type in self.devices:
                return tensor.device  # type: ignore[no-any-return]
        named = kwargs.get("device")
        if named is not None and torch.device(named).type in self.devices:
            return torch.device(named)
        return None

    def run(self, call: OperatorCall, device: torch.device, function: Callable[[], Any]) -> Any:
        """Makes a call, an operator or a read by the host, and tells of it."""
        streams = self.devices[device.type]
        if self.fences.tally.sites.is_own() or capturing.on(device):
            return function()
        call.lane = streams.lane_on(str(device))
        if call.plan.is_view:
            result = function()
            self.fences.read_by_host(call.lane)
            return result
        given = [*call.reads, *call.writes]
        call.reads, call.writes = self._there(call.reads), self._there(call.writes)
        with unfollowed():
            self.cross_stream.before(call)
        result = function()
        made = [] if call.writes else [*tensors_in([result])]
        call.made = self._there(made)
        with unfollowed():
            self.cross_stream.after(call)
            # What the host has waited for is done by now, the call itself included.
            is_waited_for = not call.host and self._waits(call, given, made)
            if call.name in COPIES and self.lifetimes is not None:
                self._copied(call, given, made, is_waited_for)
            if is_waited_for:
                self.fences.read_by_host(call.lane)
            if not call.has_line:
                self._in_backward.setdefault(str(device), set()).add(call.lane)
        return result

    def _copied(
        self,
        call: OperatorCall,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        is_waited_for: bool,
    ) -> None:
        """The host's end of a copy that it does not wait for is not its to touch before that."""
        lifetimes, target = self.lifetimes, (made or given)[-1]
        for tensor in (given[0], target):
            if self._is_there(tensor) or lifetimes is None:
                continue
            if not is_waited_for:
                use = BlockUse(*call.now(self.fences))
                lifetimes.copied_by_device(tensor, use, tensor is target)
            elif tensor is target:
                lifetimes.brought_by_device(tensor)

    def after_backward(self) -> None:
        """A backward pass is over: torch has made the current streams wait for those of its nodes.

        Those run in threads of its own, where no line of the program is. What a hook does on a
        stream of its own is not waited for.
        """
        while self._in_backward:
            device, lanes = self._in_backward.popitem()
            streams = self.devices.get(torch.device(device).type)
            if streams is not None:
                for lane in lanes:
                    self.fences.wait_lane(streams.lane_on(device), lane)

    @property
    def is_copying(self) -> bool:
        """Tells whether a device may still be copying from or to the host's memory."""
        return self.lifetimes is not None and self.lifetimes.awaits_devices

    def before_by_hand(self, call: OperatorCall) -> None:
        """The host itself is about to run an operator, while a device may be copying."""
        if self.lifetimes is not None:
            self.lifetimes.before_by_hand(call)

    def _there(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [one for one in tensors if one.device.type in self.devices and type(one) in _PLAIN]

    def _waits(
        self, call: OperatorCall, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> bool:
        """Tells whether the host waits for the current stream in a call; if in doubt, it does."""
        if call.plan.waits and call.kwargs.get("output_size") is None:
            return True
        if call.name in COPIES:
            ends = [*given, *made]
            on_host = [one for one in ends if not self._is_there(one)]
            if not on_host or len(on_host) == len(ends):
                return False
            # A copy from or to other memory than pinned waits, whatever it says.
            return not (call.is_async_copy and all(_is_pinned(one) for one in on_host))
        if call.name in _BY_INDEX:
            picks = [one for one in call.args[1] if one is not None]
            if any(one.dtype in MASKS for one in picks):
                return True
        # An index or a value on the host is uploaded first; a number is not.
        return any(one.dim() and not self._is_there(one) for one in given)

    def _is_there(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type in self.devices


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "cpu" or tensor.is_pinned()

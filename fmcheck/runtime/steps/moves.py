"""Moves: an asynchronous `to` that a CPU need not make, made where a thread is watched.

On a device it copies, on the current stream, and the host does not wait for it. On a CPU torch
returns the tensor itself: there would be nothing that is not done yet. Only what goes from the host
to the device or back for certain is copied; who waits for it gets the tensor itself, as ever. Of
what is not copied, and may be the host's, `arrived` is notified, and who does not wait gets another
tensor over the same memory: what the host goes on with is not what was sent.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps import placements
from fmcheck.runtime.steps.placements import Placement
from fmcheck.runtime.steps.torch_modes import has_memory, unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.placements import FactoryCall, Placements

#: What the closing section calls the checks that listen to such copies.
CHECK = "FR402 to FR404"
_WAYS = ((Placement.HOST, Placement.DEVICE), (Placement.DEVICE, Placement.HOST))
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


class Moves:
    """Says what to copy of what a thread sends where it `is_watched`; `known` says from where.

    `arrived` is called with a tensor that came to the device as it is, whether the host waits, and
    whether the caller may be given another one; it returns that one's origin, None for no other.
    """

    def __init__(
        self,
        tally: Tally,
        known: Placements,
        is_watched: Callable[[], bool],
        arrived: Callable[[torch.Tensor, bool, bool], Any],
    ) -> None:
        self.tally = tally
        self.placements = known
        self.is_watched = is_watched
        self._arrived = arrived

    def follow(self) -> Iterator[Undo]:
        """Begins to hear of what is pinned, yielding how to end that."""
        yield patch(torch.Tensor, "pin_memory", self._pinning(torch.Tensor.pin_memory))

    def _pinning(self, pin_memory: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method for pinning, which tells that what it is of, and makes, is the host's.

        Without an accelerator torch has none: whoever runs such code on a CPU puts another there.
        """

        @functools.wraps(pin_memory)
        def pinning(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_host(tensor)
            result = pin_memory(tensor, *args, **kwargs)
            self._is_host(result)
            return result

        return pinning

    def _is_host(self, tensor: Any) -> None:
        if type(tensor) is torch.Tensor and not torch.compiler.is_compiling():
            with contained(self.tally, CHECK):
                if tensor.is_cpu:
                    placements.declare_host(tensor)

    def copies(self, tensor: Any, call: FactoryCall, caller: FrameType | None) -> bool:
        """Tells whether a device would copy what torch would return as it is."""
        if not (self.is_watched() and _may_be_another(tensor, call, caller)):
            return False
        with unheard():
            if not tensor.is_cpu or self.placements.tensors_tell:
                return False
            return self._crosses(tensor, call)

    def hand_on(
        self, tensor: torch.Tensor, call: FactoryCall, caller: FrameType | None
    ) -> torch.Tensor:
        """Returns what the caller of a move, or a factory, gets where torch returns the tensor."""
        if call.device is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor
        if not self.is_watched():
            return tensor
        with unheard():
            if not has_memory(tensor) or not tensor.is_cpu or self.placements.tensors_tell:
                return tensor
            if not self.placements.goes_to_device(call, self.tally.sites):
                return tensor
            is_apart = call.is_async and _may_be_another(tensor, call, caller)
            origin = self._arrived(tensor, not call.is_async, is_apart)
            if not call.is_async and _is_by_torch(caller):
                placements.send(tensor)  # a module's own, in whose place the result is put
            if origin is None:
                return tensor
            sent = tensor.detach()  # no view: one could not be detached in place
            placements.move_view(sent, Placement.DEVICE, origin)
            return sent

    def _crosses(self, tensor: torch.Tensor, call: FactoryCall) -> bool:
        """Tells whether the way to a device is between host and device, for certain."""
        known, sites = self.placements, self.tally.sites
        placement, to = known.of(tensor, sites), call.device
        goes = known.of(to, sites) if isinstance(to, torch.Tensor) else known.goes(call)
        if (placement, goes) in _WAYS:
            return True
        # A setting may name either side: what is surely the host's is not sent to itself.
        is_of_host = placement is Placement.HOST and known.is_surely_host(tensor, sites)
        return call.is_setting and is_of_host


def _may_be_another(tensor: Any, call: FactoryCall, caller: FrameType | None) -> bool:
    """Tells whether who moves a tensor may get another object where torch returns that itself."""
    if call.copies is not None:
        return False
    # What is trained is known by the object that it is: a copy would be no leaf.
    is_plain = type(tensor) is torch.Tensor or getattr(type(tensor), "is_relay_alias", False)
    if not is_plain or tensor.requires_grad:
        return False
    # torch knows some tensors by the objects that they are.
    return not _is_by_torch(caller)


def _is_by_torch(caller: FrameType | None) -> bool:
    """Tells whether it is torch's own code that moves a tensor."""
    return caller is not None and caller.f_code.co_filename.startswith(_TORCH)

"""Moves: an asynchronous `to` that a CPU need not make, made where a thread is watched.

On a device it copies, on the current stream, and the host does not wait for it. On a CPU torch
returns the tensor itself: there would be nothing that is not done yet. Only what goes from the host
to the device or back for certain is copied; who waits for it gets the tensor itself, as ever. Of
what is not copied, and may be the host's, `arrived` is notified.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps import placements
from fmcheck.runtime.steps.placements import Placement
from fmcheck.runtime.steps.torch_modes import has_memory, unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.placements import Placements

#: What the closing section calls the checks that listen to such copies.
CHECK = "FR402 to FR404"
#: torch's own, whatever a program has put in its place.
_TO: Callable[..., Any] = torch._C.TensorBase.to
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


class Moves:
    """Copies what a thread sends without a wait where it `is_watched`; `known` says from where.

    `arrived` is called with a tensor that came to the device as it is, and whether the host waits.
    """

    def __init__(
        self,
        tally: Tally,
        known: Placements,
        is_watched: Callable[[], bool],
        arrived: Callable[[torch.Tensor, bool], None],
    ) -> None:
        self.tally = tally
        self.placements = known
        self.is_watched = is_watched
        self._arrived = arrived

    def follow(self) -> Iterator[Undo]:
        """Begins to copy, yielding how to end that."""
        yield patch(torch.Tensor, "to", self._sending(torch.Tensor.to))
        yield patch(torch.Tensor, "pin_memory", self._pinning(torch.Tensor.pin_memory))
        placements.handed_on.append(self._arrives)
        yield lambda: placements.handed_on.remove(self._arrives)

    def _sending(self, to: Callable[..., Any]) -> Callable[..., Any]:
        is_torchs = placements.passed_on_to(to) is _TO

        @functools.wraps(to)
        def sending(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            copies = False
            if kwargs.get("non_blocking") and not torch.compiler.is_compiling():
                with contained(self.tally, CHECK):
                    copies = self._copies(tensor, args, kwargs)
            if copies and is_torchs:
                kwargs["copy"] = True
            result = to(tensor, *args, **kwargs)
            if copies and result is tensor:
                # A program's own method is asked for no more than the program asks it for.
                return _TO(tensor, *args, **kwargs, copy=True)
            if result is tensor and not torch.compiler.is_compiling():
                with contained(self.tally, CHECK):
                    device = kwargs.get("device", kwargs.get("other", args[0] if args else None))
                    given = kwargs.get("non_blocking", any(one is True for one in args[1:3]))
                    self._arrives(tensor, device, bool(given))
            return result

        placements.passes_on(sending)
        return sending

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

        placements.passes_on(pinning)
        return pinning

    def _is_host(self, tensor: Any) -> None:
        if type(tensor) is torch.Tensor and not torch.compiler.is_compiling():
            with contained(self.tally, CHECK):
                if tensor.is_cpu:
                    placements.declare_host(tensor)

    def _copies(self, tensor: Any, args: Any, kwargs: Any) -> bool:
        """Tells whether a device would copy what torch would return as it is."""
        if not self.is_watched() or "copy" in kwargs or len(args) > 2:
            return False
        # What is trained is known by the object that it is: a copy would be no leaf.
        if type(tensor) is not torch.Tensor or tensor.requires_grad:
            return False
        # torch knows some tensors by the objects that they are.
        if sys._getframe(2).f_code.co_filename.startswith(_TORCH):
            return False
        device = kwargs.get("device", args[0] if args else None)
        with unheard():
            if not tensor.is_cpu or self.placements.tensors_tell:
                return False
            placement = self.placements.of(tensor, self.tally.sites)
            return self._crosses(placement, device)

    def _arrives(self, tensor: Any, device: Any, is_async: bool = False) -> None:
        """Tells of a tensor that is the result of a move as well, if that goes to a device."""
        if not self.is_watched() or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return
        with unheard():
            if not has_memory(tensor) or not tensor.is_cpu or self.placements.tensors_tell:
                return
            if self.placements.goes_to_device(device, self.tally.sites):
                self._arrived(tensor, not is_async)

    def _crosses(self, placement: Placement, device: Any) -> bool:
        """Tells whether the way to a device is between host and device, for certain."""
        if isinstance(device, torch.device):
            return placement is Placement.HOST
        if isinstance(device, torch.Tensor):
            goes = self.placements.of(device, self.tally.sites)
            return {placement, goes} == {Placement.HOST, Placement.DEVICE}
        is_host = device == "cpu" and not self.placements.device_is_string
        return is_host and placement is Placement.DEVICE

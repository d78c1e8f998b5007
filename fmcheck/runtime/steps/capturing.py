"""Capturing: whether what is launched now goes into a graph, and runs some other time."""

from __future__ import annotations

import torch

_WITHOUT_STREAMS = ("cpu", "meta")


def on(device: torch.device) -> bool:
    """Tells whether the current stream of a device is being captured."""
    if device.type == "cuda":
        try:
            return torch.cuda.is_current_stream_capturing()
        except (
            torch.AcceleratorError
        ):  # an error has ended its context: nothing runs there any more
            return False
    if device.type in _WITHOUT_STREAMS:
        return False
    module = torch.get_device_module(device)
    return bool(getattr(module, "is_current_stream_capturing", lambda: False)())

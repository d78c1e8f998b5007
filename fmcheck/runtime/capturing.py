"""Capturing: whether what is launched now goes into a graph, and runs some other time."""

from __future__ import annotations

import torch


def on(device: torch.device) -> bool:
    """Tells whether the current stream of a device is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()

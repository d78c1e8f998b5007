"""Sources to lint: each with one finding, and one that does not parse."""

from __future__ import annotations

STRAY_EVENT = """\
import torch

def publish(device):
    module = torch.get_device_module(device)
    ready = torch.cuda.Event()
    return module, ready
"""
DEAD_ASSERT = """\
import torch

@torch.compile(dynamic=True)
def check(values):
    torch._assert_async((values >= 0).all())
"""
ANNOTATION = """\
import torch

def wait(ready: torch.cuda.Event, device):
    torch.get_device_module(device).Stream().wait_event(ready)
"""
#: Does not parse, just where a rule looks.
BROKEN = STRAY_EVENT.replace("Event()", "Event(")

"""A watched relay buffer on the device, and what a call does there by torch's own instruments."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session import probes
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: What torch warns of at each wait; it warns once of the mode itself, in other words.
_SYNC = "called a synchronizing CUDA operation"


def plain(device: str, rows: int, width: int = 0) -> torch.Tensor:
    """A buffer as an engine makes it."""
    shape = (rows, width) if width else (rows,)
    return torch.zeros(shape, dtype=torch.int64, device=device)


def watched(device: str, rows: int, width: int = 0, watch: Watch | None = None) -> Any:
    """The same, watched, with poison in each row but the sink's."""
    probes.load_device(torch.device(device).type)
    tally = Tally() if watch is None else watch.tally
    streams = None if watch is None else watch.services.streams
    made = relay_tensor(plain(device, rows, width), "Map.buf", "gpu:Map", tally, streams=streams)
    made._relay.lay_poison()
    return made


@contextmanager
def followed_streams() -> Iterator[Watch]:
    """A session that follows streams."""
    watch = Watch([], streams="tracked")
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def synchronize(device: str) -> None:
    """Waits for all that was launched."""
    torch.get_device_module(device).synchronize()


def launches(call: Callable[[], object], device: str) -> int | None:
    """Counts the kernels and copies that a call launches; None where no profiler counts any."""
    if not device.startswith("cuda"):
        return None
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profile:
        call()
        synchronize(device)
    return sum(event.device_type.name == "CUDA" for event in profile.events())


def syncs(call: Callable[[], object], device: str) -> int | None:
    """Counts how often the host waits for the device in a call; None where torch counts none."""
    if not device.startswith("cuda"):
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(_SYNC in str(one.message) for one in caught)

"""Scratch code with a stream's fault in it, or the wait that it lacks: what probes run.

It stands outside of `runtime`, where the detectors look for an engine's frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    class Host(Protocol):
        """What scratch code asks of whoever runs it."""

        def own(self, tensor: torch.Tensor) -> torch.Tensor:
            """Returns a tensor that is told to be the host's."""

        def read(self, tensor: torch.Tensor) -> None:
            """Reads a tensor as the host does."""


#: The name of the event that is consumed once.
EVENT = "publish_ready"
_DEVICE = torch.device("cpu")


def two_streams(module: Any) -> tuple[Any, Any]:
    """Returns new streams of a device's module.

    Each is named by its own line: else its name would be looked for among all objects.
    """
    here = module.Stream()
    elsewhere = module.Stream()
    return here, elsewhere


def use_after_reuse(fenced: bool, host: Host) -> None:
    """Frees what another stream still uses, and allocates again."""
    here, elsewhere = two_streams(torch.cpu)
    with torch.cpu.stream(here):
        made = torch.ones(2, device=_DEVICE)
    elsewhere.wait_stream(here)
    with torch.cpu.stream(elsewhere):
        made.add(1)
    del made
    if fenced:
        here.wait_stream(elsewhere)
    with torch.cpu.stream(here):
        torch.ones(2, device=_DEVICE)


def pinned_overwrite(fenced: bool, host: Host) -> None:
    """Writes on the host what a copy has yet to read."""
    staging = host.own(torch.zeros(2))
    stream: Any = torch.cpu.Stream()
    with torch.cpu.stream(stream):
        sent = staging.to(_DEVICE, non_blocking=True, copy=True)
    if fenced:
        stream.synchronize()
    staging.fill_(1)
    stream.synchronize()
    del sent


def early_host_read(fenced: bool, host: Host) -> None:
    """Reads on the host what a copy has yet to fill."""
    stream: Any = torch.cpu.Stream()
    target = host.own(torch.empty(2))
    with torch.cpu.stream(stream):
        target.copy_(torch.ones(2, device=_DEVICE), non_blocking=True)
    if fenced:
        stream.synchronize()
    host.read(target)
    stream.synchronize()


def stale_event(fenced: bool, host: Host) -> None:
    """Waits twice for one record of an event that is consumed once."""
    stream: Any = torch.cpu.Stream()
    publish_ready: Any = torch.cpu.Event()
    publish_ready.record(stream)
    for _ in range(2):
        publish_ready.synchronize()
        if fenced:
            publish_ready.record(stream)


FAULTS: dict[str, Callable[[bool, Any], None]] = {
    "FR402": use_after_reuse,
    "FR403": pinned_overwrite,
    "FR404": early_host_read,
    "FR405": stale_event,
}

"""Our own fence: the one that the watch adds to an engine, from a hand-out to the next access."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.runtime.core.unfollowed import unfollowed
from fmcheck.runtime.steps import capturing

if TYPE_CHECKING:
    from collections.abc import Iterator


class OwnFence:
    """Keeps the poison of a hand-out from falling on what the row's new owner writes.

    A hand-out is launched behind the last access of its buffer, on that one's stream, and an access
    on another stream waits for it. On a CPU there is nothing to wait for. None of it is followed: a
    race that this fence happens to order is one all the same.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last_stream: Any = None
        self._handed_out: tuple[Any, Any] | None = None

    def launched(self) -> None:
        """The buffer was accessed on the current stream."""
        # A capture's stream runs nothing: replays go elsewhere.
        if self._device.type == "cuda" and not capturing.on(self._device):
            self._last_stream = torch.cuda.current_stream(self._device)

    @contextlib.contextmanager
    def behind_the_last_launch(self) -> Iterator[None]:
        """Makes the stream of the last access current."""
        if self._last_stream is None:
            yield
            return
        with unfollowed(), torch.cuda.stream(self._last_stream):
            yield

    def handed_out(self) -> None:
        """Marks where a hand-out stands on the stream that it was launched on."""
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            with unfollowed():
                self._handed_out = (stream, stream.record_event())

    def wait(self) -> None:
        """Lets an access that is about to be made wait for the last hand-out, on another stream."""
        if self._handed_out is None:
            return
        stream, event = self._handed_out
        current = torch.cuda.current_stream(self._device)
        if current != stream and not capturing.on(self._device):
            with unfollowed():
                current.wait_event(event)
        self._handed_out = None

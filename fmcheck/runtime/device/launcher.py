"""The launcher of a buffer's kernels: all but the first launch of each go past Triton's binder.

The binder looks at each of some thirty arguments for what to specialize on. For one buffer that
is settled with the first launch: its dtypes are the same from then on, and so is where its memory
begins; what differs, the kernels do not specialize on (see `kernels.py`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


class Launcher:
    """Launches kernels on one device, whichever is the current one.

    A kernel takes its arguments and then its constants, both in the order of its own signature.
    Each set of constants is another binary.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._binaries: dict[tuple[Any, ...], Any] = {}

    def launch(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: Mapping[str, Any]
    ) -> None:
        """Launches a kernel on the device's current stream; compiles it the first time."""
        with self._current():
            key = (kernel, *constants.values())
            binary = self._binaries.get(key)
            if binary is not None:
                binary[(programs, 1, 1)](*arguments, *constants.values())
                return
            # An interpreted kernel has no binary, and takes this way each time.
            self._binaries[key] = kernel[(programs,)](*arguments, **constants)

    def _current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the device the current one, as torch does for each of its operators."""
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            return contextlib.nullcontext()
        return torch.cuda.device(self._device)

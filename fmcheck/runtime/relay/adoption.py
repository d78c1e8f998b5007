"""Adoption: a tensor that becomes a relay buffer is replaced by an alias.

What it holds then is a placeholder, which is poisoned, or values, which are rows written. Nothing
of a tensor says which; what is known is when it was bound, by what, and what stands in it.
"""

from __future__ import annotations

import enum
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fmcheck.contract.validation import MANY
from fmcheck.runtime.relay import device_checks, origin, relay_array, relay_tensor
from fmcheck.runtime.relay.row_layout import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.contract import Buffer, Relay
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.buffer import RelayBuffer, StreamFollower
    from fmcheck.runtime.relay.owners import Owners

# By address; a buffer keeps its storage alive, so no address is used twice while it is in here.
_by_storage: weakref.WeakValueDictionary[tuple[Tally, str, int], RelayBuffer] = (
    weakref.WeakValueDictionary()
)


class Bind(enum.Enum):
    """When a tensor was assigned to a declared attribute."""

    IN_INIT = "by `__init__`, where there was none"
    LATER = "by a method, where there was none"
    AGAIN = "in place of another one"


class BufferServices(Protocol):
    """What a session does for the buffers that it adopts."""

    @property
    def streams(self) -> StreamFollower | None:
        """What follows the session's streams, None where nothing does."""

    def before_buffers_on(self, kind: str) -> None:
        """A buffer on this kind of device is about to be adopted."""


def adopt(
    tensor: Any,
    name: str,
    buffer: Buffer,
    relay: Relay,
    tally: Tally,
    bind: Bind,
    services: BufferServices,
    owners: Owners | None = None,
    sinks: Sequence[int] = (),
    is_array: bool = False,
) -> torch.Tensor:
    """Returns the alias for a tensor assigned to a declared buffer.

    A storage that is watched already keeps its state, whichever attribute it goes by.
    """
    if isinstance(tensor, np.ndarray):
        arguments = (name, buffer, relay, tally, bind, services, owners, sinks)
        return _adopt_array(tensor, *arguments)  # type: ignore[no-any-return]
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    if type(tensor) is relay_tensor.RelayTensor and tensor._relay.tally is tally:
        return tensor
    tensor = relay_tensor.plain(tensor)
    tally.kinds.add(tensor.device.type)
    if tensor.device.type == "meta" and type(tensor) is torch.Tensor:
        return device_checks.stray(tensor, f"{relay.qualname}.{name}", tally)  # type: ignore[no-any-return]
    if type(tensor) is not torch.Tensor:
        return _refused(tensor)
    if tensor.dim() == 0:
        raise ValueError("a tensor with no dimensions has no rows")
    key = (tally, str(tensor.device), tensor.untyped_storage().data_ptr())
    known = _by_storage.get(key)
    if known is not None and _lies_in(tensor, known.base):
        return relay_tensor.alias(tensor, known, _window_if_whole(tensor, known))
    services.before_buffers_on(tensor.device.type)
    made = relay_tensor.relay_tensor(
        tensor,
        f"{relay.qualname}.{name}",
        relay.class_,
        tally,
        buffer.bound,
        sinks,
        owners,
        buffer.overwrite,
        services.streams,
        Layout(buffer.row_dim, buffer.columns, buffer.reads == MANY, buffer.sink_holds),
        buffer.kept,
    )
    _begin(made._relay, tensor, name, bind, is_array)
    tally.buffers += 1
    if tensor.numel():
        _by_storage[key] = made._relay
    return made


def _adopt_array(array: Any, *arguments: Any) -> Any:
    """Returns the alias for an array of NumPy's: its memory is the host's."""
    tally = arguments[3]
    if isinstance(array, relay_array.RelayArray):
        if array._relay is not None and array._relay.tally is tally:
            return array
        array = relay_array.plain(array)
    if not array.flags.writeable:
        raise ValueError("an array that may not be written relays nothing")
    made: Any = adopt(torch.from_numpy(array), *arguments, is_array=True)  # type: ignore[misc]
    return relay_array.over(array, made._relay)


def _begin(relay: RelayBuffer, tensor: torch.Tensor, name: str, bind: Bind, is_array: bool) -> None:
    """Poisons a placeholder, and takes anything else for values.

    Made by `__init__` it is a placeholder, unless it was written in place and is not one number
    throughout. Bound later it is one if it comes straight from a factory and holds one number that
    marks an empty row; what else a factory gave (`torch.empty`), the engine's first access tells:
    it writes to a placeholder before it gathers.
    """
    is_one_number, is_mark = relay.fill()
    looks = bind is Bind.LATER or (is_array and bind is Bind.IN_INIT)
    is_bare = looks and _is_bare(tensor, name)
    is_placeholder = {
        Bind.IN_INIT: is_one_number or (is_bare if is_array else not _was_written(tensor)),
        Bind.LATER: is_mark and is_bare,
        Bind.AGAIN: False,
    }
    if is_placeholder[bind]:
        relay.lay_poison()
    else:
        relay.adopt_values(bound=True)
        relay.is_on_trust = is_bare and not is_array
        if bind is not Bind.IN_INIT and not is_bare and relay.streams is not None:
            relay.streams.bound(relay)


def _is_bare(tensor: torch.Tensor, name: str) -> bool:
    """Tells whether a tensor that is being bound comes from a factory, and was not written since.

    In inference mode writes are not counted: there it has had no other use.
    """
    return not _was_written(tensor) and origin.is_bare(name, once=tensor.is_inference())


def _was_written(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is known to have been written in place."""
    return not tensor.is_inference() and tensor._version > 0


def _refused(tensor: torch.Tensor) -> torch.Tensor:
    """Leaves a tensor that has no memory of its own to watch, as under a fake mode."""
    if tensor.device.type == "meta" or "Fake" in type(tensor).__name__:
        return tensor
    raise TypeError(f"expected a plain tensor, got {type(tensor).__name__}")


def _lies_in(tensor: torch.Tensor, base: torch.Tensor) -> bool:
    if tensor.dtype != base.dtype:
        return False
    start, end = _span(tensor)
    first, last = _span(base)
    return first <= start and end <= last


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start, start + reach


def _window_if_whole(tensor: torch.Tensor, known: RelayBuffer) -> Any:
    base = known.base
    same = tensor.shape == base.shape and tensor.stride() == base.stride()
    return known.whole if same and tensor.storage_offset() == base.storage_offset() else None

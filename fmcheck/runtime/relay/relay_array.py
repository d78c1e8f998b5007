"""The relay array: the twin of a relay tensor for NumPy, of a buffer that is the host's.

What NumPy does with it is done to the plain array underneath, and passed to the `RelayBuffer` as a
gather, a write or a peek of the host, which no stream is waited for.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.core import rows
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.relay import relay_tensor
from fmcheck.runtime.relay.buffer import WriteEffect
from fmcheck.runtime.relay.scope import CHECK, forget_view, note_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from fmcheck.runtime.relay.buffer import RelayBuffer

_NUMBERS = (bool, int, float, complex, np.generic)
#: Functions of NumPy that write their first argument.
_WRITING = frozenset({"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"})


class RelayArray(np.ndarray):
    """An array over the memory of a relay buffer, or over a part of it."""

    #: Marks the class for those that may not import it.
    is_relay_alias = True
    _relay: RelayBuffer | None
    _alias: relay_tensor.RelayTensor | None

    def __array_finalize__(self, made_from: Any) -> None:
        """Goes with each array that NumPy makes of this one, copies too."""
        self._relay = getattr(made_from, "_relay", None)
        self._alias = None

    def __getitem__(self, index: Any) -> Any:
        """Brings values, or a part of the array."""
        index = plain(index)
        found = plain(self)[index]
        if self._relay is None:
            return found
        if not _is_advanced(index) and isinstance(found, np.ndarray):
            return note_view(over(found, self._relay), self, self._relay.tally, _gather_slice)
        if _is_advanced(index):
            _read(self, index)
        else:
            _read_one(self, index)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes values."""
        index = plain(index)
        plain(self)[index] = plain(value)
        for one in _arrays((value,)):
            _read(one, None)
        # A number at one place is a value, over several it is a mark.
        is_one = np.ndim(plain(self)[index]) == 0 if not _is_advanced(index) else False
        constant = isinstance(value, _NUMBERS) and not is_one
        _enter(self, _enter_subscript, index, constant)

    def __array_ufunc__(
        self, ufunc: Any, method: Any, *inputs: Any, out: Any = (), **kwargs: Any
    ) -> Any:
        """Makes an elementwise call."""
        given = {"out": plain(out)} if out else {}
        result = getattr(ufunc, method)(*plain(inputs), **given, **plain(kwargs))
        targets = inputs[:1] if method == "at" else out
        for one in _arrays(inputs):
            if not any(one is target for target in targets):
                _read(one, None)
        for one in _arrays(targets):
            updates = any(one is given for given in inputs)
            _written(
                one, inputs[1] if method == "at" else rows.EVERYTHING, WriteEffect(updates=updates)
            )
        if not out:
            return result
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Makes any other call of NumPy's."""
        result = function(*plain(args), **plain(kwargs))
        name = getattr(function, "__name__", "")
        out = kwargs.get("out")
        target = args[0] if name in _WRITING and args else out
        for one in _arrays((*args, *kwargs.values())):
            if one is target:
                _written(one, rows.EVERYTHING, WriteEffect(updates=name != "copyto"))
            elif name == "take" and one is args[0] and kwargs.get("axis") == 0:
                _read(one, np.asarray(plain(args[1] if len(args) > 1 else kwargs["indices"])))
            elif not _shares(result, one):
                _read(one, None)
        return _as_view(result, _arrays((*args, *kwargs.values()))) if out is None else out

    def fill(self, value: Any) -> None:
        """Writes one value everywhere."""
        self[...] = value

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        """Writes by place, counted through."""
        plain(self).put(plain(indices), plain(values), mode)
        index = np.asarray(plain(indices)).reshape(-1)
        _written(self, rows.flat(index, self.shape), WriteEffect(picks=True))

    def sort(self, *args: Any, **kwargs: Any) -> None:
        """Puts the values in order, in place."""
        plain(self).sort(*args, **kwargs)
        _written(self, rows.EVERYTHING, WriteEffect(updates=True))

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        """Brings values by their places along an axis."""
        found = plain(self).take(plain(indices), axis, plain(out), mode)
        _read(self, np.asarray(plain(indices)) if axis == 0 else None)
        return found

    def __repr__(self) -> str:
        """Is shown as a plain array."""
        _read(self, None)
        return repr(plain(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Is kept as a plain array."""
        _read(self, None)
        return plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        """Is copied as a plain array."""
        return self.copy()


def _peeking(name: str) -> Callable[..., Any]:
    """Returns a method of arrays that brings all values."""

    def method(self: RelayArray, *args: Any, **kwargs: Any) -> Any:
        found = getattr(plain(self), name)(*args, **kwargs)
        _read(self, None)
        return found

    method.__name__ = name
    return method


for _name in ("copy", "astype", "tolist", "item", "tobytes", "flatten", "__copy__", "__contains__"):
    setattr(RelayArray, _name, _peeking(_name))


def over(array: npt.NDArray[Any], buffer: RelayBuffer) -> RelayArray:
    """Returns a relay array over a plain one, which lies in the memory of a buffer."""
    made = array.view(RelayArray)
    made._relay = buffer
    return made


def _array_of(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns what `numpy()` of a relay tensor does, a relay array over the same memory.

    Where that leads, as to a compiled extension or by `np.asarray`, may be out of our hands.
    """
    result = relay_tensor.read(func, args, kwargs)
    buffer: RelayBuffer = args[0]._relay
    sites = buffer.tally.sites
    if not buffer.tally.active or sites.is_torch_calling("numpy"):
        return result
    with buffer.tally.lock:
        buffer.others.escape("numpy", sites.here())
        buffer.declare_host()
    return over(result, buffer)


relay_tensor.translate("numpy", _array_of)


def plain(value: Any) -> Any:
    """Returns `value` with each relay array in it replaced by the plain one underneath."""
    if isinstance(value, RelayArray):
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    return value


def _arrays(values: Any) -> Iterator[RelayArray]:
    for value in values:
        if isinstance(value, RelayArray) and value._relay is not None:
            yield value
        elif type(value) in (list, tuple):
            yield from _arrays(value)


def _is_advanced(index: Any) -> bool:
    """Tells whether an index brings a copy: a list of places, or a mask."""
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, (np.ndarray, list, bool, np.bool_)) for one in items)


def _shares(result: Any, array: RelayArray) -> bool:
    return isinstance(result, np.ndarray) and np.may_share_memory(result, plain(array))


def _as_view(result: Any, sources: Iterator[RelayArray]) -> Any:
    for source in sources:
        if _shares(result, source) and source._relay is not None:
            view = over(result, source._relay)
            if forget_view(source):
                note_view(view, source, source._relay.tally, _gather_slice)
            return view
    return result


def _gather_slice(view: RelayArray, site: int) -> None:
    """Enters the gather of a slice that leaves the function that takes it."""
    _enter(view, relay_tensor.gather_slice, site)


# --- telling the buffer ---


def _read(array: RelayArray, expression: Any) -> None:
    """The host read an array: what an index picks of its rows is a gather."""
    if expression is None:
        _enter(array, relay_tensor.enter_peek)
    else:
        _enter(array, relay_tensor.enter_read, expression)


def _read_one(array: RelayArray, index: Any) -> None:
    """The host read one value: a gather where that leaves the value, or in a scope that takes."""
    buffer = array._relay
    assert buffer is not None
    if not array.ndim:
        _read(array, None)
        return
    items = index if isinstance(index, tuple) else (index,)
    part = over(plain(array)[tuple(_kept(item) for item in items)], buffer)
    if buffer.layout.reads_many:
        _gather_slice(part, buffer.tally.sites.here())
    else:
        _enter(part, relay_tensor.enter_peek)


def _kept(item: Any) -> Any:
    """Returns the slice for a number, which keeps the dimension."""
    if not hasattr(item, "__index__"):
        return item
    place = operator.index(item)
    return slice(place, place + 1 or None)


def _written(array: RelayArray, expression: Any, how: WriteEffect) -> None:
    """The host wrote what an index picks of an array."""
    _enter(array, relay_tensor.enter_write, expression, how)


def _enter_subscript(alias: relay_tensor.RelayTensor, index: Any, constant: bool) -> None:
    """Enters a write of what an index picks."""
    picks = not constant and relay_tensor.picks_rows(alias, index)
    relay_tensor.enter_write(alias, index, WriteEffect(constant=constant, picks=picks))


def _enter(array: RelayArray, enter: Callable[..., None], *what: Any) -> None:
    buffer = array._relay
    forget_view(array)
    if buffer is None or not buffer.tally.active:
        return
    with contained(buffer.tally, CHECK), buffer.tally.lock, buffer.by_the_host():
        alias = _alias_of(array, buffer)
        if alias is not None:
            enter(alias, *what)


def _alias_of(array: RelayArray, buffer: RelayBuffer) -> relay_tensor.RelayTensor | None:
    """Returns the relay tensor over the same memory, None for a copy."""
    if array._alias is None:
        base: torch.Tensor = buffer.base
        size = array.itemsize
        bytes_in = array.__array_interface__["data"][0] - base.untyped_storage().data_ptr()
        end = bytes_in + sum(
            (n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)
        )
        if bytes_in < 0 or end >= base.untyped_storage().nbytes() or size != base.element_size():
            array._relay = None
            return None
        if not array.size or any(step < 0 or step % size for step in array.strides):
            # torch has no such view: all of it, for certain.
            array._alias = relay_tensor.alias(base, buffer, buffer.whole)
            return array._alias
        laid = array.shape, tuple(step // size for step in array.strides), bytes_in // size
        array._alias = relay_tensor.alias(torch.as_strided(base, *laid), buffer)
    return array._alias

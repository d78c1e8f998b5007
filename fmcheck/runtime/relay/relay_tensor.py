"""The relay tensor: an alias of a relay buffer that sees each call of torch on it.

It only translates: a call becomes a gather, a write or a peek of rows, made on the plain tensor
underneath and then passed to the `RelayBuffer`. Results of reads are plain tensors; views stay
relay tensors, so that a write through them is seen.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fmcheck.runtime.core import rows
from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.patches import beneath
from fmcheck.runtime.core.site import is_making, makes_the_engines_call, unfollowed
from fmcheck.runtime.core.verdicts import poison_for
from fmcheck.runtime.relay import device_checks, indexing, untraced
from fmcheck.runtime.relay.buffer import (
    PICKED,
    VALUES,
    RelayBuffer,
    StreamFollower,
    TakenFor,
    WriteEffect,
)
from fmcheck.runtime.relay.memory import Veil, VeiledMemory, Window, memory_of, window_of
from fmcheck.runtime.relay.row_layout import PLAIN, Layout, UnitOwners, of_units
from fmcheck.runtime.relay.scope import CHECK, Scope, current, forget_view, note_view
from fmcheck.runtime.steps import factories, placements
from fmcheck.runtime.steps.torch_modes import own_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.owners import Owners

    Call = Callable[..., Any]
    Arguments = Sequence[Any]
    Options = Mapping[str, Any]


class RelayTensor(torch.Tensor):
    """A tensor over the storage of a relay buffer, or over a part of it."""

    #: Marks the class for those that may not import it.
    is_relay_alias = True
    _relay: RelayBuffer
    _plain: torch.Tensor
    _window: Window | None
    #: Of a view of one row: whose it was when the view was taken.
    _taken_for: TakenFor | None = None

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Gives the tensor another storage: one of the calls that torch asks no subclass about."""
        return _reshape_in_place(torch.Tensor.set_, (self, *args), kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Call, types: Any, args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        """Makes the call on the plain tensors and tells the buffers what it did."""
        kwargs = kwargs or {}
        try:
            if untraced.is_traced():
                return _out_of_sight(func, args, kwargs)
            if untraced.is_mixed(types, cls):
                return _of_another(func, args, kwargs)
            translate = _translations.get(func)
            if translate is None:
                func = beneath(func, torch.Tensor)
                translate = _translation_of(func)
                if indexing.is_pick(name := indexing.name_of(func)):
                    translate = device_checks.one_device(name, translate, RelayTensor)
                _translations[func] = translate
            return translate(func, args, kwargs)
        except Exception as err:
            if _is_the_engines(err):
                raise
            tensor = next(_relay_tensors((args, kwargs)), None)
            if tensor is None:
                raise
            broke(tensor._relay.tally, CHECK, err)
        # What comes behind the engine's own call is contained there: it was not made yet.
        return _made(func, plain(args), plain(kwargs))


def relay_tensor(
    tensor: torch.Tensor,
    name: str,
    relay: str,
    tally: Tally,
    bound: tuple[str, int] | None = None,
    sink_rows: Sequence[int] = (0,),
    owners: Owners | UnitOwners | None = None,
    overwrite: str = "never",
    streams: StreamFollower | None = None,
    layout: Layout = PLAIN,
    kept: bool = False,
) -> RelayTensor:
    """Instruments a plain tensor that has become a relay buffer. Its values stay."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    with unfollowed():
        base = layout.units(tensor)
    poison, device = poison_for(dtype, bound, kept), str(tensor.device)
    guards = wants_guard(tensor) and layout.is_plain
    veils = device == "cpu" and poison.bits is not None and not wants_guard(tensor)
    veil = Veil.like(base) if veils else None
    memory = memory_of(base, veil, poison.bits or 0)
    rows, per_row = _row_count(base), layout.per_row(tensor)
    whole = window_of(base.shape, base.stride(), 0, int(base.stride(0)), memory, True, rows)
    whose = of_units(owners, per_row)
    place = (whole, poison, sink_rows, tally, device)
    arguments = (name, relay, *place, whose, overwrite, layout, per_row)
    with unfollowed():
        buffer = (on_device(tensor, *arguments) if guards else None) or RelayBuffer(*arguments)
        if wants_guard(tensor) and not guards:
            tally.note(f"buffer `{name}`: each access waits for the device (not rows in front)")
        buffer.take(base, veil)
        buffer.streams = streams
        if streams is not None:
            streams.adopt(buffer)
    made = alias(tensor, buffer, whole if layout.is_plain else None)
    made.__dict__.update(tensor.__dict__)  # a mark such as that of `torch.nn.Buffer`
    return made


def _row_count(base: torch.Tensor) -> int:
    """Returns how many rows there are to each step of an outer dimension, 0 without one.

    Rows lie within one where they are not the first dimension, or the tensor was transposed.
    """
    if len(base) == 1:
        return 1
    row = int(base.stride(0))
    steps = zip(base.shape[1:], base.stride()[1:], strict=True)
    outer = [int(stride) for size, stride in steps if size > 1 and stride > row]
    return min(outer) // row if outer and row else 0


def wants_guard(tensor: torch.Tensor) -> bool:
    """Tells whether a buffer's ledger should lie beside it on its device."""
    return tensor.is_cuda


def on_device(tensor: torch.Tensor, *arguments: Any) -> RelayBuffer | None:
    """Returns a buffer whose ledger lies on the device, None where that cannot be."""
    tally: Tally = arguments[5]
    try:
        if make_on_device is None:
            raise ValueError("no ledger is available for that device")
        return make_on_device(tensor, *arguments)
    except (ImportError, ValueError) as err:
        tally.note(f"buffer `{arguments[0]}`: each access waits for the device ({err})")
        return None


#: Makes a buffer whose ledger lies on its device: set by the device's room, which imports this one.
make_on_device: Callable[..., RelayBuffer] | None = None


def alias(plain: torch.Tensor, buffer: RelayBuffer, window: Window | None = None) -> RelayTensor:
    """Returns a relay tensor over `plain`, which lies in the storage of `buffer`."""
    made = plain.as_subclass(RelayTensor)
    made._relay = buffer
    made._plain = plain
    made._window = window
    return made


def window(tensor: RelayTensor) -> Window:
    """Returns what a relay tensor shows of its buffer."""
    if tensor._window is None:
        tensor._window = _window_of_view(tensor._plain, tensor._relay)
    return tensor._window


def _underneath(tensor: RelayTensor) -> torch.Tensor:
    return tensor._plain


def plain(value: Any, of: Callable[[RelayTensor], torch.Tensor] = _underneath) -> Any:
    """Returns `value` with each relay tensor in it replaced by the plain one underneath."""
    if isinstance(value, RelayTensor):
        return of(value)
    if type(value) in (list, tuple):
        return type(value)(plain(item, of) for item in value)
    if type(value) is dict:
        return {key: plain(item, of) for key, item in value.items()}
    return value


def _window_of_view(view: torch.Tensor, buffer: RelayBuffer) -> Window:
    base: torch.Tensor = buffer.base
    size = view.element_size()
    offset = int(view.storage_offset()) - int(base.storage_offset()) * base.element_size() // size
    row_stride = int(base.stride(0)) * base.element_size() // size
    veil = None if buffer.veil is None else buffer.veil.of_view(view, offset)
    memory = memory_of(view, veil, buffer.poison.bits or 0)
    rows = _row_count(base)
    return window_of(view.shape, view.stride(), offset, row_stride, memory, False, rows)


# --- the engine's own call ---


@makes_the_engines_call
def _made(func: Call, args: Arguments, kwargs: Options) -> Any:
    return func(*args, **kwargs)


def _is_the_engines(err: Exception) -> bool:
    """Tells whether an error came out of the engine's own call."""
    return any(is_making(frame) for frame, _ in traceback.walk_tb(err.__traceback__))


# --- what a call does -------------------------------------------------------------------------


def _pass(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that only asks for metadata. An alias is a view, which the engine's tensor is not."""
    return _made(func, plain(args), plain(kwargs))


def _identity(func: Call, args: Arguments, kwargs: Options) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return _made(func, args, kwargs)


def _stand_in(tensor: RelayTensor) -> torch.Tensor:
    made: torch.Tensor = untraced.stand_in(tensor, tensor._plain)
    return made


def _leave_alone(func: Call, args: Arguments, kwargs: Options) -> None:
    for tensor in _relay_tensors((args, kwargs)):
        if tensor._relay.tally.active and indexing.name_of(func) not in _METADATA:
            tensor._relay.tally.untrack("accesses", untraced.reason())


def _of_another(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call together with tensors of a class that has its own idea of it: not followed."""
    _leave_alone(func, args, kwargs)
    return _made(func, plain(args), plain(kwargs))


def _out_of_sight(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call in a trace or a transform: not followed."""
    _leave_alone(func, args, kwargs)
    into = plain(args, _stand_in), plain(kwargs, _stand_in)
    with torch._C.DisableTorchFunctionSubclass():
        return _made(func, *into)


def _escape(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that hands the memory out: whoever holds it may read and write without torch."""
    name = indexing.name_of(func)
    for tensor in _relay_tensors(args[:1]):
        sites = tensor._relay.tally.sites
        if not sites.is_torch_calling(name):
            tensor._relay.escape(name, sites.here())
    return (_pass if name in _METADATA else read)(func, args, kwargs)


def read(func: Call, args: Arguments, kwargs: Options) -> Any:
    """Any other call: a peek if it brings values, a view if it shares the storage."""
    readers = list(_relay_tensors((args, kwargs)))
    for reader in readers:
        reader._relay.order()
    result = _made(func, plain(args), plain(kwargs))
    out = kwargs.get("out")
    if out is not None:
        _enter_out(out, readers)
        return out if isinstance(out, torch.Tensor) else result
    viewed = _as_view(result, readers)
    if viewed is result and _brings_values(func, result):
        for reader in readers:
            by_host = indexing.name_of(func) in _SCALARS or _comes_to_host(reader, result, kwargs)
            enter_peek(reader, by_host)
    return viewed


def _bring(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that may bring values to the host: what a CPU returns as it is, a device copies.

    What is a copy there must not show what becomes of the rows later, nor count as a use of them.
    A module that torch moves keeps its buffer.
    """
    with _by_streams(args, kwargs) if _is_async(kwargs, *args[1:]) else nullcontext():
        result = read(func, args, kwargs)
    tensor, name, call = args[0] if args else None, indexing.name_of(func), factories.asked()
    is_brought = name == "cpu" or placements.surely_names_host(call)
    if type(result) is not RelayTensor or type(tensor) is not RelayTensor or not is_brought:
        return result
    if tensor._relay.tally.sites.is_torch_calling(name):
        return result
    with own_code(tensor._relay.tally, CHECK):
        result = placements.on_other_side(result._plain, placements.Placement.HOST)
    enter_peek(tensor, by_host=call is None or not call.is_async)
    return result


def _is_async(kwargs: Options, *more: Any) -> bool:
    """Tells whether a copy is one that the host does not wait for."""
    return bool(kwargs.get("non_blocking")) or any(one is True for one in more)


@contextmanager
def _by_streams(*values: Any) -> Iterator[None]:
    """What is told of relay tensors in a block a stream does, even of the host's memory."""
    with ExitStack() as stack:
        for tensor in _relay_tensors(values):
            stack.enter_context(tensor._relay.by_the_host(False))
        yield


def _comes_to_host(reader: RelayTensor, result: Any, kwargs: Options, *more: Any) -> bool:
    """Tells whether the host waits for what a call brings it from a device."""
    return (
        isinstance(result, torch.Tensor)
        and result.is_cpu
        and not reader._plain.is_cpu
        and not kwargs.get("non_blocking")
        and True not in more
    )


def _enter_out(out: Any, readers: Sequence[RelayTensor]) -> None:
    targets = list(_relay_tensors(out))
    for reader in readers:
        if not any(reader is target for target in targets):
            enter_peek(reader)
    for target in targets:
        enter_write(target, rows.EVERYTHING)


def _write(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that changes its first argument in place, or each tensor of it if that is a list."""
    if indexing.name_of(func) == "copy_" and _is_async(kwargs, *args[2:]):
        with _by_streams(args, kwargs):
            return _written(func, args, kwargs)
    return _written(func, args, kwargs)


def _written(func: Call, args: Arguments, kwargs: Options) -> Any:
    for tensor in _relay_tensors((args, kwargs)):
        tensor._relay.order()
    result = _made(func, plain(args), plain(kwargs))
    target = args[0] if args else kwargs.get("self", kwargs.get("input"))
    # First: what is written may be what was read, as on a CPU a mirror and its original are.
    for reader in _relay_tensors((args[1:], kwargs)):
        enter_peek(reader, _comes_to_host(reader, target, kwargs, *args[2:]))
    written = list(_relay_tensors(target))
    for one in written[:1]:
        with own_code(one._relay.tally, CHECK):
            expression = _picked(func, args, kwargs, written)
            updates = indexing.name_of(func) in _UPDATING or bool(_accumulates(func, args, kwargs))
            constant = _is_constant(func, args, kwargs)
            by_index = expression is not rows.EVERYTHING and not updates and not constant
            how = WriteEffect(updates, constant, by_index)
            values = None
            if by_index and len(written) == 1:
                values = indexing.written_values(indexing.name_of(func), args, kwargs)
            for tensor in written:
                enter_write(tensor, expression, how, values)
    if func is torch.Tensor.__setitem__:
        return None
    return target if isinstance(target, torch.Tensor) else result


def _getitem(func: Call, args: Arguments, kwargs: Options) -> Any:
    tensor, index = args
    if type(tensor) is not RelayTensor:
        return read(func, args, kwargs)
    buffer = tensor._relay
    buffer.order()
    if type(index) is torch.Tensor and index.dim() > 0:
        result = _made(func, (tensor._plain, index), {})
        with own_code(buffer.tally, CHECK):
            shown = tensor._window or window(tensor)
            if shown.whole and indexing.are_rows(index):
                buffer.gather_rows(index, result, buffer.tally.sites.here(_OUR_FRAMES))
                return result
            expression = indexing.host(index)
            if shown.whole or rows.selects_rows(expression, shown.rows.ndim, shown.dims):
                _enter_gather(tensor, expression)
            else:
                enter_peek(tensor)
        return result
    result = _made(func, (tensor._plain, plain(index)), {})
    if _shares_storage(result, tensor._plain):
        view = alias(result, buffer)
        if tensor._taken_for is not None:
            view._taken_for = tensor._taken_for
        elif buffer.has_owners and not isinstance(index, slice):
            with own_code(buffer.tally, CHECK):
                _take_view(view, tensor, index)
        return note_view(view, tensor, buffer.tally, gather_slice)
    with own_code(tensor._relay.tally, CHECK):
        enter_read(tensor, indexing.host(index))
    return result


def _take_view(view: RelayTensor, of: RelayTensor, index: Any) -> None:
    """Notes whose row a view shows, if a number picks one of a tensor's rows."""
    shown = window(view).rows
    if isinstance(_item_of_rows(of, index), (int, np.integer)) and shown.size:
        site = of._relay.tally.sites.here(_OUR_FRAMES)
        view._taken_for = of._relay.taken_for(int(shown.flat[0]), site)


def _setitem(func: Call, args: Arguments, kwargs: Options) -> None:
    tensor, index, value = args
    if type(tensor) is not RelayTensor:
        _write(func, args, kwargs)
        return
    tensor._relay.order()
    shown = tensor._window
    if type(index) is torch.Tensor is type(value) and shown is not None and shown.whole:
        _made(func, (tensor._plain, index, value), {})
        enter_write(tensor, index, PICKED, value)
        return
    _made(func, (tensor._plain, plain(index), plain(value)), {})
    constant = isinstance(value, _NUMBERS)
    picked = not constant and picks_rows(tensor, index)
    enter_write(
        tensor, index, WriteEffect(constant=constant, picks=picked), value if picked else None
    )
    for reader in _relay_tensors(value):
        enter_peek(reader)


def picks_rows(tensor: RelayTensor, index: Any) -> bool:
    """Tells whether an index picks rows one by one, rather than as a stretch.

    Of a view of one row, it is what picks along its first dimension.
    """
    picks = (torch.Tensor, np.ndarray, list, int, np.integer)
    return isinstance(_item_of_rows(tensor, index), picks)


def _item_of_rows(tensor: RelayTensor, index: Any) -> Any:
    """Returns what an index says of the dimension that counts the rows."""
    dims = (tensor._window or window(tensor)).dims
    return rows.item_at(index, min(dims, default=0), tensor._plain.dim())


def _gather(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that picks elements by an index and is no subscript."""
    name = indexing.name_of(func)
    tensor = indexing.picked_from(name, func, args, kwargs)
    if type(tensor) is not RelayTensor:
        return read(func, args, kwargs)
    buffer = tensor._relay
    buffer.order()
    result = _made(func, plain(args), plain(kwargs))
    out = kwargs.get("out")
    with own_code(buffer.tally, CHECK):
        index = indexing.single_index(name, args, kwargs)
        if out is None and _by_rows(tensor, index):
            buffer.gather_rows(index, result, buffer.tally.sites.here(_OUR_FRAMES))
            return result
        enter_read(tensor, indexing.READS[name](func, tensor._plain, args, kwargs))
    if out is None:
        return result
    _enter_out(out, [])
    return out if isinstance(out, torch.Tensor) else result


def _by_rows(tensor: RelayTensor, index: Any) -> bool:
    """Tells whether an index picks whole rows of a buffer by their numbers."""
    return indexing.are_rows(index) and window(tensor).whole


def enter_read(tensor: RelayTensor, expression: Any) -> None:
    """Enters a read by an index of NumPy's: a gather where that picks rows."""
    if rows.selects_rows(expression, tensor._plain.dim(), window(tensor).dims):
        _enter_gather(tensor, expression)
    else:
        enter_peek(tensor)


def _reshape_in_place(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that changes what the tensor object shows, not the elements."""
    tensor = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        result = _made(func, (tensor, *plain(args[1:])), plain(kwargs))
        if type(tensor) is not RelayTensor:
            return result
        tensor._plain = tensor.as_subclass(torch.Tensor)
        tensor._window = None
        with own_code(tensor._relay.tally, CHECK):
            if not _lies_within(tensor._plain, tensor._relay.base):
                _move(tensor)
    return tensor if result is not None else None


def _lies_within(tensor: torch.Tensor, base: torch.Tensor) -> bool:
    """Tells whether all elements of a tensor are a buffer's."""
    if not _shares_storage(tensor, base) or not tensor.numel():
        return tensor is base
    (first, last), (start, end) = _reach(base), _reach(tensor)
    return first <= start and end <= last


def _reach(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns where in its storage a tensor begins and ends, in bytes."""
    last = sum((n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    size = tensor.element_size()
    return start * size, (start + last + 1) * size


def _property_of(func: Call) -> str:
    """Returns the name of the property whose setter a function is."""
    return getattr(getattr(func, "__self__", None), "__name__", "")


def _become(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A call that changes what the tensor is, and neither its shape nor its elements."""
    result = _made(func, plain(args), plain(kwargs))
    return args[0] if result is plain(args[0]) else result


def _move(tensor: RelayTensor) -> None:
    """Follows a tensor that was given another storage, by `set_` or by assigning `data`."""
    left = tensor._relay
    moved = relay_tensor(
        tensor._plain,
        left.name,
        left.relay,
        left.tally,
        left.poison.bound,
        [unit // left.per_row for unit in left.sink_rows[:: left.per_row]],
        left.owners,
        left.overwrite,
        left.streams,
        left.layout,
        left.poison.bits is None,
    )
    moved._relay.adopt_values()
    tensor._relay, tensor._window = moved._relay, moved._window


def _property(func: Call, args: Arguments, kwargs: Options) -> Any:
    """A property of the tensor: metadata, or a view such as `data` and `T`."""
    result = _made(func, plain(args), kwargs)
    return _as_view(result, args[:1]) if isinstance(result, torch.Tensor) else result


def _iterate(func: Call, args: Arguments, kwargs: Options) -> Any:
    if not plain(args[0]).dim():
        return _made(func, plain(args), kwargs)  # torch's own error
    return iter(read(torch.Tensor.unbind, args, kwargs))


_AUGMENTED = frozenset(
    f"__i{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "div", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
_RESHAPING = frozenset(
    {
        *("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_"),
        *("resize_", "resize_as_", "set_"),
    }
)
# What the tensor underneath is asked to become: the alias is a view of it, which may not.
_OF_THE_TENSOR = frozenset({"requires_grad_", "detach_", "share_memory_", "retain_grad"})
# What stands in the rows goes into what these leave there.
_UPDATING = frozenset(
    {
        *_AUGMENTED,
        *("add_", "sub_", "mul_", "div_", "pow_", "remainder_", "floor_divide_", "lerp_", "neg_"),
        *("abs_", "clamp_", "clamp_min_", "clamp_max_", "index_add_", "index_reduce_", "sqrt_"),
        *("scatter_add_", "scatter_reduce_", "exp_", "exp2_", "log_"),
        *("addcmul_", "addcdiv_", "addmm_", "_foreach_add_", "_foreach_mul_", "round_", "floor_"),
    }
)
_METADATA = frozenset(
    {
        *("size", "dim", "ndimension", "stride", "numel", "nelement", "__len__", "element_size"),
        *("storage_offset", "data_ptr", "untyped_storage", "is_contiguous", "get_device"),
        *("is_floating_point", "is_complex", "is_signed", "__hash__", "is_pinned", "type"),
        *("is_shared", "dim_order", "has_names", "is_inference", "record_stream", "_is_view"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    }
)
_ESCAPES = frozenset({"data_ptr", "untyped_storage", "__dlpack__", "numpy"})
# What a call that returns no tensor tells of the values.
_SCALARS = frozenset(
    {
        *("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__"),
        *("__complex__", "__repr__", "__format__", "__contains__", "equal", "allclose"),
        *("__reduce_ex__", "__dlpack__", "is_nonzero", "is_set_to", "_local_scalar_dense"),
    }
)


_TRANSLATIONS: dict[str, Callable[[Call, Arguments, Options], Any]] = {
    **dict.fromkeys(_METADATA, _pass),
    **dict.fromkeys(_ESCAPES, _escape),
    **dict.fromkeys(_RESHAPING, _reshape_in_place),
    **dict.fromkeys(_OF_THE_TENSOR, _become),
    **dict.fromkeys(_AUGMENTED, _write),
    **dict.fromkeys(indexing.READS, _gather),
    **dict.fromkeys(("cpu", "to"), _bring),
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "__hash__": _identity,
    "__iter__": _iterate,
    "__get__": _property,
}


def translate(name: str, translation: Callable[[Call, Arguments, Options], Any]) -> None:
    """Has a call of torch's made by another module, which goes on from here."""
    _TRANSLATIONS[name] = translation
    _translations.clear()


def _translation_of(func: Call) -> Callable[[Call, Arguments, Options], Any]:
    name = indexing.name_of(func)
    if name == "__set__":
        return _reshape_in_place if _property_of(func) == "data" else _become
    in_place = name.endswith("_") and not name.endswith("__")
    return _TRANSLATIONS.get(name, _write if in_place else read)


# Of these the last argument is what they write: a number is a constant.
_FILLS = frozenset({"fill_", "index_fill_", "masked_fill_", "scatter_"})
_ZEROS = frozenset({"zero_", "_foreach_zero_"})
_NUMBERS = (bool, int, float, complex)


def _is_constant(func: Call, args: Arguments, kwargs: Options) -> bool:
    """Tells whether a call writes one number that was written down, rather than computed."""
    name = indexing.name_of(func)
    if name in _ZEROS:
        return True
    return name in _FILLS and isinstance(kwargs.get("value", args[-1]), _NUMBERS)


def _accumulates(func: Call, args: Arguments, kwargs: Options) -> Any:
    if indexing.name_of(func) not in ("index_put_", "_index_put_impl_", "put_"):
        return False
    return indexing.argument(args, kwargs, 3, "accumulate")


def _picked(func: Call, args: Arguments, kwargs: Options, written: Sequence[RelayTensor]) -> Any:
    """Returns the elements that a write in place reaches."""
    name = indexing.name_of(func)
    pick = indexing.WRITES.get(name)
    if pick is None or len(written) != 1:
        return rows.EVERYTHING
    index = indexing.written_index(name, args, kwargs)
    if _by_rows(written[0], index):
        return index
    return pick(func, written[0]._plain, args, kwargs)


# Whatever tells a buffer was called by a translation, and that by `__torch_function__`.
_OUR_FRAMES = 2

# --- telling the buffer -----------------------------------------------------------------------


def before_call(reads: Sequence[Any], index: Any, writes: Sequence[Any] = ()) -> None:
    """Judges what a kernel out of torch's sight is about to gather.

    Before it, so that a kernel that fails on a bad row is explained. What is no relay tensor is
    passed over.
    """
    for tensor in _accessed((*writes, *reads), index):
        with own_code(tensor._relay.tally, CHECK):
            tensor._relay.order()
    for tensor in _accessed(reads, index):
        with own_code(tensor._relay.tally, CHECK):
            _enter_access(tensor, "judge", index)


def after_call(reads: Sequence[Any], writes: Sequence[Any], index: Any) -> None:
    """Enters what a kernel has gathered and written. A buffer that is both keeps what it wrote."""
    written = list(_accessed(writes, index))
    kept = {tensor._relay for tensor in written}
    read = list(_accessed(reads, index))
    for tensor in read:
        if tensor._relay in kept:
            continue
        with own_code(tensor._relay.tally, CHECK):
            _enter_access(tensor, "retire", index)
    updated = {tensor._relay for tensor in read}
    for tensor in written:
        # A kernel that gathers a buffer and writes it may take the values out.
        both = tensor._relay in updated
        enter_write(tensor, index, WriteEffect(updates=both, constant=both, picks=not both))


def _enter_access(tensor: RelayTensor, how: str, index: Any) -> None:
    buffer = tensor._relay
    try:
        if _by_rows(tensor, index):
            getattr(buffer, f"{how}_rows")(index, buffer.tally.sites.here(_OUR_FRAMES))
        else:
            _enter(tensor, how, indexing.without_skipped(indexing.host(index)))
    except IndexError:  # the kernel's own affair, which it may be about to say
        buffer.tally.untrack(
            "accesses", f"a kernel was given rows that `{buffer.name}` does not have"
        )


def _accessed(tensors: Sequence[Any], index: Any) -> Iterator[RelayTensor]:
    if index is not None:
        yield from (tensor for tensor in tensors if type(tensor) is RelayTensor)


def _touch(tensor: RelayTensor, verb: str) -> None:
    """A tensor is about to be read or written: if it was kept, the row may be another's by now."""
    forget_view(tensor)
    if tensor._taken_for is not None and not tensor._relay.is_captured():
        site = tensor._relay.tally.sites.here(_OUR_FRAMES)
        tensor._relay.judge_view(tensor._taken_for, site, verb)


def _enter(tensor: RelayTensor, how: str, expression: Any) -> Any:
    buffer = tensor._relay
    _touch(tensor, "read")
    if buffer.is_captured():
        return None
    window, expression = _within(tensor, expression)
    return getattr(buffer, how)(window, expression, buffer.tally.sites.here(_OUR_FRAMES))


def _enter_gather(tensor: RelayTensor, expression: Any) -> None:
    _enter(tensor, "gather", expression)


def gather_slice(view: RelayTensor, site: int) -> None:
    """Enters the gather of a slice that leaves the function that takes it."""
    with own_code(view._relay.tally, CHECK):
        if not view._relay.is_captured():
            view._relay.gather(*_within(view, rows.EVERYTHING), site)


def enter_peek(tensor: RelayTensor, by_host: bool = False) -> None:
    """Enters a read of all of a tensor."""
    buffer = tensor._relay
    with own_code(buffer.tally, CHECK):
        _touch(tensor, "read")
        if current() is Scope.TAKE and not by_host:
            _enter_gather(tensor, rows.EVERYTHING)
        elif buffer.lanes is None:
            buffer.peek(buffer.whole, 0)
        else:
            buffer.peek(window(tensor), buffer.tally.sites.here(_OUR_FRAMES), by_host)


def enter_write(
    tensor: RelayTensor, expression: Any, how: WriteEffect = VALUES, values: Any = None
) -> None:
    """Enters a write, of a tensor of `values` where an index lists what it picks."""
    buffer = tensor._relay
    with own_code(buffer.tally, CHECK):
        _touch(tensor, "write")
        has_lists = isinstance(expression, tuple) and not buffer.is_on_device
        has_values = isinstance(values, torch.Tensor) and (
            has_lists or indexing.are_rows(expression)
        )
        given = plain(values) if has_values else None
        if (tensor._window or window(tensor)).whole:
            buffer.stash_rows(expression, buffer.tally.sites.here(_OUR_FRAMES), how, given)
            return
        if buffer.is_captured():
            return
        shown, expression = _within(tensor, indexing.without_skipped(indexing.host(expression)))
        buffer.stash(shown, expression, buffer.tally.sites.here(_OUR_FRAMES), how, given)


def _within(tensor: RelayTensor, expression: Any) -> tuple[Window, Any]:
    """Returns the window and the elements in it.

    A view as a wider or narrower dtype, or one that reaches beyond the buffer, has other elements
    than the buffer: whole rows then.
    """
    shown = tensor._window or window(tensor)
    if shown.whole:
        return shown, expression
    buffer = tensor._relay
    same = tensor._plain.element_size() == buffer.base.element_size()
    if same and (buffer.veil is None or isinstance(shown.memory, VeiledMemory)):
        return shown, expression
    touched = np.unique(shown.touched(expression))
    return buffer.whole, touched[(touched >= 0) & (touched < len(buffer.ledger))]


def _relay_tensors(value: Any) -> Any:
    if isinstance(value, RelayTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _relay_tensors(item)
    elif isinstance(value, dict):
        yield from _relay_tensors(list(value.values()))


def _as_view(result: Any, sources: Sequence[RelayTensor]) -> Any:
    """Returns a result that shares a relay's storage as a relay tensor, any other as it is."""
    if isinstance(result, torch.Tensor):
        for source in sources:
            if _shares_storage(result, source._plain):
                if result is source._plain:
                    return source
                view = alias(result, source._relay)
                view._taken_for = source._taken_for
                if forget_view(source):
                    note_view(view, source, source._relay.tally, gather_slice)
                return view
        return result
    if type(result) in (tuple, list) and any(isinstance(item, torch.Tensor) for item in result):
        views = [_as_view(item, sources) for item in result]
        same = all(view is item for view, item in zip(views, result, strict=True))
        return result if same else type(result)(views)
    return result


def _shares_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.device != other.device or one.layout != torch.strided:
        return False
    try:
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # it has no storage, as a tensor of a mode's own
        return False


def _brings_values(func: Call, result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return True
    if isinstance(result, (tuple, list)) and any(isinstance(i, torch.Tensor) for i in result):
        return True
    return indexing.name_of(func) in _SCALARS


_translations: dict[Call, Callable[[Call, Arguments, Options], Any]] = {}

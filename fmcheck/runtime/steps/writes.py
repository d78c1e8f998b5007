"""Writes: which elements of some tensors were written while they were followed, and by whose word.

The dispatcher tells of each operator of this thread, and an operator's schema of what it writes. An
element is written, perhaps written, or not written. It is "perhaps" where somebody may have written
who asks no dispatcher: NumPy, a kernel, compiled code, a C++ extension. Nothing here ever writes
into what it follows.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps.operators import MASKS, tensors_at
from fmcheck.runtime.steps.torch_modes import (
    OperatorMode,
    called,
    has_memory,
    put_beneath,
    take_out,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from fmcheck.runtime.core.site import Sites
    from fmcheck.runtime.steps.operators import Operator, Place

#: As it was before anybody wrapped it.
address_of = torch.Tensor.data_ptr

NUMPY = "NumPy or another process shares their memory, and its writes are not seen"
KERNEL = "a kernel or compiled code was handed them, and its writes are not seen"
OWN = "fmcheck's own code failed while they were written"
UNSEEN = "they were written without torch's dispatcher"


def _by_index(hit: torch.Tensor, dim: int, index: torch.Tensor, *_: Any, **__: Any) -> None:
    hit.index_fill_(dim, index, True)


def _by_scatter(hit: torch.Tensor, dim: int, index: torch.Tensor, *_: Any, **__: Any) -> None:
    hit.scatter_(dim, index, True)


def _by_mask(hit: torch.Tensor, mask: torch.Tensor, *_: Any, **__: Any) -> None:
    hit.logical_or_(mask)


def _by_place(hit: torch.Tensor, index: torch.Tensor, *_: Any, **__: Any) -> None:
    hit.put_(index, torch.ones_like(index, dtype=torch.bool))


def _by_indices(hit: torch.Tensor, indices: Any, *_: Any, **__: Any) -> None:
    given = [(at, one) for at, one in enumerate(indices) if one is not None]
    masks = [one for _, one in given if one.dtype in MASKS]
    if masks and len(given) == 1:  # without the places that it means, for which a device waits
        ((at, mask),) = given
        behind = hit.dim() - at - mask.dim()
        hit.logical_or_(mask.bool().reshape((1,) * at + mask.shape + (1,) * behind))
    elif masks and hit.device.type != "cpu":
        raise NotImplementedError
    else:
        hit.index_put_(tuple(indices), torch.ones((), dtype=torch.bool, device=hit.device))


def _unmarked(hit: torch.Tensor, *_: Any, **__: Any) -> None:
    raise NotImplementedError


#: Operators that write some elements of what they write in place, and what marks those elements
#: in a tensor of truth values.
_PARTIAL: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("index_fill_", "index_copy_", "index_add_", "index_reduce_"), _by_index),
    **dict.fromkeys(("scatter_", "scatter_add_", "scatter_reduce_"), _by_scatter),
    **dict.fromkeys(("masked_fill_", "masked_scatter_"), _by_mask),
    **dict.fromkeys(("index_put_", "_index_put_impl_"), _by_indices),
    "put_": _by_place,
    "embedding_renorm_": _unmarked,
}


class MemoryRegion(NamedTuple):
    """Memory that an operator wrote: where it starts, its form and where it ends, all in bytes.

    `hit` tells which of its elements were written, None is all of them.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    end: int
    hit: torch.Tensor | None

    @property
    def is_dense(self) -> bool:
        """Tells whether there is no gap between its elements."""
        size = self.item
        if len(self.shape) == 1:
            return self.shape[0] == 1 or self.strides[0] == size
        for n, stride in sorted(zip(self.shape, self.strides, strict=True), key=lambda one: one[1]):
            if n != 1 and stride != size:
                return False
            size *= n
        return True


def region_of(tensor: torch.Tensor, hit: torch.Tensor | None = None) -> MemoryRegion:
    """Returns the memory that a tensor shows."""
    item, start = tensor.element_size(), address_of(tensor)
    shape, strides = tuple(tensor.shape), tuple(stride * item for stride in tensor.stride())
    end = start + item
    for n, stride in zip(shape, strides, strict=True):
        end += (n - 1) * stride
    return MemoryRegion(start, shape, strides, item, end, hit)


@dataclass(eq=False)
class Trace:
    """What is known of the writes to one tensor.

    `why` says what may have written out of sight, `error` is what failed of our own code meanwhile.
    `last` is the number of the line that wrote it last, 0 if none of `sites` did.
    """

    tensor: torch.Tensor
    sites: Sites | None = None
    last: int = 0
    why: str = ""
    error: Exception | None = None
    _extent: MemoryRegion = field(init=False)
    _written: list[MemoryRegion] = field(default_factory=list)
    _perhaps: list[MemoryRegion] = field(default_factory=list)
    _version: int | None = None
    _counted: int = 0

    def __post_init__(self) -> None:
        self._extent = region_of(self.tensor)
        self._version = version_of(self.tensor)

    @property
    def was_touched(self) -> bool:
        """Tells whether an operator wrote any of it."""
        return bool(self._written)

    def overlaps(self, region: MemoryRegion) -> bool:
        """Tells whether a region of the same device may share memory with the tensor."""
        return region.start < self._extent.end and self._extent.start < region.end

    def wrote(self, region: MemoryRegion, version: int | None) -> None:
        """An operator wrote a region through a tensor of this version."""
        if 0 not in region.shape:
            self._written.append(region)
            self.last = self.sites.here() if self.sites is not None else 0
        # A tensor that shares the count of writes has the same count.
        self._counted += version is not None and version == version_of(self.tensor)

    def may_have_written(self, region: MemoryRegion, why: str) -> None:
        """Something was handed a region that it may have written."""
        if 0 not in region.shape:
            self._perhaps.append(region)
        self.why = self.why or why

    def close(self) -> None:
        """Nothing is followed from now on: looks for traces of those who ask no dispatcher."""
        version = version_of(self.tensor)
        if is_shared(self.tensor):
            self._lost(NUMPY)
        elif version is None or self._version is None:
            if _unseen.misses_compiler():
                self._lost(KERNEL)
        elif version - self._version > self._counted:
            self._lost(KERNEL)  # compiled code counts its writes, though no operator is seen

    def fails(self, err: Exception) -> None:
        """Our own code failed at a call that may have written it."""
        self.error = self.error or err
        self._lost(OWN)

    def _lost(self, why: str) -> None:
        """Any of it may have been written."""
        self.may_have_written(self._extent, why)

    @property
    def is_in_place(self) -> bool:
        """Tells whether the tensor still lies where it lay: other memory may be gone by now."""
        tensor, storage = self.tensor, self.tensor.untyped_storage()
        behind = address_of(tensor) - storage.data_ptr() + self._extent.end - self._extent.start
        return region_of(tensor)[:4] == self._extent[:4] and behind <= storage.nbytes()

    def marks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns which elements were written, and which perhaps, in the tensor's own shape."""
        with unrecorded():
            device = self.tensor.device
            size = (self._extent.end - self._extent.start) // self._extent.item
            both = [torch.zeros(size, dtype=torch.bool, device=device) for _ in range(2)]
            self._mark_all(*both)
            shape, strides = self.tensor.shape, self.tensor.stride()
            sure, unsure = (one.as_strided(shape, strides) for one in both)
            return sure, unsure

    def marks_on_host(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns the same for a tensor of the host's, through NumPy: it costs a tenth."""
        size = (self._extent.end - self._extent.start) // self._extent.item
        sure, unsure = np.zeros(size, bool), np.zeros(size, bool)
        self._mark_all(sure, unsure)
        item = self._extent.item
        strides = tuple(stride // item for stride in self._extent.strides)
        shape = self._extent.shape
        return np.ndarray(shape, bool, sure, 0, strides), np.ndarray(
            shape, bool, unsure, 0, strides
        )

    def _mark_all(self, sure: Any, unsure: Any) -> None:
        """Marks what was written, and what perhaps, in two flat arrays of the tensor's elements."""
        for region in self._written:
            if not self._mark(sure, region, whole=True):
                self._mark(unsure, region._replace(hit=None), whole=False)
        for region in self._perhaps:
            self._mark(unsure, region, whole=False)

    def _mark(self, flat: Any, region: MemoryRegion, whole: bool) -> bool:
        """Marks a region among the tensor's elements; False where its form cannot be known there.

        With `whole`, an element is marked of which every byte was written.
        """
        item, offset = self._extent.item, region.start - self._extent.start
        inside = offset >= 0 and region.end <= self._extent.end
        if region.hit is None and (region.is_dense or not whole):
            first, last = offset, region.end - self._extent.start
            first = -(-first // item) if whole else first // item
            last = last // item if whole else -(-last // item)
            flat[max(first, 0) : max(last, 0)] = True
            return True
        steps = (offset, region.item, *region.strides)
        if not inside or any(step % item for step in steps):
            return False
        shape = (*region.shape, region.item // item)
        strides = (*(stride // item for stride in region.strides), 1)
        with unrecorded():
            one = flat if isinstance(flat, torch.Tensor) else torch.from_numpy(flat)
            view = one.as_strided(shape, strides, offset // item)
            if region.hit is None:
                view.fill_(True)
            else:
                view.logical_or_(region.hit.unsqueeze(-1))
        return True


@contextmanager
def unrecorded() -> Iterator[None]:
    """Keeps what a block does with tensors of our own from autograd and from all modes."""
    with torch.inference_mode(), torch._C._DisableTorchDispatch():
        yield


def version_of(tensor: torch.Tensor) -> int | None:
    """Returns the count of writes that torch keeps, None for a tensor of inference mode."""
    return None if tensor.is_inference() else tensor._version


def is_shared(tensor: torch.Tensor) -> bool:
    """Tells whether somebody else may write a tensor's memory: torch pins what NumPy was given."""
    storage = tensor.untyped_storage()
    return tensor.device.type == "cpu" and (not storage.resizable() or storage.is_shared())


#: By the address of each storage that was made, that storage and the number of the line.
Made: TypeAlias = "dict[int, tuple[weakref.ref[Any], int]]"


class _Here(threading.local):
    """What a thread follows, its mode where there is one, and which line made which storage."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.made: Made = {}
        self.mode: WriteMode | None = None


_here = _Here()


def follow(traces: Iterable[Trace]) -> None:
    """Notes from now on what this thread writes to the tensors."""
    _here.traces += traces
    if _here.traces and _here.mode is None:
        _unseen.watch()
        _here.made = {}
        _here.mode = WriteMode()  # type: ignore[no-untyped-call]
        put_beneath(_here.mode)


def leave(traces: Iterable[Trace]) -> None:
    """Ends that; each trace is closed."""
    for trace in traces:
        if trace in _here.traces:
            _here.traces.remove(trace)
            trace.close()
    mode = _here.mode
    if mode is not None and not _here.traces:
        _here.mode = None
        take_out(mode)
        _unseen.let_go()


def made_here() -> Made:
    """Returns the storages that were made since this thread began to follow, with the lines."""
    return _here.made


def line_of(tensor: torch.Tensor, made: Made) -> int:
    """Returns the number of the line that made a tensor's storage, 0 if it is none of these."""
    storage = tensor.untyped_storage()
    known, line = made.get(storage._cdata, (None, 0))
    return line if known is not None and known() is storage else 0


class WriteMode(OperatorMode):  # type: ignore[no-untyped-call]
    """Sees each operator of a thread that fills."""

    def leaves(self, types: Any) -> bool:
        """A subclass takes itself apart first, and calls with what is inside."""
        return any(one.__torch_dispatch__ != _UNTAUGHT for one in types)

    def failed(self, err: Exception) -> None:
        """Each trace says from now on that it knows nothing for sure."""
        _failed(err)

    def _takes_apart(self, *_: Any) -> bool:
        return False

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes the call, and notes what it wrote."""
        plan = noted = None
        try:
            plan = _plans.get(id(operator)) or _plans.setdefault(id(operator), _plan(operator))
            # Before the call: it may write the very indices that say where it writes.
            noted = _noted(plan, args, kwargs) if plan.writes else None
        except Exception as err:
            _failed(err)
        try:
            result = called(operator, args, kwargs)
            if type(result) is torch.Tensor and not (operator.writes or operator.is_view):
                _note_made(result)
            return result
        except BaseException:
            plan = plan and plan._replace(sure=False)
            raise
        finally:
            if plan is not None and noted:
                try:
                    _note_writes(plan, args, kwargs, noted)
                except Exception as err:
                    _failed(err)


def _note_made(result: torch.Tensor) -> None:
    """Notes the line that made a tensor, which may become an input."""
    sites = _here.traces[0].sites if _here.traces else None
    if sites is None or not has_memory(result):
        return
    try:
        storage = result.untyped_storage()
        _here.made[storage._cdata] = weakref.ref(storage), sites.here()
    except Exception as err:
        _failed(err)


def _failed(err: Exception) -> None:
    """Our own code failed: each trace says from now on that it knows nothing for sure."""
    for trace in _here.traces:
        trace.fails(err)


#: What classes have that leave operators to torch.
_UNTAUGHT = torch.Tensor.__torch_dispatch__


class _Plan(NamedTuple):
    """Which arguments an operator writes, None for any, and what marks the elements of some.

    What it writes is not `sure` where its schema is not torch's own.
    """

    writes: tuple[Place, ...] | None
    sure: bool = True
    counts: bool = True
    marks: Callable[..., None] | None = None


_plans: dict[int, _Plan] = {}  # by the id of an operator, which is kept


def _plan(operator: Operator) -> _Plan:
    if operator.unknown:  # of a higher order: whatever it calls
        return _Plan(None, sure=False)
    if operator.space not in ("aten", "prims"):
        return _Plan(operator.tensors, sure=False)
    name = operator.name
    if operator.moves or name == "resize_as_":
        return _Plan(())  # what a tensor shows is changed, and no element
    return _Plan(
        operator.writes,
        counts=not name.startswith(("_foreach", "_fused")),
        marks=_PARTIAL.get(name),
    )


def _written(plan: _Plan, args: Any, kwargs: Any) -> list[torch.Tensor]:
    if plan.writes is None:
        return _given(args, kwargs)
    return [*filter(has_memory, tensors_at(plan.writes, args, kwargs))]


def _given(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns all tensors of plain memory that a call is given, however deep they lie."""
    leaves = tree_leaves((args, kwargs))
    return [one for one in leaves if isinstance(one, torch.Tensor) and has_memory(one)]


def _touched(tensor: torch.Tensor) -> list[Trace]:
    """Returns the traces of tensors that share memory with this one."""
    device = tensor.device
    found = [trace for trace in _here.traces if trace.tensor.device == device]
    if not found:
        return found
    if not tensor.numel():  # it writes nothing, and is counted as a write
        storage = tensor.untyped_storage()._cdata
        return [one for one in found if one.tensor.untyped_storage()._cdata == storage]
    region = region_of(tensor)
    return [trace for trace in found if trace.overlaps(region)]


class _Noted(NamedTuple):
    """Of a tensor that is about to be written: its version, and which elements, if `sure`."""

    version: int | None
    hit: torch.Tensor | None = None
    sure: bool = True


def _noted(plan: _Plan, args: Any, kwargs: Any) -> list[_Noted]:
    """Returns what is to be kept of each written tensor from before the call."""
    noted = []
    for tensor in _written(plan, args, kwargs):
        one = _Noted(version_of(tensor) if plan.counts else None)
        if plan.marks is not None and _touched(tensor):
            try:
                one = one._replace(hit=_hit(tensor, plan.marks, args, kwargs))
            except Exception:  # the engine's own call says what is wrong with it
                one = one._replace(sure=False)
        noted.append(one)
    return noted


def _hit(tensor: torch.Tensor, marks: Callable[..., None], args: Any, kwargs: Any) -> torch.Tensor:
    """Returns which elements of its first argument an operator is about to write."""
    with unrecorded():
        hit = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
        marks(hit, *args[1:], **kwargs)
    return hit


def _note_writes(plan: _Plan, args: Any, kwargs: Any, noted: list[_Noted]) -> None:
    tensors = _written(plan, args, kwargs)
    if not plan.sure or len(tensors) != len(noted):
        note_possible_writes(tensors, KERNEL)
        return
    for tensor, one in zip(tensors, noted, strict=True):
        for trace in _touched(tensor):
            if one.sure:
                trace.wrote(region_of(tensor, one.hit), one.version)
            else:
                trace.may_have_written(region_of(tensor), KERNEL)


def note_possible_writes(tensors: Iterable[torch.Tensor], why: str) -> None:
    """Something was handed tensors that it may write."""
    for tensor in tensors:
        for trace in _touched(tensor):
            trace.may_have_written(region_of(tensor), why)


class _Unseen:
    """What is wrapped while any thread follows: ways past the dispatcher, that take addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._undo: list[Callable[[], None]] = []
        self.has_compiler = False

    def watch(self) -> None:
        """One more thread follows."""
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._undo = list(self._wrapped())

    def let_go(self) -> None:
        """One thread less follows."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                for undo in self._undo:
                    undo()

    def misses_compiler(self) -> bool:
        """Tells whether Inductor was loaded while it was followed: its calls were not seen."""
        return _COMPILER in sys.modules and not self.has_compiler

    def _wrapped(self) -> Iterator[Callable[[], None]]:
        for name in ("data_ptr", "__dlpack__"):
            yield patch(torch.Tensor, name, _handing(getattr(torch.Tensor, name)))
        compiler, triton = sys.modules.get(_COMPILER), sys.modules.get(_TRITON)
        compiled = getattr(compiler, "CompiledFxGraph", None)
        kernel = getattr(triton, "JITFunction", None)
        self.has_compiler = compiled is not None
        if compiled is not None:
            yield patch(compiled, "__call__", _handing(compiled.__call__))
        if kernel is not None:
            yield patch(kernel, "run", _handing(kernel.run))


_COMPILER, _TRITON = "torch._inductor.output_code", "triton.runtime.jit"
_unseen = _Unseen()


def _handing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that may write the memory of the tensors that it is handed."""

    @functools.wraps(function)
    def hand(*args: Any, **kwargs: Any) -> Any:
        if _here.traces:
            try:
                note_possible_writes(_given(args, kwargs), KERNEL)
            except Exception as err:
                _failed(err)
        return function(*args, **kwargs)

    return hand

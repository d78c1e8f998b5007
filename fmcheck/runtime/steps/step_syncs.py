"""Syncs and launches: what the operations of a step make the host wait for, and how many there are.

A dispatch mode sees each operation of the thread that is in a step. What torch answers on a CPU
without an operation (`tolist`, `cpu`, `to`) is seen by methods in place of the tensor's own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import _len_torch_dispatch_stack as modes_on

from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps import factories, operators, placements
from fmcheck.runtime.steps.factories import FROM_VALUES
from fmcheck.runtime.steps.placements import Placement, tensors_in
from fmcheck.runtime.steps.torch_modes import (
    OperatorMode,
    called,
    is_traced,
    put_beneath,
    take_out,
    unheard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.site import Sites
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.factories import FactoryMode
    from fmcheck.runtime.steps.operators import Operator
    from fmcheck.runtime.steps.placements import FactoryCall, Placements

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_NUMBERS = (bool, int, float, complex)
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
#: Operations whose result the host has to wait for, by the word of a report.
_WAITS = {
    "_local_scalar_dense": "item",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "_unique": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "unique_dim_consecutive": "unique",
    "equal": "equal",
    "is_nonzero": "bool",
}
_BY_MASK = frozenset({"index", "index_put", "index_put_"})
# Neither compute nor copy on a device: they allocate, name or read what is there.
_NO_LAUNCH = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("_local_scalar_dense", "record_stream", "item", "is_same_size", "equal"),
    }
)


class SyncListener(Protocol):
    """A listener to what a step does.

    `tally` is its session's, `check` what the closing section calls it, should our code fail.
    """

    tally: Tally
    check: str

    def sync(self, verb: str) -> None:
        """The host waits for the device."""

    def launch(self, what: object) -> None:
        """The device is given work."""


class Carrier(Protocol):
    """A mode that is on already, and makes its calls by a step's where there is one."""

    step: StepMode | None


class _Carried(threading.local):
    carrier: Carrier | None = None


_carried = _Carried()


def carrier() -> Carrier | None:
    """Returns the mode of this thread that carries a step, None if there is none."""
    return _carried.carrier


def carry(mode: Carrier | None) -> None:
    """Lets a mode of this thread carry the steps that begin from now on."""
    _carried.carrier = mode


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Has steps that begin now see and hear for themselves, in a thread that is in one."""
    outer, _carried.carrier = _carried.carrier, None
    try:
        with factories.apart():
            yield
    finally:
        _carried.carrier = outer


class StepMode(OperatorMode):
    """Sees the operations of one thread while it is in a step.

    `counting` is how many budgets of launches are open: without one, launches are not reported.
    """

    def __init__(self, listener: SyncListener, known: Placements, sites: Sites) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener
        self._placements = known
        self._sites = sites
        self._factories: FactoryMode | None = None
        self._carrier: Carrier | None = None
        self.counting = 0

    def begin(self) -> None:
        """Begins to see the operations of this thread."""
        self._factories = factories.listen(self._listener.tally)
        self._carrier = carrier()
        if self._carrier is None:
            put_beneath(self)
        else:
            self._carrier.step = self

    def end(self) -> None:
        """Ends that."""
        if self._carrier is None:
            take_out(self)
        else:
            self._carrier.step = None
        if self._factories is not None:
            self._factories.end()

    def alone(self) -> None:
        """The mode that carried it is taken off."""
        self._carrier = None
        put_beneath(self)

    def failed(self, err: Exception) -> None:
        """Counts an error of our own code."""
        broke(self.tally, self.check, err)

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes a call of an operator and says what it did."""
        result = called(operator, args, kwargs)
        kind = operator.step
        if kind is _view and not placements.elsewhere:
            return result
        if not (modes_on() and is_traced()):
            try:
                # Most operators by far: two calls in Python less.
                if kind is _plain and not self.counting and type(result) is torch.Tensor:
                    placements.derive(result, args, self._placement)
                else:
                    self._classify(operator, args, kwargs, result)
            except Exception as err:
                self.failed(err)
        return result

    def _classify(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        kind = operator.step
        if kind is None:
            kind = operator.step = _kind_of(operator)
        if kind is _plain:
            self._derive(args, result)
            if self.counting:
                self._listener.launch(operator.func)
        elif kind is _view:
            placements.move_views(args, result)
        else:
            if kind in _OF_TENSORS:
                for one in args[:2]:
                    if type(one) in _NUMBERS:
                        return
            kind(self, operator, args, kwargs, result)

    def _placement(self, tensor: torch.Tensor) -> Placement:
        return self._placements.of(tensor, self._sites)

    def _derive(self, args: Any, result: Any) -> None:
        """Notes whose memory an operation made, by what it made it from."""
        for one in (result,) if type(result) is torch.Tensor else tensors_in([result]):
            placements.derive(one, args, self._placement)

    def waits(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """The host has to know values to go on."""
        self._report(_WAITS[operator.name], args[0])
        if operator.name not in _NO_LAUNCH:
            self._launched(operator)

    def indexes(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """An index, by a mask perhaps: how much it picks is known to the device alone.

        A mask to which one value is assigned picks nothing.
        """
        masks = [one for one in args[1] if one is not None and one.dtype in operators.MASKS]
        fills = operator.name != "index" and args[2].numel() == 1
        if masks and not fills:
            self._report("mask", args[0] if self._is_free(args[0]) else masks[0])
        self._derive(args[:1], result)
        self._launched(operator)

    def repeats(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """A repetition by a tensor: as long as its sum, unless the caller says how long."""
        if kwargs.get("output_size") is None:
            self._report("repeat_interleave", args[0])
        self._launched(operator)

    def copies(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """A copy: between device and host the host waits for it, unless it says otherwise."""
        self._launched(operator)
        if operator.name == "copy_":
            is_async = bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
            self._copied(args[0], args[1], is_async)
        else:
            self._converted(args[0], kwargs, result)

    def _copied(self, target: torch.Tensor, source: torch.Tensor, is_async: bool) -> None:
        from_host = self._is_free(source)
        if is_async:
            if not from_host:
                placements.pull(target)
        elif self._placement(target) is Placement.HOST and not from_host:
            self._report("to host")
        elif from_host and target.device.type != "cpu":
            self._report("upload")

    def _converted(self, source: torch.Tensor, kwargs: Any, result: torch.Tensor) -> None:
        placement = self._placement(source)
        if kwargs.get("device") is None:
            placements.made(result, placements.from_operands([placement]))
            return
        goes = self._goes(result)
        placements.made(result, goes)
        if not kwargs.get("non_blocking") and _crosses(placement, goes):
            self._report("to host" if goes is Placement.HOST else "upload")

    def _goes(self, result: torch.Tensor) -> Placement:
        """Returns where a copy goes, by what its caller asked for."""
        if self._placements.tensors_tell:
            return self._placements.of(result)
        return self._placements.goes(factories.asked())

    def makes(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """A new tensor that was made of nothing, or of numbers of the host's."""
        if operator.name not in _NO_LAUNCH:
            self._launched(operator)

    def lifts(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Numbers of the host's that became a tensor: `torch.tensor` and its like."""
        asked = factories.asked()
        if asked is None:
            placements.made(result, Placement.HOST)  # `torch.from_numpy` and its like are not heard
        if asked is None or asked.name not in FROM_VALUES:
            return
        sent = (
            (Placement.DEVICE, Placement.EITHER)
            if self._placements.device_is_string
            else (Placement.DEVICE,)
        )
        is_sent = asked.placement in sent or result.device.type != "cpu"
        if is_sent and result.dim() and result.numel():
            self._report("upload")

    def reads(self, tensor: torch.Tensor, args: Any, kwargs: Any, result: Any) -> Any:
        """A list of a tensor's values; elsewhere than on a CPU it makes operations."""
        if tensor.device.type == "cpu":
            self._report("tolist", tensor)
        return result

    def sends(
        self, tensor: torch.Tensor, args: Any, kwargs: Any, result: Any, name: str = "to"
    ) -> Any:
        """A copy that a CPU need not make, for the tensor is there already.

        What goes to the other side is handed on as another tensor: the one that stayed stays.
        """
        if tensor.device.type != "cpu" or self._placements.tensors_tell:
            return result
        call = factories.call_of(name, (tensor, *args), kwargs, sys._getframe(1))
        if name == "to" and call.device is None:
            return result
        placement, goes = self._placement(tensor), self._end_of(call)
        if not _crosses(placement, goes):
            return result
        if not kwargs.get("non_blocking"):
            self._report("to host" if goes is Placement.HOST else "upload")
        return placements.on_other_side(result, goes) if type(result) is torch.Tensor else result

    def _end_of(self, call: FactoryCall) -> Placement:
        """Returns where a move ends: where another tensor is, or by what names a device."""
        if isinstance(call.device, torch.Tensor):
            return self._placement(call.device)
        return self._placements.goes(call)

    @property
    def tally(self) -> Tally:
        """The session's."""
        return self._listener.tally

    @property
    def check(self) -> str:
        """What the closing section calls the checks that listen to a step."""
        return self._listener.check

    def _launched(self, operator: Operator) -> None:
        if self.counting:
            self._listener.launch(operator.func)

    def _is_free(self, tensor: torch.Tensor) -> bool:
        """Tells whether the host need not wait for a tensor's values, or may not have to."""
        placement = self._placements.of(tensor, self._sites, is_waited_for=True)
        return placement in (Placement.HOST, Placement.EITHER) or placements.was_pulled(tensor)

    def _report(self, verb: str, tensor: torch.Tensor | None = None) -> None:
        """Says that the host waits, unless fmcheck asked, or the tensor is the host's."""
        if self._sites.is_own():
            return
        if tensor is None or not self._is_free(tensor):
            self._listener.sync(verb)


def _crosses(placement: Placement, goes: Placement) -> bool:
    """Tells whether a copy is between host and device for certain, by the two placements."""
    return Placement.EITHER not in (placement, goes) and (placement is Placement.HOST) != (
        goes is Placement.HOST
    )


# Handed a number for a tensor, as for the constants of a traced graph, they are nobody's.
_OF_TENSORS = (StepMode.waits, StepMode.copies)


def _view(*_: Any) -> None:
    """What an operation is that shows memory, or that makes no launch."""


def _plain(*_: Any) -> None:
    """What an operation is that launches, and makes memory from its operands."""


def _kind_of(operator: Operator) -> Callable[..., Any]:
    """Returns what an operation is to a step: a view, a plain launch, or a method of the mode."""
    name = operator.name
    if name in _WAITS:
        return StepMode.waits
    if name in _BY_MASK:
        return StepMode.indexes
    if name in operators.COPIES:
        return StepMode.copies
    if str(operator.func) == "aten.repeat_interleave.Tensor":
        return StepMode.repeats
    if name == "lift_fresh":
        return StepMode.lifts
    schema = getattr(operator.func, "_schema", None)
    if schema is None:  # of a higher order: it runs others out of sight
        return _plain
    takes_tensors = any("Tensor" in str(one.type) for one in schema.arguments)
    if not takes_tensors:
        return StepMode.makes
    return _view if operator.is_view or name in _NO_LAUNCH else _plain


class _Here(threading.local):
    is_inside = False


_here = _Here()


def watch_methods(mode_of_thread: Callable[[], StepMode | None]) -> Undo:
    """Puts methods in place of those that make no operation on a CPU; returns what puts them back.

    `mode_of_thread` gives the mode of the calling thread, None outside of any step.
    """

    def watched(name: str, on_call: Callable[[StepMode, Any, Any, Any, Any], Any]) -> Any:
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensor, *args, **kwargs)
            mode = None if _here.is_inside else mode_of_thread()
            if mode is None or type(tensor) not in _PLAIN_TYPES:
                return original(tensor, *args, **kwargs)
            # Under a function mode torch calls the method that it finds, which is this one again.
            _here.is_inside = True
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                _here.is_inside = False
            if name != "tolist":
                if result is not tensor:
                    return result  # a copy, by an operator that was seen
                if sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                    return result  # torch knows some tensors by the objects that they are
            if is_traced():
                return result
            try:
                with unheard():
                    return on_call(mode, tensor, args, kwargs, result)
            except Exception as err:
                broke(mode.tally, mode.check, err)
            return result

        factories.passes_on(method)
        return method

    on_calls: dict[str, Callable[..., Any]] = {"tolist": StepMode.reads, "to": StepMode.sends}
    on_calls["cpu"] = functools.partial(StepMode.sends, name="cpu")
    undo = [patch(torch.Tensor, name, watched(name, tell)) for name, tell in on_calls.items()]

    def put_back() -> None:
        for one in undo:
            one()

    return put_back

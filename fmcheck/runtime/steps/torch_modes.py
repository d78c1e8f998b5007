"""torch's modes: where ours lie among them, and which tensors and calls they understand."""

from __future__ import annotations

import functools
import operator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._C import _dispatch_keys as keys_of
from torch._C import (
    _get_dispatch_stack_at,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch._C import _is_torch_function_all_disabled as functions_are_off
from torch._C import _len_torch_dispatch_stack as modes_on
from torch._C import _len_torch_function_stack as function_modes_on
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.steps import operators
from fmcheck.runtime.steps.placements import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.steps.operators import Operator

F = TypeVar("F", bound="Callable[..., Any]")
_PACKAGE = __name__.partition(".")[0] + "."


def put_beneath(mode: TorchDispatchMode) -> None:
    """Lets a mode see this thread's operators after all modes that are on, and later ones.

    Who leaves a mode takes off the uppermost, whichever that is: it must never be ours.
    """
    above = _modes_of_users()
    for _ in above:
        torch._C._pop_torch_dispatch_stack(None)
    for one in (mode, *above):
        torch._C._push_on_torch_dispatch_stack(one)


def take_out(mode: TorchDispatchMode) -> None:
    """Takes a mode off again, if it is on in this thread."""
    on = _modes_of_users()
    if not any(one is mode for one in on):
        return
    for _ in on:
        torch._C._pop_torch_dispatch_stack(None)
    for one in on:
        if one is not mode:
            torch._C._push_on_torch_dispatch_stack(one)


def _modes_of_users() -> list[Any]:
    """Returns the modes of this thread but torch's own, which it keeps apart, lowest first."""
    stack = _get_current_dispatch_mode_stack()
    return [one for one in stack if getattr(one, "_mode_key", None) is None]


def is_traced() -> bool:
    """Tells whether one of torch's own modes is beneath: a fake one does nothing for real."""
    for at in range(modes_on()):
        if getattr(_get_dispatch_stack_at(at), "_mode_key", None) is not None:
            return True
    return False


def is_ours(mode: Any) -> bool:
    """Tells whether a mode is fmcheck's."""
    return type(mode).__module__.startswith(_PACKAGE)


def called(operator: Operator, args: Any, kwargs: Any) -> Any:
    """Makes a call that torch handed to a mode."""
    call = operator.call
    try:
        return call(*args, **kwargs) if kwargs else call(*args)
    except RuntimeError:
        tensors = _numbers_made_tensors(operator.func, args)
        if tensors is None:
            raise
    return call(*tensors, **kwargs)


def _numbers_made_tensors(func: Any, args: Any) -> list[Any] | None:
    """Returns an operator's arguments with tensors for numbers that it refuses, None if it is well.

    torch hands a mode a number for a tensor that stands for one, as in the constants of a traced
    graph, and then takes it back for some operators only.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    if torch._C._should_allow_numbers_as_tensors(schema.name.partition("::")[2]):
        return None
    made, has_numbers = list(args), False
    for position, (argument, value) in enumerate(zip(schema.arguments, args, strict=False)):
        kind = _NUMBERS.get(type(value))
        if kind is not None and str(argument.type) in ("Tensor", "Optional[Tensor]"):
            made[position] = torch.scalar_tensor(value, dtype=kind, device="cpu")
            has_numbers = True
    return made if has_numbers else None


_NUMBERS = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _plain_keys() -> int:
    """Returns the bits of the dispatch keys that tensors of plain memory may have."""
    names = ["ADInplaceOrView", "Conjugate", "Negative"]
    for device in ("CPU", "CUDA", "HIP", "XPU", "HPU", "MPS", "MTIA", "PrivateUse1", "Meta"):
        names += [device, f"Quantized{device}", f"Autograd{device}", f"Autocast{device}"]
    keys = (getattr(torch._C.DispatchKey, name, None) for name in names)
    bits = (torch._C.DispatchKeySet(key).raw_repr() for key in keys if key is not None)
    return functools.reduce(operator.or_, bits)


_OTHER_KEYS = ~_plain_keys()


def has_memory(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is memory and nothing else, by the keys that torch dispatches it by.

    A sparse, nested, fake, functional or wrapped one, and one of a class that dispatches itself,
    has a key that says so.
    """
    return not keys_of(tensor).raw_repr() & _OTHER_KEYS


def left_alone(function: F) -> F:
    """Keeps Dynamo from compiling a function, and all that it calls, between two graphs.

    `torch._dynamo.disable` would do, by a call in Python around each call.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


def unheard() -> Any:
    """Keeps what our listeners do from modes of the program, which would take it for the program's.

    Of operators ours is called last; a read by the host comes to us before any of them.
    """
    return _Unheard() if any_mode_sees_us() else _HEARD_BY_NOBODY


def any_mode_sees_us() -> bool:
    """Tells whether a mode, of the program or ours, would be called for what is called here."""
    return bool(modes_on() or (function_modes_on() and not functions_are_off()))


class own_code(contained):  # noqa: N801  # reads as a function
    """Runs a block of our own: its error goes no further, and no mode of the program sees it."""

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        self._modes = _Unheard() if any_mode_sees_us() else None
        if self._modes is not None:
            self._modes.__enter__()

    def __exit__(self, kind: Any, err: Any, trace: Any) -> bool:
        if self._modes is not None:
            self._modes.__exit__()
        return err is not None and super().__exit__(kind, err, trace)


class _Unheard:
    """No mode, and no class of tensors, hears what a block does."""

    def __enter__(self) -> None:
        self._guards = torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch()
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *_: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)


_HEARD_BY_NOBODY = nullcontext()


class lifted:  # noqa: N801  # reads as a function
    """Lifts all function modes off the stack for a block, and puts back those that are left."""

    def __enter__(self) -> list[Any]:
        self._modes = [_pop_torch_function_stack() for _ in range(function_modes_on())]
        return self._modes

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._modes):
            _push_on_torch_function_stack(mode)


@contextmanager
def without_others() -> Iterator[None]:
    """Takes the program's modes off this thread for a block that uses tensors as an engine does."""
    ours = [one for one in _modes_of_users() if is_ours(one)]
    with lifted() as functions, _disable_current_modes():
        for mode in reversed([one for one in functions if is_ours(one)]):
            _push_on_torch_function_stack(mode)
        for mode in ours:
            torch._C._push_on_torch_dispatch_stack(mode)
        try:
            yield
        finally:
            for _ in _modes_of_users():
                torch._C._pop_torch_dispatch_stack(None)
            with lifted() as left:
                left.clear()


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operator of a thread: what is done with one is said by `run`, in a subclass."""

    # Else torch refuses to run `torch.cond` and its like.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from wrapping the method below, which would import all of Dynamo."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leaves code compiled that is compiled: its operators are one call, out of sight."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, or what it consists of."""
        if types and self.leaves(types):
            return NotImplemented
        operator = operators.known.get(id(func)) or operators.read(func, self.failed)
        if operator.composite and self._takes_apart(operator, types, args):
            # A function mode would call the operator, and not what it consists of.
            with torch._C.DisableTorchFunction(), self:
                return func.decompose(*args, **(kwargs or {}))
        # Function modes cost a call in Python each. They heard what the program called; below it
        # torch runs no Python that they could hear, unless an operator is not torch's own, or a
        # mode of torch's does its work.
        if operator.of_torch and function_modes_on() and not modes_on():
            with torch._C.DisableTorchFunction():
                return self.run(operator, args, kwargs or {})
        return self.run(operator, args, kwargs or {})

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes the call of an operator."""
        raise NotImplementedError

    def failed(self, err: Exception) -> None:
        """Our own code failed, on the way to `run`."""
        raise NotImplementedError

    def leaves(self, types: Any) -> bool:
        """Tells whether a call is left to the classes of its tensors."""
        return False

    def _takes_apart(self, operator: Operator, types: Any, args: Any) -> bool:
        try:
            return decomposes(operator, types, args)
        except Exception as err:
            self.failed(err)
            return False


def decomposes(operator: Operator, types: Any, args: Any) -> bool:
    """Tells whether an operator is to be seen by what it consists of.

    Outside of inference mode torch takes such an operator apart before any mode sees it.
    """
    # Who else looks on, a mode beneath or a class of tensors, sees what it would see without us.
    is_alone = operator.composite and not types and not modes_on()
    return is_alone and all(map(has_memory, tensors_in(args)))

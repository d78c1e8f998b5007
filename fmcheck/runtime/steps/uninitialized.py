"""FR701, uninitialized value: what the host reads depends on memory that was never written.

Memory that an allocation leaves unfilled has a twin with other values. Each operator that is given
such memory runs once more, on the twins: where both results are alike, nothing depended on what the
memory held, as behind a mask. What the host reads is compared as well. The idea is
MemorySanitizer's (Stepanov and Serebryany, CGO 2015), its origins included; two runs in place of
shadow bits are those of secure multi-execution (Devriese and Piessens, S&P 2010), which needs no
word on any operator.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _len_torch_dispatch_stack as modes_on

from fmcheck.finding import CHECKS, Violation
from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps import twins
from fmcheck.runtime.steps.factories import passes_on
from fmcheck.runtime.steps.operators import tensors_at, tensors_written
from fmcheck.runtime.steps.placements import tensors_in
from fmcheck.runtime.steps.torch_modes import (
    OperatorMode,
    called,
    has_memory,
    is_traced,
    own_code,
    put_beneath,
    take_out,
)
from fmcheck.runtime.steps.twins import Origin, Twin, Twins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.operators import Operator

#: The check.
CODE = "FR701"
#: What the closing section calls the check.
CHECK = f"following uninitialized memory ({CODE})"
_VERBS = {"_local_scalar_dense": "item"}


class Uninitialized:
    """Follows unfilled memory in this thread, and in those that begin from now on."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.twins = Twins()
        # A thread's operator and its repetition are one to the others.
        self.lock = threading.RLock()

    def follow(self) -> Iterator[Undo]:
        """Begins, yielding how to end each part."""
        mode = _Mode(self)
        put_beneath(mode)
        yield lambda: take_out(mode)
        yield patch(threading.Thread, "run", self._running(threading.Thread.run))
        yield patch(torch.Tensor, "tolist", self._listing(torch.Tensor.tolist))

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def running(thread: threading.Thread) -> Any:
            if not self.tally.active:
                return run(thread)
            mode = _Mode(self)
            put_beneath(mode)
            try:
                return run(thread)
            finally:
                take_out(mode)

        return running

    def _listing(self, tolist: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method that makes a list of values, which torch runs no operator for."""

        @functools.wraps(tolist)
        def listing(tensor: torch.Tensor) -> Any:
            if self.twins and self.tally.active and not torch.compiler.is_compiling():
                with own_code(self.tally, CHECK):
                    self._listed(tensor)
            return tolist(tensor)

        passes_on(listing)
        return listing

    def _listed(self, tensor: torch.Tensor) -> None:
        if not has_memory(tensor):
            return
        with torch.no_grad():
            twin = self.twins.of(tensor)
            if twin is not None:
                plain = tensor.detach()
                if not twins.are_alike(plain, twins.seen_in(twin.memory, plain)):
                    self.report("tolist", twin.origin)

    def allocated(self, operator: Operator, made: torch.Tensor) -> None:
        """Memory was allocated that nobody has filled."""
        size = made.untyped_storage().nbytes() if has_memory(made) else 0
        if not size or made.is_quantized:
            return
        if not made.is_cpu:
            self.tally.untrack(
                "unfilled tensors", f"they are not on the CPU, and {CODE} doubles memory there"
            )
        elif size > twins.MOST_BYTES:
            self.tally.untrack("unfilled tensors", "they are too large to be doubled")
        else:
            self.tally.allocations += 1
            kind = str(made.dtype).removeprefix("torch.")
            what = f"{operator.name} {tuple(made.shape)} of {kind}"
            self.twins.begin(made, Origin(what, self.now()))

    def now(self) -> int:
        """Returns the moment of the calling line of engine code."""
        return self.tally.moments.now(self.tally.sites.here(), "cpu")

    def report(self, verb: str, origin: Origin) -> None:
        """Reports that the host reads what depends on an allocation, unless fmcheck asks."""
        tally = self.tally
        if tally.sites.is_own() or tally.sites.is_showing(or_printing=True):
            return
        access = tally.access(verb, self.now())
        with tally.lock:
            if tally.seen_again((CODE, origin.made, access.site)):
                return
            tally.report(
                Violation(
                    code=CODE,
                    name=CHECKS[CODE],
                    buffer=origin.made,
                    access=access,
                    test=tally.test,
                    device="cpu",
                    pid=os.getpid(),
                    allocated=tally.access("allocate", origin.moment),
                    passed=tuple(tally.access(name, at) for name, at in origin.via),
                )
            )


class _Mode(OperatorMode):
    """Sees each operator of a thread."""

    def __init__(self, followed: Uninitialized) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.followed = followed

    def failed(self, err: Exception) -> None:
        """Counts an error of our own code."""
        broke(self.followed.tally, CHECK, err)

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes the call of an operator, and makes it again where it is given unfilled memory."""
        followed = self.followed
        if not followed.tally.active or (modes_on() and is_traced()):
            return called(operator, args, kwargs)
        if not (operator.fills or operator.writes):
            made = called(operator, args, kwargs)
            with own_code(followed.tally, CHECK), followed.lock:
                followed.allocated(operator, made)
            return made
        if not followed.twins or operator.only_shows or operator.moves:
            return called(operator, args, kwargs)
        with followed.lock:
            again = None
            with own_code(followed.tally, CHECK), torch.no_grad():
                again = _Again.of(followed, operator, args, kwargs)
            if again is not None:
                result = called(operator, args, kwargs)
                with own_code(followed.tally, CHECK), torch.no_grad():
                    again.compare(result)
                return result
        # Without the lock: one that is not torch's may wait for another thread.
        return called(operator, args, kwargs)


class _Again:
    """A call of an operator that is to be made again, on twins."""

    def __init__(
        self,
        followed: Uninitialized,
        operator: Operator,
        args: Any,
        kwargs: Any,
        given: dict[int, Twin | None],
    ) -> None:
        self.followed = followed
        self.operator = operator
        self.given = given
        found = [*filter(None, given.values())]
        self.origin = max(found, key=_length).origin
        self.memory = {key: twin.memory for key, twin in given.items() if twin is not None}
        self.written = [*filter(has_memory, tensors_written(operator, args, kwargs))]
        for tensor in self.written:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.memory:
                self.memory[storage._cdata] = twins.as_bytes(storage).clone().untyped_storage()
        self.args = tuple(self._other(one) for one in args)
        self.kwargs = {name: self._other(one) for name, one in kwargs.items()}
        self.generators = _generators(operator, args, kwargs)
        self.states = [one.get_state() for one in self.generators]

    @classmethod
    def of(
        cls, followed: Uninitialized, operator: Operator, args: Any, kwargs: Any
    ) -> _Again | None:
        """Returns the second call of an operator, None if none is needed, or none can be made."""
        given: dict[int, Twin | None] = {}  # by storage: each is compared as a whole
        for tensor in filter(has_memory, tensors_in((*args, *kwargs.values()))):
            storage = tensor.untyped_storage()._cdata
            if storage not in given:
                given[storage] = followed.twins.of(tensor)
        if not any(given.values()):
            return None
        if operator.of_torch and not operator.unknown:
            return cls(followed, operator, args, kwargs, given)
        for tensor in tensors_at(operator.writes or operator.tensors, args, kwargs):
            if has_memory(tensor):
                followed.twins.forget(tensor)
        followed.tally.untrack(
            "operators on uninitialized tensors",
            "one that is not torch's own cannot be run a second time",
        )
        return None

    def _other(self, value: Any) -> Any:
        """Returns an argument with each tensor seen in its twin."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._other, value)) if type(value) in (list, tuple) else value
        if not isinstance(value, torch.Tensor) or not has_memory(value):
            return value
        memory = self.memory.get(value.untyped_storage()._cdata)
        return value if memory is None else twins.seen_in(memory, value)

    def compare(self, result: Any) -> None:
        """Makes the call again, after the first, and keeps what came out differently."""
        try:
            other = self._called()
        except Exception:  # it may be that the other values are none to compute with
            for tensor in self.written:
                self.followed.twins.forget(tensor)
            return
        for tensor in self.written:
            self._compare_written(tensor)
        for one, two in zip(_each(result), _each(other), strict=True):
            if not isinstance(one, torch.Tensor):
                if one != two and not (one != one and two != two):
                    self._report()
            elif has_memory(one) and one.untyped_storage()._cdata not in self.given:
                self._compare_made(one, two)

    def _called(self) -> Any:
        """Makes the call on twins, with the random numbers of the first."""
        after = [one.get_state() for one in self.generators]
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
        try:
            return called(self.operator, self.args, self.kwargs)
        finally:
            for generator, state in zip(self.generators, after, strict=True):
                generator.set_state(state)

    def _compare_written(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self.followed.twins.held(tensor)
        memory, dtype = self.memory[storage._cdata], tensor.dtype
        if twins.are_alike(twins.whole(storage, dtype), twins.whole(memory, dtype)):
            self.followed.twins.forget(tensor)
        else:
            origin = self._taken_on if known is None else known.origin
            self.followed.twins.keep(tensor, memory, origin)

    def _compare_made(self, one: torch.Tensor, two: torch.Tensor) -> None:
        if one.shape != two.shape:
            self._report()
        elif not twins.are_alike(one, two):
            self.followed.twins.keep(one, twins.laid_out_as(one, two), self._taken_on)

    @property
    def _taken_on(self) -> Origin:
        return self.origin.through(self.operator.name, self.followed.now())

    def _report(self) -> None:
        name = self.operator.name
        self.followed.report(_VERBS.get(name, name), self.origin)


def _length(twin: Twin) -> int:
    """Returns how far a twin's values have come."""
    return len(twin.origin.via)


def _each(result: Any) -> list[Any]:
    """Returns the results of an operator one by one."""
    if not isinstance(result, (list, tuple)):
        return [result]
    return [inner for one in result for inner in _each(one)]


def _generators(operator: Operator, args: Any, kwargs: Any) -> list[torch.Generator]:
    """Returns the generators whose random numbers an operator takes."""
    given = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Generator)]
    is_random = torch.Tag.nondeterministic_seeded in getattr(operator.func, "tags", ())
    return given or ([torch.default_generator] if is_random else [])

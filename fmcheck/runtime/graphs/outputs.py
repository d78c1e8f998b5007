"""FR603 overwritten-output: what a replay returned was read after the next one had overwritten it.

A captured graph writes its outputs to the same memory in each replay. A view of them that is kept
for longer than a step shows what another step computed. PyTorch says so of the outputs of a
compiled function (`torch._inductor.cudagraph_trees`); here it is said of graphs that an engine
replays itself, whose outputs a contract names.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _len_torch_dispatch_stack as modes_on

from fmcheck.finding import CHECKS, Violation
from fmcheck.runtime.core.containment import broke
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.steps import factories
from fmcheck.runtime.steps.operators import tensors_at
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
from fmcheck.runtime.steps.writes import region_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.operators import Operator

#: The check.
CODE = "FR603"
#: Methods by which the host reads values of a CPU, for which torch runs no operator.
_HOST_READS = ("tolist", "numpy")
#: Methods that copy to the host, and on a CPU return what they are called on.
_COPIES = ("cpu", "to")
#: How many share a storage that one tensor has to itself: that, and torch's object for who counts.
_ALONE = 2
_VERBS = {"_local_scalar_dense": "item"}


@dataclass(eq=False, slots=True)
class _View:
    """A tensor that shows bytes [low, high) of an output, and the moment when it was taken.

    That is 0 where it was taken out of sight. `overwritten` is the moment of the replay that went
    over them, 0 if none has, and `name` what reports call the output that it wrote.
    """

    tensor: weakref.ref[torch.Tensor]
    low: int
    high: int
    taken: int
    overwritten: int = 0
    name: str = ""


@dataclass(eq=False, slots=True)
class _Output:
    """An output, and how many tensors have shared its memory at least when a replay began.

    `there_before` are those that did at its first replay, by id: made with the graph, they are read
    after each.
    """

    tensor: weakref.ref[torch.Tensor]
    shared_by: int
    there_before: dict[int, weakref.ref[torch.Tensor]]


class Outputs:
    """The outputs of all declared graphs of a session, and the views that were taken of them.

    Operators are not followed before a view outlives a replay: torch counts who shares a storage.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._of_storage: dict[int, _Output] = {}
        self._views: dict[int, _View] = {}
        #: The ids of those that a replay went over, some of which may have ended.
        self._overwritten: set[int] = set()
        self._here = _Here()
        self._has_methods = False

    def follow(self) -> Iterator[Undo]:
        """Hears of reads by the host, yielding how to let go; for whoever asks first."""
        if self._has_methods:
            return
        self._has_methods = True
        for names, method_for in ((_HOST_READS, self._reading), (_COPIES, self._copying)):
            for name in names:
                method = method_for(name, getattr(torch.Tensor, name))
                factories.passes_on(method)
                yield patch(torch.Tensor, name, method)
        yield self.begin_test

    def begin_test(self) -> None:
        """Holds nothing against another test that this one has kept."""
        mode, self._here.mode = self._here.mode, None
        if mode is not None:
            take_out(mode)
        self._views.clear()
        self._overwritten.clear()

    def replaying(self, outputs: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        """A graph is about to write these outputs, by their names; to be called once it has."""
        plain = {name: one for name, one in outputs.items() if has_memory(one)}
        are_held = [self._is_held(one) for one in plain.values()]
        if any(are_held):
            self._begin()
        self._overwritten.intersection_update(self._views)
        about, device = [], "cpu"
        for name, tensor in plain.items():
            region, device = region_of(tensor), str(tensor.device)
            for view in list(self._views.values()):
                if not view.overwritten and view.low < region.end and region.start < view.high:
                    about.append((view, name))
        moment = self._now(device)
        return lambda: self._replayed(about, moment)

    def _replayed(self, views: list[tuple[_View, str]], moment: int) -> None:
        """A replay has gone over these views of outputs."""
        for view, name in views:
            tensor = view.tensor()
            if tensor is not None:
                view.overwritten, view.name = moment, name
                self._overwritten.add(id(tensor))

    def _begin(self) -> None:
        """Follows this thread: somebody has kept a view since the last replay."""
        if self._here.mode is None:
            self._here.mode = _Mode(self)
            put_beneath(self._here.mode)
            for tensor, output in self._sharing():
                known = output.there_before.get(id(tensor))
                if known is None or known() is not tensor:
                    self._take(tensor, 0)

    def _is_held(self, output: torch.Tensor) -> bool:
        """Tells whether more tensors share an output's memory than when another replay began."""
        key = output.untyped_storage()._cdata
        count = torch._C._storage_Use_Count(key)
        known = self._of_storage.get(key)
        if known is None or known.tensor() is None:
            known = self._of_storage[key] = _Output(weakref.ref(output), count, {})
            if count > _ALONE:
                for tensor, of in self._sharing():
                    if of is known:
                        known.there_before[id(tensor)] = weakref.ref(tensor)
        # Of several in one memory, each is an output.
        known.there_before[id(output)] = weakref.ref(output)
        is_held = count > known.shared_by
        known.shared_by = min(count, known.shared_by)
        return is_held

    def _sharing(self) -> Iterator[tuple[torch.Tensor, _Output]]:
        """Yields the tensors in the memory of outputs, by one look at all objects of Python."""
        for one in gc.get_objects():
            if type(one) is torch.Tensor and has_memory(one):
                output = self._of_storage.get(one.untyped_storage()._cdata)
                if output is not None:
                    yield one, output

    def _take(self, tensor: torch.Tensor, moment: int) -> _View:
        """Remembers a view of an output."""
        region, key = region_of(tensor), id(tensor)
        ref = weakref.ref(tensor, functools.partial(self._views.pop, key))
        view = self._views[key] = _View(ref, region.start, region.end, moment)
        return view

    def shown(self, base: torch.Tensor, result: Any) -> None:
        """An operator has made views of an output, or of a view."""
        parent = self._view_of(base)
        for one in tensors_in([result]):
            if one is base or not has_memory(one):
                continue
            view = self._take(one, self._now(str(one.device)))
            if parent is not None and parent.overwritten:
                view.taken, view.overwritten = parent.taken, parent.overwritten
                view.name = parent.name
                self._overwritten.add(id(one))

    def read(self, verb: str, tensor: torch.Tensor) -> None:
        """A tensor is about to be read."""
        view = self._view_of(tensor)
        if view is not None and view.overwritten:
            self._report(verb, view, str(tensor.device))

    def may_be_late(self, args: Any) -> bool:
        """Tells whether a call may be given a view that a replay went over."""
        overwritten = self._overwritten
        if not overwritten:
            return False
        # By hand, for each operator of a thread asks.
        for one in args:
            if id(one) in overwritten:
                return True
            if isinstance(one, (list, tuple)) and any(id(item) in overwritten for item in one):
                return True
        return False

    def is_output(self, args: Any) -> bool:
        """Tells whether a call is about an output, or a view of one."""
        tensor = args[0] if args else None
        if not isinstance(tensor, torch.Tensor):
            return False
        if not (self._of_storage and has_memory(tensor)):
            return False
        known = self._of_storage.get(tensor.untyped_storage()._cdata)
        return known is not None and known.tensor() is not None

    def _view_of(self, tensor: torch.Tensor) -> _View | None:
        view = self._views.get(id(tensor))
        return view if view is not None and view.tensor() is tensor else None

    def _reading(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if id(tensor) in self._overwritten and self._hears():
                with own_code(self.tally, CODE):
                    self.read(name, tensor)
            return method(tensor, *args, **kwargs)

        return read

    def _copying(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method that copies to the host on a CPU as well: what is kept of it is kept."""

        @functools.wraps(method)
        def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = method(tensor, *args, **kwargs)
            if result is tensor and self._hears() and self.is_output((tensor,)):
                with own_code(self.tally, CODE):
                    call = factories.call_of(name, (tensor, *args), kwargs, sys._getframe(1))
                    if call.names_side and call.goes_to_host:
                        self.read(name, tensor)
                        return tensor.clone()
            return result

        return copy

    def _hears(self) -> bool:
        return self.tally.active and not torch.compiler.is_compiling()

    def _now(self, device: str) -> int:
        return self.tally.moments.now(self.tally.sites.here(), device)

    def _report(self, verb: str, view: _View, device: str) -> None:
        """Reports a read, unless fmcheck makes it, or somebody who shows values."""
        tally = self.tally
        if tally.sites.is_own() or tally.sites.is_showing(or_printing=True):
            return
        access = tally.access(verb, self._now(device))
        with tally.lock:
            if tally.seen_again((CODE, view.name, access.site)):
                return
            tally.report(
                Violation(
                    code=CODE,
                    name=CHECKS[CODE],
                    buffer=view.name,
                    access=access,
                    test=tally.test,
                    device=device,
                    pid=os.getpid(),
                    last_write=tally.access("replay", view.overwritten),
                    passed=(tally.access("view", view.taken),) if view.taken else (),
                )
            )


class _Here(threading.local):
    mode: _Mode | None = None


class _Mode(OperatorMode):
    """Sees each operator of a thread that replays graphs."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outputs = outputs

    def failed(self, err: Exception) -> None:
        """Counts an error of our own code."""
        broke(self.outputs.tally, CODE, err)

    def run(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Makes the call of an operator, which may take a view of an output, or read one."""
        outputs = self.outputs
        if not outputs.tally.active or (modes_on() and is_traced()):
            return called(operator, args, kwargs)
        if outputs.may_be_late(args) and not operator.only_shows:
            with own_code(outputs.tally, CODE):
                for tensor in tensors_at(operator.reads, args, kwargs):
                    outputs.read(_VERBS.get(operator.name, operator.name), tensor)
        result = called(operator, args, kwargs)
        if operator.is_view and outputs.is_output(args):
            with own_code(outputs.tally, CODE):
                outputs.shown(args[0], result)
        return result

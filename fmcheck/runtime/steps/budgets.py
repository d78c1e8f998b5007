"""Budgets: how often the host waits, and how much it launches, in the functions of a step.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Budget, Contract
from fmcheck.finding import CHECKS, Access, Violation
from fmcheck.runtime.core import kinds, paths
from fmcheck.runtime.core.containment import broke, contained
from fmcheck.runtime.core.declared import CallPatch
from fmcheck.runtime.core.moment import current_stream
from fmcheck.runtime.core.naming import qualified_name
from fmcheck.runtime.core.patches import attribute, patch_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

    from fmcheck.finding import Site
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.steps.placements import Placements
    from fmcheck.runtime.steps.step_syncs import StepMode

#: What the closing section calls these checks.
CHECK = "budgets of steps (FR501, FR502)"
_SHOWN = 8
_UNDECLARED = "the contract gives this function no budget, and `fail-on` asks for its syncs"


@dataclass(eq=False)
class BudgetedCall:
    """One call of a function with a budget, while it runs.

    `name` is the function's as reports tell it, `of` its first argument. `sites` are
    those of the launches so far, by number and with the operation, kept where they are counted.
    """

    name: str
    budget: Budget
    declared: bool
    of: Any = None
    syncs: int = 0
    sites: list[tuple[int, str]] = field(default_factory=list)

    def is_part_of(self, outer: BudgetedCall) -> bool:
        """Tells whether it is what an override has gone on to."""
        same = self.of is not None and self.of is outer.of and self.budget is outer.budget
        return same and self.name != outer.name and _last(self.name) == _last(outer.name)


class _Thread(threading.local):
    """The windows that this thread is in, innermost last, and what sees its operations."""

    def __init__(self) -> None:
        self.windows: list[BudgetedCall] = []
        self.fused = 0
        self.mode: StepMode | None = None
        self.ledger: BudgetCounter | None = None


_thread = _Thread()


class BudgetCounter:
    """Hears of the syncs and launches of a session's steps and holds them against the budgets."""

    check = CHECK

    def __init__(self, tally: Tally, contract: Contract) -> None:
        self.tally = tally
        self.contract = contract
        self._placements: Placements | None = None

    def begin_test(self) -> None:
        """Another test has its own names for its tensors."""
        if self._placements is not None:
            self._placements.begin_test()

    def open(self, window: BudgetedCall) -> None:
        """A call begins."""
        if not _thread.windows:
            from fmcheck.runtime.steps.placements import Placements
            from fmcheck.runtime.steps.step_syncs import StepMode

            if self._placements is None:
                self._placements = Placements([self.contract], self.tally.kinds)
            self._placements.begin_step()
            _thread.mode = StepMode(self, self._placements, self.tally.sites)
            _thread.mode.begin()
            _thread.ledger = self
        _thread.windows.append(window)
        if window.budget.launches is not None and _thread.mode is not None:
            _thread.mode.counting += 1

    def close(self, window: BudgetedCall) -> None:
        """A call has ended."""
        _thread.windows.remove(window)
        if window.budget.launches is not None and _thread.mode is not None:
            _thread.mode.counting -= 1
        if not _thread.windows and _thread.mode is not None:
            _thread.mode.end()
            _thread.mode = _thread.ledger = None
        most = window.budget.launches
        if most is not None and len(window.sites) > most:
            self._over_launched(window, most)

    # --- what the mode tells ---

    def sync(self, verb: str) -> None:
        """The host waits: once too often, perhaps, for the innermost function with a budget."""
        if _thread.ledger is not self:
            return
        counting = [one for one in _thread.windows if one.budget.syncs is not None]
        declared = [one for one in counting if one.declared]
        for window in (declared or counting)[-1:]:
            if _is_inside(window.budget.waits_in):
                return
            window.syncs += 1
            if window.syncs > (window.budget.syncs or 0):
                self._over_synced(window, verb)

    def launch(self, what: object) -> None:
        """The device is given work; all of a fused function is one launch."""
        if _thread.fused or _thread.ledger is not self:
            return
        launched = (self.tally.sites.here(), str(what))
        for window in _thread.windows:
            if window.budget.launches is not None:
                window.sites.append(launched)

    # --- what is over a budget ---

    def _over_synced(self, window: BudgetedCall, verb: str) -> None:
        allowed = [one.partition(":")[2] for one in window.budget.waits_in]
        beside = f" but in {', '.join(allowed)}" if allowed else ""
        most = window.budget.syncs
        few = "no host sync" if most == 0 else f"at most {most} host syncs a call"
        self._report(
            "FR501", window, verb, self.tally.sites[self.tally.sites.here()], f"{few}{beside}", ()
        )

    def _over_launched(self, window: BudgetedCall, most: int) -> None:
        sites = self.tally.sites
        site = sites[window.sites[most][0]]
        counted = Counter(
            f"`{name}` at {os.path.basename(sites[number].path)}:{sites[number].line}"
            for number, name in window.sites
        )
        shown = [
            where if count == 1 else f"{where} ({count} times)"
            for where, count in counted.most_common(_SHOWN)
        ]
        more = len(counted) - len(shown)
        note = f"launched: {', '.join(shown)}" + (f" and {more} more places" if more else "")
        expected = f"at most {most} launch{'' if most == 1 else 'es'} a call, got "
        self._report("FR502", window, "launch", site, f"{expected}{len(window.sites)}", (note,))

    def _report(
        self,
        code: str,
        window: BudgetedCall,
        verb: str,
        site: Site,
        expected: str,
        notes: tuple[str, ...],
    ) -> None:
        tally = self.tally
        device = next(iter(sorted(tally.kinds)), "cpu")
        with tally.lock:
            if tally.seen_again((code, window.name, site)):
                return
            tally.report(
                Violation(
                    code=code,
                    name=CHECKS[code],
                    buffer=window.name,
                    access=Access(
                        verb,
                        site,
                        tally.moments.step if tally.moments.counts_steps else None,
                        current_stream(device),
                    ),
                    test=tally.test,
                    device=device,
                    pid=os.getpid(),
                    expected=expected,
                    notes=notes if window.declared else (*notes, _UNDECLARED),
                    confidence="" if window.declared else "incomplete",
                )
            )


@dataclass(eq=False)
class BudgetPatch(CallPatch):
    """Functions each call of which is held against a budget.

    Those of `per_step` alone are not required, and have none declared.
    """

    surrounds = True
    part: Budget
    ledger: BudgetCounter = field(kw_only=True)

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function`, run in a window."""
        import torch

        signature = inspect.signature(function) if self.part.when else None
        root = paths.root(self.part.when) if self.part.when else ""
        if signature is not None and root not in signature.parameters:
            text = f"`{reference}` has no parameter `{root}`, which `when` starts at"
            self._misfit(reference, text)
            return None
        name = reference.partition(":")[2]

        def opened(args: Any, kwargs: Any) -> _Open | None:
            if not self.tally.active or torch.compiler.is_compiling():
                return None
            if signature is not None and not self._applies(reference, signature, args, kwargs):
                return None
            window = BudgetedCall(name, self.part, self.is_required, args[0] if args else None)
            if any(map(window.is_part_of, _thread.windows)):
                return None
            self.tally.checked.add(self.contract.engine.name)
            return _Open(self.ledger, window)

        return kinds.around(function, opened)

    def _applies(
        self, reference: str, signature: inspect.Signature, args: Any, kwargs: Any
    ) -> bool:
        try:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bool(paths.look_up(self.part.when, bound.arguments))
        except (TypeError, LookupError) as err:
            self._problem(f"`{reference}`: `when` could not be followed: {err}")
        except Exception as err:
            broke(self.tally, CHECK, err)
        return False


class _Open(kinds.AroundCall):
    """The window of one call: open while its body runs."""

    def __init__(self, ledger: BudgetCounter, window: BudgetedCall) -> None:
        self._ledger, self._window = ledger, window

    def enter(self) -> None:
        with contained(self._ledger.tally, CHECK):
            self._ledger.open(self._window)

    def leave(self) -> None:
        with contained(self._ledger.tally, CHECK):
            self._ledger.close(self._window)


@dataclass(eq=False)
class FusedPatch(CallPatch):
    """Functions each call of which is one launch; a release may lack them."""

    part: Budget

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, whose operations are one launch."""
        return fused(function, reference.partition(":")[2])


def fused(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns `function`, counted as one launch where launches are counted."""
    import torch

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        mode, ledger = _thread.mode, _thread.ledger
        if mode is None or ledger is None or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if mode.counting:
            with contained(ledger.tally, CHECK):
                ledger.launch(name)
        _thread.fused += 1
        try:
            return function(*args, **kwargs)
        finally:
            _thread.fused -= 1

    return call


def budget_patches(ledger: BudgetCounter, strict: bool = False) -> Iterator[CallPatch]:
    """Yields a hold for each budget and for the fused; if `strict`, for the rest of a step too."""
    contract, tally = ledger.contract, ledger.tally
    launches = contract.launches
    counted = [one for one in launches.budget if one.syncs is not None]
    budgeted = {function for budget in counted for function in budget.functions}
    for budget in launches.budget:
        yield BudgetPatch(contract, budget, tally, ledger=ledger)
    for function in launches.per_step if strict else ():
        if function not in budgeted:
            bare = Budget(functions=(function,), syncs=0)
            yield BudgetPatch(contract, bare, tally, ledger=ledger, is_required=False)
    for function in launches.fused:
        yield FusedPatch(contract, Budget(functions=(function,)), tally, is_required=False)


def host_synchronized() -> None:
    """Tells the step that this thread is in of a sync that streams were followed to."""
    if _thread.ledger is not None:
        with contained(_thread.ledger.tally, CHECK):
            _thread.ledger.sync("synchronize")


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Leaves the steps that this thread is in for a while: what runs then is no part of them."""
    if not _thread.windows:
        yield
        return
    from fmcheck.runtime.steps import step_syncs

    inside = dict(vars(_thread))
    _thread.windows, _thread.fused, _thread.mode, _thread.ledger = [], 0, None, None
    try:
        with step_syncs.apart():
            yield
    finally:
        vars(_thread).update(inside)


def mode_of_thread() -> StepMode | None:
    """Returns what sees the operations of this thread, None outside of any step."""
    return _thread.mode


def watch_compiled(torch: ModuleType) -> Undo:
    """Counts a call of what `torch.compile` makes as one launch."""
    return patch_compile(torch, functools.partial(fused, name="compiled"))


def _is_inside(functions: tuple[str, ...]) -> bool:
    """Tells whether this thread is in one of some functions, called from wherever."""
    if not functions:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        for function in functions:
            home, _, name = function.partition(":")
            if frame.f_code.co_name != _last(name):
                continue
            if module == home and qualified_name(frame.f_code) == name:
                return True
            class_ = attribute(sys.modules.get(home), name.rpartition(".")[0])
            if isinstance(class_, type) and isinstance(frame.f_locals.get("self"), class_):
                return True
        frame = frame.f_back
    return False


def _last(name: str) -> str:
    return name.rpartition(".")[2]

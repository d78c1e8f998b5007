"""Calls: functions of the engine whose calls tell who owns a row, and where a step begins.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.contract import StepFunctions
from fmcheck.contract.checks import HANDS_OUT
from fmcheck.errors import nearest
from fmcheck.runtime.core import paths
from fmcheck.runtime.core.containment import contained, is_on_purpose
from fmcheck.runtime.core.patches import CallHold
from fmcheck.runtime.relay.scope import Scope, scoped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.contract import Contract, OwnerFunctions
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.owners import Owners, Pools

#: What the closing section calls the check of who owns a row.
CHECK = "owners of rows (FR104)"


@dataclass(eq=False)
class StepHold(CallHold):
    """Functions each call of which begins a step."""

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, which counts its calls."""
        self.tally.moments.counts_steps = True

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with contained(self.tally, "counting steps"):
                self.tally.moments.begin_step()
            return function(*args, **kwargs)

        return call


@dataclass(eq=False)
class ScopeHold(CallHold):
    """Functions of others than the relay in which a gather consumes later, or not at all."""

    kind: Scope = field(kw_only=True)

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, run in its scope."""
        return scoped(function, self.kind, self.tally)


def scope_holds(contract: Contract, tally: Tally) -> Iterator[ScopeHold]:
    """Yields the holds of the functions that `peeks` and `consumes_at_return` name elsewhere."""
    for relay in contract.relay:
        for names, kind in (
            (relay.peeks, Scope.PEEK),
            (relay.consumes_at_return, Scope.AT_RETURN),
        ):
            elsewhere = tuple(name for name in names if ":" in name)
            if elsewhere:
                part = StepFunctions(functions=elsewhere, releases=relay.releases)
                yield ScopeHold(contract, part, tally, kind=kind)


@dataclass(eq=False)
class OwnerHold(CallHold):
    """Functions that hand rows out, or take them back."""

    pools: Pools = field(kw_only=True)
    part: OwnerFunctions

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function`, which tells the owners of its rows."""
        signature = inspect.signature(function)
        told = (self.part.rows, self.part.owner, self.part.pool)
        roots = {paths.root(path) for path in told if path}
        missing = sorted(roots - {paths.RETURN, *signature.parameters})
        for name in missing:
            known = nearest(name, signature.parameters)
            self._problem(f"`{reference}` has no parameter `{name}`{known}")
        if missing:
            return None

        def names(args: Any, kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments

        hands_out = self.part.does == HANDS_OUT

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.tally.active:
                return function(*args, **kwargs)
            if hands_out:
                result = function(*args, **kwargs)
                told = self._tell(reference, lambda: self._handed(names(args, kwargs), result))
                if told is not None:
                    with contained(self.tally, CHECK), self.tally.lock:
                        self._hand_out(*told)
                return result
            leaving = self._tell(reference, lambda: self._leaving(names(args, kwargs)))
            result = function(*args, **kwargs)
            if leaving is not None:
                owners, rows = leaving
                with contained(self.tally, CHECK), self.tally.lock:
                    owners.take_back(rows)
            return result

        return call

    def _tell(self, reference: str, tell: Callable[[], Any]) -> Any:
        try:
            return tell()
        except Exception as err:
            if is_on_purpose(self.tally, err):
                raise
            what = err if isinstance(err, LookupError) else repr(err)
            self._problem(f"`{reference}`: the rows or owners of a call could not be read: {what}")
            return None

    def _handed(self, names: dict[str, Any], result: Any) -> tuple[Owners, list[int], list[str]]:
        """Returns the rows and who has them, "" where there is neither a name a row nor one."""
        given = {**names, paths.RETURN: result}
        rows = paths.as_rows(paths.follow(self.part.rows, given)).tolist()
        who = [str(one) for one in paths.follow(self.part.owner, given)] if self.part.owner else []
        if len(who) != len(rows):
            who = who * len(rows) if len(who) == 1 else [""] * len(rows)
        return self._owners(given), rows, who

    def _hand_out(self, owners: Owners, rows: list[int], who: list[str]) -> None:
        owners.drained = self.part.drained
        owners.hand_out(rows, who, self.part.renews)

    def _leaving(self, names: dict[str, Any]) -> tuple[Owners, list[int]]:
        rows: list[int] = paths.as_rows(paths.follow(self.part.rows, names)).tolist()
        return self._owners(names), rows

    def _owners(self, names: dict[str, Any]) -> Owners:
        return self.pools.of(paths.look_up(self.part.pool, names) if self.part.pool else None)

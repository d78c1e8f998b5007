"""Calls: functions of the engine whose calls tell who owns a row, and where a step begins.

Nothing here raises into the engine: what goes wrong is kept as a problem.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.contract import StepFunctions, applies
from fmcheck.contract.validation import (
    ASSIGNS,
    EVERY_ROW,
    HANDS_OUT,
    SERVES,
    TAKES_BACK,
    USES,
)
from fmcheck.errors import nearest
from fmcheck.runtime.core import kinds, paths
from fmcheck.runtime.core.containment import contained, is_on_purpose
from fmcheck.runtime.core.declared import CallPatch
from fmcheck.runtime.core.patches import installed_version
from fmcheck.runtime.core.site import definition_of
from fmcheck.runtime.relay.scope import Handing, Scope, Serving, scoped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fmcheck.contract import Contract, Opaque, OwnerFunctions
    from fmcheck.finding import Site
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.core.verdicts import Allocation
    from fmcheck.runtime.core.violations import Misgiven
    from fmcheck.runtime.relay.owners import Owners
    from fmcheck.runtime.relay.pools import Pools

#: What the closing section calls the checks of who owns a row.
CHECK = "owners of rows (FR104, FR106 to FR109, FR111)"


@dataclass(eq=False)
class StepPatch(CallPatch):
    """Functions each call of which begins a step."""

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, which counts its calls."""
        self.tally.moments.counts_steps = True

        def begin() -> None:
            with contained(self.tally, "counting steps"):
                self.tally.moments.begin_step()

        return kinds.before_body(function, begin)


@dataclass(eq=False)
class ScopePatch(CallPatch):
    """Functions of others than the relay whose gathers are others than elsewhere."""

    surrounds = True
    kind: Scope = field(kw_only=True)

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, run in its scope."""
        return scoped(function, self.kind, self.tally)


@dataclass(eq=False)
class OpaquePatch(CallPatch):
    """A kernel's functions, which access relay rows where torch's operators do not show it."""

    table = "opaque"
    part: Opaque
    #: Those that were instrumented.
    wrapped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tally.unwrapped += self.functions

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function`, which enters the rows that it reads and writes."""
        from fmcheck.runtime.relay.opaque import missing_parameters, opaque_call

        missing = missing_parameters(function, self.part)
        for sentence in missing:
            self._misfit(reference, f"`{reference}` {sentence}")
        if missing:
            return None
        self.wrapped.append(reference)
        if reference in self.tally.unwrapped:
            self.tally.unwrapped.remove(reference)
        return opaque_call(function, self.part, self.tally)


def scope_patches(contract: Contract, tally: Tally) -> Iterator[ScopePatch]:
    """Yields the patches of the functions that `peeks` and its like name elsewhere."""
    for relay in contract.relay:
        for names, kind in (
            (relay.peeks, Scope.PEEK),
            (relay.consumes_at_return, Scope.AT_RETURN),
            (relay.takes, Scope.TAKE),
        ):
            elsewhere = tuple(name for name in names if ":" in name)
            if elsewhere:
                part = StepFunctions(functions=elsewhere, releases=relay.releases)
                yield ScopePatch(contract, part, tally, kind=kind)


@dataclass(eq=False)
class OwnerPatch(CallPatch):
    """Functions that change who has which row, use rows, or serve a batch."""

    pools: Pools = field(kw_only=True)
    part: OwnerFunctions

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Returns `function`, which tells the owners of its rows."""
        signature = inspect.signature(function)
        named = (self.part.rows, self.part.owner, self.part.pool)
        roots = {paths.root(path) for path in named if path not in ("", EVERY_ROW)}
        missing = sorted(roots - {paths.RETURN, *signature.parameters})
        for name in missing:
            known = nearest(name, signature.parameters)
            self._misfit(reference, f"`{reference}` has no parameter `{name}`{known}")
        if missing:
            return None

        def names(args: Any, kwargs: Any) -> dict[str, Any]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments

        whose, site = self._whose(reference), definition_of(function)
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if yields and paths.RETURN in roots:
            text = f"`{reference}` is a generator: expected one that returns its rows"
            self._misfit(reference, text)
            return None

        def call_of(args: Any, kwargs: Any) -> kinds.AroundCall | None:
            if not self.tally.active:
                return None
            given = functools.partial(names, args, kwargs)
            if self.part.does == SERVES:
                read = functools.partial(self._served, reference, given)
                return Serving(site.function, self.part.relays, read)
            if self.part.does == USES:
                use = functools.partial(self._use, reference, whose, site)
                return _Using(use, paths.RETURN in roots, given)
            return _Owning(self, reference, whose, given)

        return kinds.around(function, call_of)

    def _served(self, reference: str, names: Callable[[], dict[str, Any]]) -> list[str] | None:
        """Returns whom a call serves, None if that cannot be read."""
        try:
            given = names()
        except TypeError:  # a call that is wrong will say so itself
            return None
        found: list[str] | None = self._guarded(reference, lambda: self._whom(given))
        return found

    def _whom(self, names: dict[str, Any]) -> list[str]:
        """Returns the names of the owners of a call."""
        path = self.part.owner
        return [str(one) for one in paths.follow(path, names)] if path else []

    def _guarded(self, reference: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as err:
            if is_on_purpose(self.tally, err):
                raise
            self._unread(reference, err)
            return None

    def _unread(self, reference: str, err: Exception) -> None:
        what = err if isinstance(err, LookupError) else repr(err)
        self._problem(f"`{reference}`: the rows or owners of a call could not be read: {what}")

    def _handed(
        self, names: dict[str, Any], result: Any
    ) -> tuple[Owners, list[int], list[str], list[int]]:
        """Returns the rows and who has them, "" where there is neither a name a row nor one.

        The last are numbers of no row beside them; one alone may say that there is none to give.
        """
        given = {**names, paths.RETURN: result}
        named = self._named(given)
        rows, placeholders = _apart([row for row, _ in named])
        shared = self._given(rows, given["self"]) if self._is_pool(given) else set[int]()
        beside = placeholders if len(named) > 1 else []
        return self._owners(given), *_rows_of(named, shared), beside

    def _given(self, rows: Iterable[int], pool: object) -> set[int]:
        """Notes who hands rows out; returns those that another pool of its kind has out."""
        shared = self.pools.give(rows, pool)
        if shared:
            self._problem(
                f"two `{type(pool).__name__}` objects have the same row out: say by `pool`, here "
                "and in `[[relay]]`, which of them a relay's rows come from"
            )
        return shared

    def _is_pool(self, names: dict[str, Any]) -> bool:
        """Tells whether the object of a call may be one of several pools that nothing tells apart.

        One that the rows or the owner are looked up from is the owner.
        """
        of_itself = [path for path in (self.part.rows, self.part.owner) if path.startswith("self")]
        return "self" in names and not self.part.pool and not of_itself

    def _hand_out(
        self, whose: str, owners: Owners, rows: list[int], who: list[str], placeholders: list[int]
    ) -> None:
        from fmcheck.runtime.core import verdicts, violations

        owners.drained = self.part.drained
        moment = self._moment()
        faults = owners.hand_out(rows, who, self.part.renews, moment)
        if not self._is_taken_back:
            faults = [one for one in faults if one.check != verdicts.STILL_HELD]
        faults += owners.placeholders(placeholders)
        violations.of_owners(self.tally, whose, "hand-out", faults, moment)

    def _assigned(self, names: dict[str, Any], result: Any) -> tuple[Owners, dict[int, str]] | None:
        """Returns who has each row after a call, None where two tables cannot be told apart."""
        given = {**names, paths.RETURN: result}
        owners, table = self._owners(given), paths.by_row(self.part.owner, given)
        if not self.part.pool and "self" in given:
            self.pools.take([row for row in owners.out() if row not in table], given["self"])
            if self._given(table, given["self"]):
                return None
        return owners, table

    def _assign(self, whose: str, owners: Owners, table: dict[int, str]) -> None:
        from fmcheck.runtime.core import violations

        owners.drained = self.part.drained
        moment = self._moment()
        faults = owners.assign(table, moment, self.tally.moments.step)
        violations.of_owners(self.tally, whose, "hand-out", faults, moment)

    def _use(self, reference: str, whose: str, site: Site, names: dict[str, Any]) -> None:
        """Judges the rows that a call uses of a function that is defined at `site`."""
        used = self._guarded(reference, lambda: self._used(names))
        if used is not None:
            with contained(self.tally, CHECK), self.tally.lock:
                self._judge_use(whose, site, *used)

    def _used(self, names: dict[str, Any]) -> tuple[Owners, list[int], list[str]]:
        named = self._named(names)
        shared = self.pools.shared(row for row, _ in named)
        return self._owners(names), *_rows_of(named, shared)

    def _judge_use(
        self, whose: str, site: Site, owners: Owners, rows: list[int], who: list[str]
    ) -> None:
        from fmcheck.runtime.core import violations

        moments = self.tally.moments
        faults = owners.use(rows, who, moments.step if moments.counts_steps else None)
        violations.of_owners(self.tally, whose, "use", faults, self._moment(), site)

    def _leaving(
        self, names: dict[str, Any]
    ) -> tuple[Owners, list[int], dict[int, tuple[Allocation, int]], list[int]]:
        owners = self._owners(names)
        is_every = self.part.rows == EVERY_ROW
        numbers = owners.out() if is_every else self._numbers(names)
        rows, placeholders = _apart(numbers)
        shared = self.pools.take(rows, names["self"] if self._is_pool(names) else None)
        rows = [row for row in rows if row not in shared]
        return owners, rows, owners.allocations(rows), placeholders

    def _take_back(
        self,
        whose: str,
        owners: Owners,
        rows: list[int],
        before: dict[int, tuple[Allocation, int]],
        placeholders: list[int],
    ) -> None:
        from fmcheck.runtime.core import violations

        moment = self._moment()
        owners.take_back_placeholders(placeholders, moment)
        faults: list[Misgiven] = owners.take_back(rows, before, moment, self.tally.moments.step)
        if not self.part.idempotent:
            violations.of_owners(self.tally, whose, "take-back", faults, moment)

    def _moment(self) -> int:
        return self.tally.moments.now(self.tally.sites.here(), "cpu")

    def _numbers(self, names: dict[str, Any]) -> list[int]:
        """Returns the numbers of the rows of a call."""
        numbers: list[int] = paths.as_rows(paths.follow(self.part.rows, names)).tolist()
        return numbers

    def _named(self, names: dict[str, Any]) -> list[tuple[int, str]]:
        """Returns the numbers of the rows of a call, each with the name of who has it.

        A name is "" where there is neither one a row nor one alone.
        """
        numbers = self._numbers(names)
        who = self._whom(names)
        if len(who) != len(numbers):
            who = who * len(numbers) if len(who) == 1 else [""] * len(numbers)
        return list(zip(numbers, who, strict=True))

    @functools.cached_property
    def _is_taken_back(self) -> bool:
        """Tells whether the contract says who takes these rows back in the installed release."""
        version = installed_version(self.contract)
        mine = self.part.relays
        return any(
            other.does in (TAKES_BACK, ASSIGNS)
            and applies(other.releases, version)
            and (not mine or not other.relays or not set(mine).isdisjoint(other.relays))
            for other in self.contract.owners
        )

    def _whose(self, reference: str) -> str:
        """Returns whose rows these are, for a report: the class of the function, or its module."""
        module, _, name = reference.partition(":")
        return name.rpartition(".")[0] or module.rpartition(".")[2]

    def _owners(self, names: dict[str, Any]) -> Owners:
        return self.pools.of(paths.look_up(self.part.pool, names) if self.part.pool else None)


def _apart(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Returns the rows among some numbers, and the negative ones, which stand for none."""
    return [one for one in numbers if one >= 0], [one for one in numbers if one < 0]


def _rows_of(named: list[tuple[int, str]], shared: set[int]) -> tuple[list[int], list[str]]:
    """Returns the rows among some numbers but those that are shared, and the name of each."""
    rows = [one for one in named if one[0] >= 0 and one[0] not in shared]
    return [row for row, _ in rows], [name for _, name in rows]


class _Using(kinds.AroundCall):
    """One call of a function that uses rows, which may be those that it returns."""

    def __init__(
        self,
        use: Callable[[dict[str, Any]], None],
        is_late: bool,
        names: Callable[[], dict[str, Any]],
    ) -> None:
        self._use, self._is_late = use, is_late
        self._names: dict[str, Any] | None = None
        with contextlib.suppress(TypeError):  # a call that is wrong will say so itself
            self._names = names()
        if self._names is not None and not is_late:
            use(self._names)

    def returned(self, result: Any) -> None:
        if self._names is not None and self._is_late:
            self._use({**self._names, paths.RETURN: result})


class _Owning(kinds.AroundCall):
    """One call of a function that changes who has which row."""

    def __init__(
        self,
        owner_patch: OwnerPatch,
        reference: str,
        whose: str,
        names: Callable[[], dict[str, Any]],
    ) -> None:
        self._owner_patch, self._reference, self._whose = owner_patch, reference, whose
        self._names, self._does = names, owner_patch.part.does
        self._writes = Handing()
        self._failed: Exception | None = None
        self._leaving: Any = None
        if self._does == TAKES_BACK:
            try:
                self._leaving = owner_patch._leaving(names())
            except Exception as err:
                if is_on_purpose(owner_patch.tally, err):
                    raise
                self._failed = err  # a call that is wrong will say so itself

    def enter(self) -> None:
        self._writes.enter()

    def leave(self) -> None:
        self._writes.leave()

    def returned(self, result: Any) -> None:
        if self._failed is not None:
            self._owner_patch._unread(self._reference, self._failed)
            return
        book, read = self._steps(result)
        # What the body wrote is looked up when its rows are booked.
        self._writes.enter()
        try:
            found = self._owner_patch._guarded(self._reference, read)
            if found is not None:
                with contained(self._owner_patch.tally, CHECK), self._owner_patch.tally.lock:
                    book(self._whose, *found)
                    if self._does != HANDS_OUT:
                        self._writes.keep_resets()
        finally:
            self._writes.leave()

    def _steps(self, result: Any) -> tuple[Callable[..., None], Callable[[], Any]]:
        """Returns what enters the change, and what reads what it is handed."""
        owner_patch = self._owner_patch
        if self._does == TAKES_BACK:
            return owner_patch._take_back, lambda: self._leaving
        if self._does == ASSIGNS:
            return owner_patch._assign, lambda: owner_patch._assigned(self._names(), result)
        return owner_patch._hand_out, lambda: owner_patch._handed(self._names(), result)

    def over(self) -> None:
        with contained(self._owner_patch.tally, CHECK):
            self._writes.over()

"""The watch: one session of run-time checks, from an engine's import to the last word."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.finding import Coverage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from fmcheck.contract import Contract
    from fmcheck.finding import Violation
    from fmcheck.runtime.graph_inputs import Hold
    from fmcheck.runtime.hold import OpaqueHold, RelayHold, Undo
    from fmcheck.runtime.tally import Tally

_NEEDED = ("numpy", "wrapt")


class Watch:
    """Watches the relay buffers of the contracts' engines between `start` and `stop`.

    Nothing is patched before a module that a contract names is imported.
    """

    def __init__(self, contracts: Iterable[Contract]) -> None:
        _require(_NEEDED)
        from fmcheck.runtime.graph_inputs import declared_holds
        from fmcheck.runtime.hold import OpaqueHold, RelayHold
        from fmcheck.runtime.tally import Tally

        self.contracts = tuple(contracts)
        self.tally: Tally = Tally()
        self._relays: list[RelayHold] = []
        self._opaques: list[OpaqueHold] = []
        for contract in self.contracts:
            self._relays += [RelayHold(contract, relay, self.tally) for relay in contract.relay]
            self._opaques += [
                OpaqueHold(contract, opaque, function)
                for opaque in contract.opaque
                for function in opaque.functions
            ]
        self._others: list[Hold] = []
        for contract in self.contracts:
            self._others += declared_holds(contract, self.tally)
        self._imported: list[str] = []
        self._undo: list[Undo] = []
        self._problems: list[str] = []

    def start(self) -> None:
        """Waits for the modules that the contracts name; takes those that are loaded at once."""
        for relay in self._relays:
            self._after_import(relay.relay.module, functools.partial(self._take_relay, relay))
        for opaque in self._opaques:
            self._after_import(opaque.module, opaque.take)
        for other in self._others:
            for module, take in other.takes():
                self._after_import(module, take)
        # The imports stand inside: torch is loaded by then, and only then is it wanted.
        self._after_import("torch", _watch_compile)
        self._after_import("torch._dynamo", _teach_dynamo)

    def stop(self) -> None:
        """Puts back all that was patched. Relay tensors that live on check nothing more."""
        self.tally.active = False
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def enter(self, test: str) -> None:
        """Says what is running now."""
        self.tally.test = test

    def drain(self) -> tuple[Violation, ...]:
        """Returns the violations since it was last asked."""
        return self.tally.drain()

    def coverage(self) -> Coverage:
        """Returns what was reached so far, with every problem that can be told by now."""
        problems = list(self._problems)
        for relay in self._relays:
            relay.close()
            problems += relay.problems
        for opaque in self._opaques:
            problems += opaque.problems
        for other in self._others:
            problems += other.problems
        return Coverage(
            counts=self.tally.counts(),
            violations=len(self.tally.all),
            imported=tuple(self._imported),
            touched=tuple(sorted(self.tally.touched)),
            problems=tuple(problems),
        )

    def _take_relay(self, relay: RelayHold, module: ModuleType) -> Iterator[Undo]:
        yield from relay.take(module)
        if relay.class_ is not None and not relay.relay.optional:
            self._imported.append(relay.name)

    def _after_import(self, name: str, take: Callable[[ModuleType], Iterator[Undo]]) -> None:
        import wrapt

        def hook(module: ModuleType) -> None:
            # A hook that raised would make the engine's own import fail.
            try:
                if self.tally.active:
                    self._undo.extend(take(module))
            except Exception as err:
                self._problems.append(f"module `{name}`: could not be taken hold of: {err!r}")

        wrapt.register_post_import_hook(hook, name)


def _watch_compile(torch: ModuleType) -> Iterator[Undo]:
    from fmcheck.runtime.compiled import watch_compile

    yield watch_compile(torch)


def _teach_dynamo(dynamo: ModuleType) -> Iterator[Undo]:
    from fmcheck.runtime.compiled import teach_dynamo

    yield teach_dynamo(dynamo)


def _require(packages: Iterable[str]) -> None:
    for package in packages:
        if package in sys.modules:
            continue
        try:
            importlib.import_module(package)
        except ImportError as err:
            raise UsageError(
                "pytest -p fmcheck", f"needs {package}: pip install 'fmcheck[pytest]' ({err})"
            ) from None

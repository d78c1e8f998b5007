"""Rules about relay buffers, which the contracts declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fmcheck.lint.model.relays import Relays
from fmcheck.lint.rule import ClassRule, FunctionRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Module, Part


class RelayRule(FunctionRule):
    """A rule about the relay buffers of the contracts; without one it is silent.

    `in_own_module` says that it looks at the modules which define a relay, and at no others.
    """

    in_own_module: ClassVar[bool] = False

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self.relays = Relays(contracts)
        self.words = (self.relays.buffers(),)

    def applies(self, file: File) -> bool:
        """Leaves out files that name no relay class and nothing that holds one."""
        if self.in_own_module:
            return bool(self.relays.of_file(file.identity))
        return file.holds(self.relays.holders)

    def pieces(self, module: Module) -> Iterator[Part]:
        """Yields the parts of slices that name a buffer and, outside of relays, what holds it."""
        own = self.relays.of_file(module.identity)
        return module.parts_with(self.words if own else (*self.words, self.relays.held_as))


class RelayClassRule(ClassRule):
    """A rule about the classes that hold relay buffers, by the contracts."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self.relays = Relays(contracts)
        self.words = (self.relays.buffers(),)

    def applies(self, file: File) -> bool:
        """Leaves out files that define no relay."""
        return bool(self.relays.of_file(file.identity))

    def is_relay(self, owner: str, identity: str) -> bool:
        """Tells whether a class of this name, in this file, is a relay."""
        return any(relay.qualname == owner for relay in self.relays.of_file(identity))

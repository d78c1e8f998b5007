"""What the rules about relay buffers share: they are told by contracts which those are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fmcheck.lint.relays import Relays
from fmcheck.lint.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.contract import Contract
    from fmcheck.lint.facts import ModuleFacts


class RelayRule(Rule):
    """A rule about the relay buffers of the contracts; without one it is silent.

    `in_own_module` says that it looks at the modules which define a relay, and at no others.
    """

    needles: tuple[tuple[bytes, ...], ...] = ()
    in_own_module: ClassVar[bool] = False

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self.relays = Relays(contracts)
        self.needles = (self.relays.needles(), self.relays.anchors())

    def concerns_module(self, facts: ModuleFacts) -> bool:
        """Clears modules that name no relay class and nothing that holds one."""
        if self.in_own_module and not self.relays.of_file(facts.identity):
            return False
        return any(name.decode() in facts.module.text for name in self.relays.needles())

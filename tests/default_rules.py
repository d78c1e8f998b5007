"""The rules, made with the contracts that are shipped: all, or those that are on by default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import fmcheck
from fmcheck.contract import load_contract
from fmcheck.registry import rules

if TYPE_CHECKING:
    from fmcheck.lint.rule import Rule


def default_rules() -> list[Rule]:
    """Returns the default rules of this package, with its own contracts."""
    return [rule for rule in all_rules() if rule.on_by_default]


def all_rules() -> list[Rule]:
    """Returns the rules of this package, with its own contracts."""
    folder = Path(fmcheck.__file__).parent / "contracts"
    contracts = tuple(load_contract(path) for path in sorted(folder.glob("*.toml")))
    return [rule(contracts) for rule in rules().values() if rule.code.startswith("FM")]

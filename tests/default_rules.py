"""The rules that are on by default, made with the contracts that are shipped."""

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
    folder = Path(fmcheck.__file__).parent / "contracts"
    contracts = tuple(load_contract(path) for path in sorted(folder.glob("*.toml")))
    own = (rule for rule in rules().values() if rule.code.startswith("FM"))
    return [rule(contracts) for rule in own if rule.on_by_default]

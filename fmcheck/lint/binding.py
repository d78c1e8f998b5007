"""Which contracts bind a file: those of the engine that it is part of, or that it imports.

A contract that the settings name binds every file below them: a fork may have any name.
"""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from fmcheck.contract import Contract, Engine, applies
from fmcheck.contract.references import references
from fmcheck.lint.rule import NO_ENGINE
from fmcheck.lint.source.identity import identity_of
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.lint.rule import Rule

#: Stands for an engine that no contract is of: it has what every contract has unless it says else.
UNBOUND = Contract(engine=Engine(name=NO_ENGINE))
#: Where a package says which release it is.
_VERSION_FILES = ("version.py", "_version.py", "__init__.py")
_VERSION = regex(
    r"^_*version_*(?:[ \t]*:[^=\n]+)?[ \t]*=(?:[ \t]*\w+[ \t]*=)*[ \t]*['\"](\d[^'\"]*)",
    re.MULTILINE,
)
#: More of a file than this is not looked into for its version.
_MOST = 100_000


def binding(rules: Sequence[Rule], path: str, text: bytes) -> Sequence[Rule]:
    """Returns the rules as the contracts that bind a file have them."""
    if not rules:
        return rules
    contracts = rules[0].contracts
    folders = identity_of(path).split("/")[:-1]
    held = tuple(
        number
        for number, contract in enumerate(contracts)
        if any(_is_of(package, contract, folders, text) for package in _packages(contract))
    )
    return rules if len(held) == len(contracts) else _made(tuple(rules), held)


def releases_of(rules: Sequence[Rule], path: str) -> str:
    """Returns what else the choice of contracts hangs on: the releases of the packages above."""
    folders = identity_of(path).split("/")[:-1] if rules else []
    contracts = [contract for rule in rules[:1] for contract in rule.contracts]
    packages = {one for contract in contracts for one in _packages(contract)}
    parts = [
        f" {package} {release_of('/'.join(folders[: at + 1]))}"
        for at, package in enumerate(folders)
        if package in packages
    ]
    return "".join(parts)


@lru_cache(maxsize=256)
def _made(rules: tuple[Rule, ...], held: tuple[int, ...]) -> tuple[Rule, ...]:
    contracts = [rules[0].contracts[number] for number in held] or [UNBOUND]
    return tuple(type(rule)(contracts) for rule in rules)


#: The packages of contracts, and the releases that they are for, by what is of one contract only.
_KNOWN: dict[int, tuple[Contract, frozenset[str], str]] = {}


def _packages(contract: Contract) -> frozenset[str]:
    """Returns the packages that a contract names: its engine's, and those of what it refers to."""
    return _known(contract)[1]


def _known(contract: Contract) -> tuple[Contract, frozenset[str], str]:
    found = _KNOWN.get(id(contract))
    if found is None:
        engine = contract.engine
        named = (name for _, names in references(contract, None) for name in names)
        tops = {name.partition(":")[0].partition(".")[0] for name in named}
        distributed = {one.replace("-", "_") for one in engine.distributions}
        packages = {engine.name, *distributed, *tops} - {"", "torch"}
        # Newer releases than a contract was tried on are its own: older ones have other names.
        least = [one for one in engine.releases.split(",") if one.strip().startswith(">")]
        found = _KNOWN[id(contract)] = contract, frozenset(packages), ",".join(least)
    return found


def _is_of(package: str, contract: Contract, folders: list[str], text: bytes) -> bool:
    """Tells whether a file is of a package, in a release that the contract is for, or uses it."""
    if package in folders:
        at = len(folders) - folders[::-1].index(package)
        release = release_of("/".join(folders[:at]))
        return applies(_known(contract)[2], release)
    return package.encode() in text and _imports(package).search(text) is not None


@cache
def _imports(package: str) -> re.Pattern[bytes]:
    return re.compile(rb"^[ \t]*(?:from|import)[ \t]+%s\b" % package.encode(), re.MULTILINE)


@lru_cache(maxsize=256)
def release_of(folder: str) -> str | None:
    """Returns the release that a package says it is, None if it says none."""
    for name in _VERSION_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found = _VERSION.search(file.read(_MOST))
        except (OSError, ValueError):
            continue
        if found is not None:
            return found[1]
    return None

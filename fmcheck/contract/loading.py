"""Loading: a contract file read, and refused where it means nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmcheck.contract.schema import Contract
from fmcheck.contract.validation import check
from fmcheck.files.strict import convert, parse_toml, read_toml

if TYPE_CHECKING:
    from pathlib import Path


def load_contract(path: Path) -> Contract:
    """Reads and checks one contract file.

    Raises:
        UsageError: naming the file, the key, what was expected and the nearest known name.
    """
    return _checked(read_toml(path), str(path))


def parse_contract(content: str | bytes, where: str) -> Contract:
    """Reads and checks a contract file's content, which errors call `where`.

    Raises:
        UsageError: as for `load_contract`.
    """
    return _checked(parse_toml(content, where), where)


def _checked(table: dict[str, Any], where: str) -> Contract:
    contract = convert(table, Contract, where)
    check(contract, where)
    return contract

"""`python -m tests.shipped`: writes `fmcheck/lint/shipped.py`, the needles of the default rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import fmcheck
from fmcheck.contract import load_contract
from fmcheck.lint.quick import source_stamp
from fmcheck.registry import rules

if TYPE_CHECKING:
    from fmcheck.lint.rule import Rule

FILE = Path(fmcheck.__file__).parent / "lint" / "shipped.py"
HEAD = '''\
"""The needles of the rules that are on by default, with the contracts that are shipped.

Written by `python -m tests.shipped`; a test tells when that is due.
"""

'''
NEEDLES = "NEEDLES: tuple[tuple[tuple[bytes, ...], ...], ...] = (\n"


def shipped_rules() -> list[Rule]:
    """Returns the default rules of this package, with its own contracts."""
    folder = Path(fmcheck.__file__).parent / "contracts"
    contracts = tuple(load_contract(path) for path in sorted(folder.glob("*.toml")))
    own = (rule for rule in rules().values() if rule.code.startswith("FM"))
    return [rule(contracts) for rule in own if rule.on_by_default]


def contents() -> str:
    """Returns what the module is to hold."""
    stamp = (
        "#: Of the sources that these are made of; with others, they count for nothing.\n"
        f'STAMP = "{source_stamp()}"\n'
    )
    lines = [HEAD, stamp, NEEDLES]
    for rule in shipped_rules():
        lines.append(f"    # {rule.code}\n    (\n")
        for group in rule.needles:
            needles = "".join(f"            {_quoted(needle)},\n" for needle in group)
            lines.append(f"        (\n{needles}        ),\n")
        lines.append("    ),\n")
    return "".join([*lines, ")\n"])


def _quoted(needle: bytes) -> str:
    text = needle.decode()
    return f"b'{text}'" if '"' in text else f'b"{text}"'


def main() -> int:
    """Writes the module."""
    FILE.write_text(contents())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`fmcheck schema`: prints the JSON Schema of contracts or settings, for editors."""

from __future__ import annotations

import argparse
from typing import Any

EPILOG = """\
example:
  fmcheck schema contract > fmcheck-contract.schema.json

  A contract whose first line is `#:schema ./fmcheck-contract.schema.json` is then completed and
  checked by editors that use Taplo, as VS Code's Even Better TOML.
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `schema`."""
    from fmcheck.schemas import KINDS

    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of contracts or settings",
        allow_abbrev=False,
        description="Prints the JSON Schema of a contract, of settings, or of pyproject.toml.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    described = "; ".join(f"{name}: {what}" for name, what in KINDS.items())
    schema.add_argument("kind", metavar="KIND", choices=tuple(KINDS), help=described)
    schema.set_defaults(run=run, options=("--help",))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    from fmcheck.schemas import packaged

    print(packaged(arguments.kind), end="")
    return 0

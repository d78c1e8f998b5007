"""`fmcheck completion`: prints what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from fmcheck.errors import UsageError

SHELLS = ("bash", "zsh", "tcsh")

EPILOG = """\
examples:
  fmcheck completion bash > ~/.local/share/bash-completion/completions/fmcheck
  fmcheck completion zsh > ~/.zfunc/_fmcheck      # in a folder of $fpath

  Needs the library shtab: pip install 'fmcheck[completion]'
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `completion`."""
    completion = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        allow_abbrev=False,
        description="Prints what a shell needs to complete fmcheck's commands and options.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    completion.set_defaults(run=run, options=("--help",))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    if find_spec("shtab") is None:
        raise UsageError("completion", "needs shtab: pip install 'fmcheck[completion]'")
    import shtab

    from fmcheck.cli import parser

    print(shtab.complete(parser(), arguments.shell))
    return 0

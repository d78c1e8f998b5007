"""`fmcheck server`: the language server, over standard input and output."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Any

from fmcheck.errors import UsageError

EPILOG = """\
  Editors start it; docs/editors.md says how for VS Code, Neovim and Zed.
  Needs the library pygls: pip install 'fmcheck[server]'
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `server`."""
    server = commands.add_parser(
        "server",
        help="run the language server, for editors",
        allow_abbrev=False,
        description="Speaks the language server protocol over standard input and output: findings "
        "as one types, quick fixes, and the rule's page on hover.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    server.set_defaults(run=run, options=("--help",))


def run(_: argparse.Namespace) -> int:
    """Serves until the editor ends it, and returns the exit status."""
    if find_spec("pygls") is None:
        raise UsageError("server", "needs pygls: pip install 'fmcheck[server]'")
    from fmcheck.server.checking import get_ready
    from fmcheck.server.serving import make_server

    get_ready()
    make_server().start_io()
    sys.stdout = None  # pygls has closed it: there is nothing to flush
    return 0

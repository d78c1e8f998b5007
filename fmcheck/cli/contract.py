"""`fmcheck contract`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from fmcheck.contract import Contract

MET, UNMET = 0, 1

EPILOG = """\
examples:
  fmcheck contract my_engine.toml src/
  fmcheck contract sglang path/to/sglang --release 0.5.23

  Nothing is imported or run. Of alternatives (`functions = [...]`) one has to be there; the others
  are told of only where they look like slips of the pen.

exit status:
  0    all that it names is there
  1    something is not
  2    could not look: bad input, or no Python file there
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `contract`."""
    contract = commands.add_parser(
        "contract",
        help="hold a contract against source: what it names and is not there",
        usage="fmcheck contract [OPTION]... CONTRACT PATH...",
        allow_abbrev=False,
        description="Looks for all that a contract names (functions, classes, buffers, files) in "
        "an engine's source, and tells what is not there, with the nearest name that is.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    contract.add_argument(
        "contract", metavar="CONTRACT", help="a file that ends in .toml, or a contract's name"
    )
    contract.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a file or folder of the engine"
    )
    contract.add_argument(
        "--release",
        metavar="VERSION",
        help="the engine's version: what the contract says of other `releases` is left out "
        "(default: nothing is)",
    )
    contract.set_defaults(run=run, options=("--help", "--release"))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    from fmcheck.lint.run.files import python_files
    from fmcheck.lint.run.unmet import Source, unmet

    contract = _contract(arguments.contract)
    release = _release(arguments.release)
    paths = list(python_files(arguments.paths))
    if not paths:
        named = ", ".join(map(str, arguments.paths))
        raise UsageError(named, "no Python file there")
    found = list(dict.fromkeys(unmet(contract, release, Source(paths))))
    for key, sentence in found:
        print(f"{key}: {sentence}")
    files = f"{len(paths):,} file{'s' if len(paths) > 1 else ''}"
    are = "is" if len(found) == 1 else "are"
    said = f"{len(found)} of the names that it declares {are} not there"
    print(f"contract `{contract.engine.name}` against {files}: {said if found else 'all is there'}")
    return UNMET if found else MET


def _contract(name: str) -> Contract:
    from fmcheck.contract import load_contract
    from fmcheck.registry import contract_choice, contract_files, contract_path

    files = contract_files()
    path = contract_path(name, files, Path())
    if path is None:
        raise UsageError(
            f"contract `{name}`", f"expected {contract_choice(files)}{nearest(name, files)}"
        )
    return load_contract(path)


def _release(given: str | None) -> str | None:
    from packaging.version import InvalidVersion, Version

    try:
        return None if given is None else str(Version(given))
    except InvalidVersion as err:
        raise UsageError("--release", f"expected a version, as 0.5.23, got `{given}`") from err

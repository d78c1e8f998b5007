"""`fmcheck contract`: its options, its output, its exit status."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.cli import given_path
from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from fmcheck.contract import Contract

ALL_FOUND, MISSING = 0, 1

EPILOG = """\
examples:
  fmcheck contract my_engine.toml src/
  fmcheck contract sglang path/to/sglang --release 0.5.23

  Nothing is imported or run. Of alternatives (`functions = [...]`) one has to exist; the others
  are reported only where they look like typos.

exit status:
  0    all names found
  1    some names not found
  2    could not check: bad input, or no Python file found
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command `contract`."""
    contract = commands.add_parser(
        "contract",
        help="check a contract against source: report names that do not exist",
        usage="fmcheck contract [OPTION]... CONTRACT PATH...",
        allow_abbrev=False,
        description=(
            "Looks for everything that a contract names (functions, classes, buffers, files) in "
            "an engine's source, and reports what is not found, with the nearest name that "
            "exists."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    contract.add_argument(
        "contract", metavar="CONTRACT", help="a file that ends in .toml, or a contract's name"
    )
    contract.add_argument(
        "paths", nargs="+", type=given_path, metavar="PATH", help="a file or folder of the engine"
    )
    contract.add_argument(
        "--release",
        metavar="VERSION",
        help=(
            "the engine's version: entries for other `releases` are left out (default: check "
            "all releases)"
        ),
    )
    contract.set_defaults(run=run, options=("--help", "--release"))


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns its exit status."""
    from fmcheck.contract import applies
    from fmcheck.lint.run.missing_in_source import SourceFiles, missing_in_source
    from fmcheck.lint.scope.files import python_files
    from fmcheck.lint.source import source_in

    contract = _contract(arguments.contract)
    release = _release(arguments.release)
    for path in arguments.paths:
        if path.suffix == ".toml":
            raise UsageError(str(path), "expected the engine's source beside one contract")
    paths = list(python_files(arguments.paths))
    if not paths:
        named = ", ".join(map(str, arguments.paths))
        raise UsageError(named, "no Python file there")
    for path in arguments.paths:
        why = "" if path.is_dir() else source_in(path)[1]
        if why:
            raise UsageError(str(path), why)
    found = list(dict.fromkeys(missing_in_source(contract, release, SourceFiles(paths))))
    for key, sentence in found:
        print(f"{key}: {sentence}")
    if release is not None and not applies(contract.engine.releases, release):
        print(
            f"--release: contract `{contract.engine.name}` was tried on "
            f"{contract.engine.releases}, got {release}: entries for other releases are left out, "
            "the rest is checked"
        )
    files = f"{len(paths):,} file{'s' if len(paths) > 1 else ''}"
    names = "name was" if len(found) == 1 else "names were"
    said = f"{len(found)} declared {names} not found"
    print(
        f"contract `{contract.engine.name}` against {files}: {said if found else 'all names found'}"
    )
    return MISSING if found else ALL_FOUND


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

"""The plan: which files belong to the engine, and every mutant of them, in a fixed order."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.config import find_settings, load_settings
from fmcheck.errors import UsageError, nearest
from fmcheck.lint.scope.files import Excludes, python_files
from fmcheck.lint.scope.patterns import Patterns
from fmcheck.lint.source import decode, read
from fmcheck.prove.operators.all_operators import OPERATORS
from fmcheck.prove.operators.mutant import Mutant, applied, changed_lines, parses
from fmcheck.registry import contracts_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmcheck.config import Located
    from fmcheck.contract import Contract
    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.parsed import ParsedModule

#: A longer message than this is no sentence.
MOST_WORDS = 300
#: Files that test an engine, and are none of it.
TESTS = ("test_*.py", "*_test.py", "conftest.py")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which mutants: of these operators (all if none), at most `limit`, drawn by `seed`."""

    only: tuple[str, ...] = ()
    limit: int | None = None
    seed: int | None = None

    @property
    def is_whole(self) -> bool:
        """Tells whether nothing is left out."""
        return not self.only and self.limit is None


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class MutationPlan:
    """What is to be tried. `files` are the engine's; `import_roots` the folders they are imported
    from; `mutants` those that were selected, in the order of files and lines.
    """

    files: tuple[Path, ...]
    import_roots: tuple[Path, ...]
    mutants: tuple[Mutant, ...]


def make_plan(
    paths: Sequence[Path], config: Path | None, exclude: Sequence[str], selection: Selection
) -> MutationPlan:
    """Returns the plan.

    Raises:
        UsageError: if a path, an operator or the settings do not fit, or if no contract names
            anything in these files.
    """
    for name in selection.only:
        if name not in OPERATORS:
            raise UsageError(
                "--only",
                f"there is no operator `{name}`{nearest(name, OPERATORS)} "
                f"(known: {', '.join(OPERATORS)})",
            )
    excludes = Excludes(
        patterns=(Patterns(list(exclude), os.getcwd(), "--exclude"),) if exclude else ()
    )
    left_out = Patterns(list(TESTS), os.getcwd())
    files = [
        file
        for file in python_files(paths, excludes)
        if file.suffix == ".py" and not left_out.match(os.path.abspath(file))
    ]
    located = load_settings(config) if config else find_settings(paths[0])
    contracts = contracts_for(located)
    roots = _import_roots(files, contracts)
    concerned = [one for one in contracts if _concerns(one, roots.values())]
    if not concerned:
        raise UsageError(
            str(paths[0]),
            f"no contract is about this code: {_from(located)} declares no relay and no fill in a "
            f"module under {', '.join(sorted({str(root) for root in roots.values()})) or 'it'}",
        )
    names = _names(concerned, roots.values())
    mutants = list(_mutants(roots, names, selection))
    if not mutants:
        raise UsageError(str(paths[0]), "there is nothing to mutate")
    return MutationPlan(
        tuple(dict.fromkeys(Path(os.path.abspath(one)) for one in files)),
        tuple(dict.fromkeys(roots.values())),
        tuple(_drawn(mutants, selection)),
    )


def shown(path: Path) -> str:
    """Returns a path as it is shown: relative to the current folder, if it is below that."""
    try:
        return Path(os.path.abspath(path)).relative_to(os.getcwd()).as_posix()
    except ValueError:
        return str(path)


def _from(located: Located) -> str:
    if located.settings.contracts:
        return f"what {located.origin} names"
    return "what is registered"


def _import_roots(files: Iterable[Path], contracts: Iterable[Contract]) -> dict[Path, Path]:
    """Returns for each file the folder that it is imported from."""
    from fmcheck.prove.operators.engine_names import modules_of

    packages = {module.partition(".")[0] for one in contracts for module in modules_of(one)}
    return {file: _import_root(Path(os.path.abspath(file)), packages) for file in files}


def _import_root(file: Path, packages: set[str]) -> Path:
    """Returns the folder above a package that the contract names, or above the outermost package.

    The first is for packages in which folders lack `__init__.py`.
    """
    for folder in reversed(file.parents):
        if folder.name in packages:
            return folder.parent
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _concerns(contract: Contract, roots: Iterable[Path]) -> bool:
    from fmcheck.prove.operators.engine_names import module_path, modules_of

    return any(module_path(module, roots) for module in modules_of(contract))


def _names(contracts: Sequence[Contract], roots: Iterable[Path]) -> EngineNames:
    from fmcheck.prove.operators.engine_names import module_path, names_of

    relays = []
    for contract in contracts:
        for relay in contract.relay:
            path = module_path(relay.module, roots)
            if path is not None:
                relays.append((relay.qualname, _tree(path, relay.module)))
    return names_of(contracts, relays)


def _tree(path: Path, name: str) -> ParsedModule:
    from libcst import ParserSyntaxError

    from fmcheck.prove.operators.parsed import ParsedModule

    try:
        return ParsedModule(decode(read(path)).source, name)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError, ParserSyntaxError) as err:
        raise UsageError(str(path), f"cannot be read as Python: {_first_line(err)}") from err


def _first_line(err: Exception) -> str:
    """Returns an error's own words; of a lookup in a tree they are a whole file."""
    first = str(err).partition("\n")[0]
    return first if len(first) < MOST_WORDS else type(err).__name__


def _mutants(roots: dict[Path, Path], names: EngineNames, selection: Selection) -> Iterator[Mutant]:
    for file, root in roots.items():
        tree = _tree(file, Path(os.path.abspath(file)).relative_to(root).as_posix())
        found: dict[str, Mutant] = {}
        for operator in OPERATORS.values():
            if selection.only and operator.name not in selection.only:
                continue
            for fault in operator.faults(tree, names):
                text = applied(tree.source, fault.edits)
                if text == tree.source or not parses(text):
                    continue
                span = fault.span
                place = (operator.name, shown(file), span.line, span.column)
                what = (tree.function_at(span.line), fault.code, fault.title)
                mutant = Mutant(*place, *what, changed_lines(fault.edits), text)
                found.setdefault(text, mutant)
        yield from sorted(found.values(), key=lambda one: (one.line, one.column))


def _drawn(mutants: list[Mutant], selection: Selection) -> list[Mutant]:
    """Returns the first `limit` mutants, or as many drawn at random, in their old order."""
    if selection.limit is None or selection.limit >= len(mutants):
        return mutants
    if selection.seed is None:
        return mutants[: selection.limit]
    drawn = random.Random(selection.seed).sample(range(len(mutants)), selection.limit)
    return [mutants[at] for at in sorted(drawn)]

"""Unmet: what a contract names and the engine that ran does not have, as sentences.

They fail nothing: a fork may lack it by right. Only what is surely not there is told of: a module
that its imported package lacks, a function that its imported module lacks, a name that none of
those that were met has, while one that nothing declares is as good as the same.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fmcheck.contract import applies
from fmcheck.errors import SLIP, nearest
from fmcheck.runtime.calls import functions_of
from fmcheck.runtime.hold import attribute, installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.contract import Contract, Fill, Functions
    from fmcheck.runtime.fills import FillHold

_MOST_NAMES = 3


def unmet(contract: Contract) -> Iterator[str]:
    """Yields a sentence for each module and function that no alternative was found for."""
    by_module: dict[str, list[str]] = {}
    for references, is_quiet in _named(contract, installed_version(contract)):
        if not references or not all(_is_missing(one, is_quiet) for one in references):
            continue
        for one in references:
            module, _, name = one.partition(":")
            if _lacks(module):
                by_module.setdefault(module, []).append(one)
            else:
                known = nearest(name, functions_of(sys.modules[module]))
                yield f"contract `{contract.engine.name}`: there is no function `{one}`{known}"
    for module, names in by_module.items():
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        told = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
        yield (
            f"contract `{contract.engine.name}`: there is no module `{module}`{_sibling(module)} "
            f"(named for {told}{more})"
        )


def unmet_inputs(contract: Contract, fills: Iterable[FillHold]) -> Iterator[str]:
    """Yields a sentence for each declared graph input that is a slip of one that was filled."""
    fills = [one for one in fills if one.contract is contract]
    met = {name for one in fills for name in one.met}
    declared = [*_inputs(contract), *(pair for one in fills for pair in _inputs_of(one.fill))]
    free = [name for name in met if not any(fnmatchcase(name, known) for _, known in declared)]
    for key, name in dict.fromkeys(declared):
        known = "" if name in met else nearest(name, free, SLIP)
        if known:
            yield (
                f"contract `{contract.engine.name}`: key `{key}`: no graph input that was filled "
                f"is called `{name}`{known}"
            )


def _inputs(contract: Contract) -> Iterator[tuple[str, str]]:
    """Yields the names that are said of all fills, each with its key."""
    inputs = contract.graph_inputs
    for key in (
        *("row_indices", "index_like", "tail_is_discarded", "tail_may_stay"),
        *("holds", "valid", "batch_dim"),
    ):
        yield from ((f"graph_inputs.{key}", name) for name in getattr(inputs, key))


def _inputs_of(fill: Fill) -> Iterator[tuple[str, str]]:
    for key in ("holds", "only"):
        yield from ((f"graph_inputs.fill.{key}", name) for name in getattr(fill, key))


def _named(contract: Contract, version: str | None) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yields lists of alternatives, and whether nobody else tells of a function that is missing.

    Of opaque functions none has to exist.
    """
    inputs, launches = contract.graph_inputs, contract.launches
    for relay in contract.relay:
        if applies(relay.releases, version):
            yield (relay.class_,), False
    called: tuple[Functions, ...]
    called = (*contract.owners, *contract.steps, *launches.budget, *contract.streams.lend)
    for part in called:
        if applies(part.releases, version):
            yield part.functions, False
    for budget in launches.budget:
        if applies(budget.releases, version):
            yield budget.waits_in, True
    for fill in inputs.fill:
        if applies(fill.releases, version):
            yield (fill.class_,), False
            yield tuple(one for one in fill.settled_by if ":" in one), False
            yield tuple(one for one in fill.captured_by if ":" in one), False
    for replay in inputs.replay:
        if applies(replay.releases, version):
            yield (replay.function,), False
    yield launches.fused, True
    yield launches.per_step, True
    yield contract.late_results.functions, True


def _is_missing(reference: str, is_quiet: bool) -> bool:
    module, _, name = reference.partition(":")
    loaded = sys.modules.get(module)
    if loaded is None:
        return _lacks(module)
    return is_quiet and attribute(loaded, name) is None


def _lacks(module: str) -> bool:
    """Tells whether a package that is imported has no such module."""
    return module not in sys.modules and _is_nowhere(module)


def _is_nowhere(module: str) -> bool:
    package = module.rpartition(".")[0]
    if not package:
        return False  # installed elsewhere, perhaps
    if package not in sys.modules:
        return _is_nowhere(package)
    if not hasattr(sys.modules[package], "__path__"):
        return True
    try:
        return importlib.util.find_spec(module) is None
    except Exception:
        return False  # no telling


def _sibling(module: str) -> str:
    """Returns the nearest of the modules that are there, as `nearest` does."""
    package, _, name = module.rpartition(".")
    if package not in sys.modules:
        return _sibling(package)
    path = getattr(sys.modules[package], "__path__", ())
    return nearest(name, (one.name for one in pkgutil.iter_modules(path)))

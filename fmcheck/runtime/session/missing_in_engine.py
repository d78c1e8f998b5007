"""Missing in the engine: what a contract names and the engine that ran does not have, as sentences.

In a contract of the user's own they fail the run; in one that fmcheck ships they are notes, for a
fork may lack it by right. Only what is surely not found is reported: a module that its imported
package lacks, a package that Python does not find while one that is imported has nearly its name, a
function that its imported module lacks, a name that none of those that were met has, while one that
nothing declares is nearly the same.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from fmcheck.contract.references import QUIET, inputs, inputs_of, references, variables
from fmcheck.errors import SLIP, closest, nearest
from fmcheck.runtime.core.patches import attribute, functions_of, installed_version
from fmcheck.runtime.session.uses import imported_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.contract import Contract
    from fmcheck.runtime.graphs.fill_patches import FillPatch

_MOST_NAMES = 3


def missing_in_engine(contract: Contract, opaque: bool = False) -> Iterator[str]:
    """Yields a sentence for each module and function that no alternative was found for.

    Of `opaque` functions a release may lack all, so that those are named only if asked for.
    """
    by_module: dict[str, list[str]] = {}
    version = installed_version(contract)
    named = [*references(contract, version), *variables(contract, version)]
    named += [("opaque.functions", one.functions) for one in contract.opaque if opaque]
    if not any(_package(one) in sys.modules for _, alternatives in named for one in alternatives):
        return  # of another engine than the one that ran
    for key, alternatives in named:
        if not alternatives or not all(_is_missing(one, key in QUIET) for one in alternatives):
            continue
        for one in alternatives:
            module, _, name = one.partition(":")
            if _lacks(module):
                by_module.setdefault(module, []).append(one)
            else:
                known = nearest(name, functions_of(sys.modules[module]))
                yield f"contract `{contract.engine.name}`: there is no function `{one}`{known}"
    for module, names in by_module.items():
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        listed = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
        yield (
            f"contract `{contract.engine.name}`: there is no module `{module}`{_sibling(module)} "
            f"(named for {listed}{more})"
        )


def missing_inputs(contract: Contract, fills: Iterable[FillPatch]) -> Iterator[str]:
    """Yields a sentence for each declared graph input that is a slip of one that was filled."""
    fills = [one for one in fills if one.contract is contract]
    met = {name for one in fills for name in one.met}
    declared = [*inputs(contract), *(pair for one in fills for pair in inputs_of(one.fill))]
    free = [name for name in met if not any(fnmatchcase(name, known) for _, known in declared)]
    for key, name in dict.fromkeys(declared):
        known = "" if name in met else nearest(name, free, SLIP)
        if known:
            yield (
                f"contract `{contract.engine.name}`: key `{key}`: no graph input that was filled "
                f"is called `{name}`{known}"
            )


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


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
        # Without a near name it may be a part that is not installed here.
        return bool(closest(module, imported_packages(), SLIP)) and _is_unknown(module)
    if package not in sys.modules:
        return _is_nowhere(package)
    return not hasattr(sys.modules[package], "__path__") or _is_unknown(module)


def _is_unknown(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except Exception:
        return False  # no telling


def _sibling(module: str) -> str:
    """Returns the nearest of the modules that are there, as `nearest` does."""
    package, _, name = module.rpartition(".")
    if not package:
        return nearest(name, imported_packages(), SLIP)
    if package not in sys.modules:
        return _sibling(package)
    path = getattr(sys.modules[package], "__path__", ())
    return nearest(name, (one.name for one in pkgutil.iter_modules(path)))

"""What fmcheck knows: contracts and rules, its own and those that other packages register."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Contract, load_contract
from fmcheck.errors import SLIP, UsageError, nearest
from fmcheck.lint.rule import Rule, problems
from fmcheck.lint.run.stored import entry_points

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib import metadata

    import pluggy

    from fmcheck.config import Located

#: The entry points by which other packages register rules and contracts.
GROUP = "fmcheck"


@cache
def _plugins() -> pluggy.PluginManager | None:
    """Returns who has registered anything; None if nobody can have."""
    if not _may_be_registered():
        return None
    from importlib import metadata  # slow, as pluggy is, and most environments register nothing

    import pluggy

    from fmcheck import hookspecs

    manager = pluggy.PluginManager("fmcheck")
    manager.add_hookspecs(hookspecs)
    for point in metadata.entry_points(group=GROUP):
        _register(manager, point)
    return manager


def _may_be_registered() -> bool:
    """Tells whether an installed package may name our group; reads only what names entry points."""
    for folder in dict.fromkeys(sys.path):
        if os.path.isfile(folder):
            return True  # a zip file: for `importlib.metadata` to look into
        if any(text and f"[{GROUP}]".encode() in text for _, text in entry_points(folder)):
            return True
    return False


def _register(manager: pluggy.PluginManager, point: metadata.EntryPoint) -> None:
    """Registers one entry point's module, by its name; an error says whose it is."""
    if manager.has_plugin(point.name):
        return  # found twice on the path, as beside an editable install
    try:
        manager.register(point.load(), name=point.name)
        manager.check_pending()
    except Exception as err:
        raise UsageError(
            f"plugin `{point.name}`", f"`{point.value}` cannot be registered: {err}"
        ) from err


def contract_files() -> Mapping[str, Path]:
    """Returns every registered contract's file by its name.

    Raises:
        UsageError: if two packages register one name.
    """
    shipped = Path(__file__).parent / "contracts"
    files = {path.stem: path for path in sorted(shipped.glob("*.toml"))}
    for plugin, given in _called("fmcheck_contracts"):
        for name, path in given.items():
            if name in files:
                raise UsageError(plugin, f"registers the contract `{name}`, which exists already")
            files[name] = Path(path)
    return files


def rules() -> Mapping[str, type[Rule]]:
    """Returns every registered rule by its code, in the order of the codes.

    Raises:
        UsageError: if a registered rule is no rule, or two have one code.
    """
    found: dict[str, type[Rule]] = {}
    given = [(rule.__module__, rule) for rule in _built_in_rules()]
    given += [(plugin, rule) for plugin, its in _called("fmcheck_rules") for rule in its]
    for source, rule in given:
        wrong = list(problems(rule))
        is_own = rule.__module__.startswith("fmcheck.rules.")
        if not wrong and not is_own and rule.code.startswith("FM"):
            wrong.append("codes that start with `FM` are fmcheck's own")
        if not wrong and rule.code in found:
            other = found[rule.code]
            wrong.append(
                f"code `{rule.code}` is that of `{other.__module__}.{other.__name__}` already"
            )
        if wrong:
            raise UsageError(source, f"rule `{rule.__name__}`: {'; '.join(wrong)}")
        found[rule.code] = rule
    return dict(sorted(found.items()))


def contracts_for(located: Located) -> tuple[Contract, ...]:
    """Loads the contracts that the settings ask for: all registered ones if they name none.

    Raises:
        UsageError: if a name is unknown or a file does not fit.
    """
    files = contract_files()
    wanted = located.settings.contracts or tuple(files)
    return tuple(load_contract(_path_in_settings(name, files, located)) for name in wanted)


def contract_path(name: str, files: Mapping[str, Path], folder: Path) -> Path | None:
    """Returns the file that a contract's name, or a path from a folder, is of; None if neither."""
    if name in files:
        return files[name]
    return folder / name if name.endswith(".toml") else None


def contract_choice(files: Mapping[str, Path]) -> str:
    """Returns what may stand where a contract is asked for."""
    return f"a path ending in .toml or one of {', '.join(f'`{known}`' for known in files)}"


def _path_in_settings(name: str, files: Mapping[str, Path], located: Located) -> Path:
    path = contract_path(name, files, located.folder)
    if path is None:
        raise UsageError(
            str(located.origin or "settings"),
            f"key `contracts`: expected {contract_choice(files)}, got `{name}`"
            f"{nearest(name, files)}",
        )
    if name not in files and "\0" not in name and not os.path.lexists(path):
        near = nearest(path.name, [one.name for one in path.parent.glob("*.toml")], SLIP)
        raise UsageError(
            str(located.origin or "settings"), f"key `contracts`: {path}: no such file{near}"
        )
    return path


def _built_in_rules() -> Iterable[type[Rule]]:
    # By name, not by a static import: rules/ is fmcheck.rules only once it is installed.
    package = importlib.import_module("fmcheck.rules")
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"fmcheck.rules.{info.name}")
        for kind in vars(module).values():
            is_own = isinstance(kind, type) and kind.__module__ == module.__name__
            if is_own and issubclass(kind, Rule):
                yield kind


def _called(hook: str) -> Iterable[tuple[str, Any]]:
    """Calls one hook plugin by plugin, so that an error can name whose answer it is about."""
    manager = _plugins()
    for implementation in getattr(manager.hook, hook).get_hookimpls() if manager else ():
        try:
            yield f"plugin `{implementation.plugin_name}`", implementation.function()
        except UsageError:
            raise
        except Exception as err:
            raise UsageError(
                f"plugin `{implementation.plugin_name}`", f"{hook} failed: {err!r}"
            ) from err

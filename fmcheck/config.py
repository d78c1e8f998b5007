"""Settings: `[tool.fmcheck]` of the nearest pyproject.toml, or the file that --config names."""

from __future__ import annotations

import datetime  # noqa: TC003  (msgspec reads the annotation)
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fmcheck.errors import SLIP, UsageError, closest, nearest
from fmcheck.files.strict import convert, read_toml
from fmcheck.finding import ADVISORY, CHECKS, SOMETIMES_ADVISORY

if TYPE_CHECKING:
    from collections.abc import Iterable


#: What is set for pytest alone, as options of its own.
PYTEST_KEYS = frozenset({"mode", "seed", "streams"})


class Suppression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A violation that is known of, and not reported for a while.

    `buffer` and `site` are globs, and at least one is there. `site` is held against the end of the
    path, so that `srt/managers/x.py` fits wherever the engine is installed. `expires` is the last
    day on which it counts.
    """

    check: str
    reason: str
    expires: datetime.date
    buffer: str = ""
    site: str = ""


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """What a run is asked to do.

    `contracts` are names of registered contracts or paths of contract files, relative to the
    settings file; empty means every registered one. `select` and `ignore` hold rule codes,
    families (`FM2`) or `ALL`; empty `select` means the rules that are on by default.
    `per_file_ignores` holds further ones to ignore, by a pattern of files.

    `exclude` holds patterns of what is not linted, None for the usual folders, `extend_exclude`
    further ones. All patterns are those of `.gitignore`, from the settings file's folder.
    `baseline` is the path of a baseline, from there too; "" for none.

    At run time, `fail-on` names checks that fail a run although by default they are only reported,
    and `suppress` the violations that are known of. With `allow-unchecked`, a run may check nothing
    of what its contracts declare.
    """

    contracts: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: tuple[str, ...] = ()
    suppress: tuple[Suppression, ...] = ()
    allow_unchecked: bool = False
    per_file_ignores: dict[str, tuple[str, ...]] = {}
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    respect_gitignore: bool = True
    baseline: str = ""


class Located(msgspec.Struct, frozen=True):
    """Settings and the file they came from (None for the defaults)."""

    settings: Settings
    origin: Path | None

    @property
    def folder(self) -> Path:
        """Where relative paths in the settings start."""
        return self.origin.parent if self.origin else Path.cwd()


def find_settings(start: Path) -> Located:
    """Returns the settings of the nearest pyproject.toml at or above `start` that has any.

    Raises:
        UsageError: if that file's `[tool.fmcheck]` does not fit.
    """
    start = Path(os.path.realpath(start))  # resolve() does not end well for a link in a circle
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if os.path.lexists(path):
            located = _read(path)
            if located is not None:
                return located
    return Located(Settings(), None)


def unread_settings(folders: Iterable[Path], root: Path) -> list[Path]:
    """Returns each pyproject.toml with `[tool.fmcheck]` between `root` and one of `folders`.

    `find_settings(root)` does not look there. A folder that is not below `root` is looked at with
    all that are above it and not above `root`.
    """
    root = Path(os.path.realpath(root))
    seen = {root, *root.parents}
    found = []
    for start in folders:
        start = Path(os.path.realpath(start))
        for folder in (start, *start.parents):
            if folder in seen:
                break
            seen.add(folder)
            path = folder / "pyproject.toml"
            try:
                has_any = os.path.lexists(path) and _read(path) is not None
            except UsageError:
                continue  # nobody asked for this file
            if has_any:
                found.append(path)
    return found


def load_settings(path: Path) -> Located:
    """Returns the settings of the file that the user named.

    A file called pyproject.toml holds them under `[tool.fmcheck]`, any other at its root.

    Raises:
        UsageError: if the file is missing, is not TOML or does not fit.
    """
    if path.name == "pyproject.toml":
        located = _read(path)
        if located is None:
            raise UsageError(str(path), "expected a table `[tool.fmcheck]`, found none")
        return located
    table = read_toml(path)
    if "engine" in table:
        text = f'this is a contract: expected a settings file, with `contracts = ["{path.name}"]`'
        raise UsageError(str(path), text)
    return Located(_settings(table, path, ""), path)


def allowing_unchecked(located: Located) -> Located:
    """Returns the settings with `allow-unchecked` on."""
    settings = msgspec.structs.replace(located.settings, allow_unchecked=True)
    return msgspec.structs.replace(located, settings=settings)


def pack(located: Located) -> str:
    """Returns settings as a text that means the same in whatever folder it is read."""
    contracts = tuple(
        str((located.folder / name).absolute()) if name.endswith(".toml") else name
        for name in located.settings.contracts
    )
    settings = msgspec.structs.replace(located.settings, contracts=contracts)
    origin = str(located.origin.absolute()) if located.origin else None
    return json.dumps(msgspec.to_builtins((settings, origin)))  # takes a path that is not UTF-8


def unpack(text: str) -> Located:
    """Returns the settings that `pack` wrote."""
    settings, origin = msgspec.convert(json.loads(text), tuple[Settings, str | None])
    return Located(settings, Path(origin) if origin else None)


def _read(path: Path) -> Located | None:
    tool = read_toml(path).get("tool", {})
    if not isinstance(tool, dict):
        raise UsageError(str(path), "key `tool`: expected a table")
    if "fmcheck" not in tool:
        if near := closest("fmcheck", tool, SLIP):
            text = f"unknown table `tool.{near}`; did you mean `tool.fmcheck`?"
            raise UsageError(str(path), text)
        return None
    table = tool["fmcheck"]
    if not isinstance(table, dict):
        raise UsageError(str(path), "key `tool.fmcheck`: expected a table")
    return Located(_settings(table, path, "tool.fmcheck"), path)


def _settings(table: dict[str, object], path: Path, at: str) -> Settings:
    for key in PYTEST_KEYS & table.keys():
        raise UsageError(
            str(path),
            f"unknown key `{at}.{key}`: it is an option of pytest's, `fmcheck_{key}` under "
            "`[tool.pytest.ini_options]`",
        )
    settings = convert(table, Settings, str(path), at)
    for number, code in enumerate(settings.fail_on):
        _known(code, ADVISORY | SOMETIMES_ADVISORY, f"fail-on[{number}]", path, at)
    for number, one in enumerate(settings.suppress):
        key = f"suppress[{number}]"
        _known(one.check, CHECKS, f"{key}.check", path, at)
        if not one.reason.strip():
            raise _misfit(path, at, f"{key}.reason", "expected a sentence that says why, got none")
        if not (one.buffer or one.site):
            raise _misfit(path, at, key, "expected `buffer`, `site` or both")
    return settings


def _known(code: str, known: Iterable[str], key: str, path: Path, at: str) -> None:
    if code not in known:
        names = ", ".join(f"`{one}`" for one in sorted(known))
        text = f"expected one of {names}, got `{code}`{nearest(code, known)}"
        raise _misfit(path, at, key, text)


def _misfit(path: Path, at: str, key: str, text: str) -> UsageError:
    return UsageError(str(path), f"key `{f'{at}.{key}'.lstrip('.')}`: {text}")

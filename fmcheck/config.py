"""Settings: `[tool.fmcheck]` of the nearest pyproject.toml, or the file that --config names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fmcheck.errors import UsageError
from fmcheck.strict import convert, read_toml


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
    """

    contracts: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
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
    start = start.resolve()
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            located = _read(path)
            if located is not None:
                return located
    return Located(Settings(), None)


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
    return Located(convert(read_toml(path), Settings, str(path)), path)


def _read(path: Path) -> Located | None:
    tool = read_toml(path).get("tool", {})
    if not isinstance(tool, dict) or "fmcheck" not in tool:
        return None
    table = tool["fmcheck"]
    if not isinstance(table, dict):
        raise UsageError(str(path), "key `tool.fmcheck`: expected a table")
    return Located(convert(table, Settings, str(path), "tool.fmcheck"), path)

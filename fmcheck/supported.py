"""Supported: the oldest Python, and the oldest torch and pytest that a watch can be asked for."""

from __future__ import annotations

import platform
import sys

from fmcheck.errors import UsageError

#: As in pyproject.toml: who runs a checkout has not asked pip.
LOWEST_PYTHON = (3, 10)

#: SGLang 0.5.11, the oldest release that is known, asks for this one; as in pyproject.toml.
LOWEST_TORCH = "2.11"

#: As in pyproject.toml: an environment may hold an older one that pip was not asked about.
LOWEST_PYTEST = "7.4"


def check_python() -> None:
    """Refuses a Python that is too old, before anything is imported that it cannot read.

    Raises:
        UsageError: if this one is older than the oldest supported.
    """
    if sys.version_info < LOWEST_PYTHON:
        lowest = ".".join(map(str, LOWEST_PYTHON))
        raise UsageError("Python", f"expected {lowest} or newer, got {platform.python_version()}")


def check_versions() -> None:
    """Refuses a Python, torch or pytest that is too old; torch itself is not imported.

    Raises:
        UsageError: if the installed one is older than the oldest supported.
    """
    check_python()
    _check("pytest", LOWEST_PYTEST)
    _check("torch", LOWEST_TORCH)


def _check(name: str, lowest: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version(name))
    except (PackageNotFoundError, InvalidVersion):
        return
    if found.release < Version(lowest).release:
        raise UsageError(
            name,
            f"expected {lowest} or newer, got {found}; without fmcheck: -p no:fmcheck",
        )

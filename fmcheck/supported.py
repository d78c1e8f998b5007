"""Supported: the oldest torch that a watch can be asked for."""

from __future__ import annotations

from fmcheck.errors import UsageError

#: SGLang 0.5.11, the oldest release that is known, asks for this one; as in pyproject.toml.
LOWEST_TORCH = "2.11"


def check_torch() -> None:
    """Refuses a torch that is too old; torch itself is not imported.

    Raises:
        UsageError: if the installed torch is older than the oldest supported.
    """
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version("torch"))
    except (PackageNotFoundError, InvalidVersion):
        return
    if found.release < Version(LOWEST_TORCH).release:
        raise UsageError(
            "torch",
            f"expected {LOWEST_TORCH} or newer, got {found}; without fmcheck: -p no:fmcheck",
        )

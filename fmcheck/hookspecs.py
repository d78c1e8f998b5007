"""The hooks by which another package gives fmcheck contracts and rules.

Such a package names a module in the entry-point group `fmcheck`; fmcheck calls the hooks there:

    [project.entry-points.fmcheck]
    my_engine = "my_engine.fmcheck_hooks"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fmcheck.lint.rule import Rule

hookspec = pluggy.HookspecMarker("fmcheck")
hookimpl = pluggy.HookimplMarker("fmcheck")


@hookspec
def fmcheck_contracts() -> Mapping[str, Path]:  # type: ignore[empty-body]
    """Returns contract files by the name under which settings may ask for them."""


@hookspec
def fmcheck_rules() -> Sequence[type[Rule]]:  # type: ignore[empty-body]
    """Returns lint rules; their codes must not start with `FM`, which is fmcheck's own.

    The nodes that a rule is handed are libcst's own: see `docs/write-a-rule.md`.
    """

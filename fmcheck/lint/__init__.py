"""The linter, and what a rule is written with: see `docs/write-a-rule.md`.

What it names is imported when it is asked for: a run that is only replayed needs none of it.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from typing import Any

    from fmcheck.finding import Edit, Severity
    from fmcheck.lint.model.declared import DeclaredFunctions
    from fmcheck.lint.model.expressions import dotted, last_name
    from fmcheck.lint.model.function import Function, functions
    from fmcheck.lint.rule import ClassRule, Example, FunctionRule, Judged, ModuleRule
    from fmcheck.lint.source.lazy import cst
    from fmcheck.lint.source.module import Family, Module, Part

_PLACES = {
    "fmcheck.finding": ("Edit", "Severity"),
    "fmcheck.lint.source.lazy": ("cst",),
    "fmcheck.lint.model.declared": ("DeclaredFunctions",),
    "fmcheck.lint.model.expressions": ("dotted", "last_name"),
    "fmcheck.lint.model.function": ("Function", "functions"),
    "fmcheck.lint.rule": ("ClassRule", "Example", "FunctionRule", "Judged", "ModuleRule"),
    "fmcheck.lint.source.module": ("Family", "Module", "Part"),
}

__all__ = [
    "ClassRule",
    "DeclaredFunctions",
    "Edit",
    "Example",
    "Family",
    "Function",
    "FunctionRule",
    "Judged",
    "Module",
    "ModuleRule",
    "Part",
    "Severity",
    "cst",
    "dotted",
    "functions",
    "last_name",
]


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(place), name)
            return value
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")

"""The linter, and what a rule is written with: see `docs/write-a-rule.md`."""

from fmcheck.finding import Edit, Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.model.declared import DeclaredFunctions
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import Function, functions
from fmcheck.lint.rule import ClassRule, Example, FunctionRule, Judged, ModuleRule
from fmcheck.lint.source.module import Family, Module, Part

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

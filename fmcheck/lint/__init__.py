"""The linter, and what a rule is written with: `from fmcheck.lint import FunctionRule, cst`."""

from fmcheck.finding import Edit, Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.rule import ClassRule, Example, FunctionRule, Judged, ModuleRule

__all__ = [
    "ClassRule",
    "Edit",
    "Example",
    "FunctionRule",
    "Judged",
    "ModuleRule",
    "Severity",
    "cst",
]

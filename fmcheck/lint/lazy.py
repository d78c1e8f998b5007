"""The classes of nodes that rules look at, imported at their first use.

Rules write `from fmcheck.lint.lazy import cst` at run time, which are the classes of `tree.py`, and
`import libcst as cst` for the type checker, which then knows every field.
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module until an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


cst = LazyModule("fmcheck.lint.tree")

"""libcst, imported at its first use.

Importing it takes 170 ms, more than linting a file that no rule concerns. Rules write
`from fmcheck.lint.lazy import cst` at run time and `import libcst as cst` for the type checker.
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


cst = LazyModule("libcst")

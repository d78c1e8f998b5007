"""libcst, imported when a rule first asks for one of its classes: most files need none of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import libcst as cst
else:

    class _Lazy:
        """Stands for libcst until an attribute of it is asked for."""

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(importlib.import_module("libcst"), attribute)
            setattr(self, attribute, value)
            return value

    cst = _Lazy()

__all__ = ["cst"]

"""Regular expressions that are compiled when they are first asked: most runs need few of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as regex
else:

    class regex:  # noqa: N801, it stands for a function
        """Stands for `re.compile` of the same arguments until an attribute of it is asked for."""

        def __init__(self, *given: Any) -> None:
            self._given = given

        def __getattr__(self, attribute: str) -> Any:
            value = getattr(re.compile(*self._given), attribute)
            setattr(self, attribute, value)
            return value


__all__ = ["regex"]

"""Sites: the line of engine code that touched a relay buffer, kept as a number."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.finding import Site

if TYPE_CHECKING:
    from types import CodeType

_OWN = str(Path(__file__).parent)
_UNKNOWN = Site("<unknown>", 0, "<unknown>")


class Sites:
    """Finds the innermost frame outside of fmcheck and torch, and remembers it by number."""

    def __init__(self) -> None:
        self._outside: dict[CodeType, bool] = {}
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._sites: list[Site] = [_UNKNOWN]
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]

    def here(self) -> int:
        """Returns the number of the calling line of engine code."""
        frame = sys._getframe(1)
        outside = self._outside
        while frame is not None:
            code = frame.f_code
            known = outside.get(code)
            if known is None:
                known = outside[code] = _is_outside(code.co_filename)
            if known:
                key = (code, frame.f_lineno)
                number = self._numbers.get(key)
                return self._remember(key) if number is None else number
            frame = frame.f_back  # type: ignore[assignment]
        return 0

    def _remember(self, key: tuple[CodeType, int]) -> int:
        code, line = key
        function = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        with self._lock:
            self._sites.append(Site(code.co_filename, line, function))
            return self._numbers.setdefault(key, len(self._sites) - 1)


def _is_outside(filename: str) -> bool:
    if filename.startswith(_OWN):
        return False
    torch = sys.modules.get("torch")
    home = str(Path(torch.__file__).parent) if torch is not None and torch.__file__ else ""
    return not (home and filename.startswith(home))

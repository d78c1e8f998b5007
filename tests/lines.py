"""Lines of a test's own code, by what they say: a report is held against them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def line_of(call: Callable[..., Any], text: str) -> int:
    """Returns the number of a function's first line that holds some text."""
    lines, first = inspect.getsourcelines(call)
    return next(first + number for number, line in enumerate(lines) if text in line)

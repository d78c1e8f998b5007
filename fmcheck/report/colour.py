"""Colour for a terminal: whether it is wanted, and the escape sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: Puts a text into a style of the table below.
    Paint = Callable[[str, str], str]

STYLES = {
    Severity.ERROR.value: "1;31",
    Severity.WARNING.value: "1;33",
    Severity.NOTE.value: "1;36",
    "strong": "1",
    "margin": "34",
    "help": "32",
    "added": "32",
    "removed": "31",
}


def wanted(choice: str, environ: Mapping[str, str], is_terminal: bool) -> bool:
    """Tells whether to colour: by `--color`, then NO_COLOR, FORCE_COLOR, and what is written to."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    """Returns `text` in a style, for a terminal."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def plain(text: str, style: str) -> str:
    """Returns `text` as it is, whatever the style."""
    return text


def paint_diff(diff: str, paint: Paint) -> str:
    """Returns a unified diff with its changed lines in colour."""
    styles = {"+": "added", "-": "removed"}
    lines = diff.split("\n")
    return "\n".join(paint(line, styles[line[0]]) if line[:1] in styles else line for line in lines)

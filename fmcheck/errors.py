"""Errors that a user can fix: each says where, what, what was expected, and the nearest name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from fmcheck.regex import regex
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_CODE = regex(r"(?P<letters>[A-Z]+)(?P<digits>\d*)")
#: How near a name must be to one that nothing else stands for, to be taken for a slip of it.
SLIP = 0.8


class UsageError(Exception):
    """Bad input that stops a command before it has changed anything (exit status 2).

    `where` is the file, option or key at fault; the message names what was expected. Both are shown
    on one line, for they hold words of files; `output`, what a program said, follows as it is.
    """

    def __init__(self, where: str, message: str, output: str = "") -> None:
        text = printable(f"{where}: {message}")
        super().__init__(f"{text}\n{output}" if output else text)
        self.where = where
        self.message = message


class ViolationError(AssertionError):
    """A relay buffer was read when it held nothing to read: what a failed test raises."""


class DetectorError(Exception):
    """A detector did not see the fault it was shown: a run without findings would prove nothing."""


class CoverageError(Exception):
    """Part of what was to be watched was not, so that silence would prove little."""


class FmcheckWarning(UserWarning):
    """A violation in mode `warn`."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns "; did you mean `x`?" for the known name nearest to `name`, or "" if none is near.

    `cutoff` is how near it has to be, from 0 to 1.
    """
    near = closest(name, known, cutoff)
    return f"; did you mean `{near}`?" if near else ""


def closest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Returns the known name nearest to `name`, "" if none is near."""
    matches = difflib.get_close_matches(name, list(known), n=5, cutoff=cutoff)
    # Two letters that changed places are nearer than others: a slip of the fingers.
    matches.sort(key=lambda match: not _is_swapped(match, name))
    return matches[0] if matches else ""


def nearest_code(code: str, known: Collection[str]) -> str:
    """Returns what may have been meant by a code or family that is not known, as "; ...".

    Digits are no word: the nearest code is one of its own family, or else a family that exists.
    """
    given, families = code.upper(), {_family(one) for one in known}
    form = _CODE.fullmatch(given)
    if given != code and given in {*known, *families}:
        return f"; did you mean `{given}`?"
    if form is None or form["letters"] not in {one[:-1] for one in families}:
        return nearest(code, sorted(known))
    family = form["letters"] + form["digits"][:1]
    if family in families:
        within = sorted(one for one in known if _family(one) == family)
        if near := nearest(given, within, SLIP):
            return near
        return f"; the family `{family}` has {', '.join(within)}"
    alike = sorted(one for one in families if one[:-1] == form["letters"])
    return f"; families: {', '.join(alike)}"


def _family(code: str) -> str:
    return code.rstrip("0123456789") + code[len(code.rstrip("0123456789")) :][:1]


def _is_swapped(one: str, other: str) -> bool:
    """Tells whether two neighbouring letters have changed places, and nothing else."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return one == other[:at] + other[at : at + 2][::-1] + other[at + 2 :]

"""Errors that a user can mend: each says where, what, what was expected, and the nearest name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How near a name must be to one that nothing else stands for, to be taken for a slip of it.
SLIP = 0.8


class UsageError(Exception):
    """Bad input that stops a command before it has changed anything (exit status 2).

    `where` is the file, option or key at fault; the message names what was expected.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
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


def _is_swapped(one: str, other: str) -> bool:
    """Tells whether two neighbouring letters have changed places, and nothing else."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return one == other[:at] + other[at : at + 2][::-1] + other[at + 2 :]

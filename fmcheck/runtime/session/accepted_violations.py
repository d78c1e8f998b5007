"""Suppressions: violations that the settings know of, each with a reason and a last day."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.config import Located, Suppression
    from fmcheck.finding import Violation


@dataclass(eq=False)
class Suppressions:
    """Those of one session: which of them count today, and what each took.

    `keys` name the suppressions as a reader finds them: file, key and what is matched.
    """

    current: Sequence[tuple[str, Suppression]] = ()
    problems: tuple[str, ...] = ()
    taken: int = 0
    _matched: set[str] = field(default_factory=set)

    def take(self, violation: Violation) -> bool:
        """Tells whether a violation is suppressed, and counts it if so."""
        fitting = [key for key, one in self.current if _fits(one, violation)]
        self._matched.update(fitting)
        self.taken += bool(fitting)
        return bool(fitting)

    @property
    def matched(self) -> tuple[str, ...]:
        """The suppressions that took something."""
        return tuple(key for key, _ in self.current if key in self._matched)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The suppressions that took nothing so far."""
        return tuple(key for key, _ in self.current if key not in self._matched)


def suppressions_of(located: Located, today: datetime.date | None = None) -> Suppressions:
    """Returns the suppressions of the settings; one that has expired is a problem, and is off."""
    today = today or datetime.date.today()
    named = list(_named(located))
    return Suppressions(
        current=tuple((key, one) for key, one in named if one.expires >= today),
        problems=tuple(
            f"suppression {key} expired on {one.expires}: fix what it hides, or set a later date "
            f"(its reason was: {one.reason})"
            for key, one in named
            if one.expires < today
        ),
    )


def _named(located: Located) -> Iterator[tuple[str, Suppression]]:
    path = located.origin
    table = "tool.fmcheck.suppress" if path and path.name == "pyproject.toml" else "suppress"
    for number, one in enumerate(located.settings.suppress):
        where = "".join(
            f" {word} {value}" for word, value in (("in", one.buffer), ("at", one.site)) if value
        )
        yield f"{path}: `{table}[{number}]` ({one.check}{where})", one


def _fits(one: Suppression, violation: Violation) -> bool:
    if one.check != violation.code:
        return False
    if one.buffer and not fnmatchcase(violation.buffer, one.buffer):
        return False
    path = violation.access.site.path.replace("\\", "/")
    return not one.site or fnmatchcase(path, one.site) or fnmatchcase(path, f"*/{one.site}")

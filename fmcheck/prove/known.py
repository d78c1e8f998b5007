"""Survivors that are known of, with a reason each: a TOML file of the user's."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import msgspec

from fmcheck.errors import UsageError, nearest
from fmcheck.files.strict import convert, read_toml
from fmcheck.prove.operators.all_operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fmcheck.prove.operators.mutant import Mutant


class KnownSurvivor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault that changes nothing, or that nothing can notice.

    All but `reason` are globs. `function` is `Class.method`; `code` is the source at fault, white
    space made single, and brackets in it stand for themselves.
    """

    operator: str
    file: str
    code: str
    reason: str
    function: str = "*"

    def matches(self, mutant: Mutant) -> bool:
        """Tells whether a mutant is this one."""
        return (
            fnmatch.fnmatchcase(mutant.operator, self.operator)
            and fnmatch.fnmatchcase(f"/{mutant.file}", f"*/{self.file.lstrip('/')}")
            and fnmatch.fnmatchcase(mutant.function, self.function)
            and fnmatch.fnmatchcase(mutant.code, self.code.replace("[", "[[]"))
        )

    def __str__(self) -> str:
        return f"{self.operator} in {self.file}: `{self.code}`"


class KnownFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file, whole."""

    known: tuple[KnownSurvivor, ...] = ()


def load_known(path: Path | None) -> tuple[KnownSurvivor, ...]:
    """Returns the entries of a file; none without one.

    Raises:
        UsageError: if it does not fit, naming the key.
    """
    if path is None:
        return ()
    entries = convert(read_toml(path), KnownFile, str(path)).known
    for number, one in enumerate(entries):
        if not fnmatch.filter(OPERATORS, one.operator):
            raise UsageError(
                str(path),
                f"key `known[{number}].operator`: there is no operator `{one.operator}`"
                f"{nearest(one.operator, OPERATORS)}",
            )
        if not one.reason.strip():
            raise UsageError(
                str(path), f"key `known[{number}].reason`: expected a sentence that says why"
            )
    return entries


def reason_for(mutant: Mutant, known: Iterable[KnownSurvivor]) -> str:
    """Returns why a mutant may survive, "" if nothing says so."""
    return next((one.reason for one in known if one.matches(mutant)), "")


def stale(known: Iterable[KnownSurvivor], survivors: Sequence[Mutant]) -> tuple[KnownSurvivor, ...]:
    """Returns the entries that no survivor bears out."""
    return tuple(one for one in known if not any(map(one.matches, survivors)))

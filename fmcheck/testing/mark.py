"""The mark `@pytest.mark.fmcheck(expect=…, allow=…, mode=…)`: what a test asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest
from fmcheck.finding import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fmcheck.finding import Violation

KEYS = ("expect", "allow", "mode")
MODES = ("fail", "warn")
ALL = "ALL"


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """What the marks of one test ask for: codes, families or `ALL`, and a mode, "" for the run's.

    A test may be in several classes and modules that carry marks: all that they expect and allow
    counts, and the nearest mode.
    """

    expect: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    mode: str = ""


def asked(marks: Iterable[tuple[tuple[object, ...], Mapping[str, object]]]) -> MarkRequest:
    """Returns what marks ask for, each given as its arguments and keywords, the nearest first.

    Raises:
        UsageError: for an argument without keyword, an unknown key, check or mode.
    """
    expect: list[str] = []
    allow: list[str] = []
    mode = ""
    for arguments, keywords in marks:
        if arguments:
            raise UsageError(
                "mark `fmcheck`",
                f"expected keywords ({', '.join(KEYS)}), got {arguments[0]!r} without one",
            )
        for key in keywords:
            if key not in KEYS:
                raise UsageError(
                    "mark `fmcheck`",
                    f"unknown key `{key}`{nearest(key, KEYS)} (known: {', '.join(KEYS)})",
                )
        expect += checks(keywords.get("expect", ()), "mark `fmcheck`: key `expect`")
        allow += checks(keywords.get("allow", ()), "mark `fmcheck`: key `allow`")
        mode = mode or _mode(keywords.get("mode", ""))
    return MarkRequest(tuple(dict.fromkeys(expect)), tuple(dict.fromkeys(allow)), mode)


def checks(given: object, where: str) -> tuple[str, ...]:
    """Returns codes and families that were given as one text or several, names turned into codes.

    Raises:
        UsageError: if one of them is none, naming `where` and the nearest.
    """
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, (tuple, list, set, frozenset)):
        raise UsageError(where, f"expected a check or a list of checks, got {given!r}")
    return tuple(_check(one, where) for one in several)


def _check(given: object, where: str) -> str:
    codes = {name: code for code, name in CHECKS.items()}
    families = {code[:3] for code in CHECKS}
    if isinstance(given, str):
        if given in CHECKS or given in families or given == ALL:
            return given
        if given in codes:
            return codes[given]
    known = (*CHECKS, *codes, *sorted(families), ALL)
    hint = nearest(given, known) if isinstance(given, str) else ""
    shown = f"`{given}`" if isinstance(given, str) else repr(given)
    raise UsageError(where, f"expected a check, as FR102 or double-read, got {shown}{hint}")


def _mode(given: object) -> str:
    if given in ("", *MODES):
        return str(given)
    hint = nearest(given, MODES) if isinstance(given, str) else ""
    more = '; `halt` and `off` are for a whole run: allow="ALL" lets all findings of a test pass'
    shown = f"`{given}`" if isinstance(given, str) else repr(given)
    raise UsageError(
        "mark `fmcheck`: key `mode`",
        f"expected {' or '.join(MODES)}, got {shown}{more if given in ('halt', 'off') else hint}",
    )


def fits(violation: Violation, codes: Iterable[str]) -> bool:
    """Tells whether one of these codes and families names a violation's check."""
    return any(code == ALL or violation.code.startswith(code) for code in codes)

"""Checking a text that an editor holds, as `fmcheck lint -` would check the file."""

from __future__ import annotations

import gc
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.lint.engine import lint_text
from fmcheck.lint.run.outcome import lint_paths
from fmcheck.lint.scope.request import Fixing, Request
from fmcheck.lint.source import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.finding import Finding


def get_ready() -> None:
    """Loads what the first check would load otherwise: rules, contracts, libcst."""
    from fmcheck.config import Located, Settings
    from fmcheck.registry import contracts_for, rules

    with suppress(UsageError):  # which the first check tells of, in the document
        contracts = contracts_for(Located(Settings(), None))
        for rule in rules().values():
            lint_text(rule.bad[0].code.encode(), "example.py", [rule(contracts)])
    # None of it goes before the server does: no later collection need look at it.
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector from looking at trees while they grow, until it is answered."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def findings(path: str, text: str) -> Sequence[Finding]:
    """Returns the findings of a text that is saved under `path`.

    Raises:
        UsageError: if the settings, a contract or a baseline do not fit.
    """
    return lint_paths(_request(path, text)).findings


def fixed(path: str, text: str) -> str:
    """Returns a text with all safe fixes applied."""
    outcome = lint_paths(_request(path, text, Fixing.WRITE))
    return text if outcome.stdin is None else decode(outcome.stdin).raw


def page(code: str) -> str:
    """Returns the page of a rule, or of a code of the linter's own, as Markdown."""
    from fmcheck.lint.own import OWN_CODES
    from fmcheck.lint.page import own_page, rule_page
    from fmcheck.registry import rules

    rule = rules().get(code)
    if rule is not None:
        return rule_page(rule)
    return own_page(OWN_CODES[code]) if code in OWN_CODES else ""


def _encoded(text: str) -> bytes:
    """Returns the bytes of a text as its file has them, in the encoding that it declares."""
    raw = text.encode(errors="surrogatepass")
    try:
        return decode(raw).encode(text)
    except (SyntaxError, UnicodeError, LookupError):
        return raw  # which is then what cannot be decoded


def _request(path: str, text: str, fixing: Fixing = Fixing.NONE) -> Request:
    return Request(
        paths=(Path(path),),
        stdin=_encoded(text),
        fixing=fixing,
        force_exclude=True,
        progress=False,
        jobs=1,
    )

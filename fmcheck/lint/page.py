"""A rule's page: its docstring, what taught it, and what it flags and leaves alone."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.lint.own import OwnCode
    from fmcheck.lint.rule import Rule


def rule_page(rule: type[Rule]) -> str:
    """Returns a rule's page as Markdown."""
    return "\n".join(_parts(rule))


def in_short(rule: type[Rule]) -> str:
    """Returns how severe a rule's findings are, whether it is on by default, and has a fix."""
    severity = rule.severity.value
    if not rule.warns_undeclared:
        severity += " (a note where no contract binds the file)"
    default = "on by default" if rule.on_by_default else "off by default"
    return f"{severity}, {default}, {'has a fix' if rule.has_fix() else 'has no fix'}"


def own_page(own: OwnCode) -> str:
    """Returns the page of a code of the linter's own as Markdown."""
    return f"# {own.code} {own.name}\n\n{own.severity.value}\n\n{own.page}"


def _parts(rule: type[Rule]) -> Iterator[str]:
    yield f"# {rule.code} {rule.name}\n"
    yield f"{in_short(rule)}\n"
    yield f"{inspect.getdoc(rule)}\n"
    yield "## Seen in\n"
    yield from (f"- <{link}>" if link.startswith("http") else f"- {link}" for link in rule.seen_in)
    if rule.judged:
        yield "\n## On released trees\n"
        yield from (f"- {judged}" for judged in rule.judged)
    yield "\n## Flagged, from the rule's own tests\n"
    for example in rule.bad:
        places = ", ".join(f"{line}:{column}" for line, column in example.at)
        yield f"at {places}{_named(example.path)}\n\n{_fenced(example.code)}"
    yield "## Left alone\n"
    for example in rule.good:
        yield f"{_named(example.path).lstrip()}\n\n{_fenced(example.code)}".lstrip("\n")


def _named(path: str) -> str:
    return "" if path == "example.py" else f" in {path}"


def _fenced(code: str) -> str:
    """Returns source as a block of code, whatever is around it."""
    return f"```python\n{code.strip(chr(10))}\n```\n"

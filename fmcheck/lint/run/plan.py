"""From a request to jobs: which files are linted, each with which rules and codes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.config import find_settings, load_settings
from fmcheck.errors import UsageError
from fmcheck.lint.scope.files import EXCLUDED, Excludes, python_files
from fmcheck.lint.scope.patterns import Patterns
from fmcheck.lint.scope.selection import Codes, named_codes, removed_rules, select_codes
from fmcheck.registry import contracts_for, rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmcheck.config import Located
    from fmcheck.lint.rule import Rule
    from fmcheck.lint.scope.request import Request
    from fmcheck.lint.scope.selection import Selector


class Policy(Struct, frozen=True, eq=False):
    """What one settings file and the command line ask for together.

    `per_file` holds codes that are ignored in the files of a pattern. `notes` say which of the
    ignored rules were removed, and `emptied` where those are ignored that were all selected.
    """

    located: Located
    rules: tuple[Rule, ...]
    codes: Codes
    per_file: Sequence[tuple[Patterns, frozenset[str]]]
    excludes: Excludes
    baseline: Path | None
    notes: Sequence[str] = ()
    emptied: str = ""

    def codes_for(self, path: Path) -> Codes:
        """Returns the codes that the file is checked for."""
        if not self.per_file:
            return self.codes
        whole = os.path.abspath(path)
        ignored = (codes for patterns, codes in self.per_file if patterns.match(whole))
        return Codes(self.codes.known, self.codes.checked.difference(*ignored))


class Job(Struct, frozen=True):
    """One file to lint; `text` is what to read in its place, if the user gave it."""

    path: Path
    policy: Policy
    text: bytes | None = None

    @property
    def codes(self) -> Codes:
        """The codes that this file is checked for."""
        return self.policy.codes_for(self.path)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that this file is checked with."""
        codes = self.codes
        if codes is self.policy.codes:
            return self.policy.rules
        return tuple(rule for rule in self.policy.rules if rule.code in codes.checked)


class LintPlan(Struct, frozen=True):
    """The jobs of a run, and the policy under which each named path stands.

    `outside` are links to files outside of the tree, which are not followed.
    """

    jobs: Sequence[Job]
    policies: Sequence[tuple[Path, Policy]]
    outside: Sequence[Path] = ()


def plan(request: Request) -> LintPlan:
    """Returns what a run has to do.

    Raises:
        UsageError: if a path, an option or the settings do not fit.
    """
    made: dict[Path | None, Policy] = {}
    jobs: dict[Path | str, Job] = {}
    policies: list[tuple[Path, Policy]] = []
    outside: list[Path] = []
    for path in request.paths:
        located = load_settings(request.config) if request.config else find_settings(path)
        if located.origin not in made:
            made[located.origin] = _policy(request, located)
        policy = made[located.origin]
        policies.append((path, policy))
        for file in _files(path, request, policy, outside):
            # A file may be named in two ways only if two paths are given.
            key = os.path.abspath(file) if len(request.paths) > 1 else file
            jobs.setdefault(key, Job(file, policy, request.stdin))
    emptied = [policy.emptied for _, policy in policies]
    if emptied and all(emptied):
        raise UsageError(emptied[0], "expected at least one selected rule to be left, got none")
    return LintPlan(list(jobs.values()), policies, outside)


def _files(path: Path, request: Request, policy: Policy, outside: list[Path]) -> Sequence[Path]:
    if request.stdin is None:
        return list(python_files([path], policy.excludes, outside))
    excludes = policy.excludes
    return [] if excludes.named_too and excludes.cover(os.path.abspath(path)) else [path]


def _policy(request: Request, located: Located) -> Policy:
    settings, known = located.settings, rules()
    selected = _from(request.select, "--select") or _from(settings.select, _key(located, "select"))
    ignored = [*_from(request.ignore, "--ignore"), *_from(settings.ignore, _key(located, "ignore"))]
    checked = select_codes(known, selected, ignored)
    emptied = ""
    # Settings that select nothing may ignore all: a tree in which the linter is switched off.
    if (selected or request.ignore) and checked.isdisjoint(known):
        wanted = select_codes(known, selected, ()) & known.keys()
        at = [one[1] for one in ignored if named_codes(known, [one]) & wanted]
        emptied = " and ".join(dict.fromkeys(at))
    per_file = []
    for pattern, given in settings.per_file_ignores.items():
        key = _key(located, f'per-file-ignores."{pattern}"')
        selectors = _from(given, key)
        folder = os.path.abspath(located.folder)
        per_file.append((Patterns([pattern], folder, key), named_codes(known, selectors)))
        ignored += selectors
    contracts = contracts_for(located)
    baseline = located.folder / settings.baseline if settings.baseline else None
    return Policy(
        located=located,
        rules=tuple(rule(contracts) for code, rule in known.items() if code in checked),
        codes=Codes(frozenset(known), checked),
        per_file=per_file,
        excludes=_excludes(request, located),
        baseline=request.baseline or baseline,
        notes=tuple(removed_rules(ignored)),
        emptied=emptied,
    )


def _excludes(request: Request, located: Located) -> Excludes:
    settings, folder = located.settings, os.path.abspath(located.folder)
    usual = EXCLUDED if settings.exclude is None else settings.exclude
    given = (
        Patterns(usual, folder, _key(located, "exclude")),
        Patterns(settings.extend_exclude, folder, _key(located, "extend-exclude")),
        Patterns(request.exclude, os.getcwd(), "--exclude"),
    )
    return Excludes(
        patterns=tuple(one for one in given if one),
        names=frozenset(EXCLUDED if settings.exclude is None else ()),
        gitignore=settings.respect_gitignore and request.respect_gitignore,
        named_too=request.force_exclude,
    )


def _from(selectors: Sequence[str], where: str) -> list[Selector]:
    return [(selector, where) for selector in selectors]


def _key(located: Located, key: str) -> str:
    return f"{located.origin}: key `{key}`"

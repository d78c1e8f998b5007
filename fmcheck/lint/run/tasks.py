"""From jobs to tasks of the work, and what a run is noted to depend on beside its files."""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.lint.binding import binding, releases_of
from fmcheck.lint.engine import lint_text
from fmcheck.lint.run import stored
from fmcheck.lint.run.work import Task
from fmcheck.registry import contract_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.rule import Rule
    from fmcheck.lint.run.plan import Job, LintPlan
    from fmcheck.lint.run.replay import Inputs
    from fmcheck.lint.scope.selection import Codes
    from fmcheck.lint.source.file import Consulted


def lint_as(job: Job, text: bytes, consulted: Consulted | None = None) -> list[Finding]:
    """Lints `text` as the file of the job would be, suppression comments included.

    `consulted` takes in the files of its package that were looked at for it.
    """
    path = str(job.path)
    # A contract that the settings name binds every file: a fork may have any name.
    has_contracts = bool(job.policy.located.settings.contracts)
    rules = job.rules if has_contracts else binding(job.rules, path, text)
    found = lint_text(text, path, rules, consulted=consulted)
    if b"fmcheck" not in text:
        return found  # there is no such comment
    from fmcheck.lint.run import suppression_comments

    return suppression_comments.apply(text, path, found, job.codes)


def task_for(job: Job) -> Task:
    """Returns the task of a job."""
    way = _way(job.rules, job.codes, releases_of(job.rules, str(job.path)))
    return Task(str(job.path), way, partial(lint_as, job))


@cache
def _way(used: tuple[Rule, ...], codes: Codes, releases: str) -> str:
    """Returns all that findings hang on beside a file's content: long, and one for many files."""
    sources = {source: stored.state_of(source) for rule in used for source in _sources(rule)}
    kinds = [(rule.code, type(rule).__module__) for rule in used]
    contracts = used[0].contracts if used else ()
    around = sorted(codes.known), sorted(codes.checked), sorted(sources.items())
    return repr((os.getcwd(), kinds, contracts, around)) + releases


def note(plan: LintPlan, inputs: Inputs) -> None:
    """Notes all that decided which files are linted with which rules, and what is reported."""
    for path, policy in plan.policies:
        if os.path.isdir(path):
            inputs.note_folder(str(path))
        start = Path(os.path.realpath(path))
        for folder in (start, *start.parents):
            if os.path.isdir(folder):
                for name in ("pyproject.toml", ".gitignore", ".git/info/exclude"):
                    inputs.note_file(str(folder / name))
        located = policy.located
        if located.origin is not None:
            inputs.note_file(str(located.origin))
        for contract in located.settings.contracts:
            inputs.note_file(str(located.folder / contract))
        if policy.baseline is not None:
            inputs.note_file(str(policy.baseline))
        for source in {source for rule in policy.rules for source in _sources(rule)}:
            inputs.note_file(source)
    for file in contract_files().values():
        inputs.note_file(str(file))


def _sources(rule: Rule) -> Iterator[str]:
    """Yields the files of a rule that another package registered, and of what it may import."""
    package = type(rule).__module__.partition(".")[0]
    if package != "fmcheck":
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and getattr(module, "__file__", None):
                yield str(module.__file__)

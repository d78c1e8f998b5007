"""Linting one file as its job says: rules, then suppression comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.engine import lint_file, lint_text
from fmcheck.lint.source import read

if TYPE_CHECKING:
    from fmcheck.finding import Finding
    from fmcheck.lint.plan import Job


def lint_job(job: Job) -> list[Finding]:
    """Returns the findings of the job's file, suppressed ones included."""
    if job.text is not None:
        return lint_as(job, job.text)
    try:
        text = read(job.path)
    except OSError:
        return lint_file(job.path, job.rules)  # which says so
    return lint_as(job, text)


def lint_as(job: Job, text: bytes) -> list[Finding]:
    """Lints `text` as the file of the job would be, suppression comments included."""
    path = str(job.path)
    found = lint_text(text, path, job.rules)
    if b"fmcheck:" not in text:
        return found  # there is no such comment
    from fmcheck.lint import suppressions

    return suppressions.apply(text, path, found, job.codes)

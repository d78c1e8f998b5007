"""What of a run's findings is reported: those on changed lines, less what the baseline allows."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.errors import UsageError
from fmcheck.lint.own import UNCHECKED
from fmcheck.lint.scope.request import Updating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fmcheck.finding import Finding
    from fmcheck.lint.run.baseline import Baseline
    from fmcheck.lint.run.plan import Job, LintPlan
    from fmcheck.lint.scope.changed import Changes
    from fmcheck.lint.scope.request import Request

    #: Gives a file's lines.
    LinesOf = Callable[[str], Sequence[str]]


class Gate:
    """Lets findings through, a file at a time, and closes the books on the baseline at the end."""

    def __init__(self, request: Request, plan: LintPlan) -> None:
        """Reads the baselines and asks git.

        Raises:
            UsageError: if a baseline does not fit, or git cannot tell what changed.
        """
        self._request = request
        self._plan = plan
        self._created: set[Path] = set()
        self._baselines = dict(self._load())
        self._changes = self._changed()
        self._seen: dict[str, frozenset[str]] = {}
        self.allowed = 0

    def _load(self) -> Iterator[tuple[Path, Baseline]]:
        wanted = {policy.baseline for _, policy in self._plan.policies} - {None}
        updating = self._request.updating is not Updating.NONE
        if updating and not wanted:
            is_adding = self._request.updating is Updating.ADD
            raise UsageError(
                "--add-to-baseline" if is_adding else "--update-baseline",
                "expected `--baseline FILE` beside it, or a setting `baseline`",
            )
        if wanted:
            from fmcheck.lint.run.baseline import Baseline  # most runs have none

            for path in wanted:
                assert path is not None
                if updating and not os.path.exists(path):
                    self._created.add(path)
                    yield path, Baseline(path, Counter())
                else:
                    yield path, Baseline.load(path)

    def _changed(self) -> Changes | None:
        if not self._request.since:
            return None
        from fmcheck.lint.scope.changed import Changes

        changes = Changes()
        files = {job.path: job.text for job in self._plan.jobs}
        for path in self._request.paths:
            folder = path if os.path.isdir(path) else path.parent
            changes.add(self._request.since, folder, files)
        return changes

    def wants(self, job: Job) -> bool:
        """Tells whether the file may hold anything to report."""
        return self._changes is None or self._changes.touch(job.path)

    def let_through(
        self, job: Job, findings: Sequence[Finding], lines_of: LinesOf
    ) -> list[Finding]:
        """Returns what is reported of a file's findings."""
        through = list(findings)
        baseline = self._baselines.get(job.policy.baseline) if job.policy.baseline else None
        if baseline is not None:
            if not any(one.code in UNCHECKED for one in findings):
                self._seen[os.path.realpath(job.path)] = job.codes.checked
            through = baseline.take(through, lines_of(str(job.path))) if through else []
            self.allowed += len(findings) - len(through)
        changes = self._changes
        if changes is not None:
            through = [
                one for one in through if one.code in UNCHECKED or changes.hold(one, job.path)
            ]
        return through

    def close(self, reported: dict[Job, list[Finding]], lines_of: LinesOf) -> Closed:
        """Brings the baselines up to date, or tells which entries are gone.

        What a baseline takes in goes out of `reported`; what it cannot, stays.
        """
        closed = Closed()
        for path, baseline in self._baselines.items():
            gone = baseline.gone(self._judges)
            if self._request.updating is Updating.NONE:
                closed.findings += [baseline.finding_for(key, self._command()) for key in gone]
                continue
            out, added = baseline.shrink(gone), 0
            if self._request.updating is Updating.ADD or path in self._created:
                for job, found in reported.items():
                    if job.policy.baseline == path:
                        reported[job] = baseline.add(found, lines_of(str(job.path)))
                        added += len(found) - len(reported[job])
            baseline.save()
            closed.notes.append(f"{path}: {out} removed, {added} added")
        return closed

    def _judges(self, path: str, code: str) -> bool:
        """Tells whether this run would have found `code` in the file, were it there."""
        if os.path.exists(path):
            return code in self._seen.get(os.path.realpath(path), ())
        for named, policy in self._plan.policies:
            whole = os.path.realpath(named)
            if path == whole or path.startswith(os.path.join(whole, "")):
                return code in policy.codes.checked
        return False

    def _command(self) -> str:
        import shlex

        request = self._request
        named = ["--baseline", str(request.baseline)] if request.baseline else []
        command = ["fmcheck", "lint", *named, "--update-baseline"]
        return shlex.join([*command, *(str(path) for path in request.paths)])


class Closed(Struct):
    """What there is to say of the baselines: entries that are gone, and what was written."""

    findings: list[Finding] = []
    notes: list[str] = []

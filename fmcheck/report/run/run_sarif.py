"""A run's violations as SARIF 2.1.0: each at its line of code, with what led to it."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from fmcheck.finding import Severity
from fmcheck.report import sarif
from fmcheck.report.repository import path_in, repository
from fmcheck.report.run.by_check import ADVISORY, FAILS, by_site, sorted_kinds
from fmcheck.report.run.checks import rule_info
from fmcheck.report.run.excerpts import Sources
from fmcheck.report.run.timeline import timeline
from fmcheck.report.run.violation import MISSING, headline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.finding import Site, Violation
    from fmcheck.record.record import Run
    from fmcheck.report.run.timeline import Mark

_SEVERITY = {FAILS: Severity.ERROR, ADVISORY: Severity.NOTE}
#: Changes when the way does in which a fingerprint is made.
FINGERPRINT = "fmcheckSite/v1"


def render(run: Run) -> str:
    """Returns one SARIF log with one run."""
    return sarif.log(violations_run(run))


def violations_run(run: Run) -> dict[str, Any]:
    """Returns the run-time checks' run of a log.

    What a test expects or allows is left out: it is no news to anybody. Paths are shown from the
    repository that the run's root is in, as code scanning wants them.
    """
    shown = [
        (kind, found)
        for kind, several in sorted_kinds(run)
        if kind in _SEVERITY
        for found in by_site(several)
    ]
    infos = {found[0].code: (found[0].name, _SEVERITY[kind]) for kind, found in reversed(shown)}
    codes = sorted(infos)
    writer = _Writer(repository(run.root), codes)
    return sarif.run(
        run.version,
        [rule_info(code, *infos[code]) for code in codes],
        [writer.result(kind, found) for kind, found in shown],
        complete=not (run.problems or run.coverage.fails_unchecked),
    )


class _Writer:
    """Makes the results of one run; `root` is where relative paths start."""

    def __init__(self, root: str, codes: Sequence[str]) -> None:
        self._root = root
        self._codes = codes
        self._sources = Sources()
        self._seen: Counter[str] = Counter()

    def result(self, kind: str, found: Sequence[Violation]) -> dict[str, Any]:
        one = found[0]
        times = sum(each.count for each in found)
        tests = [each.test for each in found if each.test]
        result: dict[str, Any] = {
            "ruleId": one.code,
            "ruleIndex": self._codes.index(one.code),
            "level": sarif.LEVELS[_SEVERITY[kind]],
            "message": {"text": _message(one, tests)},
            "occurrenceCount": times,
            "locations": [self._location(one.access.site)],
            "partialFingerprints": {FINGERPRINT: self._fingerprint(one)},
            "stacks": [self._stack(one)],
            "codeFlows": [self._flow(one)],
            "properties": _properties(one, tests),
        }
        related = [(label, access.site) for label, access in one.related]
        if related:
            result["relatedLocations"] = [
                {"id": number, **self._location(site), "message": {"text": label}}
                for number, (label, site) in enumerate(related)
            ]
        return result

    def _location(self, site: Site) -> dict[str, Any]:
        return {
            "physicalLocation": {
                "artifactLocation": sarif.artifact_of(path_in(self._root, site.path)),
                "region": {"startLine": max(site.line, 1)},
            },
            "logicalLocations": [{"fullyQualifiedName": site.function, "kind": "function"}],
        }

    def _stack(self, one: Violation) -> dict[str, Any]:
        frames = []
        site: Site | None = one.access.site
        while site is not None:
            frames.append({"location": self._location(site)})
            site = site.caller
        return {"message": {"text": f"the {one.access.verb}"}, "frames": frames}

    def _flow(self, one: Violation) -> dict[str, Any]:
        """Returns what led to it, a thread flow a stream; the order of all is `executionOrder`."""
        line = timeline(one)
        marks = list(enumerate(line.marks, 1))
        flows = [
            {
                "id": lane,
                "locations": [
                    self._step(order, mark) for order, mark in marks if mark.event.stream == lane
                ],
            }
            for lane in line.lanes
        ]
        return {"message": {"text": "what led to it"}, "threadFlows": flows}

    def _step(self, order: int, mark: Mark) -> dict[str, Any]:
        event = mark.event
        text = f"no {event.what}" if mark.kind == "missing" else event.what
        if event.step is not None:
            text += f", step {event.step}"
        place = self._location(event.site) if event.site else {}
        return {
            "executionOrder": order,
            "importance": "essential" if mark.kind else "important",
            "location": {**place, "message": {"text": text}},
        }

    def _fingerprint(self, one: Violation) -> str:
        """Returns what recognises it when lines above have moved, made unique by a count."""
        site = one.access.site
        line = " ".join(self._sources.line(site).split())
        path = self._location(site)["physicalLocation"]["artifactLocation"]["uri"]
        identity = "\n".join((one.code, one.buffer, path, site.function, line))
        digits = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._seen[digits] += 1
        return f"{digits}:{self._seen[digits]}"


def _message(one: Violation, tests: Sequence[str]) -> str:
    missing = one.missing or MISSING.get(one.code, "")
    lines = [headline(one).removeprefix("FMCHECK: ")]
    if missing:
        lines.append(f"Missing: {missing}.")
    if tests:
        more = f" and {len(tests) - 1:,} more" if len(tests) > 1 else ""
        lines.append(f"Test: {tests[0]}{more}.")
    return "\n".join(lines)


def _properties(one: Violation, tests: Sequence[str]) -> dict[str, Any]:
    return {
        "buffer": one.buffer,
        "rows": list(one.rows),
        "device": one.device,
        "tests": list(tests[:20]),
    }

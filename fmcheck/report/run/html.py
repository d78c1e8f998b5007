"""A run as one page of HTML, which asks for nothing outside of itself."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.report.printable import printable
from fmcheck.report.run.by_check import by_check, sorted_kinds
from fmcheck.report.run.checks import meaning
from fmcheck.report.run.closing import checked, endings, gaps, not_watched
from fmcheck.report.run.excerpts import Excerpt, Sources
from fmcheck.report.run.picture import HEADS, picture
from fmcheck.report.run.timeline import as_text, shortened, timeline
from fmcheck.report.run.violation import MISSING, headline, key_values, short_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jinja2 import Environment

    from fmcheck.finding import Access, Violation
    from fmcheck.record.record import Run

#: A picture shows the last events, which is where the fault is; the record has them all.
MOST_EVENTS = 40
#: A finding that many tests met names the first of them.
MOST_TESTS = 200


@dataclass(frozen=True, slots=True)
class ShownAccess:
    """One access of a violation: what it was, where, and the code there.

    `same` tells that the code is shown already, for an earlier access at the same line.
    """

    label: str
    where: str
    caller: str
    facts: tuple[str, ...]
    excerpt: Excerpt
    same: bool


@dataclass(frozen=True, slots=True)
class PageEntry:
    """What the page tells of all violations of one kind, check, buffer and code site.

    `violation` is the one that was met first; `tests` are all that met it, each with how often.
    """

    name: str
    kind: str
    violation: Violation
    headline: str
    site: str
    meaning: str
    missing: str
    places: tuple[ShownAccess, ...]
    tests: tuple[tuple[str, int], ...]
    more_tests: int
    times: int
    picture: str
    events: tuple[str, ...]
    cut: int
    line: str


def render(run: Run) -> str:
    """Returns the page. Code is read from the files that the sites name, as they are now."""
    sources = Sources()
    root = Path(run.root)
    entries = [_entry(kind, found, sources, root) for kind, found in _grouped(run)]
    style, script = _resource("run.css"), _resource("run.js")
    page: str = (
        _environment()
        .get_template("run.html")
        .render(
            run=run,
            problems=not_watched(run),
            status=_status(run),
            lines=by_check(run),
            short=lambda path: short_path(path, root),
            checked=checked(run.coverage.counts),
            gaps=[*endings(run.processes), *gaps(run.coverage)],
            began=time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(run.started)),
            seconds=run.ended - run.started,
            entries=entries,
            codes=sorted({(one.violation.code, one.violation.name) for one in entries}),
            buffers=sorted({one.violation.buffer for one in entries}),
            tests=sorted({test for one in entries for test, _ in one.tests}),
            heads=HEADS,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )
    return page


def _grouped(run: Run) -> Iterable[tuple[str, Sequence[Violation]]]:
    """Yields violations of one kind and key together, in the order of the table by check."""
    order = [(line.kind, line.code) for line in by_check(run)]
    groups: dict[tuple[str, object], list[Violation]] = {}
    for kind, found in sorted_kinds(run):
        for one in found:
            groups.setdefault((kind, one.key), []).append(one)
    for (kind, _), found in sorted(
        groups.items(), key=lambda one: order.index((one[0][0], one[1][0].code))
    ):
        yield kind, found


def _entry(kind: str, found: Sequence[Violation], sources: Sources, root: Path) -> PageEntry:
    first = found[0]
    name = f"f{_digits(kind, first)}"
    whole = timeline(first)
    line = shortened(whole, MOST_EVENTS)
    tests: dict[str, int] = {}
    for one in found:
        tests[one.test] = tests.get(one.test, 0) + one.count
    sites = [short_path(one.event.site.path, root) if one.event.site else "" for one in line.marks]
    events = [
        f"{path}:{mark.event.site.line}" if mark.event.site else ""
        for path, mark in zip(sites, line.marks, strict=True)
    ]
    return PageEntry(
        name=name,
        kind=kind,
        violation=first,
        headline=headline(first).removeprefix("FMCHECK: "),
        site=f"{short_path(first.access.site.path, root)}:{first.access.site.line}",
        meaning=meaning(first.code),
        missing=first.missing or MISSING.get(first.code, ""),
        places=tuple(_places(first, sources, root)),
        tests=tuple(tests.items())[:MOST_TESTS],
        more_tests=max(len(tests) - MOST_TESTS, 0),
        times=sum(tests.values()),
        picture=picture(line, "what led to it; described as text below"),
        events=tuple(as_text(line, events)),
        cut=len(whole.marks) - len(line.marks),
        line=key_values(first, root),
    )


def _digits(kind: str, one: Violation) -> str:
    """Returns a name by which a link finds the entry again in the page of another run."""
    site = one.access.site
    facts = (kind, one.code, one.buffer, os.path.basename(site.path), site.function, str(site.line))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:10]


def _places(one: Violation, sources: Sources, root: Path) -> Iterable[ShownAccess]:
    shown = set()
    for label, access in ((one.access.verb, one.access), *one.related):
        place = (access.site.path, access.site.line)
        yield _place(label, access, sources, root, same=place in shown)
        shown.add(place)


def _place(label: str, access: Access, sources: Sources, root: Path, *, same: bool) -> ShownAccess:
    site = access.site
    caller = site.caller
    facts = (
        ("step", access.step),
        ("stream", access.stream),
        ("owner", access.owner),
        ("generation", access.generation),
    )
    return ShownAccess(
        label=label,
        where=f"{short_path(site.path, root)}:{site.line} in {site.function}",
        caller=f"{short_path(caller.path, root)}:{caller.line}" if caller else "",
        facts=tuple(f"{name} {value}" for name, value in facts if value not in (None, "")),
        excerpt=sources.excerpt(site),
        same=same,
    )


def _status(run: Run) -> tuple[str, str]:
    """Returns how the run is to be taken, as a word for the style and one for the reader."""
    if run.violations:
        return "fails", "Violations found"
    if run.problems:
        return "fails", "Not everything was watched"
    counts = run.coverage.counts
    if run.coverage.fails_unchecked:
        return "fails", "Nothing was checked"
    if not counts.writes + counts.gathers + counts.peeks + counts.tails + counts.allocations:
        return "advisory", "Nothing was checked"
    return "clean", "No violation found"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _resource(name: str) -> str:
    return resources.files("fmcheck.report.run").joinpath("page", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        loader=DictLoader({"run.html": _resource("run.html.j2")}),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    # Markup is ours; a plain text may come from the engine, its tests or its file names.
    environment.finalize = lambda value: (
        printable(value, keep="\t\n") if type(value) is str else value
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["plural"] = _plural
    environment.filters["meaning"] = meaning
    return environment


def _plural(number: int, noun: str) -> Any:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

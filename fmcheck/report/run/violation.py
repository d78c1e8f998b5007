"""Violations as text: one greppable first line, the story, one frozen line for programs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.report.headline import MOST, fitted
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.finding import Access, Neighbour, Site, Violation


#: What would have made it right, by check.
MISSING = {
    "FR101": "a write of these rows before the gather",
    "FR102": "a write of these rows between the last read and this gather",
    "FR103": "a gather of these rows between the last write and this one",
    "FR104": "a write of these rows by their new owner before this gather",
    "FR105": "a write of a value that the contract calls valid",
    "FR106": "a pool whose free rows exclude the sink",
    "FR107": "a free of these rows before they are allocated again",
    "FR108": "an allocation of these rows between the two frees",
    "FR109": "an owner of these rows when they are written",
    "FR110": "each row once, or the same value for it each time",
    "FR111": "a use of the row for the request that holds it",
    "FR201": "a reset of the tail between the last replay and this one",
    "FR202": "the value that the placeholder is for, before the replay",
    "FR203": "a write of the input's real rows since the last replay",
    "FR204": "a reset of the sink row after whatever wrote it last",
    "FR301": "one device for the buffer, its rows and its values",
    "FR401": "a fence between the two streams",
    "FR402": "`record_stream`, an owner, or a join before the memory is freed",
    "FR403": "a host wait before the host writes what a copy reads or fills, or a fresh buffer",
    "FR404": "a host wait for the copy before the host reads its target",
    "FR405": "a record of the event since the last step that waited for it",
    "FR501": "a value the host already has, or a copy it waits for one step later",
    "FR502": "one fused or captured launch in place of several",
    "FR601": "a copy into the captured tensor, or a new capture",
    "FR602": "a message in the assert: torch.compile deletes an async assert that has none",
    "FR603": "a copy of the output before the next replay",
    "FR701": "a write of all that is read, or a mask over what is unwritten",
}
#: The keys of the line for programs, in its order. New ones are added at the end, none is removed.
KEYS = (
    *("rule", "buf", "rows", "row_count", "site", "count", "device", "pid"),
    *("step", "stream", "owner", "generation", "test"),
)
ABSENT = "-"
#: Of these, the last accesses of the row are the story.
_LIFE_OF_A_ROW = frozenset({"FR101", "FR102", "FR103", "FR104", "FR105", "FR109", "FR110", "FR204"})
# Where no other stream has a part in the story, these tell nothing.
_PLAIN_STREAMS = frozenset({"", "cpu", "default stream"})


def render(violation: Violation, root: Path) -> str:
    """Returns the whole report of one violation; paths below `root` are shown relative to it.

    What the violation does not say has no line, but for the last accesses of a row: that nobody
    wrote it is the story.
    """
    first = headline(violation)
    whole = [] if printable(violation.buffer) in first else [_labelled("buffer", violation.buffer)]
    return "\n".join([first, *whole, *_story(violation, root), key_values(violation, root)])


def render_all(violations: Iterable[Violation], root: Path) -> str:
    """Returns the reports of several violations, an empty line between them."""
    return "\n\n".join(render(violation, root) for violation in violations)


def headline(violation: Violation) -> str:
    """Returns the first line: check, buffer, rows."""
    line = _headline(violation, len(violation.rows))
    # Which rows these are, the line for programs says as well.
    for shown in range(len(violation.rows) - 1, 0, -1):
        if len(line) > MOST:
            line = _headline(violation, shown)
    return fitted(line)


def _headline(violation: Violation, shown: int) -> str:
    line = f"FMCHECK: {violation.code} {violation.name} in {violation.buffer} "
    return printable((line + _rows(violation, shown)).rstrip())


def key_values(violation: Violation, root: Path) -> str:
    """Returns the last line, whose keys and order are promised to programs: see `KEYS`.

    What is unknown is `-`. A value with a space or a quote in it is a JSON string.
    """
    access = violation.access
    generation = "" if access.generation is None else str(access.generation)
    values = (
        *(violation.code, violation.buffer, ",".join(str(row) for row in violation.rows)),
        *(str(violation.row_count), f"{short_path(access.site.path, root)}:{access.site.line}"),
        *(str(violation.count), violation.device, str(violation.pid)),
        *("" if access.step is None else str(access.step), access.stream),
        *(violation.owner or access.owner, generation, violation.test),
    )
    pairs = zip(KEYS, values, strict=True)
    return "fmcheck violation: " + " ".join(f"{key}={_value(value)}" for key, value in pairs)


def short_path(path: str, root: Path) -> str:
    """Returns a path as a reader wants it: relative to the project, or from site-packages on."""
    path = os.path.normpath(path)
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = path.rpartition(f"/{folder}/")
        if found:
            return rest
    try:
        return str(Path(path).relative_to(root))
    except ValueError:
        return path


def _story(violation: Violation, root: Path) -> Iterator[str]:
    story = (violation.access, violation.last_write, violation.last_read)
    alone = {one.stream for one in story if one is not None} <= _PLAIN_STREAMS
    yield _labelled(violation.access.verb, _access(violation.access, root, alone))
    if violation.values:
        yield f"    values    {printable(_values(violation))}"
    if violation.expected:
        yield f"    expected  {printable(violation.expected)}"
    for label, access in violation.story:
        if access is not None:
            yield _labelled(label, _access(access, root, alone))
        elif violation.code in _LIFE_OF_A_ROW and label in ("last write", "last read"):
            yield _labelled(label, "none")
    if violation.owner or violation.previous_owner:
        yield _labelled("owner", _owners(violation))
    if violation.neighbours:
        near = " | ".join(_near(violation, one) for one in violation.neighbours)
        yield _labelled("nearby", near)
    yield _labelled("missing", violation.missing or MISSING[violation.code])
    if violation.confidence:
        yield _labelled("confidence", violation.confidence)
    for note in violation.notes:
        yield _labelled("note", note)
    yield _labelled("test", violation.test or "none: outside of any test")
    if violation.count > 1:
        yield f"  seen {violation.count} times; first shown"


def _labelled(label: str, text: str) -> str:
    return f"  {label:<10}  {printable(text)}"


def _site(site: Site, root: Path) -> str:
    text = f"{short_path(site.path, root)}:{site.line} in {site.function}"
    if site.caller is None:
        return text
    return f"{text}, called at {short_path(site.caller.path, root)}:{site.caller.line}"


def _access(access: Access, root: Path, alone: bool) -> str:
    details = [_site(access.site, root)]
    if access.step is not None:
        details.append(f"step {access.step}")
    if not alone and access.stream:
        details.append(f"stream {access.stream}")
    if access.owner:
        details.append(f"owner {access.owner}")
    if access.generation is not None:
        details.append(f"generation {access.generation}")
    return ", ".join(details)


def _owners(violation: Violation) -> str:
    now = violation.owner or "none"
    return now + (f", before: {violation.previous_owner}" if violation.previous_owner else "")


def _near(violation: Violation, neighbour: Neighbour) -> str:
    parts = (str(neighbour.row), neighbour.state, neighbour.value)
    text = " ".join(part for part in parts if part)
    if neighbour.owner:
        text += f" ({neighbour.owner})"
    return text + (" <-" if neighbour.row in violation.rows else "")


def _rows(violation: Violation, most: int) -> str:
    """Returns which rows it is, the first few of them."""
    if not violation.row_count:
        return ""
    shown = ", ".join(str(row) for row in violation.rows[:most])
    more = violation.row_count - len(violation.rows[:most])
    if violation.row_count == 1:
        return f"row {shown}"
    return f"rows {shown}" + (f" and {more} more" if more else "")


def _values(violation: Violation) -> str:
    more = violation.row_count - len(violation.values)
    return ", ".join(violation.values) + (f" and {more} more" if more > 0 else "")


def _value(text: str) -> str:
    if not text:
        return ABSENT
    is_plain = re.fullmatch(r'[^\s"]+', text) and printable(text) == text
    return text if is_plain else json.dumps(text)

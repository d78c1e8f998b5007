"""What was found: the words that the linter, the pytest plugin and the reports share."""

from __future__ import annotations

import enum
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The run-time checks, by code.
CHECKS = {
    "FR101": "read-before-write",
    "FR102": "double-read",
    "FR103": "lost-write",
    "FR104": "stale-owner",
    "FR105": "invalid-value",
    "FR106": "sink-handed-out",
    "FR107": "row-still-held",
    "FR108": "row-freed-twice",
    "FR109": "unowned-write",
    "FR110": "row-written-twice",
    "FR111": "wrong-owner",
    "FR201": "stale-tail",
    "FR202": "invalid-head",
    "FR203": "unwritten-head",
    "FR204": "sink-content",
    "FR301": "wrong-device",
    "FR401": "stream-race",
    "FR402": "use-after-reuse",
    "FR403": "pinned-overwrite",
    "FR404": "early-host-read",
    "FR405": "stale-event",
    "FR501": "host-sync",
    "FR502": "launch-budget",
    "FR601": "capture-identity",
    "FR602": "dead-assert",
    "FR603": "overwritten-output",
    "FR701": "uninitialized-value",
}
#: Advisory checks: they are reported and fail no run, unless the settings' `fail-on` names them.
ADVISORY = frozenset({"FR602"})
#: Checks that are advisories only where untracked code may have made it right; `fail-on` may name
#: them too.
SOMETIMES_ADVISORY = frozenset({"FR401", "FR402", "FR403", "FR404", "FR405", "FR501"})


class Severity(str, enum.Enum):
    """How sure and how bad: `note` never fails a run, `warning` and `error` do."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Span(Struct, frozen=True, order=True):
    """A stretch of source text: lines and columns count from 1, the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Edit(Struct, frozen=True):
    """Replaces the text of `span` by `text`."""

    span: Span
    text: str


class Finding(Struct, frozen=True):
    """One diagnostic of the linter at one place in one file.

    `message` is its headline: what is wrong, in a line; `note` says what else there is to know.
    `help` is the way out, in a sentence. `related` names other places that explain the finding.
    `edits` are its fix, made all or none; one that is not `safe` may change what the program does.
    `suppressed` is the reason of the comment that suppresses it, "" where none does.
    """

    path: str
    span: Span
    code: str
    severity: Severity
    message: str
    help: str = ""
    related: tuple[tuple[Span, str], ...] = ()
    edits: tuple[Edit, ...] = ()
    safe: bool = True
    suppressed: str = ""
    note: str = ""

    @property
    def whole(self) -> str:
        """Returns headline and note in one, for formats that have one field for both."""
        return f"{self.message}; {self.note}" if self.note else self.message

    @property
    def sort_key(self) -> tuple[str, Span, str]:
        """Orders findings as a reader walks the tree: by file, place, code."""
        return (self.path, self.span, self.code)

    def fingerprint(self, lines: Sequence[str]) -> str:
        """Returns 16 hexadecimal digits for the text of its first line, white space aside.

        They recognise the finding when lines above it have moved. `lines` are the file's; a line
        that it has not is empty.
        """
        number = self.span.line
        return _digits(lines[number - 1] if number <= len(lines) else "")


@lru_cache(maxsize=8)  # many findings of one line that is megabytes long
def _digits(line: str) -> str:
    import hashlib  # a run that writes text needs none

    text = " ".join(line.split())
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


class RuleInfo(Struct, frozen=True):
    """What reports tell of a code: `summary` is one sentence, `page` the whole, in Markdown."""

    code: str
    name: str
    severity: Severity
    summary: str
    page: str


class Site(Struct, frozen=True, eq=False):
    """A line of code that touched a relay buffer: `path:line` in `function`.

    `caller` is where that function was called; two sites are the same one whoever called.
    """

    path: str
    line: int
    function: str
    caller: Site | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self._own == other._own

    def __hash__(self) -> int:
        return hash(self._own)

    @property
    def _own(self) -> tuple[str, int, str]:
        return self.path, self.line, self.function

    @property
    def short(self) -> str:
        """The line by the name of its file alone, `file.py:12`."""
        return f"{PurePath(self.path).name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


class Access(Struct, frozen=True):
    """One touch of a row: `verb` is `gather`, `write`, `fill` or what else the check looks at.

    `step` counts the engine's iterations, None where the contract names no step function; `stream`
    names the stream that was current; `owner` and `generation` are those of the row at that time.
    """

    verb: str
    site: Site
    step: int | None = None
    stream: str = ""
    owner: str = ""
    generation: int | None = None


class Neighbour(Struct, frozen=True):
    """A row beside the one in question: its state, its value as text, and its owner."""

    row: int
    state: str
    value: str
    owner: str = ""


class Event(Struct, frozen=True):
    """One thing that happened on a stream, for the picture of what led to a violation.

    `stream` names the lane, `host` for the host's own. `what` is `write`, `gather`, `peek`, `copy`,
    `record`, `wait`, `synchronize`, `alloc` or `free`. `number` counts the events of the process,
    in the order in which they were issued; `after` is the number of the record that a wait met,
    None for all else. `ordered` is False for the event that nothing ordered. `about` names what was
    touched.
    """

    number: int
    stream: str
    what: str
    site: Site | None = None
    step: int | None = None
    after: int | None = None
    ordered: bool = True
    about: str = ""


class Violation(Struct, frozen=True):
    """What must not be, at one site in one buffer: a gather of what nobody may use, a stale tail.

    `rows` and `values` run side by side and hold the first few; `row_count` is how many there were.
    `last_write` and `last_read` tell the story of the first row, `owner` and `previous_owner` whose
    it is and was, `neighbours` what stands around it. `expected` says what would have been right,
    `missing` what has to be added, where that is not the same for each violation of a check, and
    `notes` are further sentences. `count` is how often it happened. `history` is what led to it on
    each stream, oldest first. `confidence` is `incomplete` where something out of sight may have
    made it right, and "" elsewhere. `allocated` is where memory came from that was never written,
    and `passed` are the first operators that took its values on, the view that was read, what
    replays the graph, or what uses the row.
    """

    code: str
    name: str
    buffer: str
    access: Access
    test: str
    device: str
    pid: int
    rows: tuple[int, ...] = ()
    row_count: int = 0
    values: tuple[str, ...] = ()
    last_write: Access | None = None
    last_read: Access | None = None
    count: int = 1
    owner: str = ""
    previous_owner: str = ""
    neighbours: tuple[Neighbour, ...] = ()
    expected: str = ""
    notes: tuple[str, ...] = ()
    missing: str = ""
    history: tuple[Event, ...] = ()
    confidence: str = ""
    allocated: Access | None = None
    passed: tuple[Access, ...] = ()

    @property
    def key(self) -> tuple[str, str, Site]:
        """What makes two violations the same one: check, buffer and code site."""
        return (self.code, self.buffer, self.access.site)

    @property
    def story(self) -> Sequence[tuple[str, Access | None]]:
        """What went before, in the order in which it is shown, each by what it is called."""
        return (
            ("last write", self.last_write),
            ("last read", self.last_read),
            ("allocated", self.allocated),
            *((f"via {one.verb}", one) for one in self.passed),
        )

    @property
    def related(self) -> list[tuple[str, Access]]:
        """Those accesses of the story that there were."""
        return [(label, access) for label, access in self.story if access is not None]

    def seen_again(self) -> Violation:
        """Returns this violation with a count that is one higher."""
        return replace(self, count=self.count + 1)


class Counts(Struct, frozen=True):
    """What a run checked, in calls: how many writes, gathers and peeks of how many buffers.

    `unchecked` are calls made while a stream was capturing; `unseen_writes` are rows that held a
    value which no write that we saw had put there. `tails` are padded tails of graph inputs.
    `allocations` are tensors that were made without values, and are followed until they have some.
    """

    buffers: int = 0
    writes: int = 0
    gathers: int = 0
    peeks: int = 0
    unchecked: int = 0
    unseen_writes: int = 0
    tails: int = 0
    allocations: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            *(getattr(self, one) + getattr(other, one) for one in Counts.__struct_fields__)
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            *(getattr(self, one) - getattr(other, one) for one in Counts.__struct_fields__)
        )


class ContractUse(Struct, frozen=True):
    """How far a run came to use one contract that says something of running code.

    `name` is the engine's, `source` what the settings call the contract by; a `shipped` one came
    with a package and was not written for this project. `packages` are those that it names modules
    of; `imported` tells that one of them was imported, `checked` that something the contract
    declares was put to the test. `missing` holds sentences on what was not found or not used.
    `allowed` tells that the run may check nothing of it.
    """

    name: str
    source: str = ""
    shipped: bool = False
    packages: tuple[str, ...] = ()
    imported: bool = False
    checked: bool = False
    missing: tuple[str, ...] = ()
    allowed: bool = False

    @property
    def applied(self) -> bool:
        """Tells whether the contract is about this run: one for another engine is not."""
        return self.imported or not self.shipped

    def __add__(self, other: ContractUse) -> ContractUse:
        return replace(
            self,
            imported=self.imported or other.imported,
            checked=self.checked or other.checked,
            missing=_union(self.missing, other.missing),
            allowed=self.allowed and other.allowed,
        )


class Coverage(Struct, frozen=True):
    """What the watch of one or more processes reached, and why it could not reach more.

    `declared`, `imported` and `touched` hold relay classes that the contracts name, the first two
    without the optional ones;
    `problems` are complete sentences, each of which fails the session; `notes` fail nothing and
    tell what went on out of sight. `warnings` counts the violations that fail nothing, `suppressed`
    those that the settings' suppressions took, each time again; `matched` and `unmatched` hold the
    suppressions, as text, that took something and those that took nothing. `untracked` holds what
    stopped being followed: a plural noun, the reason, and how many. `incomplete` holds a sentence
    for each check that failed itself, and says nothing reliable from then on. `uses` tells of
    each contract how far it came to be used.
    """

    counts: Counts = Counts()
    violations: int = 0
    declared: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: int = 0
    suppressed: int = 0
    matched: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    untracked: tuple[tuple[str, str, int], ...] = ()
    incomplete: tuple[str, ...] = ()
    uses: tuple[ContractUse, ...] = ()

    @property
    def unchecked(self) -> tuple[ContractUse, ...]:
        """The contracts that this run is about, and of which it checked nothing."""
        return tuple(use for use in self.uses if use.applied and not use.checked)

    @property
    def fails_unchecked(self) -> bool:
        """Tells whether one of those fails the run."""
        return any(not use.allowed for use in self.unchecked)

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            counts=self.counts + other.counts,
            violations=self.violations + other.violations,
            declared=_union(self.declared, other.declared),
            imported=_union(self.imported, other.imported),
            touched=_union(self.touched, other.touched),
            problems=_union(self.problems, other.problems),
            notes=_union(self.notes, other.notes),
            warnings=self.warnings + other.warnings,
            suppressed=self.suppressed + other.suppressed,
            matched=(matched := _union(self.matched, other.matched)),
            unmatched=tuple(
                one for one in _union(self.unmatched, other.unmatched) if one not in matched
            ),
            untracked=_summed(self.untracked, other.untracked),
            incomplete=_union(self.incomplete, other.incomplete),
            uses=_used(self.uses, other.uses),
        )


def _summed(*parts: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    counts: dict[tuple[str, str], int] = {}
    for what, reason, count in (entry for part in parts for entry in part):
        counts[what, reason] = counts.get((what, reason), 0) + count
    return tuple((*key, count) for key, count in counts.items())


def _used(*parts: tuple[ContractUse, ...]) -> tuple[ContractUse, ...]:
    uses: dict[str, ContractUse] = {}
    for use in (use for part in parts for use in part):
        uses[use.name] = uses[use.name] + use if use.name in uses else use
    return tuple(uses.values())


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))

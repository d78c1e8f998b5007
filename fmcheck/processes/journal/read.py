"""Reading: what the processes of a run wrote, while they write it and after they are gone."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fmcheck.files.reading import open_regular
from fmcheck.finding import ContractUse, Counts, Coverage
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.layout import (
    Begun,
    Board,
    Ended,
    Fact,
    Goodbye,
    Head,
    Incomplete,
    Line,
    Reaped,
    Reported,
    Role,
    SessionLine,
    StartLine,
    Untracked,
    UseLine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_decode = msgspec.json.Decoder(Line).decode
_decode_start = msgspec.json.Decoder(StartLine).decode


@dataclass(eq=False)
class Phase:
    """A phase of a test, as its pytest process stamped it; `ended` None if it never did."""

    test: str
    when: str
    begun: int
    ended: int | None = None


@dataclass(eq=False)
class Pages:
    """One process's journal, read as far as it has been written.

    `board` names the journal of the pytest process whose tests it works for. `reported` are its
    violations in order, `facts` its sentences and names by their kind. `untracked` counts what it
    did not follow, by what it was and why; `incomplete` holds a sentence for each check that failed
    itself, and `uses` how far each contract was used. Only a pytest process has a `session`, and
    the `phases` of the tests that it ran. `damaged` counts lines that are none, `why_unread` says
    why the file could not be read.
    """

    folder: str
    name: str
    head: Head | None = None
    session: SessionLine | None = None
    role: str = ""
    board: str = ""
    reported: list[Reported] = field(default_factory=list)
    facts: dict[str, list[str]] = field(default_factory=dict)
    untracked: dict[tuple[str, str], int] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)
    uses: dict[str, ContractUse] = field(default_factory=dict)
    phases: dict[int, Phase] = field(default_factory=dict)
    reaped: list[Reaped] = field(default_factory=list)
    goodbye: Goodbye | None = None
    damaged: int = 0
    why_unread: str = ""
    _offset: int = 0
    _committed: int = 0
    _words: memoryview | None = None

    def read(self, whole: bool = True) -> bool:
        """Reads on; tells whether there was anything new.

        Without `whole`, a look at the count of lines saves opening the file.
        """
        committed = self.word(layout.COMMITTED)
        if not whole and committed == self._committed:
            return False
        self._committed = committed
        try:
            with open_regular(os.path.join(self.folder, self.name + layout.LINES)) as file:
                file.seek(self._offset)
                text = file.read()
        except OSError as err:
            self.why_unread = err.strerror or str(err)
            return False
        self.why_unread = ""
        end = text.rfind(b"\n") + 1
        self._offset += end
        for line in text[:end].splitlines():
            try:
                self._take(_decode(line))
            except msgspec.DecodeError:
                self.damaged += 1
        return bool(end)

    def _take(self, line: Line) -> None:
        if isinstance(line, Reported):
            self.reported.append(line)
        elif isinstance(line, Begun):
            self.phases[line.phase] = Phase(line.test, line.when, line.clock)
        elif isinstance(line, Ended):
            if line.phase in self.phases:
                self.phases[line.phase].ended = line.clock
        elif isinstance(line, Fact):
            self.facts.setdefault(line.kind, []).append(line.text)
        elif isinstance(line, Untracked):
            self.untracked[line.what, line.reason] = line.count
        elif isinstance(line, Incomplete):
            self.incomplete[line.check] = line.sentence
        elif isinstance(line, UseLine):
            self.uses[line.use.name] = line.use
        elif isinstance(line, Head):
            self.head, self.role, self.board = line, line.role, line.board
        elif isinstance(line, Board):
            self.board = line.name
        elif isinstance(line, Role):
            self.role = line.role
        elif isinstance(line, SessionLine):
            self.session = line
        elif isinstance(line, Reaped):
            self.reaped.append(line)
        else:
            self.goodbye = line

    def word(self, place: int) -> int:
        """Returns a word of the ring, 0 where there is none."""
        if self._words is None:
            self._words = mapped(os.path.join(self.folder, self.name))
        return 0 if self._words is None else self._words[place]

    @property
    def counts(self) -> Counts:
        """What it counted up to now, or up to its end."""
        return Counts(*(self.word(layout.COUNTS + n) for n in range(len(Counts.__struct_fields__))))

    def owes(self, question: int) -> bool:
        """Tells whether it keeps findings on a device, and has not read them since a question."""
        return bool(self.word(layout.ON_DEVICE)) and self.word(layout.ANSWERED) < question

    def seen(self, reported: Reported) -> int:
        """Returns how often a violation was seen in its phase."""
        return max(1, self.word(layout.SLOTS + reported.slot))

    @property
    def coverage(self) -> Coverage:
        """What it reached, as far as it came to say it."""
        named = {kind: tuple(texts) for kind, texts in self.facts.items()}
        failing = {one.violation.key for one in self.reported if not one.advice}
        advice = {one.violation.key for one in self.reported if one.advice}
        return Coverage(
            counts=self.counts,
            violations=len(failing),
            imported=named.get("imported", ()),
            touched=named.get("touched", ()),
            problems=(*named.get("problems", ()), *self._lost()),
            notes=self.goodbye.notes if self.goodbye else named.get("notes", ()),
            warnings=len(advice),
            suppressed=self.word(layout.SUPPRESSED),
            matched=named.get("matched", ()),
            untracked=tuple((*key, count) for key, count in self.untracked.items()),
            incomplete=tuple(self.incomplete.values()),
            uses=tuple(self.uses.values()),
        )

    @property
    def is_board(self) -> bool:
        """Tells whether this is a pytest process, which stamps tests and reports for itself."""
        return self.board == self.name

    def _lost(self) -> Iterator[str]:
        lost = self.word(layout.LOST) + self.damaged
        if lost:
            yield f"journal {self.name}: {lost} lines could not be written or read"


def mapped(path: str) -> memoryview | None:
    """Maps the ring of a journal to be read, None where there is none."""
    try:
        with open_regular(path + layout.RING) as file:
            words = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    if len(words) < layout.SIZE:
        return None
    return words.cast("Q")


class Library:
    """All journals of one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pages: dict[str, Pages] = {}
        self.starts: list[StartLine] = []
        self._read_to: dict[str, int] = {}

    def look(self, whole: bool = False, but: str = "") -> None:
        """Reads what is new of each journal; `but` names one to be left alone."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        for file in names:
            name = file.removesuffix(layout.LINES)
            if file.startswith(layout.STARTS):
                self._read_starts(file)
            elif name != file:
                self.own(name)
        for pages in self.pages.values():
            if pages.name != but:
                pages.read(whole)

    def own(self, name: str) -> Pages:
        """Returns one journal by its name, whether or not it was looked for yet."""
        return self.pages.setdefault(name, Pages(self.folder, name))

    def _read_starts(self, name: str) -> None:
        with open_regular(os.path.join(self.folder, name)) as file:
            file.seek(self._read_to.get(name, 0))
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._read_to[name] = self._read_to.get(name, 0) + end
        for line in text[:end].splitlines():
            try:
                self.starts.append(_decode_start(line))
            except msgspec.DecodeError:
                continue

"""Flow: in which order the statements of one function run, and under which conditions.

    flow = Flow(function, part)        # function: cst.FunctionDef, of `part`
    flow.dominates(first, then)         # every path to `then` has passed `first`
    flow.encloses(first, then)          # the same of a `first` before it, by the suites alone
    flow.may_follow(first, then)        # some path leads from `first` to `then`
    flow.any_always_follows(first, many) # every path from `first` to a return passes one of many
    flow.any_on_every_path(many)        # every path from the entry to a return passes one of many
    flow.excludes(first, then)          # no run passes both, by the tests that each stands under
    flow.known(node)                    # the tests that have been made when `node` runs
    flow.withs(node), flow.loops(node)  # what encloses it, outermost first
    flow.steps, flow.position(node)     # statements in source order, and where a node stands

Any node of the function may be asked about; what counts is its step: a simple statement, or the
head of a compound one (the test of an `if`, the items of a `with`). Within a step nothing has an
order. A nested function or class is one step, whatever is in it: make a Flow of its own for it.

Paths follow `if`, loops, `try`, `match`, `with`, `return`, `raise`, `break` and `continue`. Any
statement of a `try` body may raise into its handlers; elsewhere only `raise` does, and a path that
raises out of the function does not count as one that returns. Only what returns or falls out of a
`try` passes its `finally`. Values are not followed: both branches of a test are paths.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fmcheck.lint.model.expressions import squeezed
from fmcheck.lint.model.sieve import any_between
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.lint.source.module import Part

ENTRY, RETURNED, RAISED = -1, -2, -3
#: Steps as stretches from a first one up to another, ascending: paths go by the order of the
#: source, so that few stretches are a great many steps.
Stretches = tuple[tuple[int, int], ...]


class KnownTest(Struct):
    """A test whose outcome is certain at some place: `test` was true if `holds`, else false.

    `leaves` tells that the other outcome has left (returned, raised, or gone to the next round),
    in place of merely taking another branch. A `match` tests its `subject` with a pattern.
    """

    test: CSTNode
    holds: bool
    leaves: bool
    part: Part
    subject: CSTNode | None = None
    _text: str = ""

    @property
    def text(self) -> str:
        """The test's source without its spaces, worked out when it is first asked for."""
        if not self._text:
            tested = "" if self.subject is None else squeezed(self.part.code(self.subject)) + ":"
            self._text = tested + squeezed(self.part.code(self.test))
        return self._text


class _Place(Struct):
    """What surrounds a step."""

    withs: tuple[cst.With, ...] = ()
    loops: tuple[CSTNode, ...] = ()
    known: tuple[KnownTest, ...] = ()
    suites: tuple[CSTNode, ...] = ()


class _Loop(Struct):
    """A loop that is being walked: where `continue` goes, and the steps that break out of it."""

    head: int
    breaks: set[int] = set()


class Flow:
    """The paths through one function. See the module's docstring."""

    def __init__(self, function: cst.FunctionDef, part: Part) -> None:
        self._part = part
        self.steps: list[CSTNode] = []
        self._places: list[_Place] = []
        self._parts: list[tuple[CSTNode, ...]] = []
        self._after: dict[int, set[int]] = {}
        self._loops: list[_Loop] = []
        self._finals: list[set[int]] = []
        self._handled: list[bool] = []
        self._atoms_of: dict[int, frozenset[tuple[str, bool]]] = {}
        #: The steps from which all paths to a return pass a barred one, and those from which not.
        self._leaving: dict[frozenset[int], tuple[set[int], set[int]]] = {}
        ends = self._suite(function.body, {ENTRY}, _Place())
        self._join(ends, RETURNED)

    # What encloses a node.

    def position(self, node: CSTNode) -> int:
        """Returns the number of the node's step; KeyError if it is not in this function's body."""
        return self._positions[id(node)]

    def step(self, node: CSTNode) -> CSTNode:
        """Returns the step that the node is part of."""
        return self.steps[self.position(node)]

    def contains(self, node: CSTNode) -> bool:
        """Tells whether the node is part of this function's body."""
        return id(node) in self._positions

    def withs(self, node: CSTNode) -> Sequence[cst.With]:
        """Returns the `with` statements in whose bodies the node stands, outermost first."""
        return self._places[self.position(node)].withs

    def loops(self, node: CSTNode) -> Sequence[CSTNode]:
        """Returns the loops in whose bodies the node stands, outermost first."""
        return self._places[self.position(node)].loops

    def known(self, node: CSTNode) -> Sequence[KnownTest]:
        """Returns the tests that are decided where the node runs, in the order they were made.

        Those of the branches that it stands in, and of each `if` before it whose other branch
        leaves: after `if not rows: return`, `not rows` is false.
        """
        return self._places[self.position(node)].known

    # Order.

    def encloses(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells whether `then` stands in the suite of `first`, or in one within it.

        Where `first` comes before it, every path to `then` has passed it: `dominates`, without a
        look at the paths. The body of a `with` belongs to the suite around it.
        """
        outer = self._places[self.position(first)].suites
        inner = self._places[self.position(then)].suites
        return len(inner) >= len(outer) and inner[len(outer) - 1] is outer[-1]

    def dominates(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells whether every path to `then` has passed `first`; true if they share a step."""
        start, end = self.position(first), self.position(then)
        return start == end or ENTRY not in self._back(end, {start})

    def excludes(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells whether a test that both stand under would have to hold and to fail.

        Tests are taken to give the same each time; `a and not b` says that `a` holds and `b` fails.
        """
        denied = {(text, not holds) for text, holds in self._tested(first)}
        return not denied.isdisjoint(self._tested(then))

    def _tested(self, node: CSTNode) -> frozenset[tuple[str, bool]]:
        known = self.known(node)  # one and the same for all the steps of a suite
        if id(known) not in self._atoms_of:
            atoms = (atom for one in known for atom in self._atoms(one.test, one.holds))
            self._atoms_of[id(known)] = frozenset(atoms)
        return self._atoms_of[id(known)]

    def _atoms(self, test: CSTNode, holds: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            yield from self._atoms(test.expression, not holds)
            return
        yield squeezed(self._part.code(test)), holds  # as a whole: another branch may deny it
        if isinstance(test, cst.BooleanOperation) and holds is isinstance(test.operator, cst.And):
            yield from self._atoms(test.left, holds)
            yield from self._atoms(test.right, holds)

    def may_follow(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells whether a path leads from `first` on to `then`, another round of a loop included.

        Within one step that is so only in a loop.
        """
        return _holds(self._onward[self.position(first)], self.position(then))

    def may_lead_to(self, first: CSTNode, steps: Sequence[int]) -> bool:
        """Tells whether a path leads from `first` on to one of some steps, which ascend."""
        return any(
            any_between(steps, start - 1, end) for start, end in self._onward[self.position(first)]
        )

    def starts(self, then: CSTNode, without: Iterable[CSTNode]) -> Collection[int]:
        """Returns the steps from which a path leads on to `then` that passes none of `without`."""
        return self._back(self.position(then), {self.position(node) for node in without})

    def led_to(
        self, firsts: Iterable[CSTNode], without: Iterable[CSTNode] = ()
    ) -> Mapping[int, CSTNode]:
        """Returns the steps to which paths lead that pass none of `without`.

        Each has the first of `firsts` that such a path comes from.
        """
        barred = {self.position(node) for node in without}
        found: dict[int, CSTNode] = {}
        for node in firsts:
            front = [self.position(node)]
            while front:
                for step in self._after.get(front.pop(), ()):
                    if step not in found and step not in barred:
                        found[step] = node
                        front.append(step)
        return found

    def past(self, nodes: Iterable[CSTNode]) -> Past:
        """Returns where paths lead that have passed one of some nodes."""
        steps = {self.position(node) for node in nodes}
        return Past(self, self._spread(lambda one: self._onward[one] if one in steps else ()))

    def any_always_follows(self, first: CSTNode, nodes: Iterable[CSTNode]) -> bool:
        """Tells whether every path from `first` to a return passes at least one of the nodes."""
        start, ends = self.position(first), frozenset(map(self.position, nodes))
        return start in ends or not self.may_leave(start, ends)

    def may_leave(self, start: int, barred: frozenset[int]) -> bool:
        """Tells whether a path leads from a step to a return that passes no barred step."""
        staying, leaving = self._leaving.setdefault(barred, (set(), set()))
        if start not in staying and start not in leaving:
            # What is barred is near, as a rule: to look back from the return takes all steps.
            ahead = self._ahead(start, barred)
            if RETURNED in ahead:
                leaving |= self._back(RETURNED, barred)
            else:
                staying |= ahead
        return start in leaving

    def _ahead(self, start: int, barred: frozenset[int]) -> set[int]:
        """Returns the steps to which paths lead from one that pass no barred step."""
        found, front = {start}, [start]
        while front and RETURNED not in found:
            new = self._after.get(front.pop(), set()) - found - barred
            found |= new
            front += new
        return found

    def _back(self, end: int, barred: Collection[int]) -> set[int]:
        """Returns the steps from which a path leads to `end` that passes no barred one on its way.

        A barred one may be where it starts.
        """
        found: set[int] = set()
        front = [] if end in barred else [end]
        while front:
            for step in self._preceding.get(front.pop(), ()):
                if step not in found:
                    found.add(step)
                    if step not in barred:
                        front.append(step)
        return found

    def any_on_every_path(self, nodes: Iterable[CSTNode]) -> bool:
        """Tells whether every path from the entry to a return passes at least one of the nodes."""
        return not self.may_leave(ENTRY, frozenset(map(self.position, nodes)))

    @cached_property
    def _preceding(self) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for step, following in self._after.items():
            for one in following:
                found.setdefault(one, []).append(step)
        return found

    @cached_property
    def _onward(self) -> Sequence[Stretches]:
        """The steps that a path from each step reaches: a function may ask of any two."""
        return self._spread(lambda step: ((step, step + 1),))

    def _spread(self, given: Callable[[int], Stretches]) -> Sequence[Stretches]:
        """Returns for each step what the steps give that a path from it reaches."""
        found: list[Stretches] = [()] * len(self.steps)
        before: list[Stretches] = []
        while found != before:  # once more for each loop within another
            before = [*found]
            for step in reversed(range(len(found))):
                ahead = [one for one in self._after.get(step, ()) if one >= 0]
                found[step] = _joined([*map(found.__getitem__, ahead), *map(given, ahead)])
        return found

    @cached_property
    def _positions(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, (step, parts) in enumerate(zip(self.steps, self._parts, strict=True)):
            found[id(step)] = number
            for part in parts:
                for node in walk(part):
                    found[id(node)] = number
        return found

    # How the paths are laid.

    def _join(self, before: Iterable[int], step: int) -> None:
        for one in before:
            self._after.setdefault(one, set()).add(step)

    def _step(
        self, node: CSTNode, parts: Iterable[CSTNode | None], before: set[int], place: _Place
    ) -> set[int]:
        number = len(self.steps)
        self.steps.append(node)
        self._parts.append(tuple(part for part in parts if part is not None))
        self._places.append(place)
        self._join(before, number)
        return {number}

    def _suite(self, suite: CSTNode, before: set[int], place: _Place) -> set[int]:
        """Lays the statements of a suite; returns the steps from which its end is left."""
        here = replace(place, suites=(*place.suites, suite))
        return self._statements(suite, before, here)

    def _statements(self, suite: CSTNode, before: set[int], here: _Place) -> set[int]:
        for statement in getattr(suite, "body", ()):
            before = self._statement(statement, before, here)
            left = tuple(self._left(statement))
            if left:
                here = replace(here, known=(*here.known, *left))
        return before

    def _statement(self, node: CSTNode, before: set[int], place: _Place) -> set[int]:
        if isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                before = self._small(small, before, place)
            return before
        if isinstance(node, cst.If):
            return self._if(node, before, place)
        if isinstance(node, (cst.While, cst.For)):
            return self._loop(node, before, place)
        if isinstance(node, cst.With):
            head = self._step(node, node.items, before, place)
            inner = replace(place, withs=(*place.withs, node))
            return self._statements(node.body, head, inner)
        if isinstance(node, (cst.Try, cst.TryStar)):
            return self._try(node, before, place)
        if isinstance(node, cst.Match):
            return self._match(node, before, place)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return self._step(node, (node,), before, place)
        return self._small(node, before, place)

    def _small(self, node: CSTNode, before: set[int], place: _Place) -> set[int]:
        step = self._step(node, (node,), before, place)
        if isinstance(node, cst.Return):
            self._leave(step, RETURNED)
        elif isinstance(node, cst.Raise):
            # Into a handler it goes as any statement of the body does.
            if not any(self._handled):
                self._leave(step, RAISED)
        elif isinstance(node, cst.Break) and self._loops:
            self._loops[-1].breaks |= step
        elif isinstance(node, cst.Continue) and self._loops:
            self._join(step, self._loops[-1].head)
        else:
            return step
        return set()

    def _leave(self, step: set[int], to: int) -> None:
        """Leaves the function, through the innermost `finally`."""
        if self._finals:
            self._finals[-1] |= step
        else:
            self._join(step, to)

    def _if(self, node: cst.If, before: set[int], place: _Place) -> set[int]:
        head = self._step(node, (node.test,), before, place)
        ends = self._suite(node.body, head, self._when(place, node, True))
        other = self._when(place, node, False)
        if isinstance(node.orelse, cst.If):
            return ends | self._if(node.orelse, head, other)
        if isinstance(node.orelse, cst.Else):
            return ends | self._suite(node.orelse.body, head, other)
        return ends | head

    def _when(self, place: _Place, node: cst.If, holds: bool) -> _Place:
        known = KnownTest(node.test, holds, False, self._part)
        return replace(place, known=(*place.known, known))

    def _left(self, node: CSTNode) -> Iterator[KnownTest]:
        """Yields what an `if` with a branch that leaves makes certain for all that comes after."""
        while isinstance(node, cst.If):
            orelse = node.orelse
            if leaves(node.body):
                yield KnownTest(node.test, False, True, self._part)
                if isinstance(orelse, cst.If):
                    node = orelse
                    continue
            elif orelse is not None and leaves(orelse):
                yield KnownTest(node.test, True, True, self._part)
            return

    def _loop(self, node: cst.While | cst.For, before: set[int], place: _Place) -> set[int]:
        is_for = isinstance(node, cst.For)
        parts = [getattr(node, name) for name in (("target", "iter") if is_for else ("test",))]
        head = self._step(node, parts, before, place)
        (number,) = head
        loop = _Loop(number)
        self._loops.append(loop)
        inner = replace(place, loops=(*place.loops, node))
        self._join(self._suite(node.body, head, inner), number)
        self._loops.pop()
        is_endless = isinstance(node, cst.While) and self._part.code(node.test) in ("True", "1")
        ends = set() if is_endless else head
        if node.orelse is not None:
            ends = self._suite(node.orelse.body, ends, place)
        return ends | loop.breaks

    def _try(self, node: cst.Try | cst.TryStar, before: set[int], place: _Place) -> set[int]:
        with self._final(node) as finals:
            first = len(self.steps)
            self._handled.append(bool(node.handlers))
            ends = self._suite(node.body, before, place)
            self._handled.pop()
            raised = before | set(range(first, len(self.steps)))
            if node.orelse is not None:
                ends = self._suite(node.orelse.body, ends, place)
            for handler in node.handlers:
                head = self._step(handler, (handler.type, handler.name), raised, place)
                ends = ends | self._suite(handler.body, head, place)
        if node.finalbody is None:
            return ends
        leaving = set(finals)
        ends = self._suite(node.finalbody.body, ends | leaving, place)
        if leaving:
            self._leave(ends, RETURNED)
        return ends

    @contextmanager
    def _final(self, node: cst.Try | cst.TryStar) -> Iterator[set[int]]:
        finals: set[int] = set()
        if node.finalbody is not None:
            self._finals.append(finals)
        yield finals
        if node.finalbody is not None:
            self._finals.pop()

    def _match(self, node: cst.Match, before: set[int], place: _Place) -> set[int]:
        guards = [part for case in node.cases for part in (case.pattern, case.guard)]
        head = self._step(node, (node.subject, *guards), before, place)
        ends: set[int] = set()
        for case in node.cases:
            test = KnownTest(case.pattern, True, False, self._part, node.subject)
            inner = replace(place, known=(*place.known, test))
            ends |= self._suite(case.body, head, inner)
        last = node.cases[-1] if node.cases else None
        is_whole = last is not None and last.guard is None and _catches_all(last.pattern)
        return ends if is_whole else ends | head


class Past(Struct, frozen=True):
    """Where paths lead that have passed one of some nodes on their way. See `Flow.past`."""

    flow: Flow
    _reached: Sequence[Stretches]

    def reaches(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells whether a path from `first` on to `then` passes one of the nodes between."""
        return _holds(self._reached[self.flow.position(first)], self.flow.position(then))

    def reaches_all_from(self, first: CSTNode, then: CSTNode) -> bool:
        """Tells the same of `then` and of every step after it."""
        *_, (start, end) = (0, 0), *self._reached[self.flow.position(first)]
        return start <= self.flow.position(then) and end == len(self.flow.steps)


def _holds(stretches: Stretches, step: int) -> bool:
    return any(first <= step < end for first, end in stretches)


def _joined(many: Iterable[Stretches]) -> Stretches:
    """Returns the steps of all that is given."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(one for stretches in many for one in stretches):
        if not found or first > found[-1][1]:
            found.append((first, end))
        elif end > found[-1][1]:
            found[-1] = found[-1][0], end
    return tuple(found)


def _catches_all(pattern: CSTNode) -> bool:
    return isinstance(pattern, cst.MatchAs) and pattern.pattern is None


def leaves(node: CSTNode) -> bool:
    """Tells whether no path comes out at the end of a suite, or of an `else`."""
    if isinstance(node, cst.Else):
        return leaves(node.body)
    if isinstance(node, cst.If):
        return leaves(node.body) and node.orelse is not None and leaves(node.orelse)
    if isinstance(node, cst.With):
        return leaves(node.body)
    if isinstance(node, (cst.Return, cst.Raise, cst.Break, cst.Continue)):
        return True
    if isinstance(node, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.SimpleStatementLine)):
        return any(leaves(statement) for statement in node.body)
    return False

"""FR601 capture-identity: a graph input that was bound to other memory than its graph reads.

A captured graph reads the memory of capture time. Where the contract says what captures, the inputs
must be where they were when the graph of this size was captured; elsewhere they must not move while
they are filled.
"""

from __future__ import annotations

import enum
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from msgspec import structs

from fmcheck.finding import CHECKS, Access, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from fmcheck.finding import Site
    from fmcheck.runtime.core.tally import Tally

_CODE = "FR601"
#: How many tensors are named that have moved beside the one that is reported.
_SHOWN = 8


class TensorLocation(NamedTuple):
    """Where a tensor's first element lies, on which device, and how far the tensor reaches.

    A head of a captured buffer, cut to the batch, begins where the graph reads and ends too soon.
    """

    address: int
    device: str
    size: int
    shape: tuple[int, ...]


def place_of(tensor: torch.Tensor) -> TensorLocation:
    """Returns where a tensor lies."""
    from fmcheck.runtime.steps.writes import address_of

    shape = tuple(tensor.shape)
    return TensorLocation(address_of(tensor), str(tensor.device), tensor.element_size(), shape)


#: What a capture was called with, numbers and texts, and the padded sizes: another graph for each.
Sizes: TypeAlias = "tuple[int | str, ...]"


class AttributeLocation(NamedTuple):
    """Where a tensor lies that a module has as a plain attribute, and in which storage."""

    place: TensorLocation
    storage: int


class Captured(NamedTuple):
    """Where the inputs of one runner were when a graph was captured, and the line that did.

    Of the `attributes` of modules the graph reads those whose storages are among its `reads`, which
    grow for as long as the capture goes on.
    """

    places: Mapping[str, TensorLocation]
    site: Site
    attributes: Mapping[str, AttributeLocation]
    reads: set[int]

    def expected(self) -> Mapping[str, TensorLocation]:
        """Returns where each tensor has to be that the graph reads."""
        read = {
            name: one.place for name, one in self.attributes.items() if one.storage in self.reads
        }
        return {**self.places, **read}


class Filled(Protocol):
    """A call of a fill. The function at `replay`, if known, has a graph read the inputs then."""

    site: Site
    replay: Site | None

    @property
    def filler(self) -> Any:
        """The runner."""

    def places(self) -> Mapping[str, TensorLocation]:
        """Returns where the inputs are."""

    def attributes(self) -> Mapping[str, AttributeLocation]:
        """Returns where the plain attributes of captured modules are."""

    def called(self, name: str) -> str:
        """Returns what reports call an input, or what else was captured: with its holder."""

    def line_that_made(self, name: str) -> Site | None:
        """Returns the line of the fill that created an input, None if it was created before."""

    def kept(self) -> set[str]:
        """Returns the inputs that are the same tensors as when the fill began."""

    def padded_sizes(self) -> set[int]:
        """Returns the sizes that they are padded to."""


class Captures:
    """What the runners of one declared fill have captured."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._of: dict[int, dict[Sizes, Captured]] = {}
        # Of each tensor and fill, the violation that it was reported in.
        self._reported: dict[tuple[str, Site], object] = {}
        # Of runners that captured nothing: the inputs that no fill has found as it left them.
        self._bound_by_fills: dict[int, set[str]] = {}

    def knows(self, filler: Any) -> bool:
        """Tells whether a graph of this runner was captured, or may have been."""
        return id(filler) in self._of or not _has_an_end(filler)

    def capture(self, filler: Any, captured: Captured, sizes: Sizes = ()) -> None:
        """A graph was captured."""
        if _has_an_end(filler):
            _kept_with(filler, self._of).setdefault(id(filler), {})[sizes] = captured

    def judge(self, fill: Filled, before: Mapping[str, TensorLocation]) -> set[str]:
        """The graph is about to read what was filled: each input has to be where it was.

        Returns the inputs that only fills have bound so far, and bind again: where nothing was
        captured, they are no graph's.
        """
        now = fill.places()
        captured = self._captured(fill)
        if not captured:
            bound = self._bound(fill, now, before)
            static = {name: place for name, place in before.items() if name not in bound}
            self._compare(fill, now, static, None)
            return bound
        expected = [(one.expected(), one) for one in reversed(captured)]
        if any(len(places) > len(one.places) for places, one in expected):  # some were read
            now = {**now, **{name: one.place for name, one in fill.attributes().items()}}
        if all(_moved(now, places, 4) for places, _ in expected):
            # Of several graphs that it may be, the one that it is most like: the last of these.
            likely = min(expected, key=lambda one: len(_moved(now, one[0], 4)))
            self._compare(fill, now, *likely)
        return set()

    def _bound(
        self, fill: Filled, now: Mapping[str, TensorLocation], before: Mapping[str, TensorLocation]
    ) -> set[str]:
        filler = fill.filler
        if not _has_an_end(filler):
            return set()
        bound = _kept_with(filler, self._bound_by_fills).setdefault(id(filler), set())
        bound.difference_update(fill.kept())
        bound.update(now.keys() - before.keys())
        return set(bound)

    def _captured(self, fill: Filled) -> list[Captured]:
        """Returns the graphs that may be replayed now: those of this size, or else all."""
        known = self._of.get(id(fill.filler), {})
        padded = fill.padded_sizes()
        of_size = [one for sizes, one in known.items() if padded and padded <= {*sizes}]
        return of_size or list(known.values())

    def _compare(
        self,
        fill: Filled,
        now: Mapping[str, TensorLocation],
        expected: Mapping[str, TensorLocation],
        known: Captured | None,
    ) -> None:
        # Without a capture there is no telling whether a graph knows how far an input reaches.
        by_line: dict[Site | None, list[str]] = {}
        for name in _moved(now, expected, 4 if known is not None else 3):
            by_line.setdefault(fill.line_that_made(name), []).append(name)
        for made, names in by_line.items():
            self._report(fill, names, made, now, known)

    def _report(
        self,
        fill: Filled,
        moved: list[str],
        made: Site | None,
        now: Mapping[str, TensorLocation],
        captured: Captured | None,
    ) -> None:
        """Reports tensors that have moved for one reason, as all weights do: by the first of them.

        Those that were reported before count there.
        """
        tally, site = self.tally, fill.site
        note = (
            "it was bound to another tensor while it was filled; no capture was seen, so a graph "
            "is taken to read the old one"
        )
        if captured is not None:
            where = f"{os.path.basename(captured.site.path)}:{captured.site.line}"
            note = f"the graph was captured at {where}, and reads the tensor of that time"
        replay = fill.replay
        if replay is not None:
            replay = structs.replace(replay, caller=tally.sites[tally.sites.here()])
        moments = tally.moments
        with tally.lock:
            known: dict[object, list[str]] = {}
            for name in moved:
                known.setdefault(self._reported.get((fill.called(name), site)), []).append(name)
            fresh = [
                Violation(
                    code=_CODE,
                    name=CHECKS[_CODE],
                    buffer=fill.called(name),
                    access=Access("fill", site, moments.step if moments.counts_steps else None),
                    test=tally.test,
                    device=now[name].device,
                    pid=os.getpid(),
                    expected="the tensor that the graph was captured with",
                    allocated=None if made is None else Access("create", made),
                    passed=() if replay is None else (Access("replay", replay),),
                )
                for key, names in known.items()
                if not tally.seen_again(key)
                for name in names
            ]
            kept = [one for one in fresh if not tally.suppresses(one)]
            if kept:
                self._reported.update({(one.buffer, site): kept[0].key for one in kept})
                others = _others([one.buffer for one in kept[1:]])
                tally.report(structs.replace(kept[0], notes=(note, *others)))


def _others(names: list[str]) -> Iterator[str]:
    """Yields a sentence on what else has moved, the first few by name."""
    if names:
        more = len(names) - _SHOWN
        shown = ", ".join(f"`{name}`" for name in names[:_SHOWN])
        also = f" and {more} more" if more > 0 else ""
        yield f"moved as well: {shown}{also}"


def _moved(
    now: Mapping[str, TensorLocation], expected: Mapping[str, TensorLocation], parts: int
) -> list[str]:
    """Returns the inputs that are elsewhere than they were, by the first `parts` of a place."""
    return [
        name
        for name, place in expected.items()
        if name in now and now[name][:parts] != place[:parts]
    ]


def _kept_with(filler: Any, table: dict[int, Any]) -> dict[int, Any]:
    """Returns a table, of which a runner's entry goes when the runner does."""
    if id(filler) not in table:
        weakref.finalize(filler, table.pop, id(filler), None).atexit = False
    return table


def _has_an_end(filler: Any) -> bool:
    """Tells whether a runner's end is noticed: until then its address is its own."""
    try:
        weakref.ref(filler)
    except TypeError:
        return False
    return True


def told_apart_by(value: Any) -> Iterator[int | str]:
    """Yields what an argument or a key tells graphs apart by: numbers, and texts of flags.

    Those in a key, too: a tuple, or a data class that is frozen.
    """
    made_as: Any = getattr(type(value), "__dataclass_params__", None)
    if type(value) is int:
        yield value
    elif isinstance(value, (bool, str, enum.Enum)):
        yield repr(value)
    elif isinstance(value, tuple):
        for one in value:
            yield from told_apart_by(one)
    elif made_as is not None and made_as.frozen:
        for name in value.__dataclass_fields__:
            yield from told_apart_by(getattr(value, name))

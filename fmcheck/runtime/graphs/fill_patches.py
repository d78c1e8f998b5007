"""Fills: how a session instruments the methods that fill and pad graph inputs.

Nothing here looks at a tensor; `open_fill` does, once there is a call to look at.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Contract, Fill, applies
from fmcheck.errors import nearest
from fmcheck.finding import CHECKS, Access, Site, Violation
from fmcheck.runtime.core import kinds, patches, paths
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.declared import patch_method, patch_named
from fmcheck.runtime.core.patches import functions_of
from fmcheck.runtime.core.site import definition_of
from fmcheck.runtime.graphs.captures import Captured, Captures, told_apart_by
from fmcheck.runtime.graphs.expectations import Expectations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from fmcheck.runtime.core.declared import Watched
    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.graphs.captures import AttributeLocation
    from fmcheck.runtime.graphs.graph_reads import GraphReads
    from fmcheck.runtime.graphs.open_fill import Input, OpenFill
    from fmcheck.runtime.graphs.outputs import Outputs
    from fmcheck.runtime.graphs.tails import Found, Unseen

_CODE = "FR201"


class _Open(threading.local):
    """The fills and the captures that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.stack: list[OpenFill] = []
        self.capturing: list[_Capturing] = []


_open = _Open()


class _Filling(kinds.AroundCall):
    """One call of a fill, open while its body runs."""

    def __init__(self, fill_patch: FillPatch, opened: OpenFill) -> None:
        self._fill_patch, self._opened = fill_patch, opened

    def enter(self) -> None:
        _open.stack.append(self._opened)

    def leave(self) -> None:
        _open.stack.remove(self._opened)

    def returned(self, result: Any) -> None:
        self.over()
        with _own_code(self._fill_patch.tally):
            self._fill_patch._end(self._opened, result)

    def over(self) -> None:
        with _own_code(self._fill_patch.tally):
            self._opened.leave()


class _Replaying(kinds.AroundCall):
    """One call of what replays a graph."""

    def __init__(self, fill_patch: FillPatch, replayed: Callable[[], None]) -> None:
        self._fill_patch, self._replayed = fill_patch, replayed

    def returned(self, _: Any) -> None:
        with contained(self._fill_patch.tally, "FR603"):
            self._replayed()


class _Capturing(kinds.AroundCall):
    """One call of what captures graphs over the inputs of `filler`."""

    def __init__(
        self, fill_patch: FillPatch, filler: Any, call: inspect.BoundArguments, site: Site
    ) -> None:
        self.fill_patch, self.filler, self.call, self.site = fill_patch, filler, call, site
        self.had_graph = fill_patch.captures.knows(filler)
        #: The attributes of captured modules when it began, and what is read meanwhile.
        self.before: Mapping[str, AttributeLocation] = {}
        self.reads: GraphReads | None = None
        with _own_code(fill_patch.tally, "FR601"):
            self.before = fill_patch._attributes(self)
        if self.before:
            self.reads = fill_patch._graph_reads()

    def enter(self) -> None:
        _open.capturing.append(self)
        if self.reads is not None:
            self.reads.begin()

    def leave(self) -> None:
        if self.reads is not None:
            self.reads.end()
        _open.capturing.remove(self)

    def kept(self, now: Mapping[str, AttributeLocation]) -> Mapping[str, AttributeLocation]:
        """Returns the attributes that are where they were when this call began."""
        return {name: one for name, one in now.items() if self.before.get(name) == one}

    def returned(self, _: Any) -> None:
        with contained(self.fill_patch.tally, "FR601"):
            self.fill_patch._captured(self)


def outputs_of(tally: Tally) -> Outputs:
    """Returns what follows the outputs of graphs: made once there are some, as it loads torch."""
    from fmcheck.runtime.graphs.outputs import Outputs

    return Outputs(tally)


@dataclass(eq=False)
class FillPatch:
    """One declared fill: what is demanded of its tails, and what could not be reached.

    `records` are finds that lie on a device, and what they are about. `met` are the names of the
    inputs that there were, `settled` and `unsettled` how many calls were judged by a method of
    `settled_by`, and how many returned before one was called; `pending` is the last of those.
    `make_outputs` returns what follows outputs, for all fills that may share their memory.
    `written` has the line that wrote each input last. `reached` are the paths that led somewhere,
    `lacking` has a sentence for each that did not.
    """

    contract: Contract
    fill: Fill
    tally: Tally
    make_outputs: Callable[[Tally], Outputs] = outputs_of
    records: dict[tuple[str, str, Any, Site], tuple[Any, Input]] = field(default_factory=dict)
    written: dict[tuple[str, int], int] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)
    settled: int = 0
    unsettled: int = 0
    pending: OpenFill | None = None
    lacking: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    _problems: list[str] = field(default_factory=list)
    _is_installed: bool = False
    expectations: Expectations = field(init=False)
    captures: Captures = field(init=False)

    def __post_init__(self) -> None:
        self.captures = Captures(self.tally)
        self.expectations = Expectations(self.contract.graph_inputs, self.fill)
        self.tally.pending.append(self.read_records)

    @functools.cached_property
    def unseen(self) -> Unseen:
        """The inputs that were once written past torch's dispatcher."""
        from torch.utils.weak import WeakIdKeyDictionary

        return WeakIdKeyDictionary()

    @functools.cached_property
    def outputs(self) -> Outputs:
        """What follows the outputs of graphs."""
        return self.make_outputs(self.tally)

    def begin_test(self) -> None:
        """Another test begins: what was taken in the last one is not held against it."""
        if self.fill.outputs and self._is_installed:
            self.outputs.begin_test()

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields each module to wait for, and what instruments it."""
        yield self.fill.module, self.install
        for key, wrapped in (("settled_by", self._settling), ("captured_by", self._capturing)):
            for name in getattr(self.fill, key):
                module, colon, function = name.partition(":")
                if colon:
                    yield module, functools.partial(self._take_other, key, function, wrapped)

    def install(self, module: ModuleType) -> Iterator[Undo]:
        """Wraps the fill's methods and those that settle it, yielding how to let go."""
        if not applies(self.fill.releases, patches.installed_version(self.contract)):
            return
        found = patches.attribute(module, self.fill.qualname)
        if not isinstance(found, type):
            known = patches.classes_of(module)
            self.problem(
                f"the module has no class `{self.fill.qualname}`"
                f"{nearest(self.fill.qualname, known)}"
            )
            return
        methods = [name for name in self.fill.methods if callable(getattr(found, name, None))]
        if not methods:
            wanted = " or ".join(f"`{name}`" for name in self.fill.methods)
            members = [name for name in dir(found) if not name.startswith("__")]
            self.problem(f"there is no method {wanted}{nearest(self.fill.methods[0], members)}")
        filling = functools.partial(self._watched, False), functools.partial(self._watched, True)
        version = patches.installed_version(self.contract)
        fills = [one for one in self.contract.graph_inputs.fill if applies(one.releases, version)]
        declared = [f"{one.class_}.{name}" for one in fills for name in one.methods]
        for name in methods:
            yield from patch_method(found, name, self.tally, *filling, declared)
        yield from self._take_own("settled_by", found, self._settling)
        yield from self._take_own("captured_by", found, self._capturing)
        if self.fill.outputs:
            self._is_installed = True
            yield from self.outputs.follow()

    def _take_own(self, key: str, class_: type, wrapped: Watched) -> Iterator[Undo]:
        """Wraps the methods of the fill's own class that a key names, one of which has to exist."""
        named = getattr(self.fill, key)
        own = [name for name in named if ":" not in name]
        there = [name for name in own if callable(getattr(class_, name, None))]
        if own and not there and len(own) == len(named):
            wanted = " or ".join(f"`{name}`" for name in own)
            members = [name for name in dir(class_) if not name.startswith("__")]
            self.problem(f"{key}: there is no method {wanted}{nearest(own[0], members)}")
        for name in there:
            yield from patch_method(class_, name, self.tally, wrapped)

    def _take_other(
        self, key: str, name: str, wrapped: Watched, module: ModuleType
    ) -> Iterator[Undo]:
        """Wraps a function, or another class's method, which a key names for this fill."""
        if patches.function_of(module, name) is not None:
            yield from patch_named(module, name, self.tally, wrapped)
            return
        known = nearest(name, functions_of(module))
        self.problem(f"{key}: module `{module.__name__}` has no function `{name}`{known}")

    def never_settled(self) -> str:
        """Returns a sentence on a fill none of whose tails was judged, "" if all is well."""
        if self.settled or not self.unsettled:
            return ""
        names = ", ".join(f"`{name}`" for name in self.fill.settled_by)
        return (
            f"{self._where}: no tail was judged in {self.unsettled} "
            f"call{'s' * (self.unsettled > 1)}: nothing of `settled_by` ({names}) was called "
            "in the fill or after it"
        )

    @property
    def _where(self) -> str:
        return f"contract `{self.contract.engine.name}`, fill `{self.fill.class_}`"

    @property
    def problems(self) -> list[str]:
        """What went wrong: a path that led nowhere in any call is a slip in the contract."""
        never = (text for path, text in self.lacking.items() if path not in self.reached)
        return list(dict.fromkeys((*self._problems, *never)))

    def problem(self, text: str) -> None:
        """Keeps what went wrong."""
        self._problems.append(f"{self._where}: {text}")

    def holds_none(self, key: str, path: str, value: Any) -> None:
        """A path of `captured` or `outputs` led to what has no tensor."""
        name = type(value).__name__
        text = f"{self._where}: `{key}`: `{path}` leads to `{name}`, which holds no tensor"
        self.lacking.setdefault(f"{key} {path}", text)

    def has_no_offsets(self, name: str, entries: int, rows: int) -> None:
        """An input that the contract has among the offsets has not one entry more than rows."""
        self.lacking.setdefault(
            f"offsets {name}",
            f"{self._where}: `offsets`: `{name}` has {entries} entries for {rows} rows: expected "
            f"{rows + 1}, as `capacity` has it",
        )

    def misses(self, err: LookupError) -> None:
        """A path led nowhere in this call, which is not judged."""
        if not isinstance(err, (paths.NotThereError, paths.NothingThereError)):
            self.problem(str(err))
            return
        has_no = "there is no" if ":" in err.path else "their object has no"
        self.tally.untrack("fills", f"{has_no} `{err.path}` ({self.fill.class_})")
        if isinstance(err, paths.NotThereError) and not err.is_set_elsewhere:
            self.lacking.setdefault(err.path, f"{self._where}: {err}")

    def _watched(self, goes_on: bool, _: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a fill that is followed; one that `goes_on` is one where it reaches another."""
        signature = inspect.signature(method)
        site = definition_of(method)

        def begin(args: Any, kwargs: Any) -> _Filling | None:
            if self.tally.active:
                with _own_code(self.tally):
                    opened = self._opened(signature, args, kwargs, site, goes_on)
                    return None if opened is None else _Filling(self, opened)
            return None

        return kinds.around(method, begin)

    def _opened(
        self, signature: inspect.Signature, args: Any, kwargs: Any, site: Site, goes_on: bool
    ) -> OpenFill | None:
        """Follows a call from here on; None where it is not one that can be looked at.

        That goes for a fill inside of a fill of the same object, by a base class's method say: it
        is part of the outer one.
        """
        from fmcheck.runtime.graphs.open_fill import OpenFill

        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # the call itself says what is wrong
        bound.apply_defaults()
        opened = OpenFill(self, dict(bound.arguments), site, goes_on=goes_on)
        for outer in _open.stack:
            if outer.fill_patch is self and outer.filler is opened.filler:
                outer.goes_on = outer.goes_on and goes_on
                return None
        self.pending = None
        return opened if opened.begin() else None

    def _end(self, opened: OpenFill, result: Any) -> None:
        """A fill has returned: it is judged now, or once something settles it."""
        opened.returns(result)
        if opened.goes_on:
            return  # it has filled nothing, as an eager step does
        capturing = self.capture_of(opened.filler)
        if capturing is None:
            has_graph = self.captures.knows(opened.filler)
        else:
            # One call may capture a graph for each size: what it fills is what each of them reads.
            has_graph = capturing.had_graph
            self._note_capture(opened, capturing)
        if not self.fill.settled_by:
            if self.fill.captured_by and not has_graph:
                self.tally.untrack("fills", "no graph was captured that would read them")
                return
            opened.settle()
        elif not opened.is_settled:
            self.unsettled += opened.pads()
            self.pending = opened
            opened.test = self.tally.test
        opened.judge_mapping()

    def _settling(self, _: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method that settles the innermost open fill of this patch before it runs."""

        site = definition_of(method)

        def begin(*_: Any) -> _Replaying | None:
            if self.tally.active:
                with _own_code(self.tally):
                    return self._settle(site)
            return None

        return kinds.around(method, begin)

    def _settle(self, site: Site) -> _Replaying | None:
        """Judges the innermost open fill of this patch, or else the last one that has returned.

        The function at `site` is about to read it. Returns what is to follow the outputs of the
        replay that begins, if any are declared.
        """
        opened = next((one for one in reversed(_open.stack) if one.fill_patch is self), None)
        if opened is None:
            opened, self.pending = self.pending, None
            if opened is None or opened.test != self.tally.test:
                return None  # of another test: what settles here reads something else
        self.settled += 1
        opened.settle(site)
        if opened not in _open.stack:
            opened.judge_mapping()
        outputs = opened.outputs()
        if not outputs:
            return None
        self.tally.checked.add(self.contract.engine.name)
        return _Replaying(self, self.outputs.replaying(outputs))

    def _capturing(self, _: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method after which the inputs are where a graph reads them."""
        site = definition_of(method)
        signature = inspect.signature(method)

        def begin(args: Any, kwargs: Any) -> _Capturing | None:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError:
                return None  # the call itself says what is wrong
            is_heard = self.tally.active and args
            call.apply_defaults()
            return _Capturing(self, args[0], call, site) if is_heard else None

        return kinds.around(method, begin)

    def capture_of(self, filler: Any) -> _Capturing | None:
        """Returns the call that captures graphs over the inputs of `filler` now, if any."""
        calls = (one for one in reversed(_open.capturing) if one.fill_patch is self)
        return next((one for one in calls if one.filler is filler), None)

    def _captured(self, capturing: _Capturing) -> None:
        """A graph was captured by this call, over the inputs as they are now."""
        self._note_capture(self._opened_by(capturing), capturing)

    def _opened_by(self, capturing: _Capturing) -> OpenFill:
        """Returns a fill that looks paths up in the call of what captures."""
        from fmcheck.runtime.graphs.open_fill import OpenFill

        bindings = {**capturing.call.arguments, "self": capturing.filler}
        return OpenFill(self, bindings, capturing.site)

    def _attributes(self, capturing: _Capturing) -> Mapping[str, AttributeLocation]:
        """Returns where attributes of what this call is to capture lie, none if that fails."""
        if self.fill.captured:
            with contextlib.suppress(LookupError):
                return self._opened_by(capturing).attributes()
        return {}

    def _graph_reads(self) -> GraphReads:
        from fmcheck.runtime.graphs.graph_reads import GraphReads

        return GraphReads(self.tally)

    def _note_capture(self, opened: OpenFill, capturing: _Capturing) -> None:
        """A graph is captured by a call over the inputs of a fill, as they are now."""
        site = capturing.site
        try:
            places = opened.places()
            attributes = capturing.kept(opened.attributes()) if capturing.reads else {}
        except LookupError as err:
            if isinstance(err, paths.NotThereError) and err.path == err.name:
                # What is a parameter of the fill may have another name where a graph is captured.
                self.tally.untrack("captures", f"`{site.function}` has no parameter `{err.name}`")
            else:
                self.misses(err)
            return
        given = capturing.call.arguments.values()
        told_apart = [one for value in given for one in told_apart_by(value)]
        sizes = (*told_apart, *sorted(opened.padded_sizes()))
        reads = capturing.reads.storages if capturing.reads else set()
        captured = Captured(places, site, attributes, reads)
        self.captures.capture(opened.filler, captured, sizes)

    def read_records(self) -> None:
        """Reports what was found on devices since it was last asked."""
        for (owner, _, _, site), (record, what) in self.records.items():
            found = record.read()
            if found is not None:
                self.report(owner, what, found, site)

    def report(self, owner: str, what: Input, found: Found, site: Site) -> None:
        """Reports entries that hold what they must not."""
        from fmcheck.runtime.steps.writes import address_of

        line = self.written.get((what.name, address_of(what.tensor)))
        last = None if line is None else Access("write", self.tally.sites[line])
        with self.tally.lock:
            self.tally.report(
                Violation(
                    code=what.code,
                    name=CHECKS[what.code],
                    buffer=f"{owner}.{what.name}",
                    rows=found.entries,
                    row_count=found.count,
                    values=found.values,
                    access=Access("fill", site),
                    last_write=last,
                    test=self.tally.test,
                    device=str(what.tensor.device),
                    pid=os.getpid(),
                    count=found.hits,
                    expected=what.expected,
                    notes=what.notes(found),
                )
            )


def _own_code(tally: Tally, check: str = _CODE) -> Any:
    """Runs a block that looks up what modes of the program are not to see."""
    from fmcheck.runtime.steps.torch_modes import own_code

    return own_code(tally, check)

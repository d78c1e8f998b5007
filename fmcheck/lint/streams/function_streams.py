"""Streams: the stream contexts, waits, records and asynchronous copies of one function.

Streams and events are known by their text, local names replaced by what they stand for, and
whatever module they are reached through: `torch.cuda`, `torch.npu`, a device module.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import (
    bound_names,
    dotted,
    holder,
    is_name,
    keywords,
    last_name,
    literal_elements,
    non_blocking,
    squeezed,
    targets,
)
from fmcheck.lint.model.function import attribute_values
from fmcheck.lint.model.names import ANY
from fmcheck.lint.model.sieve import Sieve
from fmcheck.lint.model.vocabulary import (
    CLASS,
    COMPARES,
    COPIES,
    ENDS,
    ENTERS,
    LAUNCHES,
    NUMBERS,
    ON_HOST,
    ORDERING,
    PARTS,
    READS,
    REDUCTIONS,
    TRUTHS,
    WAITS,
    looks_like_context,
    looks_like_event,
)
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.flow import Flow
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

#: The stream that was current when the function was called.
CURRENT = "<current>"
#: The host thread, which waits in `synchronize` and asks in `query`.
HOST = "<host>"
#: How names end that stand for a device as a whole.
_DEVICES = ("accelerator", "device_interface", "device_module", "platform")
#: Classes whose methods may be called with their object as the first argument.
_CLASSES = frozenset({"Event", "ExternalStream", "Stream", "Tensor"})
#: What gives another name to a wait.
_RENAMED = regex(
    r"= [\w.]*(sync|wait|query|fence|barrier)\w*[ \t]*(#[^\n]*)?$", re.IGNORECASE | re.MULTILINE
)
#: Methods that record an event.
RECORDS = frozenset({"record", "record_event"})
#: Any stream, or whatever ran before.
ANYTHING = "<anything>"


class Context(Struct, frozen=True):
    """`with stream(S):`, whose body holds the nodes from `order` up to `end`."""

    node: cst.With
    item: CSTNode
    stream: str
    order: int
    end: int

    def holds(self, order: int) -> bool:
        """Tells whether the node of this order stands in the body."""
        return self.order <= order < self.end


class Wait(Struct, frozen=True):
    """`waiter`, a stream or the host, waits for `on`: a stream, an event, or ANYTHING.

    `receiver` and `named` are the expressions of what waits and of what it waits for, if any.
    """

    node: cst.Call
    waiter: str
    on: str
    order: int
    receiver: CSTNode | None = None
    named: CSTNode | None = None


class EventRecord(Struct, frozen=True):
    """`event` is recorded on `stream`."""

    node: cst.Call
    event: str
    stream: str
    order: int


class AsyncCopy(Struct, frozen=True):
    """A copy that does not block the host. `target` is None where it makes a new tensor."""

    node: cst.Call
    source: CSTNode
    target: CSTNode | None
    order: int


class FunctionStreams:
    """What one function does with streams. Nested functions are part of the one that holds them.

    `ordered_by` are names of functions that order streams for their caller. The order of nodes is
    that of the source.
    """

    def __init__(self, function: Function, ordered_by: Collection[str] = ()) -> None:
        self.function = function
        self.part = function.part
        self.names = function.names
        self._ordered_by = ordered_by
        self.contexts: list[Context] = []
        self.waits: list[Wait] = []
        self.records: list[EventRecord] = []
        self.copies: list[AsyncCopy] = []
        #: Names of the tensors that `record_stream` is called on.
        self.kept: set[str] = set()
        self._wait_sieves: dict[object, Sieve[Wait]] = {}
        self._call_sieves: dict[object, Sieve[cst.Call]] = {}
        self._named_sieves: dict[object, Sieve[CSTNode]] = {}
        self._held: dict[str, set[str]] = {}
        self._texts: dict[Hashable, str] = {}
        self.order = function.order
        #: The stream that is current at each node.
        self._current = [CURRENT] * len(function.nodes)
        for node in function.of(cst.With):
            self._note_context(node)
        for call in function.calls:
            self._note_call(call, self.order[call])
        self.waits.sort(key=attrgetter("order"))
        self.records.sort(key=attrgetter("order"))
        #: The waits by their calls, those of a stream for itself too, which order nothing.
        self.wait_at: Mapping[CSTNode, Wait] = {one.node: one for one in self.waits}
        first = {one.event: one.order for one in reversed(self.records)}
        self.waits = [one for one in self.waits if not self._is_for_itself(one, first)]

    @property
    def flow(self) -> Flow:
        """The paths through the function."""
        return self.function.flow

    @property
    def parents(self) -> Mapping[CSTNode, CSTNode]:
        """What each node stands in."""
        return self.function.parents

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the function's parameters."""
        params = walk(self.function.node.params)
        return frozenset(node.name.value for node in params if isinstance(node, cst.Param))

    def nodes(self, first: int, end: int | None = None) -> Sequence[CSTNode]:
        """Returns the nodes from one order up to another, in order."""
        return self.function.nodes[first:end]

    def end(self, node: CSTNode) -> int:
        """Returns the order of what follows a node."""
        return self.function.end(node)

    @cached_property
    def bound_by_text(self) -> Mapping[str, Sequence[cst.Assign]]:
        """The assignments, in order, by the text of each target: an attribute or entry too."""
        found: dict[str, list[cst.Assign]] = {}
        for node in self.function.of(cst.Assign):
            for target in (one.target for one in node.targets):
                inner = literal_elements(target) if isinstance(target, cst.Tuple) else None
                for one in inner if inner is not None else [target]:
                    text = dotted(one) or squeezed(self.part.code(one))
                    found.setdefault(text, []).append(node)
        return found

    def wait_sieve(self, *key: str, passes: Callable[[Wait], object]) -> Sieve[Wait]:
        """Returns the waits with a test, which the key stands for."""
        if key not in self._wait_sieves:
            self._wait_sieves[key] = Sieve(self.waits, self._wait_orders, passes)
        return self._wait_sieves[key]

    def call_sieve(self, *key: str, passes: Callable[[cst.Call], object]) -> Sieve[cst.Call]:
        """Returns the function's calls with a test, which the key stands for."""
        if key not in self._call_sieves:
            self._call_sieves[key] = Sieve(self.function.calls, self.call_orders, passes)
        return self._call_sieves[key]

    @cached_property
    def _wait_orders(self) -> Sequence[int]:
        return [one.order for one in self.waits]

    @cached_property
    def call_orders(self) -> Sequence[int]:
        """The orders of the function's calls."""
        return [self.order[one] for one in self.function.calls]

    def waits_of(self, waiter: str, on: str) -> Sieve[Wait]:
        """Returns the waits that may put later work of `waiter` behind earlier work of `on`."""
        return self.wait_sieve(
            "waits of", waiter, on, passes=lambda one: self.orders(one, waiter, on)
        )

    @cached_property
    def reads(self) -> Mapping[str, Sequence[int]]:
        """The orders of the calls that bring values to the host, by the stream they are on."""
        found: dict[str, list[int]] = {}
        for call, order in zip(self.function.calls, self.call_orders, strict=True):
            if self.reads_values(call):
                found.setdefault(self.stream_at(order), []).append(order)
        return found

    def reads_values(self, call: cst.Call) -> bool:
        """Tells whether a call brings values to the host, of whatever tensor it is handed."""
        word = last_name(call.func)
        if word in READS or _reads_number(call) or _blocks(call):
            return True
        name = self.part.module.resolve(dotted(call.func) or "")
        if word in COMPARES or name in ("torch.argwhere", "torch.masked_select", "torch.unique"):
            return not name.startswith(("numpy.", "np."))
        # `if mask.any():`
        return _is_truth(call) and self._is_tested(call)

    def _is_tested(self, node: CSTNode) -> bool:
        """Tells whether a test asks for the truth of an expression."""
        while True:
            inner, node = node, self.parents[node]
            if isinstance(node, (cst.If, cst.While, cst.Assert, cst.IfExp)):
                return inner is node.test
            if not isinstance(node, (cst.BooleanOperation, cst.UnaryOperation)):
                return False

    @cached_property
    def assigned(self) -> Mapping[str, Sequence[cst.Assign]]:
        """The assignments of each plain name, in order."""
        found: dict[str, list[cst.Assign]] = {}
        for node in self.function.of(cst.Assign):
            bound = (name for one in node.targets for name in bound_names(one.target))
            for name in dict.fromkeys(bound):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def awaits(self) -> Sequence[int]:
        """The orders of the `await`s."""
        return [self.order[node] for node in self.function.of(cst.Await)]

    @cached_property
    def makes_objects(self) -> bool:
        """Tells whether an object is made of a class."""
        return any(CLASS.match(last_name(call.func)) for call in self.function.calls)

    def naming(self, names: Collection[str], after: int, last: int | None) -> Iterator[CSTNode]:
        """Yields the names that hold one of some buffers, with `after` < order <= `last`."""
        every = [self._holding[name] for name in names if name in self._holding]
        by_order = self.order.__getitem__
        later = (islice(these, bisect_right(these, after, key=by_order), None) for these in every)
        for node, _ in groupby(merge(*later, key=by_order)):
            if last is not None and self.order[node] > last:
                return
            yield node

    @cached_property
    def _holding(self) -> Mapping[str, Sequence[CSTNode]]:
        found: dict[str, list[CSTNode]] = {}
        for node in self.function.of(cst.Name, cst.Attribute):
            for name in self.holders(node):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def last_record(self) -> Mapping[str, int]:
        """The order of the last record on each stream."""
        return {one.stream: one.order for one in self.records}

    @cached_property
    def beside(self) -> Mapping[CSTNode, tuple[CSTNode | None, CSTNode | None]]:
        """The statements right before and right after those that stand beside a body."""
        found: dict[CSTNode, tuple[CSTNode | None, CSTNode | None]] = {}
        for parent in {self.parents.get(one.node): None for one in self.contexts}:
            body = getattr(parent, "body", None)
            if isinstance(body, (list, tuple)):
                found |= zip(
                    body, zip([None, *body], [*body[1:], None], strict=False), strict=False
                )
        return found

    @cached_property
    def launched(self) -> Mapping[str, tuple[CSTNode, int]]:
        """The plain names that are bound once, to what is launched on the current stream."""
        found: dict[str, tuple[CSTNode, int]] = {}
        for node, order in self.order.items():
            for target in targets(node)[:1]:
                name = target.value if isinstance(target, cst.Name) else ""
                values = self.names.values(name)
                if (
                    len(values) == 1
                    and self.stream_at(order) == CURRENT
                    and self.launches(values[0])
                ):
                    found[name] = node, order
        return found

    def named_sieve(
        self, name: str, *key: str, passes: Callable[[CSTNode], object]
    ) -> Sieve[CSTNode]:
        """Returns where a name stands with a test, which the key stands for."""
        if (name, key) not in self._named_sieves:
            nodes = self.function.named.get(name, ())
            orders = [self.order[one] for one in nodes]
            self._named_sieves[name, key] = Sieve(nodes, orders, passes)
        return self._named_sieves[name, key]

    def text(self, node: CSTNode) -> str:
        """Returns the text of a stream or event; a local name is replaced by what it stands for.

        `side` is `self.copy_stream` after `side = self.copy_stream`, and CURRENT after
        `side = current_stream()`.
        """
        if not isinstance(node, cst.Name):
            return self._text(node)
        version = self.names.version(node)
        if version not in self._texts:
            self._texts[version] = self._text(node)
        return self._texts[version]

    def _text(self, node: CSTNode) -> str:
        seen: set[str] = set()
        if isinstance(node, cst.NamedExpr):
            node = node.value
        while isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            values = [
                one
                for value in self.names.bound(node)
                for one in _either(value)
                if not is_name(one, "None")
            ]
            is_one = len(values) == 1 or (
                bool(values)
                and all(map(_is_current, values))
                and len({self.stream_at(self.order[one]) for one in values if one in self.order})
                == 1
            )
            if not is_one or not _names_stream(values[0]):
                break
            node = values[0]
        node = self._same(node)
        if _is_current(node):
            # Within a stream's body, its own call of `current_stream` gives that stream.
            order = self.order.get(node)
            return CURRENT if order is None else self.stream_at(order)
        return squeezed(self.part.code(node))

    def _same(self, node: CSTNode) -> CSTNode:
        """Returns the attribute for which another one stands, as an alias or a property."""
        seen: set[str] = set()
        while (name := dotted(node) or "").startswith("self.") and name not in seen:
            seen.add(name)
            leaf, family = name.removeprefix("self."), self.part.stretch.family
            # Asked of the text: to read the class costs more than all else.
            near = ((f"def {leaf}(", f"{name} = self."),)
            slices = family.slices_naming(leaf) if family is not None else ()
            if not any(one.holds(near) for one in slices):
                break
            values = [one for one, _ in attribute_values(leaf, self.function)]
            if len(values) != 1 or not isinstance(values[0], cst.Attribute):
                break
            node = values[0]
        return node

    def holders(self, node: CSTNode) -> set[str]:
        """Returns the buffers that an expression is, or is a part or a view of, by their paths."""
        name = dotted(node)
        if name is None:
            return self._holders(node)
        if name not in self._held:
            self._held[name] = self._holders(node)
        return self._held[name]

    def _holders(self, node: CSTNode) -> set[str]:
        found = {_whole(one.path) for one in self.names.regions(node) if one.leaf}
        base = node
        while not isinstance(base, (cst.Name, cst.Attribute)):
            if isinstance(base, cst.Subscript):
                base = base.value
            elif isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute):
                if base.func.attr.value not in PARTS:
                    return found  # made from it, and no longer it
                base = base.func.value
            else:
                return found
        return found | ({base.value} if isinstance(base, cst.Name) else set())

    def stream_at(self, order: int) -> str:
        """Returns the stream that is current at a place."""
        return self._current[order]

    def left(self, node: CSTNode, end: int) -> Iterator[cst.BaseExpression]:
        """Yields the items of the `with`s in which a node stands and that end by then."""
        while node in self.order:
            if isinstance(node, cst.With) and self.end(node) <= end:
                yield from (one.item for one in node.items)
            node = self.parents[node]

    def may_be_current(self, stream: str) -> bool:
        """Tells whether a caller's argument decides which stream this is."""
        seen: set[str] = set()
        names = [stream]
        while names:
            name = names.pop()
            if name == CURRENT or name in self.parameters:
                return True
            if name not in seen:
                seen.add(name)
                either = [one for value in self._values(name) for one in _either(value)]
                if any(_is_current(one) or _is_default(one) for one in either):
                    return True
                names += [one.value for one in either if isinstance(one, cst.Name)]
        return False

    def orders(self, wait: Wait, waiter: str, on: str) -> bool:
        """Tells whether a wait may put later work of `waiter` behind earlier work of `on`."""
        is_its = wait.waiter in (waiter, HOST, ANYTHING) or self._may_be_one(wait.waiter, waiter)
        return is_its and self.may_be_for(wait, on)

    def _is_for_itself(self, wait: Wait, first: Mapping[str, int]) -> bool:
        """Tells whether a stream waits for itself, or for an event that it has just recorded.

        `first` is where each event is recorded first.
        """
        return _is_one(wait.waiter, wait.on) or (
            first.get(wait.on, wait.order + 1) <= wait.order
            and all(_is_one(wait.waiter, one) for one in self.recorded[wait.on])
        )

    def awaits_itself(self, call: cst.Call) -> bool:
        """Tells whether all that a call plainly leads to is that a stream waits for itself."""
        callee = self.function.called(call)
        if callee is None or callee.entering:
            return False
        callee.entering = True  # of one that calls itself
        inner = streams_of(callee)
        callee.entering = False
        given = {name: self.text(value) for name, value in callee.takes(call)}
        return (
            bool(inner.wait_at)
            and not inner.contexts
            and all(
                one not in inner.waits
                or _is_one(given.get(one.waiter, one.waiter), given.get(one.on, one.on))
                for one in inner.wait_at.values()
            )
            and all(
                one in inner.wait_at or last_name(one.func) in RECORDS or _is_current(one)
                for one in callee.calls
            )
        )

    def is_fenced(self, stream: str) -> bool:
        """Tells whether one of a stream and the current one waits for the other: they are two."""
        return stream in self._fenced

    @cached_property
    def _fenced(self) -> set[str]:
        found: set[str] = set()
        for wait in self.waits:
            for on in self.recorded.get(wait.on) or {wait.on}:
                if CURRENT in (wait.waiter, on):
                    found.add(on if wait.waiter == CURRENT else wait.waiter)
        return found

    @cached_property
    def recorded(self) -> Mapping[str, set[str]]:
        """The streams that each event is recorded on."""
        found: dict[str, set[str]] = {}
        for one in self.records:
            found.setdefault(one.event, set()).add(one.stream)
        return found

    @cached_property
    def entered(self) -> Mapping[str, Sequence[Context]]:
        """The bodies by their streams."""
        found: dict[str, list[Context]] = {}
        for one in self.contexts:
            found.setdefault(one.stream, []).append(one)
        return found

    def _values(self, name: str) -> Sequence[CSTNode]:
        """Returns what is bound to a local name, or what a local list holds of which this is one.

        Names and entries, `sides[i]`, are known by their text.
        """
        base, is_entry, _ = name.partition("[")
        values = self.names.values(base)
        if not is_entry:
            return values
        return [element for value in values for element in literal_elements(value) or ()]

    def _may_be_one(self, one: str, other: str) -> bool:
        """Tells whether a stream may be another one: by what a list holds, or as another entry."""
        if self.names.is_looped(one):
            return True
        if "[" not in other:
            return False
        held = {self.text(value) for value in self._values(other)}
        return one in held or one.startswith(other.partition("[")[0] + "[")

    def may_be_for(self, wait: Wait, on: str) -> bool:
        """Tells whether a wait may be for earlier work of `on`: an event may be from elsewhere."""
        if wait.on in (on, ANYTHING):
            return True
        if wait.on in self.recorded:
            return on in self.recorded[wait.on]
        return wait.on != CURRENT and wait.on not in self.entered

    def launches(self, value: CSTNode) -> bool:
        """Tells whether an expression is a device tensor that has just been launched.

        Only what is plainly that: a tensor of the host, or an object that the text does not tell
        from one, is none.
        """
        if not isinstance(value, cst.Call) or ON_HOST.search(self.part.code(value)):
            return False
        if takes_stream(value):
            return False
        word = last_name(value.func)
        if word == "to":
            return any("device" in self.part.code(arg) for arg in value.args)
        if word not in LAUNCHES:
            return False
        name = self.part.module.resolve(dotted(value.func) or "")
        if name.startswith(("torch.", "torch_npu.")):
            return True
        return isinstance(value.func, cst.Attribute) and not name.startswith(("numpy.", "jax."))

    def _note_context(self, node: cst.With) -> None:
        if node.asynchronous is not None:
            return
        for item in node.items:
            if isinstance(item.item, cst.Call) and last_name(item.item.func) == "graph":
                # Whoever enters a capture waits for the whole device.
                self.waits.append(Wait(item.item, ANYTHING, ANYTHING, self.order[item]))
            named = (
                entered_stream(item.item)
                or self._entered_by_name(item.item)
                or self._entered_by_helper(item.item)
            )
            if named is not None:
                text = self.text(named).removesuffix("_ctx").removesuffix("_context")
                start = self.order[node.body]
                end = self.end(node.body)
                self.contexts.append(Context(node, named, text, start, end))
                self._current[start:end] = [text] * (end - start)
                self._texts.clear()  # of streams that are current where the body stands

    def _entered_by_name(self, item: CSTNode) -> CSTNode | None:
        """Returns the stream of a context that a local name stands for.

        Of a choice, as between a stream's context and `nullcontext()`, it is the stream.
        """
        values = self.names.bound(item) if isinstance(item, cst.Name) else ()
        for one in (either for value in values for either in _either(value)):
            named = entered_stream(one)
            if named is not None:
                return named
        return None

    def _entered_by_helper(self, item: CSTNode) -> CSTNode | None:
        """Returns the stream that a context manager of the package makes current around `yield`.

        Only one of the object's own attributes: another name is none of the caller's.
        """
        if not isinstance(item, cst.Call) or "stream" not in last_name(item.func):
            return None
        callee = self.function.called(item)
        if callee is None or callee.entering:
            return None
        callee.entering = True  # of one that enters itself
        inner = streams_of(callee)
        callee.entering = False
        yields = [order for node, order in inner.order.items() if isinstance(node, cst.Yield)]
        for one in inner.contexts:
            if any(map(one.holds, yields)) and (dotted(one.item) or "").startswith("self."):
                return one.item
        return None

    def _note_call(self, call: cst.Call, order: int) -> None:
        word, receiver, args = self._called(call)
        if receiver is None:
            if self._may_order(word, call):
                self.waits.append(Wait(call, ANYTHING, ANYTHING, order))
        elif word in ("wait_stream", "wait_event") and args:
            waiter, on = self.text(receiver), self.text(args[0])
            self.waits.append(Wait(call, waiter, on, order, receiver, args[0]))
            self._note_record_within(args[0], order)
        elif word == "wait":
            waiter = self.text(args[0]) if args else self.stream_at(order)
            self.waits.append(Wait(call, waiter, self.text(receiver), order, named=receiver))
        elif word in ("synchronize", "query"):
            on = ANYTHING if _is_module(receiver, self.part) else self.text(receiver)
            self.waits.append(Wait(call, HOST, on, order, named=receiver))
        elif word in RECORDS:
            self._note_record(call, receiver, args, order)
        elif word == "record_stream":
            self.kept |= self.holders(receiver)
        elif self._may_order(word, call):
            self.waits.append(Wait(call, ANYTHING, ANYTHING, order))
        elif word in COPIES and is_non_blocking(call):
            if word == "to":
                self.copies.append(AsyncCopy(call, receiver, None, order))
            elif args:
                self.copies.append(AsyncCopy(call, args[0], receiver, order))

    def _called(self, call: cst.Call) -> tuple[str, CSTNode | None, Sequence[CSTNode]]:
        """Returns the same as the function, for a wait by another name by its own."""
        func = self.function.stands_for(call.func) if self._renames_waits else call.func
        if func is not call.func:
            word, receiver, args = _called(call.with_changes(func=func))
            if word in WAITS or ORDERING.search(word):
                return word, receiver, args
        word, receiver, args = _called(call)
        if receiver is None:
            word = self.part.module.imported.get(word, word).rpartition(".")[2]
        return word, receiver, args

    @cached_property
    def _renames_waits(self) -> bool:
        """Tells whether the file's text gives another name to what is named as a wait."""
        memo: dict[str, bool] = self.part.module.memo.setdefault("renames waits", {})
        if not memo:
            memo[""] = _RENAMED.search(self.part.module.text) is not None
        return memo[""]

    def _may_order(self, word: str, call: cst.Call) -> bool:
        """Tells whether a call may order work for the function, or wait for it, by its name."""
        if word in self._ordered_by:
            return True
        if ORDERING.search(word) is not None:
            return not self.awaits_itself(call)
        return ENDS.search(word) is not None and self._may_end(call)

    def _may_end(self, call: cst.Call) -> bool:
        """Tells whether a call whose name says that it ends something may wait for it.

        Where the package has the function, that tells. `", ".join(x)` and a flush of a file end
        nothing on a device.
        """
        name = self.part.module.resolve(dotted(call.func) or "")
        if name.startswith(("os.", "sys.")) or (last_name(call.func) == "join" and call.args):
            return False
        family = self.part.stretch.family
        if name.startswith("self.") and name.count(".") == 1 and family is not None:
            # Asked of the text: whoever looks for a wait there reads the method.
            start, end = family.place.start, family.place.end
            if self.part.module.text.find(f"def {last_name(call.func)}(", start, end) >= 0:
                return False
        return self.function.called(call) is None

    def _note_record_within(self, event: CSTNode, order: int) -> None:
        """Notes `S.record_event()` as the argument of a wait, which no name holds."""
        if isinstance(event, cst.Call) and last_name(event.func) == "record_event":
            assert isinstance(event.func, cst.Attribute)
            stream = self.text(event.func.value)
            self.records.append(EventRecord(event, self.text(event), stream, order))

    def _note_record(
        self, call: cst.Call, receiver: CSTNode, args: Sequence[CSTNode], order: int
    ) -> None:
        if last_name(call.func) != "record":
            event = self.text(args[0]) if args else squeezed(self.part.code(call))
            self.records.append(EventRecord(call, event, self.text(receiver), order))
        elif (
            looks_like_event(self.part.code(receiver))
            or self._is_made_event(receiver)
            or any("stream" in self.part.code(arg) for arg in args)
        ):
            stream = self.text(args[0]) if args else self.stream_at(order)
            self.records.append(EventRecord(call, self.text(receiver), stream, order))

    def _is_made_event(self, node: CSTNode) -> bool:
        """Tells whether a local name is bound to a new event, whatever it is called."""
        values = self.names.bound(node) if isinstance(node, cst.Name) else ()
        return any(isinstance(one, cst.Call) and last_name(one.func) == "Event" for one in values)


def _called(call: cst.Call) -> tuple[str, CSTNode | None, Sequence[CSTNode]]:
    """Returns the name of what is called, what it is called on, and its arguments.

    `Stream.wait_stream(side, other)` and `getattr(side, "wait_stream")(other)` are
    `side.wait_stream(other)`.
    """
    func, args = call.func, [arg.value for arg in call.args]
    if isinstance(func, cst.Attribute):
        if args and last_name(func.value) in _CLASSES:
            return func.attr.value, args[0], args[1:]
        return func.attr.value, func.value, args
    if isinstance(func, cst.Call) and is_name(func.func, "getattr") and len(func.args) > 1:
        held, name = func.args[0].value, func.args[1].value
        if isinstance(name, cst.SimpleString):
            return str(name.evaluated_value), held, args
    return last_name(func), None, args


def takes_stream(call: cst.Call) -> bool:
    """Tells whether a call is handed a stream, by the name of it: it may launch there."""
    return any(
        "stream" in last_name(arg.value).lower()
        or (arg.keyword is not None and "stream" in arg.keyword.value)
        for arg in call.args
    )


def entered_stream(item: CSTNode) -> CSTNode | None:
    """Returns the stream that a `with` item makes current, None for any other item."""
    if isinstance(item, cst.Call) and item.args:
        first = item.args[0].value
        is_path = isinstance(first, (cst.SimpleString, cst.FormattedString))
        return None if is_path or not ENTERS.search(last_name(item.func)) else first
    return item if looks_like_context(last_name(item)) else None


def is_non_blocking(call: cst.Call) -> bool:
    """Tells whether a call says `non_blocking=True`."""
    return is_name(non_blocking(call), "True")


def goes_to_host(call: cst.Call) -> bool:
    """Tells whether `.to(...)` names the CPU."""
    for arg in call.args:
        value = arg.value
        if isinstance(value, cst.Call) and last_name(value.func) == "device" and value.args:
            value = value.args[0].value
        if isinstance(value, cst.SimpleString) and value.evaluated_value in ("cpu", "cpu:0"):
            return arg.keyword is None or arg.keyword.value == "device"
    return False


def _is_one(waiter: str, on: str) -> bool:
    """Tells whether two texts are plainly one stream: what is called may return another one."""
    return waiter == on and "(" not in on and on not in (HOST, ANYTHING)


def _whole(path: str) -> str:
    """Returns the path of the buffer that this is an element of, or the path itself."""
    while path.endswith(ANY):
        path = path.removesuffix(ANY)
    return path


def _either(value: CSTNode) -> Iterator[CSTNode]:
    """Yields what an expression may evaluate to: both sides of an `if ... else` and of an `or`."""
    if isinstance(value, cst.IfExp):
        yield from _either(value.body)
        yield from _either(value.orelse)
    elif isinstance(value, cst.BooleanOperation):
        yield from _either(value.left)
        yield from _either(value.right)
    else:
        yield value


def _names_stream(value: CSTNode) -> bool:
    """Tells whether a local name that is bound to this may be replaced by it."""
    if isinstance(value, cst.Call):
        return _is_current(value) or last_name(value.func) == "record_event"
    return isinstance(value, (cst.Name, cst.Attribute))


def _is_current(node: CSTNode) -> bool:
    """Tells whether an expression is `current_stream()`, of whatever module."""
    return isinstance(node, cst.Call) and last_name(node.func).endswith("current_stream")


def _is_default(node: CSTNode) -> bool:
    """Tells whether an expression is the default stream, on which all runs that names no other."""
    return isinstance(node, cst.Call) and last_name(node.func) == "default_stream"


def _reads_number(call: cst.Call) -> bool:
    """Tells whether this is `int(x.sum())` and the like."""
    value = call.args[0].value if len(call.args) == 1 else None
    is_number = isinstance(call.func, cst.Name) and call.func.value in NUMBERS
    return is_number and isinstance(value, cst.Call) and _is_one_of(value, REDUCTIONS | TRUTHS)


def _is_truth(call: cst.Call) -> bool:
    return _is_one_of(call, TRUTHS)


def _is_one_of(call: cst.Call, words: Collection[str]) -> bool:
    """Tells whether a call is a method, not of a value of the host, or a function of `torch`."""
    return (
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in words
        and not ON_HOST.search(holder(call))
        and not any(ON_HOST.search(holder(one.value)) for one in call.args[:1])
    )


def _blocks(call: cst.Call) -> bool:
    """Tells whether this is `.to("cpu")` that returns when all before it on the stream is done.

    So is `.numpy(force=True)`.
    """
    word = last_name(call.func)
    if word == "numpy":
        return is_name(keywords(call).get("force"), "True")
    if word != "to" or not goes_to_host(call):
        return False
    flag = non_blocking(call)
    return flag is None or is_name(flag, "False")


def _is_module(node: CSTNode, part: Part) -> bool:
    """Tells whether it is a whole device: `torch.cuda`, a device module, a platform."""
    if isinstance(node, cst.Call):
        return last_name(node.func).endswith("device_module")
    name = part.module.resolve(dotted(node) or "")
    return name.startswith("torch.") or name.endswith(_DEVICES)


def streams_of(function: Function, ordered_by: Collection[str] = ()) -> FunctionStreams:
    """Returns what a function does with streams; `ordered_by` are functions that order them."""
    known: dict[tuple[Function, frozenset[str]], FunctionStreams]
    known = function.module.memo.setdefault("streams", {})
    key = function, frozenset(ordered_by)
    if key not in known:
        known[key] = FunctionStreams(function, ordered_by)
    return known[key]

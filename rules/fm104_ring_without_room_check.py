"""FM104: a ring counter that hands out relay slots without asking whether they are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.model.expressions import last_name, squeezed
from fmcheck.lint.model.function import classes
from fmcheck.lint.relay_rule import RelayClassRule
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family, Part

RELAY = "sglang/srt/managers/overlap_utils.py"
#: Methods that find out whether a slot is free, or wait until it is.
WAITS = frozenset({"query", "wait", "synchronize", "wait_event", "acquire", "popleft"})
#: Parts of the name of a method that says whether slots are free.
_ROOM = regex(r"(^|_)(avail\w*|capacity|empty|free|full|room|space)(_|$)")


class RingWithoutRoomCheck(RelayClassRule):
    """A ring counter that allocates relay slots without checking that they are free.

    ## What it does
    Looks in a relay class of the contract for a counter that moves on modulo a limit,
    `self.count = (self.count + n) % self.limit`, in a method that neither compares it with
    anything, nor waits for or asks an event.

    ## Why is this bad
    The counter knows how many slots were handed out, not how many are still to be read. Prompt
    chunks, padded batches and retracted requests take slots too; when the ring wraps over a slot
    that is still to be read, a request goes on from another request's token, without any error.

    ## Example
    ```python
    start = self.count + 1
    self.count = (self.count + bs) % self.limit
    ```

    ## Use instead
    ```python
    self.output_tokens_buf[req_pool_indices] = tokens  # a row of its own for each request
    ```
    """

    code = "FM104"
    name = "ring-without-room-check"
    severity = Severity.WARNING
    in_own_module = True
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/25862",
        "https://github.com/sgl-project/sglang/pull/13713",
        "https://github.com/sgl-project/sglang-jax/pull/1504",
    )

    bad = (
        Example(
            """\
class FutureMap:
    def take(self, bs):
        count = self.count
        self.count = (count + bs) % self.limit
        return slice(count + 1, count + 1 + bs)

    def store(self, slots, tokens):
        if slots.stop < self.limit:
            self.token_ids_buf[slots] = tokens
""",
            at=((4, 9),),
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def store(self, tokens):
        slot = self.count % self.limit
        self.token_ids_buf[slot] = tokens
        self.count += 1

    def skip(self, n):
        self.count += n
        self.count %= self.limit
""",
            at=((5, 9), (9, 9)),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def take(self, bs):
        if self.taken + bs > self.limit:
            raise RuntimeError("no free slots")
        self.count = (self.count + bs) % self.limit
        self.token_ids_buf[self.count] = bs

    def store(self, tokens):
        slot = self.steps % self.depth
        self.copied[slot].synchronize()
        self.steps += 1
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def store(self, rows, tokens):
        self.steps += 1
        self.phase = self.steps % 2
        self.shard = rows % self.size
        self.token_ids_buf[rows] = tokens
""",
            path=RELAY,
        ),
        Example(
            """\
class Sampler:
    def take(self, bs):
        self.count = (self.count + bs) % self.limit
        self.token_ids_buf[self.count] = bs
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
        Judged("sglang 0.5.12", 1, 1),
    )

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each counter that wraps unasked."""
        for owner, methods in classes(family):
            if self.is_relay(owner, family.module.identity):
                for method in methods:
                    yield from self._in_method(method)

    def _in_method(self, method: Function) -> Iterator[Finding]:
        helpers = [method.called(call) for call in method.calls]
        if any(_asks_for_room(one.node) for one in (method, *helpers) if one is not None):
            return
        for counter, step in _counters(method.node, method.part):
            yield method.part.finding(
                self,
                step,
                f"`{counter}` wraps around without checking that its slots were read",
                help=(
                    "give each request its own row, or refuse to allocate slots that are still "
                    "to be read"
                ),
            )


def _counters(method: cst.FunctionDef, part: Part) -> Iterator[tuple[str, CSTNode]]:
    """Yields the counters that move on modulo a limit, with the statement that moves each."""
    aliases: dict[str, str] = {}
    wrapped: set[str] = set()
    grown: list[tuple[str, CSTNode]] = []
    for node in walk(method):
        if _is_remainder(node):
            wrapped |= _attributes(node.left, aliases, part)
        elif isinstance(node, cst.AugAssign):
            target = _text(node.target, part)
            if isinstance(node.operator, cst.ModuloAssign) and target.startswith("self."):
                yield target, node
            elif isinstance(node.operator, cst.AddAssign):
                grown.append((target, node))
        elif isinstance(node, cst.Assign) and len(node.targets) == 1:
            target = _text(node.targets[0].target, part)
            value = _text(node.value, part)
            if isinstance(node.targets[0].target, cst.Name) and value.startswith("self."):
                aliases[target] = value
            if target.startswith("self.") and target in _remainders(node.value, aliases, part):
                yield target, node
    yield from ((counter, step) for counter, step in grown if counter in wrapped)


def _remainders(value: CSTNode, aliases: dict[str, str], part: Part) -> set[str]:
    """Returns the attributes of which an expression takes a remainder by more than a constant."""
    found: set[str] = set()
    for node in walk(value):
        if _is_remainder(node):
            found |= _attributes(node.left, aliases, part)
    return found


def _is_remainder(node: CSTNode) -> TypeGuard[cst.BinaryOperation]:
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Modulo):
        return False
    return not isinstance(node.right, (cst.Integer, cst.Tuple))


def _attributes(node: CSTNode, aliases: dict[str, str], part: Part) -> set[str]:
    texts = {_text(one, part) for one in walk(node) if isinstance(one, (cst.Name, cst.Attribute))}
    return {aliases.get(text, text) for text in texts}


def _text(node: CSTNode, part: Part) -> str:
    return squeezed(part.code(node))


def _asks_for_room(method: cst.FunctionDef) -> bool:
    """Tells whether a method compares quantities in a test, or waits for or asks an event."""
    nodes = walk(method)
    tests = [node.test for node in nodes if isinstance(node, (cst.If, cst.While, cst.Assert))]
    tests += [node.subject for node in nodes if isinstance(node, cst.Match)]
    compared = [
        one for test in tests for one in walk(test) if isinstance(one, cst.ComparisonTarget)
    ]
    orders: Sequence[type[CSTNode]] = (
        cst.LessThan,
        cst.LessThanEqual,
        cst.GreaterThan,
        cst.GreaterThanEqual,
    )
    if any(isinstance(one.operator, tuple(orders)) for one in compared):
        return True
    asked = [one for test in tests for one in walk(test) if isinstance(one, cst.Call)]
    if any(_ROOM.search(last_name(call.func)) for call in asked):
        return True
    return any(isinstance(one, cst.Call) and last_name(one.func) in WAITS for one in nodes)

"""FM101: a gather from a relay buffer that nothing checks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.model.accesses import Accesses, RelayAccess, accesses_of
from fmcheck.lint.model.expressions import dotted, last_name, squeezed
from fmcheck.lint.model.function import functions
from fmcheck.lint.relay_rule import RelayRule
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

RELAY = "sglang/srt/managers/overlap_utils.py"


class GatherUnchecked(RelayRule):
    """A gather from a relay buffer whose values are not checked.

    ## What it does
    Looks for `buf[rows]`, or `torch.gather` and the like, on a relay buffer of the contract after
    which, on some path to a return, no call is handed the buffer and the rows to check and to
    invalidate them. A check of another buffer by the same rows will do, for rows are stashed
    together; so will an assert on the values with a constant written back by hand. A guard may be
    behind a switch, in a function of the package that is handed the rows, and a context manager
    that may check as it is left, kept by a name or put on an `ExitStack`, too. Kernels that the
    contract declares as gathers count; methods that it calls peeks and buffers that are `kept`, or
    that have `reads = "many"`, do not. A buffer that only looks like the declared ones is a note.

    ## Why is this bad
    A row that was overwritten before it was read, read twice, or never written gives the token or
    the length of another step or request. Nothing fails: the output is merely wrong, at some batch
    sizes and timings. A poisoned row and an assert after each gather name the step.

    ## Example
    ```python
    tokens = self.output_tokens_buf[rows]
    batch.input_ids = tokens
    ```

    ## Use instead
    ```python
    tokens = self.output_tokens_buf[rows]
    if DEBUG_ASSERT:
        assert_and_invalidate(tokens, self.output_tokens_buf, rows)
    batch.input_ids = tokens
    ```
    """

    code = "FM101"
    name = "gather-unchecked"
    severity = Severity.WARNING
    seen_in = ("https://github.com/sgl-project/sglang/pull/26108",)

    bad = (
        Example(
            """\
class FutureMap:
    def resolve(self, batch):
        batch.input_ids = self.output_tokens_buf[batch.rows]
""",
            at=((3, 27),),
            path=RELAY,
        ),
        Example(
            """\
def prepare(batch, future_map):
    buf = future_map.output_tokens_buf
    tokens = buf.index_select(0, batch.rows)
    invalidate(tokens, buf, batch.other_rows)
    return tokens
""",
            at=((3, 14),),
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch, rows):
        batch.lengths = self.new_seq_lens_buf[rows]
        if batch.on_device:
            return
        if self.debug:
            self.guard(batch.lengths, self.new_seq_lens_buf, rows)
""",
            at=((3, 25),),
            path=RELAY,
        ),
        Example(
            """\
import torch

class FutureMap:
    def resolve(self, batch, rows):
        tokens = self.output_tokens_buf[rows]
        torch._assert_async((tokens >= 0).all(), "stale row")
        batch.tokens = tokens
        batch.p, batch.ids = gather_spec_extras(rows, self.topk_p_buf, self.topk_index_buf)
""",
            at=((5, 18), (8, 30)),
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch, rows):
        batch.lens = self.accept_lens_buf[rows]
        if batch.late:
            self.output_tokens_buf[rows] = batch.tokens
""",
            at=((3, 22),),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def admit(self, row):
        self.output_tokens_buf[row].zero_()
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch, rows):
        if self.has_tokens:
            batch.tokens = self.output_tokens_buf[rows]
        if DEBUG_ASSERT:
            if self.has_tokens:
                assert_and_invalidate(batch.tokens, self.output_tokens_buf, rows)
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch):
        rows = batch.rows
        batch.input_ids = self.output_tokens_buf[rows]
        if DEBUG_ASSERT:
            assert_and_invalidate(batch.input_ids, self.output_tokens_buf, batch.rows)
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch, rows):
        batch.p, batch.tokens = gather_spec_extras(rows, self.topk_p_buf, self.output_tokens_buf)
        if batch.needs_hidden:
            batch.hidden = self.hidden_states_buf[rows]
        self.guard.tokens(batch.tokens, self.output_tokens_buf, rows)
""",
            path=RELAY,
        ),
        Example(
            """\
import torch

def resolve(batch, future_map):
    tokens = future_map.output_tokens_buf[batch.rows]
    torch._assert_async((tokens >= 0).all(), "stale row")
    future_map.output_tokens_buf[batch.rows] = -1
    return tokens
"""
        ),
        Example(
            """\
class FutureMap:
    def resolve_mixed_spec_tails(self, batch):
        return self.new_seq_lens_buf[batch.rows]
""",
            path=RELAY,
        ),
        Example(
            """\
class Planner:
    def plan(self, batch):
        return self.new_seq_lens_buf[batch.rows], batch.output_tokens_buf[batch.rows]
"""
        ),
        Example(
            """\
class FutureMap:
    def mirror(self, rows):
        self.pinned.copy_(self.new_seq_lens_buf, non_blocking=True)
        self.new_seq_lens_buf[rows] = 0
        return self.new_seq_lens_buf[:4], self.new_seq_lens_buf[0]
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def resolve(self, batch):
        with guarded(self.output_tokens_buf, batch.rows) as guard:
            batch.input_ids = guard.checked(self.output_tokens_buf[batch.rows])
""",
            path=RELAY,
        ),
    )
    judged = (Judged("sglang 0.5.23", 2, 2), Judged("vllm 0.20.2", 0, 0))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each gather that may return unchecked."""
        for function in functions(part):
            if function.name in self.relays.peeks(part.identity):
                continue
            accesses = accesses_of(function, self.relays)
            checks = _Checks(accesses)
            seen: set[CSTNode] = set()
            for gather in accesses.gathers:
                if gather.node in seen or self.relays.is_kept(gather.buffer):
                    continue  # a kernel that gathers several buffers; rows that nobody may empty
                seen.add(gather.node)
                missing = checks.missing(gather)
                if missing:
                    yield self._finding(gather, missing, part)

    def _finding(self, gather: RelayAccess, missing: str, part: Part) -> Finding:
        return part.finding(
            self,
            gather.node,
            f"gather from `{gather.buffer}` {missing}",
            note="" if gather.is_declared else "no contract declares this relay buffer",
            help=(
                "fill the buffer with a sentinel; after each gather, assert the values are not "
                f"the sentinel and write it back to rows `{gather.index}`"
            ),
            severity=self.severity if gather.is_declared else Severity.NOTE,
        )


class _Checks:
    """What checks the gathers of one function, looked for once for those that it may check."""

    def __init__(self, accesses: Accesses) -> None:
        self._accesses = accesses
        self._function = accesses.function
        self._barriers: dict[object, _Barrier] = {}

    @cached_property
    def _asserts(self) -> Sequence[tuple[CSTNode, AbstractSet[str]]]:
        calls = [one for one in self._function.calls if "assert" in last_name(one.func)]
        return [(one, _expressions(one, self._function.part)) for one in calls]

    @cached_property
    def _put_back(self) -> Mapping[tuple[str, str], Sequence[CSTNode]]:
        """Where one constant is written, by the buffer and its rows."""
        found: dict[tuple[str, str], list[CSTNode]] = {}
        for one in self._accesses.writes:
            if one.is_constant:
                found.setdefault((one.buffer, one.index), []).append(one.node)
        return found

    def missing(self, gather: RelayAccess) -> str:
        """Returns what a gather lacks, in words, or "" if it lacks nothing."""
        if not self._function.flow.contains(gather.node):
            return ""  # in a nested function: its caller's business
        guards = self._accesses.guards(gather.index)
        barrier = self._barrier(("guards", gather.index), lambda: [*guards])
        if barrier.follows(gather) or self._ends_in(gather, guards):
            return ""

        def asserts() -> Sequence[CSTNode]:
            return [one for one, texts in self._asserts if not texts.isdisjoint(gather.bound)]

        if self._barrier(("asserts", gather.bound), asserts).follows(gather):
            key = gather.buffer, gather.index
            back = self._barrier(key, lambda: self._put_back.get(key, ()))
            return "" if back.follows(gather) else "is checked, but its rows are not invalidated"
        if barrier.may_follow(gather):
            return "is checked on some paths only"
        return "is neither checked nor invalidated"

    def _ends_in(self, gather: RelayAccess, guards: Mapping[cst.Call, Sequence[cst.Call]]) -> bool:
        """Tells whether a gather stands in a `with` of a guard, which may check as it is left."""
        node, function = gather.node, self._function
        while node is not function.node.body:
            node = function.parents[node]
            if isinstance(node, cst.With) and any(
                one in guards and _checks_as_left(one, guards[one], function)
                for item in node.items
                for one in _contexts(item, function)
            ):
                return True
        return False

    def _barrier(self, key: object, nodes: Callable[[], Sequence[CSTNode]]) -> _Barrier:
        if key not in self._barriers:
            self._barriers[key] = _Barrier(nodes(), self._function)
        return self._barriers[key]


class _Barrier:
    """Some nodes that paths are to pass, and the `if`s that stand for them."""

    def __init__(self, nodes: Sequence[CSTNode], function: Function) -> None:
        self._function = function
        flow = self._flow = function.flow
        nodes = [node for node in nodes if flow.contains(node)]
        self._own = sorted(map(flow.position, nodes))
        switches = (one for node in nodes for one in _switches(node, (), function))
        self._steps = frozenset({*self._own, *map(flow.position, switches)})
        #: The same, with the `if`s that stand for more where some tests are known to hold.
        self._more: dict[frozenset[str], frozenset[int]] = {}
        #: The nodes by the tests that they stand under.
        self._under: dict[str, list[CSTNode]] = {}
        for node in nodes:
            for test in flow.known(node):
                self._under.setdefault(test.text, []).append(node)

    def follows(self, gather: RelayAccess) -> bool:
        """Tells whether each path from a gather to a return passes one."""
        at = self._flow.position(gather.node)
        certain = frozenset(one.text for one in self._flow.known(gather.node) if one.holds)
        if certain not in self._more:
            found = self._steps.union(
                self._flow.position(one)
                for text in certain & self._under.keys()
                for node in self._under[text]
                for one in _switches(node, certain, self._function)
            )
            self._more[certain] = found if len(found) > len(self._steps) else self._steps
        more = self._more[certain]
        if len(more) == (at in more):
            return False
        return not self._flow.may_leave(at, self._steps) or not self._flow.may_leave(at, more)

    def may_follow(self, gather: RelayAccess) -> bool:
        """Tells whether a path leads from a gather to one."""
        return self._flow.may_lead_to(gather.node, self._own)


def _checks_as_left(guard: cst.Call, made: Sequence[cst.Call], function: Function) -> bool:
    """Tells whether a context may check as it is left: one that is seen, after its `yield`."""
    callee = function.called(guard)
    yields = callee.of(cst.Yield) if callee is not None else ()
    if callee is None or not yields:
        return True
    return any(callee.order[one] > callee.order[yields[-1]] for one in made)


def _contexts(item: cst.WithItem, function: Function) -> Iterator[cst.Call]:
    """Yields the calls that a `with` item may stand for, and those that a stack of it is handed."""
    asked: list[CSTNode] = [item.item]
    seen: set[CSTNode] = set()
    while asked:
        one = asked.pop()
        if isinstance(one, cst.IfExp):
            asked += [one.body, one.orelse]
        elif isinstance(one, cst.Name) and one not in seen:
            asked += function.names.bound(one)
        elif isinstance(one, cst.Call):
            yield one
        seen.add(one)
    stack = dotted(item.asname.name) if item.asname is not None else None
    for call in function.calls if stack else ():
        if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == stack:
            yield call  # `stack.callback(check, buffer, rows)`
            yield from (arg.value for arg in call.args if isinstance(arg.value, cst.Call))


def _expressions(call: cst.Call, part: Part) -> AbstractSet[str]:
    """Returns the texts of the names, attributes and subscripts that a call is handed."""
    nodes = [node for argument in call.args for node in walk(argument.value)]
    # `tokens` of `batch.tokens` is another thing than a variable of that name.
    members = {node.attr for node in nodes if isinstance(node, cst.Attribute)}
    return {
        squeezed(part.code(node))
        for node in nodes
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)) and node not in members
    }


def _switches(node: CSTNode, certain: Collection[str], function: Function) -> Iterator[CSTNode]:
    """Yields the `if`s that stand for what they hold: one switch, and tests that are `certain`."""
    may_switch = True
    above = _test_above(node, function)
    while above is not None and above.orelse is None:
        if squeezed(function.part.code(above.test)) not in certain:
            if not may_switch:
                return
            may_switch = False
        yield above
        above = _test_above(above, function)


def _test_above(node: CSTNode, function: Function) -> cst.If | None:
    """Returns the innermost `if` of a function that a node stands in."""
    while node is not function.node.body:
        node = function.parents[node]
        if isinstance(node, cst.If):
            return node
    return None

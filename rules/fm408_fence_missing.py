"""FM408: a fence that the contract asks for is missing, or stands in the wrong place."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.block import walk
from fmcheck.lint.flow import Flow
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted, last_name
from fmcheck.lint.nodes import FUNCTIONS
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.stream_words import StreamWords, outermost_functions, stream_words
from fmcheck.lint.stream_words import last_name as last_word
from fmcheck.lint.streams import functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst

    from fmcheck.contract import Contract, Fence
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

WAITS = ("wait_stream", "wait_event")


class FenceMissing(Rule):
    """Two streams share memory, and the fence between them is missing or comes too late.

    ## What it does
    Looks for what the contract says of an engine's fences, and is silent without it. Of two streams
    in `streams.joins`, a class in which one waits for the other must have the other wait too. In a
    function that calls the `fence` of a `[[streams.fence]]`, no path may lead from its `launch` to
    one of its `writes` without passing the fence.

    ## Why is this bad
    The forward stream waits for the schedule stream, so it sees the mapping that was prepared for
    it. If the schedule stream does not wait in its turn, the next step's preparation, or the
    processing of the last step's results, rewrites the mapping while the forward still reads it.
    This shows as a flaky accuracy test, and hardly as anything else.

    ## Example
    ```python
    while True:
        self.apply_war_barrier()
        result = self.run_batch(batch)
        self.process_batch_result(last_result)
    ```

    ## Use instead
    ```python
    while True:
        result = self.run_batch(batch)
        self.apply_war_barrier()
        self.process_batch_result(last_result)
    ```
    """

    code = "FM408"
    name = "fence-missing"
    severity = Severity.WARNING
    scope = Scope.CLASS
    needles: tuple[tuple[bytes, ...], ...] = ()
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26380",
        "https://github.com/sgl-project/sglang/pull/31687",
    )
    bad = (
        Example(
            """\
class Scheduler:
    def loop(self):
        while True:
            batch = self.prepare()
            self.forward_stream.wait_stream(self.schedule_stream)
            self.run(batch)
""",
            at=((5, 13),),
            contract='engine.name = "mine"\n'
            'streams.joins = [["schedule_stream", "forward_stream"]]\n',
        ),
        Example(
            """\
class Scheduler:
    def loop(self):
        while True:
            self.barrier()
            if self.early:
                self.finish(self.last)
            result = self.run(self.next())
            if not self.early:
                self.finish(self.last)
            self.last = result
""",
            at=((9, 17),),
            contract='engine.name = "mine"\n[[streams.fence]]\nfence = "barrier"\n'
            'launch = "run"\nwrites = ["finish"]\n',
        ),
    )
    good = (
        Example(
            """\
class Scheduler:
    def loop(self):
        while True:
            self.wait_for_forward()
            batch = self.prepare()
            self.forward_stream.wait_stream(self.schedule_stream)
            self.run(batch)

    def wait_for_forward(self):
        self.schedule_stream.wait_event(self.forward_done)

class Worker:
    def load(self):
        self.copy_stream.wait_stream(self.schedule_stream)
        self.forward_stream.wait_stream(self.copy_stream)
""",
            contract='engine.name = "mine"\n'
            'streams.joins = [["schedule_stream", "forward_stream"]]\n',
        ),
        Example(
            """\
class Scheduler:
    def loop(self):
        def finish_last():
            self.finish(self.last)

        while True:
            finish_last()
            result = self.run(self.next())
            self.barrier()
            self.finish(self.last)
            self.last = result

    def plain_loop(self):
        while True:
            self.finish(self.run(self.next()))
""",
            contract='engine.name = "mine"\n[[streams.fence]]\nfence = "barrier"\n'
            'launch = "run"\nwrites = ["finish", "finish_last"]\n',
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("sglang 0.5.14", 2, 2),
        Judged("vllm 0.20.2", 0, 0),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        streams = [one.streams for one in contracts]
        self._joins = [pair for one in streams for pair in one.joins]
        self._fences = [fence for one in streams for fence in one.fence]
        self._pairs = [(first.encode(), other.encode()) for first, other in self._joins]
        fences = tuple(fence.fence.encode() for fence in self._fences)
        self.needles = tuple((*side, *fences) for side in zip(*self._pairs, strict=True))
        if not self._pairs:
            self.needles = (fences,)
        self.anchors = (*(name for pair in self._pairs for name in pair), *fences)

    def concerns(self, text: bytes) -> bool:
        """Asks for both streams of a join, or for a fence, by the names in the contract."""
        return any(first in text and other in text for first, other in self._pairs) or any(
            fence.fence.encode() in text for fence in self._fences
        )

    def looks_into(self, text: str) -> bool:
        """Tells whether a method waits, or sets a fence and writes what it is for."""
        return any(word in text for word in WAITS) or any(
            one.fence in text and any(name in text for name in one.writes) for one in self._fences
        )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears classes that fence each launch at once, and wait in both directions or none."""
        return any(self._late(node)) or any(self._one_way(stream_words(node)))

    def _late(self, node: ast.AST) -> Iterator[tuple[ast.stmt, Fence]]:
        """Yields the functions in which a fence may come too late, each with that fence."""
        for function in outermost_functions(node):
            for fence in self._fences:
                if _may_be_late(function, fence):
                    yield function, fence

    def _one_way(self, words: StreamWords) -> Iterator[tuple[ast.Call, str, str]]:
        """Yields a wait of each pair in which one waits for the other only: who, and for whom."""
        waits = [call for word in WAITS for call in words.calls[word] if call.args]
        waiters = {_waiter(call) for call in waits}
        for pair in self._joins:
            for waiter, on in (pair, pair[::-1]):
                found = [
                    call
                    for call in waits
                    if _waiter(call) == waiter and last_word(call.args[0]) == on
                ]
                if found and on not in waiters:
                    yield min(found, key=lambda call: call.lineno), waiter, on

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each write that no fence precedes, and for each one-way wait."""
        for call, waiter, on in self._one_way(stream_words(block.syntax)):
            yield from self._waits_one_way(call, waiter, on, block)
        for statement, fence in self._late(block.syntax):
            part = block.part_of(statement)
            for function in functions(part):
                yield from self._too_late(function, fence, part)

    def _waits_one_way(
        self, call: ast.Call, waiter: str, on: str, block: Block
    ) -> Iterator[Finding]:
        holding = [
            one
            for one in outermost_functions(block.syntax)
            if one.lineno <= call.lineno <= (one.end_lineno or one.lineno)
        ]
        for function in holding:
            part = block.part_of(function)
            for node in part.nodes():
                if (
                    isinstance(node, cst.Call)
                    and isinstance(node.func, cst.Attribute)
                    and node.func.attr.value in WAITS
                    and last_name(node.func.value) == waiter
                    and node.args
                    and last_name(node.args[0].value) == on
                ):
                    yield part.finding(
                        self,
                        node,
                        f"`{waiter}` waits for `{on}`, which never waits for `{waiter}` here: it "
                        "may rewrite what is still being read",
                        help=f"have `{on}` wait for `{waiter}` before it writes what they share",
                    )
                    return

    def _too_late(
        self, function: libcst.FunctionDef, fence: Fence, block: Block
    ) -> Iterator[Finding]:
        calls: dict[str, list[libcst.Call]] = {}
        for node in walk(function.body):
            if isinstance(node, cst.Call) and dotted(node.func):
                calls.setdefault(last_name(node.func), []).append(node)
        fences, launches = calls.get(fence.fence, ()), calls.get(fence.launch, ())
        if not fences or not launches:
            return
        flow = Flow(function, block)
        for name in fence.writes:
            for write in calls.get(name, ()):
                if isinstance(flow.steps[flow.position(write)], cst.FunctionDef):
                    continue  # of an inner function, which runs where it is called
                launch = next(
                    (one for one in launches if flow.may_follow(one, write, without=fences)), None
                )
                if launch is not None:
                    yield block.finding(
                        self,
                        write,
                        f"`{name}` may run after `{fence.launch}` and before `{fence.fence}`: it "
                        "writes what the launched work still reads",
                        help=f"call `{fence.fence}` right after `{fence.launch}`",
                        related=[(launch, "launched here")],
                    )


def _may_be_late(function: ast.AST, fence: Fence) -> bool:
    """Tells whether a function sets a fence, and not with each launch among the next statements."""
    if not isinstance(function, FUNCTIONS):
        return False
    words = stream_words(function)
    if fence.fence not in words.calls or not any(name in words.calls for name in fence.writes):
        return False
    fenced = sum(
        _next_call(body[number + 1 :]) == fence.fence
        for inner in all_below(function)
        for body in (getattr(inner, "body", None), getattr(inner, "orelse", None))
        if isinstance(body, list)
        for number, statement in enumerate(body)
        if isinstance(statement, (ast.Assign, ast.Expr))
        and isinstance(statement.value, ast.Call)
        and last_word(statement.value.func) == fence.launch
    )
    return fenced < len(words.calls[fence.launch])


def _next_call(statements: Sequence[ast.stmt]) -> str:
    """Returns the name of the function that the next statement calls."""
    first = statements[0] if statements else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Call):
        return last_word(first.value.func)
    return ""


def _waiter(call: ast.Call) -> str:
    return last_word(call.func.value) if isinstance(call.func, ast.Attribute) else ""

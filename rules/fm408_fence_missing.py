"""FM408: a fence that the contract asks for is missing, or stands in the wrong place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, last_name, receiver
from fmcheck.lint.model.function import functions_near

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract, Fence
    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family

WAITS = ("wait_stream", "wait_event")


class FenceMissing(ClassRule):
    """Two streams share memory, and the fence between them is missing or too late.

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
        fences = tuple(fence.fence for fence in self._fences)
        sides = tuple(zip(*self._joins, strict=True)) if self._joins else ((),)
        self.words = tuple((*side, *fences) for side in sides)

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each write that no fence precedes, and for each one-way wait."""
        waits = [
            (call, function)
            for function in functions_near(family, WAITS)
            for call in function.calls
            if last_name(call.func) in WAITS and call.args
        ]
        waiters = {_waiter(call) for call, _ in waits}
        for pair in self._joins:
            for waiter, on in (pair, pair[::-1]):
                found = [
                    one
                    for one in waits
                    if _waiter(one[0]) == waiter and last_name(one[0].args[0].value) == on
                ]
                if found and on not in waiters:
                    yield self._one_way(*found[0], waiter, on)
        for fence in self._fences:
            for function in functions_near(family, (fence.fence,)):
                yield from self._too_late(function, fence)

    def _one_way(self, call: cst.Call, function: Function, waiter: str, on: str) -> Finding:
        return function.part.finding(
            self,
            call,
            f"`{waiter}` waits for `{on}`, which never waits for it",
            note=f"`{on}` may overwrite data that `{waiter}` is still reading",
            help=f"have `{on}` wait for `{waiter}` before it writes what they share",
        )

    def _too_late(self, function: Function, fence: Fence) -> Iterator[Finding]:
        calls: dict[str, list[cst.Call]] = {}
        for call in function.calls:
            if dotted(call.func):
                calls.setdefault(last_name(call.func), []).append(call)
        fences, launches = calls.get(fence.fence, ()), calls.get(fence.launch, ())
        if not fences or not launches:
            return
        flow = function.flow
        led = flow.led_to(launches, without=fences)
        for name in fence.writes:
            for write in calls.get(name, ()):
                step = flow.position(write)
                if isinstance(flow.steps[step], cst.FunctionDef):
                    continue  # of an inner function, which runs where it is called
                launch = led.get(step)
                if launch is not None:
                    yield function.part.finding(
                        self,
                        write,
                        f"`{name}` may run after `{fence.launch}` and before `{fence.fence}`",
                        note="it writes what the launched work still reads",
                        help=f"call `{fence.fence}` right after `{fence.launch}`",
                        related=[(launch, "launched here")],
                    )


def _waiter(call: cst.Call) -> str:
    held = receiver(call)
    return last_name(held) if held is not None else ""

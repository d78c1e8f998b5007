"""FM401: work on a side stream that does not wait for what it reads."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import WARMS_UP
from fmcheck.lint.model.vocabulary import ENTERED, IN_PLACE, LAUNCHES
from fmcheck.lint.streams.function_streams import CURRENT, FunctionStreams, streams_of
from fmcheck.lint.streams.handovers import (
    callers_order,
    callers_wait,
    helpers,
    inputs_read_early,
    is_forked_elsewhere,
    is_within_side_stream,
    joined_only,
)
from fmcheck.lint.streams.misplaced_waits import another_waits, waits_for_itself
from fmcheck.lint.streams.stream_kinds import is_kept_current
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.sieve import Sieve
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import Context, Wait
    from fmcheck.lint.streams.handovers import StreamHandover

_WAIT_ARGUMENT = regex(r"^wait_events?$")

#: What orders streams, and is seen where the wrong one waits.
WAITED = ("wait_event", "wait_stream", "synchronize(")


class SideStreamWithoutWait(FunctionRule):
    """Work on a side stream reads what another stream has not yet written.

    ## What it does
    Looks at `with stream(side):` bodies, whatever module `stream` is reached through, in these
    forms. A tensor that this very function computes, writes in place or reduces over the ranks on
    the current stream is read in the body, and `side` waits for nothing in between
    (`current_stream()` in the body is `side` itself). `side` waits only for an event that its own
    previous job recorded. In the body a stream waits for itself, by
    `side.wait_stream(current_stream())` or `current_stream().wait_stream(side)`, and no other wait
    stands in its place. Another stream waits where `side` should. A tensor that is an argument is
    computed with or brought to the host in the body, `side` waits for nothing, and the function
    waits for `side` afterwards. Of two calls of one launch function, one gets the event to wait for
    and the other does not.

    A stream that waits for itself, or for an event of its own, by whatever name, attribute or
    helper, counts as one that does not wait.

    A stream that a caller hands in may be the current one, and is left alone unless the function
    has one of the two wait for the other. So is an attribute, an entry, a global or an object's
    stream that is `current_stream()`, kept, unless it is a stream of its own in some
    configurations; and what a caller has launched, where no wait follows the body, where a caller
    in the file waits for anything, and where another function of the file has `side` wait for it.
    Calls that lead to other packages are taken not to order streams, unless their names say so
    (`wait`, `sync`, `fence`, `barrier`, `join_`). The contract's `streams.ordered_by` names
    functions that order streams for their caller.

    ## Why is this bad
    Streams run side by side. Without a fence the copy or kernel on the side stream starts while
    the tensor is still being computed, and takes what the memory held before: wrong values, only
    under load, and none of it under `CUDA_LAUNCH_BLOCKING=1`.

    ## Example
    ```python
    rows = torch.cat(parts)
    with torch.cuda.stream(self.copy_stream):
        self.host_rows.copy_(rows, non_blocking=True)
    ```

    ## Use instead
    ```python
    rows = torch.cat(parts)
    self.copy_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.copy_stream):
        self.host_rows.copy_(rows, non_blocking=True)
    ```
    """

    code = "FM401"
    name = "side-stream-without-wait"
    severity = Severity.WARNING
    warns_undeclared = False
    words = (
        ("tream", "wait_event"),  # of the next ones, what is found fastest
        (*ENTERED, "wait_event*="),
        ("with ", "with(", "wait_event"),
        (*(f"{one}(" for one in sorted(LAUNCHES | IN_PLACE)), ".to(", "dist.", *WAITED),
    )
    seen_in = (
        "https://github.com/vllm-project/vllm/pull/31341",
        "https://github.com/vllm-project/vllm/issues/47282",
        "https://github.com/sgl-project/sglang/pull/26380",
    )
    bad = (
        Example(
            """\
import torch

class Saver:
    def save(self, parts, n):
        rows = torch.cat(parts)
        with torch.cuda.stream(self.copy_stream):
            self.host_rows[:n].copy_(rows, non_blocking=True)
""",
            at=((6, 14),),
        ),
        Example(
            """\
def save(self, parts):
    side = self.side
    side.wait_stream(self.device_module.current_stream())
    rows = parts.index_select(0, self.rows)
    with self.device_module.stream(side):
        self.out.copy_(rows)
""",
            at=((5, 10),),
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.side.wait_stream(torch.cuda.current_stream())  # which is `self.side` here
        self.out.copy_(rows)
""",
            at=((5, 10),),
        ),
        Example(
            """\
import torch

def save(self, rows):
    with torch.cuda.stream(self.side):
        self.side.wait_stream(torch.cuda.current_stream())
        self.out.copy_(rows)
""",
            at=((5, 9),),
        ),
        Example(
            """\
import torch

def offload(self, blocks):
    stream = self.streams.pop() if self.streams else torch.cuda.Stream()
    done = torch.cuda.Event()
    if self.jobs:
        previous = self.jobs[-1].done
        stream.wait_event(previous)
    with torch.cuda.stream(stream):
        swap_blocks(self.cache, self.host, blocks)
        done.record(stream)
    self.jobs.append(Job(stream=stream, done=done))
""",
            at=((9, 10),),
        ),
        Example(
            """\
import torch
import torch.distributed as dist

class Mixture:
    def __init__(self, alt_stream):
        self.alt_stream = alt_stream

    def forward(self, hidden: torch.Tensor):
        hidden = hidden.view(-1, 8)
        main = torch.cuda.current_stream()
        with torch.cuda.stream(self.alt_stream):
            routed = self.experts(hidden)
        main.wait_stream(self.alt_stream)
        return routed

    def reduce(self, grads):
        dist.all_reduce(self.sums)
        part = grads.norm(2)
        with torch.cuda.stream(self.alt_stream):
            self.experts(part, self.sums)
        torch.cuda.current_stream().wait_stream(self.alt_stream)
""",
            at=((12, 35), (19, 14)),
        ),
        Example(
            """\
import torch

def flush(self, grads):
    self.total.add_(grads)
    with torch.cuda.stream(self.copy_stream):
        self.host.copy_(self.total, non_blocking=True)
""",
            at=((5, 10),),
        ),
        Example(
            """\
def finish(self, loads, stores):
    if loads:
        self.backend.launch_copy(loads, is_store=False)
    if stores:
        self.backend.launch_copy(stores, is_store=True, wait_event=self.compute_done)
""",
            at=((3, 9),),
        ),
    )
    good = (
        Example(
            """\
import torch

def forward(self, images):
    results = self.engine.run(images, stream=self.inference_stream)
    with torch.cuda.stream(self.inference_stream):
        joined = torch.cat(results, dim=-1)
    self.inference_stream.synchronize()
    return joined

def warmup(self):
    logits = torch.zeros((1, self.size), device=self.device)
    with torch.cuda.stream(self.side):
        self.sample(torch.softmax(logits, -1))
"""
        ),
        Example(
            """\
import torch

class Saver:
    def save(self, parts, n):
        main = torch.cuda.current_stream()
        rows = torch.cat(parts)
        with torch.cuda.stream(self.copy_stream):
            self.copy_stream.wait_stream(main)
            self.host_rows[:n].copy_(rows, non_blocking=True)
"""
        ),
        Example(
            """\
import torch

def save(self, rows, stream):
    rows = torch.cat(rows)
    with torch.cuda.stream(stream):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def save(self, rows):
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    self.join_streams()
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def offload(self, blocks):
    done = torch.cuda.Event()
    self.side.wait_stream(torch.cuda.current_stream())
    if self.jobs:
        self.side.wait_event(self.jobs[-1].done)
    with torch.cuda.stream(self.side):
        swap_blocks(self.cache, self.host, blocks)
        done.record(self.side)
"""
        ),
        Example(
            """\
import torch

def split(self, parts, side):
    sides = [torch.cuda.current_stream(), side]
    total = torch.zeros(8)
    for i, part in enumerate(parts):
        with torch.cuda.stream(sides[i]):
            self.add(total, part)

def split_away(self, parts, first, second):
    sides = [first, second]
    rows = torch.cat(parts)
    first.wait_stream(torch.cuda.current_stream())
    second.wait_stream(torch.cuda.current_stream())
    for i in range(2):
        with torch.cuda.stream(sides[i]):
            self.add(rows)
"""
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self, alt_stream):
        self.alt_stream = alt_stream

    def fork(self):
        self.alt_stream.wait_stream(torch.cuda.current_stream())

    def forward(self, hidden: torch.Tensor):
        with torch.cuda.stream(self.alt_stream):
            routed = self.experts(hidden)
        torch.cuda.current_stream().wait_stream(self.alt_stream)
        return routed

    def index(self, hidden, alt_stream):
        alt_stream.wait_stream(torch.cuda.current_stream())
        rows = torch.cat(hidden)
        rows_ready = torch.cuda.current_stream().record_event()
        with torch.cuda.stream(alt_stream):
            self.indexer(rows, rows_ready)
        torch.cuda.current_stream().wait_stream(alt_stream)

    def load(self, samples, alt_stream):
        batch = self.collate(samples)
        with torch.cuda.stream(alt_stream):
            rows = self.upload_rows(batch)
        torch.cuda.current_stream().wait_stream(alt_stream)
        return rows

    def halves(self, hidden, other):
        sides = [torch.cuda.current_stream(), other]
        rows = torch.cat(hidden)
        for i in range(2):
            if i:
                sides[i].wait_stream(sides[i - 1])
            with torch.cuda.stream(sides[i]):
                self.experts(rows)
            torch.cuda.current_stream().wait_stream(sides[i])
"""
        ),
        Example(
            """\
import torch

def upload(self, lines):
    table = torch.zeros(len(lines), pin_memory=True)
    with torch.cuda.stream(self.side):
        self.out.copy_(table, non_blocking=True)
"""
        ),
        Example(
            """\
import torch

class Saver:
    def __init__(self):
        self.compute = torch.cuda.current_stream()

    def save(self, parts, n):
        rows = torch.cat(parts)
        with torch.cuda.stream(self.compute):
            self.host_rows[:n].copy_(rows, non_blocking=True)

    def wait(self, parts):
        rows = torch.cat(parts)
        with torch.cuda.stream(self.compute):
            self.compute.wait_stream(torch.cuda.current_stream())
            self.out.copy_(rows)
"""
        ),
        Example(
            """\
def finish(self, loads, stores):
    self.backend.launch_copy(loads, wait_event=None)
    self.backend.launch_copy(stores, wait_event=self.compute_done)
    self.log.add(loads)
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("sglang 0.5.12", 1, 1),
        Judged("vllm 0.20.2", 0, 0),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        self._ordered_by = {name for one in contracts for name in one.streams.ordered_by}

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each body that starts too early, and each launch without a wait."""
        for function in functions(part):
            if WARMS_UP.search(function.name):
                continue  # nobody looks at what is computed
            streams = streams_of(function, self._ordered_by)
            reported: set[CSTNode] = set()
            for context in streams.contexts:
                if not streams.may_be_current(context.stream):
                    for finding in self._unordered(streams, context, part):
                        if not is_kept_current(context.item, function):
                            reported.add(context.node)
                            yield finding
            yield from self._early(streams, part, reported)
            yield from self._without_keyword(function)

    def _early(
        self, streams: FunctionStreams, part: Part, reported: set[CSTNode]
    ) -> Iterator[Finding]:
        """Yields a finding for each body of a known side stream that reads too early."""
        function = streams.function
        for context, wait in waits_for_itself(streams):
            if (
                context.node not in reported
                and not streams.may_be_current(context.stream)
                and not is_kept_current(context.item, function)
            ):
                reported.add(context.node)
                yield part.finding(
                    self,
                    wait.node,
                    f"`{context.stream}` waits for itself here",
                    note=f"in this body `current_stream()` is `{context.stream}`",
                    help="move the wait out of the body, or take the other stream before it",
                    related=[(context.node.items[0], "the body begins here")],
                )
        for context, wait in another_waits(streams):
            if context.node not in reported:
                reported.add(context.node)
                yield part.finding(
                    self,
                    wait.node,
                    f"`{wait.waiter}` waits here, but the work is put on `{context.stream}`",
                    note=f"`{context.stream}` waits for nothing",
                    help=f"`{context.stream}.wait_stream(...)`",
                    related=[(context.node.items[0], "the work is put on this stream")],
                )
        for one in inputs_read_early(streams):
            if one.context.node not in reported and not self._is_known_to_caller(function, one):
                reported.add(one.context.node)
                stream = part.code(one.context.item)
                yield part.finding(
                    self,
                    one.context.node.items[0],
                    f"`{one.name}` is read on `{stream}` with no wait after its launch",
                    note=f"`{one.name}` is launched on the current stream",
                    help=(
                        f"`{stream}.wait_stream(...)` for the stream that produces it, before "
                        "the body"
                    ),
                    related=[(one.producer, f"`{one.name}` is launched here")],
                )
        for name, read, context, join in joined_only(streams):
            if context.node in reported or callers_wait(function):
                continue
            if not (
                is_within_side_stream(function) or is_forked_elsewhere(function, context.stream)
            ):
                stream = part.code(context.item)
                yield part.finding(
                    self,
                    read,
                    f"`{name}` is read on `{stream}`, which did not wait for it",
                    note=f"`{stream}` is waited for afterwards, and does not itself wait for the "
                    f"stream that produced `{name}`",
                    help=f"`{stream}.wait_stream(current_stream())` ahead of the body",
                    related=[(join.node, "the wait the other way round")],
                )

    def _is_known_to_caller(self, function: Function, one: StreamHandover) -> bool:
        return is_within_side_stream(function) or callers_order(function, one.stream)

    def _unordered(
        self, streams: FunctionStreams, context: Context, part: Part
    ) -> Iterator[Finding]:
        waits = streams.waits_of(context.stream, CURRENT)
        stream = part.code(context.item)
        help = f"`{stream}.wait_stream(...)` for the stream that produces it, before the body"
        launched = _launched(streams, context, waits)
        if launched is not None:
            yield part.finding(
                self,
                context.node.items[0],
                f"`{launched[0]}` is read on `{stream}` with no wait after its launch",
                note=f"`{launched[0]}` is launched on the current stream",
                help=help,
                related=[(launched[1], f"`{launched[0]}` is launched here")],
            )
            return
        wait = waits.first(-1, context.end)
        if (
            wait is not None
            and _are_of_own_job(streams, context)
            and helpers(streams).first(-1, context.order) is None
        ):
            yield part.finding(
                self,
                context.node.items[0],
                f"`{stream}` waits only for its own previous job",
                note="it does not wait for the work whose result it reads",
                help=help,
                related=[(wait.node, "its only wait")],
            )

    def _without_keyword(self, function: Function) -> Iterator[Finding]:
        calls, part = function.calls, function.part
        siblings = {
            part.code(call.func): (call, keyword)
            for call in calls
            for keyword in [_wait_keyword(call)]
            if keyword
        }
        for call in calls:
            sibling = siblings.get(part.code(call.func))
            if sibling is not None and not any(_names_wait(arg) for arg in call.args):
                yield part.finding(
                    self,
                    call,
                    f"`{last_name(call.func)}` gets no event to wait for, unlike elsewhere in "
                    "this function",
                    help=f"pass `{sibling[1]}=` here too, `None` if there is nothing to wait for",
                    related=[(sibling[0], f"has `{sibling[1]}=`")],
                )


def _launched(
    streams: FunctionStreams, context: Context, waits: Sieve[Wait]
) -> tuple[str, CSTNode] | None:
    """Returns a tensor that the body reads and that is launched after the last wait before it."""
    read: dict[str, CSTNode] = {}
    for node in streams.nodes(context.order, context.end):
        if isinstance(node, cst.Name) and node.value in streams.launched:
            read.setdefault(node.value, node)
    if not read:
        return None
    wait = waits.last(-1, context.end)
    synced = streams.reads.get(CURRENT, ())
    before = bisect_left(synced, context.order)
    last_wait = max(-1 if wait is None else wait.order, synced[before - 1] if before else -1)
    for name in sorted(read, key=lambda one: streams.launched[one][1]):
        node, order = streams.launched[name]
        if (
            last_wait <= order < context.order
            and streams.flow.may_follow(node, context.node)
            and helpers(streams).first(order, streams.order[read[name]]) is None
        ):
            return name, node
    return None


def _are_of_own_job(streams: FunctionStreams, context: Context) -> bool:
    """Tells whether all waits before a body's end are for an event that is recorded in the body.

    It is of an earlier job.
    """
    stream, by_order = context.stream, attrgetter("order")
    first = bisect_left(streams.records, context.order, key=by_order)
    end = bisect_left(streams.records, context.end, key=by_order)
    recorded = {one.event.rpartition(".")[2] for one in streams.records[first:end]}

    def is_of_another(wait: Wait) -> bool:
        return streams.orders(wait, stream, CURRENT) and not (
            "." in wait.on
            and wait.on.rpartition(".")[2] in recorded
            and last_name(wait.node.func) == "wait_event"
        )

    others = streams.wait_sieve("of another", stream, *sorted(recorded), passes=is_of_another)
    return others.first(-1, context.end) is None


def _names_wait(arg: cst.Arg) -> bool:
    return bool(arg.star) or (
        arg.keyword is not None and bool(_WAIT_ARGUMENT.match(arg.keyword.value))
    )


def _wait_keyword(call: cst.Call) -> str:
    """Returns the keyword by which a call is told what to wait for."""
    for arg in call.args:
        if arg.keyword is not None and _names_wait(arg) and last_name(arg.value) != "None":
            return str(arg.keyword.value)
    return ""

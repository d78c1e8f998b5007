"""FM401: work on a side stream that does not wait for what it reads."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.streams import ANYTHING, CURRENT, HOST, Streams
from fmcheck.lint.model.vocabulary import ENTERED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.model.streams import Context, Wait
    from fmcheck.lint.source.module import Part

#: Methods that read all of a tensor.
_COPIED = frozenset(
    {"clone", "contiguous", "cpu", "copy_", "float", "half", "item", "mul", "tolist"}
)
_WAIT_ARGUMENT = re.compile(r"^wait_events?$")


class SideStreamWithoutWait(FunctionRule):
    """Work on a side stream reads what another stream has not yet written.

    ## What it does
    Looks at `with stream(side):` bodies, whatever module `stream` is reached through, in six
    forms. A tensor that this very function launches on the current stream is read in the body, and
    `side` waits for nothing in between (`current_stream()` in the body is `side` itself). Or `side`
    waits only for an event that its own previous job recorded. Or, of two calls of one launch
    function, one is told which event to wait for and the other is not. Or what the body makes is
    computed with after it, and nothing has waited for `side`, or for another stream only. Or the
    current stream waits for `side` after a body that reads what the caller handed in, and `side`
    never waited for it. Or `side` is created where it is entered, and nothing waits at all. A
    stream that a caller hands in may be the current one, and is left alone; so is what a caller has
    launched, for the caller may have ordered it. The contract's `streams.ordered_by` names
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
    words = ((*ENTERED, "wait_event"),)
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
def finish(self, loads, stores):
    if loads:
        self.backend.launch_copy(loads, is_store=False)
    if stores:
        self.backend.launch_copy(stores, is_store=True, wait_event=self.compute_done)
""",
            at=((3, 9),),
        ),
        Example(
            """\
import torch

def sums(self, rows, out):
    side = self.side
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        total = torch.cumsum(rows, 0)
    out.add_(torch.sqrt(total))
    with torch.cuda.stream(torch.cuda.Stream()):
        self.prepare()
""",
            at=((8, 25),),
        ),
        Example(
            """\
import torch

def upload(self, params):
    with torch.cuda.stream(self.up):
        for param in params:
            param.device_copy.copy_(param.data, non_blocking=True)
    self.down.record_event().wait(torch.cuda.current_stream())

def fill(self, noise):
    with torch.cuda.stream(self.side):
        host = noise.cpu()
    torch.cuda.current_stream().wait_stream(self.side)
    return host

def wrap(self):
    with torch.cuda.stream(torch.cuda.Stream()):
        self.prepare()
""",
            at=((7, 5), (10, 10), (16, 10)),
        ),
    )
    good = (
        Example(
            """\
import torch

def sums(self, rows, out):
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        total = torch.cumsum(rows, 0)
        self.made.record()
    torch.cuda.current_stream().wait_event(self.made)
    out.add_(torch.sqrt(total))

def upload(self, params):
    with torch.cuda.stream(self.up):
        for param in params:
            param.device_copy.copy_(param.data, non_blocking=True)
    self.up.record_event().wait(torch.cuda.current_stream())

def fill(self, noise):
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        host = noise.cpu()
    torch.cuda.current_stream().wait_stream(self.side)
    return host
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

def upload(self, lines):
    table = torch.zeros(len(lines), pin_memory=True)
    with torch.cuda.stream(self.side):
        self.out.copy_(table, non_blocking=True)
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
            streams = function.streams(self._ordered_by)
            for context in streams.contexts:
                if not streams.may_be_current(context.stream):
                    yield from self._unordered(streams, context, part)
                    yield from self._unjoined(streams, context, part)
            yield from self._untold(function)

    def _unordered(self, streams: Streams, context: Context, part: Part) -> Iterator[Finding]:
        ordering = streams.waits_of(context.stream, CURRENT)
        waits = [wait for wait in ordering if wait.order < context.end]
        stream = part.code(context.item)
        help = f"`{stream}.wait_stream(...)` for the stream that produces it, ahead of the body"
        launched = _launched(streams, context, waits)
        if launched is not None:
            yield part.finding(
                self,
                context.node.items[0],
                f"`{launched[0]}` is launched on the current stream and read on `{stream}`, which "
                "waits for nothing in between",
                help=help,
                related=[(launched[1], f"`{launched[0]}` is launched here")],
            )
        elif not streams.waits and _is_created(context):
            yield part.finding(
                self,
                context.node.items[0],
                "this stream is created here and nobody keeps it: nothing orders what runs on it",
                help="keep the stream, and let each wait for the other: `wait_stream`",
            )
        elif not ordering and (read := _read_too_early(streams, context)) is not None:
            yield part.finding(
                self,
                context.node.items[0],
                f"`{part.code(read[0])}` is read on `{stream}`, which does not wait for the stream "
                "that it was called on: only the other way round",
                help=help,
                related=[(read[1].node, "the current stream waits here, for what was done")],
            )
        elif waits and all(_is_of_own_job(wait, streams, context) for wait in waits):
            yield part.finding(
                self,
                context.node.items[0],
                f"`{stream}` waits for its own previous job only, not for the work that it reads",
                help=help,
                related=[(waits[0].node, "all that it waits for")],
            )

    def _unjoined(self, streams: Streams, context: Context, part: Part) -> Iterator[Finding]:
        """Yields a finding for what the current stream reads before the side stream has made it."""
        stream = part.code(context.item)
        wrong = _wait_for_another(streams, context)
        if wrong is not None:
            yield part.finding(
                self,
                wrong.node,
                f"this waits for another stream than `{stream}`, on which the work is done",
                help=f"record the event on `{stream}`",
                related=[(context.node.items[0], "the work is done here")],
            )
            return
        for name, made in _made(streams, context):
            use = _first_use(name, streams, context)
            if use is not None:
                yield part.finding(
                    self,
                    use,
                    f"`{name}` is made on `{stream}` and read here, where nothing has waited for "
                    "it",
                    help=f"`current_stream().wait_stream({stream})` before it is read",
                    related=[(made, f"`{name}` is made here")],
                )
                return

    def _untold(self, function: Function) -> Iterator[Finding]:
        calls, part = function.calls, function.part
        told = {
            part.code(call.func): (call, keyword)
            for call in calls
            for keyword in [_wait_keyword(call)]
            if keyword
        }
        for call in calls:
            sibling = told.get(part.code(call.func))
            if sibling is not None and not any(_names_wait(arg) for arg in call.args):
                yield part.finding(
                    self,
                    call,
                    f"`{last_name(call.func)}` is not told what to wait for, as it is elsewhere in "
                    "this function",
                    help=f"pass `{sibling[1]}=` here too, `None` if there is nothing to wait for",
                    related=[(sibling[0], f"has `{sibling[1]}=`")],
                )


def _launched(
    streams: Streams, context: Context, waits: Sequence[Wait]
) -> tuple[str, CSTNode] | None:
    """Returns a tensor that the body reads and that is launched after the last wait before it."""
    read = [
        streams.launched[node.value]
        for node in streams.nodes(context.order, context.end)
        if isinstance(node, cst.Name) and node.value in streams.launched
    ]
    last_wait = max([wait.order for wait in waits], default=-1)
    for node, order in sorted(read, key=itemgetter(1)):
        if last_wait <= order < context.order and streams.flow.may_follow(node, context.node):
            return last_name(node.targets[0].target), node
    return None


def _is_created(context: Context) -> bool:
    """Tells whether a stream is created where it is entered: nobody else can wait for it."""
    item = context.item
    return isinstance(item, cst.Call) and last_name(item.func) == "Stream"


def _read_too_early(streams: Streams, context: Context) -> tuple[CSTNode, Wait] | None:
    """Returns a tensor of the caller's that the body reads, and the wait that joins the streams.

    A function that joins the side stream and never forked it takes its inputs as they come.
    """
    joins = [
        wait
        for wait in streams.waits_of(CURRENT, context.stream)
        if wait.order >= context.end and wait.waiter == CURRENT
    ]
    if not joins:
        return None
    parameters = set(streams.function.parameters) - {"self", "cls"}
    for node in streams.nodes(context.order, context.end):
        if not isinstance(node, cst.Call):
            continue
        held = node.func.value if isinstance(node.func, cst.Attribute) else None
        if (
            isinstance(held, cst.Name)
            and held.value in parameters
            and last_name(node.func) in _COPIED
            and not streams.names.values(held.value)
        ):
            return held, joins[0]
    return None


def _made(streams: Streams, context: Context) -> Iterator[tuple[str, CSTNode]]:
    """Yields the local tensors that the body launches, and makes nowhere else."""
    for node in streams.nodes(context.order, context.end):
        if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
            name = node.targets[0].target.value
            is_made = len(streams.names.values(name)) == 1 and streams.launches(node.value)
            if is_made and streams.stream_at(streams.order[node]) == context.stream:
                yield name, node


def _first_use(name: str, streams: Streams, context: Context) -> CSTNode | None:
    """Returns what reads a tensor on the current stream first, if nothing was waited for."""
    for order in range(context.end, len(streams.function.nodes)):
        node = streams.function.nodes[order]
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        if streams.stream_at(order) != CURRENT or not streams.flow.may_follow(context.node, node):
            return None
        waits = [
            wait
            for wait in (*streams.waits_of(CURRENT, context.stream), *_of_host(streams))
            if context.order <= wait.order < order
        ]
        return node if not waits and _is_computed_with(node, streams) else None
    return None


def _of_host(streams: Streams) -> list[Wait]:
    return [wait for wait in streams.waits if wait.waiter in (HOST, ANYTHING)]


def _is_computed_with(node: CSTNode, streams: Streams) -> bool:
    """Tells whether an expression computes with a tensor, and does not hand it on."""
    parent = streams.parents.get(node)
    if isinstance(parent, cst.BinaryOperation):
        return True
    if isinstance(parent, cst.Arg):
        call = streams.parents.get(parent)
        name = dotted(call.func) if isinstance(call, cst.Call) else None
        return streams.part.module.resolve(name or "").startswith("torch.")
    if isinstance(parent, cst.Attribute):
        call = streams.parents.get(parent)
        return isinstance(call, cst.Call) and call.func is parent and streams.launches(call)
    return False


def _wait_for_another(streams: Streams, context: Context) -> Wait | None:
    """Returns a wait of the current stream after a body that meets another stream than its own."""
    used = {one.stream for one in streams.contexts}
    if any(
        wait.order >= context.order and wait.waiter != context.stream
        for wait in (*streams.waits_of(CURRENT, context.stream), *_of_host(streams))
    ):
        return None
    for wait in streams.waits:
        met = {one.stream for one in streams.records if one.event == wait.on}
        if wait.order >= context.end and wait.waiter == CURRENT and len(met) == 1:
            other = met.pop()
            if (
                other not in (CURRENT, context.stream)
                and other not in used
                # One of several streams may be the other one, by its index or in a loop.
                and "[" not in context.stream
                and "." in other
            ):
                return wait
    return None


def _is_of_own_job(wait: Wait, streams: Streams, context: Context) -> bool:
    """Tells whether an event of that name is recorded in the body: it is of an earlier job."""
    recorded = {one.event.rpartition(".")[2] for one in streams.records if context.holds(one.order)}
    leaf = wait.on.rpartition(".")[2]
    return "." in wait.on and leaf in recorded and last_name(wait.node.func) == "wait_event"


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

"""FM401: work on a side stream that does not wait for what it reads."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.block import walk
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import last_name
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.source import ascii_of
from fmcheck.lint.stream_texts import may_call_before_body, may_enter
from fmcheck.lint.stream_words import LAUNCHES, stream_words
from fmcheck.lint.stream_words import last_name as last_word
from fmcheck.lint.streams import CURRENT, Streams, functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.stream_words import StreamWords
    from fmcheck.lint.streams import Context, Wait

#: Keywords by which a launch is told what to wait for.
_WAIT_GIVEN = re.compile(r"wait_events?[\s\\]*=(?!=)")
_LAUNCHES = LAUNCHES | {"to"}
_WAIT_ARGUMENT = re.compile(r"^wait_events?$")


class SideStreamWithoutWait(Rule):
    """Work on a side stream reads what another stream has not yet written.

    ## What it does
    Looks at `with stream(side):` bodies, whatever module `stream` is reached through, in three
    forms. A tensor that this very function launches on the current stream is read in the body, and
    `side` waits for nothing in between (`current_stream()` in the body is `side` itself). Or `side`
    waits only for an event that its own previous job recorded. Or, of two calls of one launch
    function, one is told which event to wait for and the other is not. A stream that a caller hands
    in may be the current one, and is left alone; so is what a caller has launched, for the caller
    may have ordered it. The contract's `streams.ordered_by` names functions that order streams for
    their caller.

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
    scope = Scope.FUNCTION
    needles = (
        (
            b"stream(",
            b"StreamContext",
            b"stream_c",
            b"wait_event",
        ),
    )
    anchors = needles[0]
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
    )
    good = (
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

    def concerns(self, text: bytes) -> bool:
        """Asks for a stream that is entered, or a wait for an event."""
        return b"wait_event" in text or may_enter(ascii_of(text))

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for what is launched ahead of a stream's body, or for a wait for an event."""
        if "wait_event" in text and ("record" in text or _WAIT_GIVEN.search(text)):
            return True
        return may_call_before_body(text, _LAUNCHES)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks in which no form can be, by names and lines."""
        words = stream_words(node)
        if any(_tells(calls) for calls in words.calls.values() if len(calls) > 1):
            return True
        waited = _waited(words) if words.contexts else set()
        return any(
            _may_be_of_own_job(context, words, waited) or _may_be_unordered(context, words)
            for context in words.contexts
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each body that starts too early, and each launch without a wait."""
        for function in functions(block):
            streams = Streams(function, block, self._ordered_by)
            for context in streams.contexts:
                if not streams.may_be_current(context.stream):
                    yield from self._unordered(streams, context, block)
            yield from self._untold(function, block)

    def _unordered(self, streams: Streams, context: Context, block: Block) -> Iterator[Finding]:
        waits = [
            wait
            for wait in streams.waits
            if wait.order < context.end and streams.orders(wait, context.stream, CURRENT)
        ]
        stream = block.code(context.item)
        help = f"`{stream}.wait_stream(...)` for the stream that produces it, ahead of the body"
        launched = _launched(streams, context, waits)
        if launched is not None:
            yield block.finding(
                self,
                context.node.items[0],
                f"`{launched[0]}` is launched on the current stream and read on `{stream}`, which "
                "waits for nothing in between",
                help=help,
                related=[(launched[1], f"`{launched[0]}` is launched here")],
            )
        elif waits and all(_is_of_own_job(wait, streams, context) for wait in waits):
            yield block.finding(
                self,
                context.node.items[0],
                f"`{stream}` waits for its own previous job only, not for the work that it reads",
                help=help,
                related=[(waits[0].node, "all that it waits for")],
            )

    def _untold(self, function: libcst.FunctionDef, block: Block) -> Iterator[Finding]:
        calls = [node for node in walk(function.body) if isinstance(node, cst.Call)]
        told = {
            block.code(call.func): (call, keyword)
            for call in calls
            for keyword in [_wait_keyword(call)]
            if keyword
        }
        for call in calls:
            sibling = told.get(block.code(call.func))
            if sibling is not None and not any(_names_wait(arg) for arg in call.args):
                yield block.finding(
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
    read = {
        node.value
        for node in streams.nodes(context.order, context.end)
        if isinstance(node, cst.Name)
    }
    for node, order in streams.order.items():
        if order >= context.order or not isinstance(node, cst.Assign):
            continue
        name = last_name(node.targets[0].target)
        if (
            isinstance(node.targets[0].target, cst.Name)
            and name in read
            and len(streams.names.values(name)) == 1
            and streams.stream_at(order) == CURRENT
            and streams.launches(node.value)
            and not any(wait.order > order for wait in waits)
            and streams.flow.may_follow(node, context.node)
        ):
            return name, node
    return None


def _is_of_own_job(wait: Wait, streams: Streams, context: Context) -> bool:
    """Tells whether an event of that name is recorded in the body: it is of an earlier job."""
    recorded = {one.event.rpartition(".")[2] for one in streams.records if context.holds(one.order)}
    leaf = wait.on.rpartition(".")[2]
    return "." in wait.on and leaf in recorded and last_name(wait.node.func) == "wait_event"


def _names_wait(arg: libcst.Arg) -> bool:
    return bool(arg.star) or (
        arg.keyword is not None and bool(_WAIT_ARGUMENT.match(arg.keyword.value))
    )


def _wait_keyword(call: libcst.Call) -> str:
    """Returns the keyword by which a call is told what to wait for."""
    for arg in call.args:
        if arg.keyword is not None and _names_wait(arg) and last_name(arg.value) != "None":
            return str(arg.keyword.value)
    return ""


def _waited(words: StreamWords) -> set[str]:
    """Returns the names of the events that are waited for."""
    args = [arg for call in words.calls["wait_event"] for arg in call.args]
    names = {arg.id for arg in args if isinstance(arg, ast.Name)}
    return {last_word(arg) for arg in args if isinstance(arg, ast.Attribute)} | {
        last_word(one.value)
        for one in words.assigns
        if isinstance(one.value, (ast.Attribute, ast.Name))
        and not names.isdisjoint(last_word(target) for target in one.targets)
    }


def _may_be_of_own_job(context: ast.With, words: StreamWords, waited: set[str]) -> bool:
    """Tells whether an event is waited for whose name is that of one recorded in the body."""
    end = context.end_lineno or context.lineno
    recorded = {
        last_word(part)
        for word in ("record", "record_event")
        for call in words.calls[word]
        if context.lineno <= call.lineno <= end
        for part in (getattr(call.func, "value", call.func), *call.args)
    }
    return bool(recorded & waited - {""})


def _may_be_unordered(context: ast.With, words: StreamWords) -> bool:
    """Tells whether the body mentions what is launched after all that may order it."""
    start = context.lineno
    waits = words.ordered_lines(context)
    earlier = bisect_right(waits, start)
    last_wait = waits[earlier - 1] if earlier else 0
    return bool(words.launched) and any(
        last_wait <= line < start
        for statement in context.body
        for inner in all_below(statement)
        if isinstance(inner, ast.Name)
        for line in words.launched.get(inner.id, ())
    )


def _tells(calls: Sequence[ast.Call]) -> bool:
    """Tells whether some of the calls are told what to wait for, and some are not."""
    told = [
        any(one.arg and _WAIT_ARGUMENT.match(one.arg) for one in call.keywords) for call in calls
    ]
    return any(told) and not all(told)

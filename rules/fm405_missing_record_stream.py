"""FM405: memory is freed while a side stream may still use it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.block import walk
from fmcheck.lint.host_buffers import makes_pinned
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import last_name
from fmcheck.lint.nodes import FUNCTIONS
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.source import ascii_of
from fmcheck.lint.stream_texts import may_call_before_body, may_enter
from fmcheck.lint.stream_words import (
    CLASS,
    COPIES,
    LAUNCHES,
    ON_HOST,
    names,
    stream_words,
)
from fmcheck.lint.stream_words import last_name as last_word
from fmcheck.lint.streams import ANYTHING, CURRENT, Streams, functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.stream_words import StreamWords
    from fmcheck.lint.streams import Context

#: Functions that allocate a tensor, whether or not they launch anything.
ALLOCATES = LAUNCHES | {"empty", "empty_like", "new_empty", "new_zeros"}
_MAY_ALLOCATE = ALLOCATES | {"to"}


class MissingRecordStream(Rule):
    """A tensor goes out of scope while a side stream may still use its memory.

    ## What it does
    Looks at `with stream(side):` bodies that use a tensor which this function made on its own
    stream, or a pinned tensor that is handed to anything but a copy, and that nothing keeps: it is
    not returned, stored, captured by an inner function or put into anything. It is silent where the
    function calls `record_stream` on it, or where any stream or the host waits for `side`
    afterwards, for then the memory cannot be handed out again too early. The contract's
    `streams.joins` names pairs of streams that wait for each other elsewhere.

    ## Why is this bad
    When the last reference is gone, the caching allocator gives the block to the next allocation of
    the stream that it was made on. That stream does not wait for `side`, so the next kernel writes
    the memory while `side` still reads it. An event that orders the read after the write does not
    tell the allocator anything. Whether it shows depends on the allocator: one such fault gave
    wrong results in 19 of 20 runs with expandable segments, and in none of 40 without.

    ## Example
    ```python
    rows = torch.cat(parts)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        self.out.copy_(rows)
    ```

    ## Use instead
    ```python
    rows = torch.cat(parts)
    side.wait_stream(torch.cuda.current_stream())
    rows.record_stream(side)
    with torch.cuda.stream(side):
        self.out.copy_(rows)
    ```
    or join: `current_stream().wait_stream(side)` before the tensor goes.
    """

    code = "FM405"
    name = "missing-record-stream"
    severity = Severity.WARNING
    scope = Scope.FUNCTION
    needles = ((b"stream(", b"StreamContext", b"stream_c"),)
    anchors = needles[0]
    seen_in = (
        "https://github.com/InternLM/lmdeploy/pull/4792",
        "https://github.com/ModelTC/LightLLM/pull/1180",
        "https://github.com/sgl-project/sglang/pull/34076",
    )
    bad = (
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.saved.record()
""",
            at=((7, 24),),
        ),
        Example(
            """\
def offload(self, pages, device_module):
    with device_module.stream(self.offload_stream):
        offload_kernel(torch.tensor(pages, pin_memory=True), self.pool)
""",
            at=((3, 24),),
        ),
        Example(
            """\
import torch

def save(self, parts, lens):
    rows, count = torch.cat(parts), len(parts)
    kept = torch.cat(lens)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.lens.copy_(kept)
    kept.record_stream(self.side)
    with torch.cuda.stream(self.other):
        self.counts[0] = count
    torch.cuda.current_stream().wait_stream(self.other)
""",
            at=((7, 24),),
        ),
        Example(
            """\
def offload(self, pages, device_module):
    with device_module.stream(stream=self.offload_stream):
        if (rows := device_module.zeros(8, device=self.device)) is not None:
            offload_kernel(pages.pin_memory(), rows)
""",
            at=((4, 28),),
        ),
    )
    good = (
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    rows.record_stream(self.side)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    main = torch.cuda.current_stream()
    rows = torch.cat(parts)
    self.side.wait_stream(main)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        saved = self.side.record_event()
    main.wait_event(saved)
"""
        ),
        Example(
            """\
import torch

def keep(self, parts):
    rows = torch.cat(parts)
    self.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
    self.pending.append((rows, self.out))

def give(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
    return rows

def stage(self, pages, side):
    pinned = torch.tensor(pages, pin_memory=True)
    with torch.cuda.stream(self.side):
        self.rows.copy_(pinned, non_blocking=True)
        rows = torch.tensor(pages, pin_memory=True).to("cuda", non_blocking=True)
        return rows
"""
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.forward_stream):
        self.out.copy_(rows)
""",
            contract='engine.name = "mine"\n'
            'streams.joins = [["forward_stream", "schedule_stream"]]\n',
        ),
        Example(
            """\
import torch

def save(self, parts):
    rows = torch.cat(parts)
    with torch.cuda.stream(self.side):
        self.out.copy_(rows)
        self.publish()
    torch.cuda.current_stream().wait_event(self.published)
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        streams = [one.streams for one in contracts]
        self._ordered_by = {name for one in streams for name in one.ordered_by}
        self._joined = {name for one in streams for pair in one.joins for name in pair}

    def concerns(self, text: bytes) -> bool:
        """Asks for a stream that is entered."""
        return may_enter(ascii_of(text))

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for what is made ahead of a stream's body, or pinned."""
        return (
            may_enter(text) if "pin_memory" in text else may_call_before_body(text, _MAY_ALLOCATE)
        )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks without a body that uses what is made here, or pinned where it is used."""
        words = stream_words(node)
        if not words.contexts:
            return False
        made = {
            name
            for one in words.assigns
            if any(_may_allocate(inner) for inner in all_below(one.value))
            for name in names(*one.targets)
        } - _kept(node, words)
        return any(
            (isinstance(inner, ast.Name) and inner.id in made) or _may_pin(inner)
            for context in words.contexts
            if not any(line > (context.end_lineno or line) for line in words.joined_lines(context))
            for statement in context.body
            for inner in all_below(statement)
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each tensor that nothing keeps until the side stream is done."""
        for function in functions(block):
            streams = Streams(function, block, self._ordered_by)
            for context in streams.contexts:
                leaf = context.stream.rpartition(".")[2]
                if leaf not in self._joined and not streams.may_be_current(context.stream):
                    yield from self._freed(context, streams, block)

    def _freed(self, context: Context, streams: Streams, block: Block) -> Iterator[Finding]:
        if _is_joined(context, streams):
            return
        reported: set[str] = set()
        for call in streams.nodes(context.order, context.end):
            if not isinstance(call, cst.Call):
                continue
            for arg in call.args:
                name = last_name(arg.value) if isinstance(arg.value, cst.Name) else ""
                if name in reported or not _is_temporary(arg.value, call, context, streams):
                    continue
                reported.add(name or block.code(arg.value))
                yield block.finding(
                    self,
                    arg.value,
                    f"`{name or 'this pinned tensor'}` is used on `{block.code(context.item)}`, "
                    "and its memory may be given away before that is done",
                    help=f"`{name}.record_stream({block.code(context.item)})`, or join the streams "
                    "before it goes"
                    if name and not _is_pinned(arg.value, streams)
                    else "keep the tensor until the stream is done with it, or copy it into a "
                    "buffer of the device",
                )


def _kept(node: ast.AST, words: StreamWords) -> set[str]:
    """Returns names of a function that `record_stream` is called on, or that others are made of."""
    if not isinstance(node, FUNCTIONS):
        return set()  # there may be several, each with names of its own
    recorded = [getattr(call.func, "value", None) for call in words.calls.get("record_stream", ())]
    found = {one.id for one in recorded if isinstance(one, ast.Name)}
    for one in words.assigns:
        if one.end_lineno is not None:  # no walrus and no declaration, which count for nothing here
            found |= names(one.value) - names(*one.targets)
    return found


def _may_allocate(node: ast.AST) -> bool:
    return _may_pin(node) or (isinstance(node, ast.Call) and last_word(node.func) in _MAY_ALLOCATE)


def _may_pin(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (
        last_word(node.func) == "pin_memory"
        or any(one.arg == "pin_memory" for one in node.keywords)
    )


def _is_joined(context: Context, streams: Streams) -> bool:
    """Tells whether anything waits for the side stream after its body has begun."""
    return any(
        wait.order >= context.order
        and wait.waiter != context.stream
        and (wait.waiter == ANYTHING or streams.may_be_for(wait, context.stream))
        for wait in streams.waits
    )


def _is_temporary(value: CSTNode, call: libcst.Call, context: Context, streams: Streams) -> bool:
    """Tells whether an argument is a tensor that this function alone knows, made off the stream."""
    if not isinstance(value, cst.Name):
        return makes_pinned(value, streams.block) and not _copies(call)
    values = streams.names.values(value.value)
    if len(values) != 1 or value.value in streams.kept or _escapes(value.value, streams):
        return False
    if _is_pinned(value, streams):
        return not _copies(call)
    made = streams.order.get(values[0], context.order)
    return (
        made < context.order
        and streams.stream_at(made) == CURRENT
        and (
            streams.launches(values[0]) or last_name(getattr(values[0], "func", value)) in ALLOCATES
        )
        and "cpu" not in streams.block.code(values[0])
    )


def _allocates(value: CSTNode, block: Block) -> bool:
    """Tells whether an expression is a new tensor of a device."""
    is_new = isinstance(value, cst.Call) and last_name(value.func) in ALLOCATES
    return is_new and not ON_HOST.search(block.code(value))


def _is_pinned(value: CSTNode, streams: Streams) -> bool:
    if isinstance(value, cst.Name):
        return any(makes_pinned(one, streams.block) for one in streams.names.values(value.value))
    return makes_pinned(value, streams.block)


def _copies(call: libcst.Call) -> bool:
    """Tells whether a call is a copy, for which the pinned allocator keeps the memory itself."""
    return last_name(call.func) in (*COPIES, "pin_memory", "record_stream", "cuda")


def _escapes(name: str, streams: Streams) -> bool:
    """Tells whether a local tensor may live on after the function, or in an inner one."""
    for node in streams.order:
        if isinstance(node, (cst.Return, cst.Yield)):
            held: CSTNode | None = node.value
        elif isinstance(node, cst.Assign) and streams.names.values(name) != [node.value]:
            held = node.value
        elif isinstance(node, cst.Call) and (
            CLASS.match(last_name(node.func)) or last_name(node.func) in ("append", "put", "submit")
        ):
            held = node
        elif isinstance(node, (cst.FunctionDef, cst.Lambda)):
            held = node.body
        else:
            continue
        if held is not None and any(
            isinstance(one, cst.Name) and one.value == name for one in walk(held)
        ):
            return True
    return False

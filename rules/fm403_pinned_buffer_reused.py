"""FM403: a pinned buffer is written again while a copy may still read it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.block import walk
from fmcheck.lint.host_buffers import WRITES, Pinned
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import fits, last_name
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.stream_words import StreamWords, holder, outermost_functions, stream_words
from fmcheck.lint.stream_words import last_name as last_word
from fmcheck.lint.streams import ANYTHING, HOST, Streams, functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract, Guard
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.flow import Flow
    from fmcheck.lint.host_buffers import Touch


#: An attribute that is bound to another one, or to a part of it.
_KEEPS = re.compile(
    r"(?:\bself\s*\.|[\])])(?:[\w. \t]|\\\n)*(?::(?:[^=\n]+|[ \t]*[\w. \t(]*[\[(][^=]*))?"
    r"=[\s\\(]*self\b"
)


class PinnedBufferReused(Rule):
    """A pinned host buffer is written while an asynchronous copy may still read it.

    ## What it does
    Follows pinned tensors (`pin_memory=True`, `.pin_memory()`, kept in an attribute or a local
    name, and views of them) to copies with `non_blocking=True` and to the contract's
    `streams.uploads`. It flags a host write that may follow such a copy in the same function, by
    another round of a loop too, with no wait between. Where the contract names the methods that
    fill reused buffers in every step (`streams.fills_pinned`), it flags writes there that no wait
    precedes: the copy of the step before may be pending. Where it names a guard
    (`[[streams.guard]]`), it flags calls of the methods that the guard covers outside of it, in a
    function that enters it.

    ## Why is this bad
    A copy reads its source when it runs, not when it is enqueued. If the host is ahead, the device
    gets the next step's values: wrong page tables, lengths or token ids, and on a busy device only.
    With data parallelism the ranks then disagree and hang.

    ## Example
    ```python
    self.host_lens.copy_(batch.seq_lens_cpu)
    self.lens.copy_(self.host_lens, non_blocking=True)
    self.host_lens.fill_(1)
    ```

    ## Use instead
    ```python
    self.copied.synchronize()
    self.host_lens.copy_(batch.seq_lens_cpu)
    self.lens.copy_(self.host_lens, non_blocking=True)
    self.copied.record()
    ```
    or a fresh pinned tensor for each copy: the allocator keeps it until the copy is done.
    """

    code = "FM403"
    name = "pinned-buffer-reused"
    severity = Severity.WARNING
    scope = Scope.CLASS
    needles: tuple[tuple[bytes, ...], ...] = ((b"non_blocking",), (b"pin_memory",))
    seen_in = (
        "https://github.com/NVIDIA/TensorRT-LLM/pull/15546",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/14008",
        "https://github.com/vllm-project/vllm/pull/24527",
        "https://github.com/vllm-project/vllm/pull/31373",
    )
    bad = (
        Example(
            """\
import torch

class Lengths:
    def __init__(self, n, device):
        self.host = torch.empty(n, pin_memory=True)
        self.lens = torch.empty(n, device=device)

    def stage(self, values):
        host = self.host[: len(values)]
        host.copy_(values)
        self.lens[: len(values)].copy_(host, non_blocking=True)
        self.host.fill_(1)
""",
            at=((12, 9),),
        ),
        Example(
            """\
import torch

def upload(parts, out):
    staging = torch.empty(64, pin_memory=torch.cuda.is_available())
    for row, part in enumerate(parts):
        staging.numpy()[:] = part
        out[row].copy_(staging, non_blocking=True)
""",
            at=((6, 9),),
        ),
        Example(
            """\
import torch

class Tables:
    def __init__(self, n):
        self.host = torch.empty(n, dtype=torch.int32, pin_memory=True)
        self.host_np = self.host.numpy()

    def prepare_inputs(self, offsets):
        self.host_np[: len(offsets)] = offsets
        self.table.copy_(self.host, non_blocking=True)
""",
            at=((9, 9),),
            contract='engine.name = "mine"\nstreams.fills_pinned = ["prepare_*"]\n',
        ),
        Example(
            """\
class Runner:
    def execute(self, batch):
        with self.input_prep():
            self.prepare_inputs(batch)
        self.preprocess(batch)
""",
            at=((5, 9),),
            contract='engine.name = "mine"\n[[streams.guard]]\nname = "input_prep"\n'
            'covers = ["prepare_inputs", "preprocess"]\n',
        ),
    )
    good = (
        Example(
            """\
class Gradients:
    def __init__(self, size):
        self.kept = torch.zeros(size).pin_memory()

    def add(self, grad, part):
        part.copy_(self.kept, non_blocking=True)
        grad.add_(part)
        self.kept.copy_(grad, non_blocking=True)
"""
        ),
        Example(
            """\
import torch

class Plan:
    def __init__(self, n):
        self.starts = torch.empty(n, pin_memory=True)
        self.staging = torch.empty(n, pin_memory=True)

    def stage(self, n, padded):
        self.staging[:n] = self.starts[:n]
        self.table[:n].copy_(self.staging[:n], non_blocking=True)
        self.starts[1 + n : padded].fill_(0)
"""
        ),
        Example(
            """\
import torch

class Lengths:
    def __init__(self, n):
        self.host = torch.empty(n, pin_memory=True)

    def stage(self, values):
        self.host[: len(values)].copy_(values)
        self.lens.copy_(self.host, non_blocking=True)
        self.copied.record()
        self.copied.synchronize()
        self.host.fill_(1)
"""
        ),
        Example(
            """\
import torch

def upload(parts, out):
    for row, part in enumerate(parts):
        staging = torch.empty(64, pin_memory=True)
        staging.numpy()[:] = part
        out[row].copy_(staging, non_blocking=True)
"""
        ),
        Example(
            """\
import torch

class Tables:
    def __init__(self, n):
        self.hosts = [torch.empty(n, pin_memory=True) for _ in range(2)]
        self.host = torch.empty(n, pin_memory=True)

    def prepare_inputs(self, offsets):
        self.turn = 1 - self.turn
        self.hosts[self.turn][: len(offsets)] = offsets
        self.table.copy_(self.hosts[self.turn], non_blocking=True)
        self.copied.synchronize()
        self.host[: len(offsets)] = offsets
        self.table.copy_(self.host, non_blocking=True)

    def load(self, offsets):
        self.host[: len(offsets)] = offsets
        self.table.copy_(self.host, non_blocking=True)
""",
            contract='engine.name = "mine"\nstreams.fills_pinned = ["prepare_*"]\n',
        ),
        Example(
            """\
class Runner:
    def prepare_inputs(self, batch):
        with self.input_prep():
            self.lens.np[:4] = batch.lens
            self.lens.copy_to_gpu(4)

    def execute(self, batch):
        with self.input_prep(), self.timer():
            self.update_states(batch)
            self.preprocess(batch)
        self.sample(batch)

    def update_states(self, batch):
        self.preprocess(batch)
""",
            contract='engine.name = "mine"\n[streams]\nfills_pinned = ["prepare_inputs"]\n'
            '[[streams.guard]]\nname = "input_prep"\ncovers = ["update_states", "preprocess"]\n',
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        streams = [one.streams for one in contracts]
        self._ordered_by = {name for one in streams for name in one.ordered_by}
        self._fillers = [glob for one in streams for glob in one.fills_pinned]
        self._uploads = {name for one in streams for name in one.uploads}
        self._guards = {guard.name: guard for one in streams for guard in one.guard}
        named = tuple(name.encode() for name in (*self._guards, *self._uploads))
        # The contracts' guards and uploads concern it by themselves.
        self.needles = tuple((*group, *named) for group in self.needles)
        self.anchors = (b"non_blocking", *named)

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for a pinned tensor, or for what a contract names, in the block itself."""
        return any(word in text for word in ("pin_memory", *self._guards, *self._uploads))

    def looks_into(self, text: str) -> bool:
        """Tells whether a method pins, copies or guards, or keeps a view of an attribute."""
        words = ("pin_memory", "non_blocking", *self._guards, *self._uploads)
        return any(word in text for word in words) or _KEEPS.search(text) is not None

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks in which no function may be at fault, by names and lines."""
        return any(self._candidates(node, self._pinned(node)))

    def _pinned(self, node: ast.AST) -> Pinned:
        return Pinned(stream_words(node), self._uploads)

    def _candidates(
        self, node: ast.AST, pinned: Pinned
    ) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yields the functions that leave a guard, or that copy from and write a pinned buffer."""
        if not pinned.names and self._guards.keys().isdisjoint(stream_words(node).calls):
            return
        for function in outermost_functions(node):
            words = stream_words(function)
            if self._may_leave(function, words) or self._may_reuse(function, words, pinned):
                yield function

    def _may_leave(self, function: ast.AST, words: StreamWords) -> bool:
        """Tells whether a function enters a guard, and calls what it covers outside."""
        for guard in self._guards.values():
            if guard.name not in words.calls:
                continue
            inside = {
                id(inner)
                for one in all_below(function)
                if isinstance(one, ast.With)
                and any(last_word(_called(item)) == guard.name for item in one.items)
                for statement in one.body
                for inner in all_below(statement)
            }
            calls = [call for name in guard.covers for call in words.calls[name]]
            if inside and any(id(call) not in inside for call in calls):
                return True
        return False

    def _may_reuse(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        words: StreamWords,
        pinned: Pinned,
    ) -> bool:
        """Tells whether a function copies from a pinned buffer and writes it, after or before."""
        uploads = [call for name in self._uploads for call in words.calls[name]]
        copies = [(call.lineno, holder(call)) for call in uploads]
        for call in words.non_blocking():
            is_new = last_word(call.func) == "to" or not call.args
            copies.append((call.lineno, holder(call if is_new else call.args[0])))
        known = words.aliases(pinned.attributes() | words.pinned, pinned.views)
        copies = [copy for copy in copies if copy[1] in known]
        if not copies:
            return False
        writes = [(one.lineno, holder(one)) for one in words.stores]
        writes += [(call.lineno, holder(call)) for word in WRITES for call in words.calls[word]]
        writes += [
            (keyword.value.lineno, holder(keyword.value))
            for calls in words.calls.values()
            for call in calls
            for keyword in call.keywords
            if keyword.arg == "out"
        ]
        loops = [
            one
            for one in all_below(function)
            if isinstance(one, (ast.For, ast.AsyncFor, ast.While))
        ]
        is_step = fits(function.name, self._fillers)
        return any(
            written in words.aliases({copied}, pinned.views)
            and (
                is_step
                or line > start
                or any(one.lineno <= line <= start <= (one.end_lineno or start) for one in loops)
            )
            for start, copied in copies
            for line, written in writes
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each write that a pending copy may read."""
        pinned = self._pinned(block.syntax)
        for candidate in self._candidates(block.syntax, pinned):
            part = block.part_of(candidate)
            for function in functions(part):
                streams = Streams(function, part, self._ordered_by)
                yield from self._outside_guard(function, streams, part)
                copies = list(pinned.copies(streams))
                if copies:
                    yield from self._reused(function, streams, pinned, copies)

    def _reused(
        self,
        function: libcst.FunctionDef,
        streams: Streams,
        pinned: Pinned,
        copies: Sequence[Touch],
    ) -> Iterator[Finding]:
        waits = [wait.node for wait in streams.waits if wait.waiter in (HOST, ANYTHING)]
        is_step = fits(function.name.value, self._fillers)
        reported: set[str] = set()
        for write in pinned.writes(streams):
            if write.buffer in reported or self._is_guarded(write.node, streams):
                continue
            flow, node = streams.flow, write.node
            mine = [one for one in copies if one.buffer == write.buffer and one.may_meet(write)]
            pending = [
                one
                for one in mine
                if _follows(one, write, streams)
                and not any(
                    flow.may_follow(one.node, wait) and flow.may_follow(wait, node)
                    for wait in waits
                )
            ]
            is_kept = "." in write.buffer
            if pending:
                reported.add(write.buffer)
                yield self._finding(streams, write, pending[0], "an asynchronous copy of it")
            elif (
                is_step
                and is_kept
                and mine
                and not any(flow.may_follow(one, node) for one in waits)
            ):
                reported.add(write.buffer)
                yield self._finding(streams, write, mine[0], "the copy of the step before")

    def _finding(self, streams: Streams, write: Touch, copy: Touch, what: str) -> Finding:
        return streams.block.finding(
            self,
            write.node,
            f"`{write.buffer}` is pinned, and written here while {what} may still read it",
            help="wait for an event that is recorded after the copy, or use a fresh pinned tensor "
            "for each copy",
            related=[(copy.node, "the copy reads the buffer when it runs, not here")],
        )

    def _is_guarded(self, node: CSTNode, streams: Streams) -> bool:
        return any(
            _enters(item, name)
            for name in self._guards
            for one in streams.flow.withs(node)
            for item in one.items
        )

    def _outside_guard(
        self, function: libcst.FunctionDef, streams: Streams, block: Block
    ) -> Iterator[Finding]:
        for guard in self._guards.values():
            inside = _within(function, guard)
            if not inside:
                continue
            for node in streams.order:
                if (
                    isinstance(node, cst.Call)
                    and node not in inside
                    and last_name(node.func) in guard.covers
                ):
                    yield block.finding(
                        self,
                        node,
                        f"`{last_name(node.func)}` writes reused host buffers outside of "
                        f"`{guard.name}`, which waits until their copies are done",
                        help=f"move the call into the `with` block of `{guard.name}`",
                    )


def _follows(copy: Touch, write: Touch, streams: Streams) -> bool:
    """Tells whether a write may come after a copy of the same buffer, and not of a newer one."""
    flow = streams.flow
    if not flow.may_follow(copy.node, write.node):
        return False
    if copy.order < write.order:
        return True
    # By another round of a loop: not if the buffer is made anew in it.
    loops = set(flow.loops(write.node))
    return not any(
        loops & set(flow.loops(node))
        for node in streams.order
        if isinstance(node, cst.Assign)
        and flow.contains(node)
        and last_name(node.targets[0].target) == write.buffer
    )


def _any_before(node: CSTNode, waits: Sequence[CSTNode], flow: Flow) -> bool:
    return any(flow.may_follow(wait, node) for wait in waits)


def _enters(item: libcst.WithItem, guard: str) -> bool:
    return last_name(getattr(item.item, "func", item.item)) == guard


def _within(function: libcst.FunctionDef, guard: Guard) -> set[CSTNode]:
    """Returns what stands in the body of a guard."""
    return {
        inner
        for node in walk(function.body)
        if isinstance(node, cst.With)
        and any(
            last_name(getattr(item.item, "func", item.item)) == guard.name for item in node.items
        )
        for inner in walk(node.body)
    }


def _called(item: ast.withitem) -> ast.expr:
    """Returns what a `with` item calls, or the item."""
    item_value = item.context_expr
    return item_value.func if isinstance(item_value, ast.Call) else item_value

"""FM403: a pinned buffer is written again while a copy may still read it."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.devices.pinned import Pinned
from fmcheck.lint.model.expressions import last_name
from fmcheck.lint.model.function import functions, functions_near
from fmcheck.lint.model.steps import is_step as is_step_named
from fmcheck.lint.model.vocabulary import NON_BLOCKING
from fmcheck.lint.source.globs import fits
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.effects import waits_at
from fmcheck.lint.streams.function_streams import ANYTHING, HOST, FunctionStreams, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract, Guard
    from fmcheck.finding import Finding
    from fmcheck.lint.devices.pinned import PinnedTouch
    from fmcheck.lint.model.flow import Past
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family


#: Words of which one stands wherever the host may wait for the device.
_WAITING = ("synchronize", "sync(", "query(", ".item()", ".tolist()", ".cpu()", "wait", "fence")


class PinnedBufferReused(ClassRule):
    """A pinned host buffer is written while an asynchronous copy may still read it.

    ## What it does
    Follows pinned tensors (`pin_memory=True` or a variable, `.pin_memory()`; kept in an attribute
    or a local name, or handed to the class's own constructor by name; and views of them, NumPy's
    too) to copies with `non_blocking=True` and to the contract's `streams.uploads`. It flags a host
    write that may follow such a copy in the same function, by another round of a loop too, with no
    wait between. Where the contract names the methods that fill reused buffers in every step
    (`streams.fills_pinned`), or where a function's name says that it runs in every step and nothing
    in its class ever waits, it flags writes there that no wait precedes: the previous step's copy
    may be pending. Where it names a guard (`[[streams.guard]]`), it flags calls of the methods that
    the guard covers outside of it, in a function that enters it. Off by default: of seven findings
    on code that it was not written on three were right.

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
    on_by_default = False
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
        # The contracts' guards and uploads concern it by themselves.
        self._named = (*self._guards, *self._uploads)
        self.words = tuple((*group, *self._named) for group in (NON_BLOCKING, ("pin_memory",)))

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each write that a pending copy may read."""
        pinned: Pinned | None = None
        for function in functions_near(family, (*NON_BLOCKING, *self._named)):
            streams = streams_of(function, self._ordered_by)
            yield from self._outside_guard(function, streams)
            if pinned is None:
                words = ("pin_memory", *NON_BLOCKING, *self._named)
                pinned = Pinned(functions_near(family, words), self._uploads)
                leaves = (one.rpartition(".")[2] for one in pinned.attributes())
                pinned.learn(one for part in family.naming(*leaves) for one in functions(part))
            copies = list(pinned.copies(streams))
            if copies:
                yield from self._reused(function, streams, pinned, copies)

    def _reused(
        self,
        function: Function,
        streams: FunctionStreams,
        pinned: Pinned,
        copies: Sequence[PinnedTouch],
    ) -> Iterator[Finding]:
        flow = streams.flow
        waits = [wait.node for wait in streams.waits if wait.waiter in (HOST, ANYTHING)]
        waits += [call for call in function.calls if waits_at(call, function)]
        waited, awaited = flow.past(waits), flow.led_to(waits)
        is_step = fits(function.name, self._fillers) or (
            is_step_named(function) and _never_waits(function)
        )
        every: dict[str, list[PinnedTouch]] = {}
        at: dict[tuple[str, int], list[PinnedTouch]] = {}
        for copy in sorted(copies, key=attrgetter("order")):
            every.setdefault(copy.buffer, []).append(copy)
            at.setdefault((copy.buffer, flow.position(copy.node)), []).append(copy)
        left = dict(every)
        reported: set[str] = set()
        for write in pinned.writes(streams):
            buffer, node = write.buffer, write.node
            if buffer not in left or buffer in reported or self._is_guarded(node, streams):
                continue
            if "." in buffer:
                before = (one for one in left[buffer] if flow.may_follow(one.node, node))
            else:  # by then a plain name may stand for another buffer
                starts = sorted(flow.starts(node, _bindings(buffer, streams)))
                before = (one for step in starts for one in at.get((buffer, step), ()))
            pending = next(
                (one for one in before if _is_running(one, write, waited, streams)), None
            )
            if pending is not None:
                reported.add(buffer)
                yield self._finding(streams, write, pending, "an asynchronous copy from it")
            elif is_step and "." in buffer and flow.position(node) not in awaited:
                mine = next((one for one in every[buffer] if one.may_meet(write)), None)
                if mine is not None:
                    reported.add(buffer)
                    yield self._finding(streams, write, mine, "the previous step's copy")
            # What the host has waited for by now, it has waited for before what comes later.
            left[buffer] = [
                one for one in left[buffer] if not waited.reaches_all_from(one.node, node)
            ]

    def _finding(
        self, streams: FunctionStreams, write: PinnedTouch, copy: PinnedTouch, what: str
    ) -> Finding:
        return streams.part.finding(
            self,
            write.node,
            f"pinned `{write.buffer}` is written while a copy may be reading it",
            note=f"{what} may still be running",
            help="wait for an event that is recorded after the copy, or use a fresh pinned tensor "
            "for each copy",
            related=[(copy.node, "the copy reads the buffer when it runs, not here")],
        )

    def _is_guarded(self, node: CSTNode, streams: FunctionStreams) -> bool:
        return any(
            _enters(item, name)
            for name in self._guards
            for one in streams.flow.withs(node)
            for item in one.items
        )

    def _outside_guard(self, function: Function, streams: FunctionStreams) -> Iterator[Finding]:
        part = function.part
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
                    yield part.finding(
                        self,
                        node,
                        f"`{last_name(node.func)}` writes reused host buffers outside "
                        f"`{guard.name}`",
                        note=f"`{guard.name}` waits until their copies are done",
                        help=f"move the call into the `with` part of `{guard.name}`",
                    )


def _never_waits(function: Function) -> bool:
    """Tells whether nothing in a function's class makes the host wait for the device."""
    family = function.part.stretch.family
    if family is None:
        return False
    text = function.module.text[family.place.start : family.place.end]
    return not any(word in text for word in _WAITING)


def _is_running(
    copy: PinnedTouch, write: PinnedTouch, waited: Past, streams: FunctionStreams
) -> bool:
    """Tells whether an earlier copy of the same buffer may be running when a write comes."""
    return (
        copy.may_meet(write)
        and (copy.order < write.order or not _is_made_again(write, streams))
        and not waited.reaches(copy.node, write.node)
    )


def _is_made_again(write: PinnedTouch, streams: FunctionStreams) -> bool:
    """Tells whether a buffer is made in each round of a loop that a write of it stands in."""
    loops = set(streams.flow.loops(write.node))
    return bool(loops) and any(
        not loops.isdisjoint(streams.flow.loops(one)) for one in _bindings(write.buffer, streams)
    )


def _bindings(name: str, streams: FunctionStreams) -> Sequence[CSTNode]:
    """Returns the assignments of a plain name."""
    bound = streams.function.bindings.get(name, ())
    return [one for one in bound if isinstance(one, cst.Assign) and streams.flow.contains(one)]


def _enters(item: cst.WithItem, guard: str) -> bool:
    return last_name(getattr(item.item, "func", item.item)) == guard


def _within(function: Function, guard: Guard) -> set[CSTNode]:
    """Returns what stands in the body of a guard."""
    return {
        inner
        for node in function.of(cst.With)
        if any(
            last_name(getattr(item.item, "func", item.item)) == guard.name for item in node.items
        )
        for inner in walk(node.body)
    }

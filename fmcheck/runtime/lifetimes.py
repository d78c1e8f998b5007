"""FR402, FR403 and FR404: memory that is read, written or freed while a stream still works with it.

- FR402 use-after-reuse: freed on the lane that allocated it, while another lane's use is not done.
- FR403 pinned-overwrite: the host writes what an asynchronous copy has yet to read.
- FR404 early-host-read: the host reads what an asynchronous copy has yet to fill.

All three ask the fences whether the use happened before; nothing waits for a bad moment to come.
"""

from __future__ import annotations

import ctypes
import random
from typing import TYPE_CHECKING, Any

from fmcheck.host_words import SURE_WORDS, words
from fmcheck.runtime import call_text
from fmcheck.runtime.blocks import Block, Blocks, Copy, Home, Use, content, holds, span
from fmcheck.runtime.homes import goes_to_host, names_a_device
from fmcheck.runtime.too_soon import TooSoon

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable

    import torch

    from fmcheck.runtime.fences import Fences, Happening, Lane
    from fmcheck.runtime.ops import Call

# They say that the host has the memory, and do not look at what is in it.
_NO_READS = frozenset({"cpu"})
_FACTORIES = frozenset(
    {
        *("empty", "zeros", "ones", "full", "rand", "randn", "arange", "empty_strided"),
        *("randint", "randperm", "linspace", "scalar_tensor", "eye"),
    }
)
_COPIES = frozenset({"copy_", "_to_copy"})
# Copies of one block that are kept in mind, each way.
_KEPT_COPIES = 16


class Lifetimes:
    """Listens to operators and fences, and judges memory by them."""

    check = "FR402 to FR404"

    def __init__(self, fences: Fences) -> None:
        self.fences = fences
        self.tally = fences.tally
        self.blocks = Blocks(self._freed)
        self._coin = None if fences.seed is None else random.Random(fences.seed)
        self._told = TooSoon(fences)
        self._read_by_copies: set[Block] = set()
        fences.listeners.append(self._heard)

    # --- what the operators do ---

    def before(self, call: Call) -> Callable[[], None] | None:
        """The host is about to read or write: what copies still work with is not its to touch."""
        if call.host:
            if call.name == "numpy" and not goes_to_host(call_text.subject(self._text())):
                self._is_on_host(call.reads[0])  # memory of a device has no such view
        elif not call.is_async_copy:
            for tensor in call.writes:
                self._writes(call, tensor)
            if call.name == "copy_":
                self._blocks(call)
        if not (call.is_async_copy or (call.host and call.name in _NO_READS)):
            for tensor in call.reads[:1] if call.host else call.reads:
                if self._host_reads(call, tensor) and self._is_shown():
                    return _poisoned(tensor)
        return None

    def _blocks(self, call: Call) -> None:
        """A copy from the device that says nothing of blocking: the host waits for it."""
        target, source = (self.blocks.of(one) for one in call.args[:2])
        if target.home is not Home.DEVICE and source.home is Home.DEVICE:
            is_named = _is_surely_host(call_text.subject(self._text()))
            if target.home is Home.HOST or is_named:
                self._is_on_host(call.args[0])
                self.fences.read_by_host(call.lane)

    def after(self, call: Call) -> None:
        """Notes who used what."""
        if call.host:
            return
        is_async = call.is_async_copy
        # The source is read only where it says something: this is done for each operator.
        asks = is_async or call.name in _FACTORIES or call.name == "_to_copy"
        text = self._text() if asks else None
        fences = self.fences
        epoch = fences.now(call.lane)
        moment = self.tally.moments.on(call.lane.name, call.site(self.tally.sites))
        use = Use(call.lane, epoch, moment, 0, 0)
        for tensor in (*call.reads, *call.writes):
            block = self.blocks.of(tensor)
            block.uses[call.lane.number] = use
            if not is_async:
                block.by_kernels.add(call.lane.number)
        for tensor in call.made:
            block = self.blocks.of(tensor)
            if block.made is None:
                block.made = use
                block.home = self._home(call, text)
        if is_async:
            self._copied(call, text, use)

    def _home(self, call: Call, text: ast.expr | None) -> Home:
        """Returns whose memory an operator's new tensor is."""
        if call.name in _FACTORIES:
            return Home.DEVICE if names_a_device(text) else Home.HOST
        if call.name == "_to_copy" and goes_to_host(text):
            return Home.HOST
        if call.reads and all(self.blocks.of(one).home is Home.HOST for one in call.reads):
            moves = call.name == "_to_copy" and call.kwargs.get("device") is not None
            return Home.DEVICE if moves else Home.HOST
        return Home.DEVICE

    def _copied(self, call: Call, text: ast.expr | None, use: Use) -> None:
        """Keeps both ends of an asynchronous copy in mind."""
        self.fences.tell(use.lane, "copy", use.moment)
        sent = call.name == "_to_copy" and not goes_to_host(text)
        if call.name == "copy_":
            target, source = call.args[0], call.args[1]
            target_name, source_name = call_text.subject(text), _argument(text)
        else:
            target, source = call.made[0], call.args[0]
            target_name, source_name = None, call_text.subject(text)
        for tensor, name, is_target in ((target, target_name, True), (source, source_name, False)):
            block = self.blocks.of(tensor)
            low, high = span(tensor)
            kept = block.fills if is_target else block.reads
            pulled = is_target and call.name == "_to_copy" and not sent
            named = pulled or (block.home is not Home.DEVICE and _is_surely_host(name))
            known = (
                block.home is Home.HOST
                or named
                or (block.home is Home.UNKNOWN and sent and not is_target)
            )
            if not is_target:
                self._compare(block, use.moment)
                self._read_by_copies.add(block)
            if known:
                self._is_on_host(tensor)
            end = Use(use.lane, use.epoch, use.moment, low, high)
            kept.append(Copy(end, known, named, b"" if is_target else content(tensor)))
            del kept[:-_KEPT_COPIES]

    def _is_on_host(self, tensor: torch.Tensor) -> None:
        """Host memory is touched by the host at once, whatever stream is current.

        A tensor that was made without a device is taken for that once it is copied as a host's is.
        """
        if self.tally.streams is not None:
            memory = self.tally.streams.handover.memory_of(tensor)
            if not memory.on_host:
                memory.on_host = True
                memory.writes = [one for one in memory.writes if one.is_copy]
                memory.reads = {n: one for n, one in memory.reads.items() if one.is_copy}

    # --- FR404 ---

    def _host_reads(self, call: Call, tensor: torch.Tensor) -> bool:
        """Judges a read, by the host's own hand or an operator; tells whether it came too early."""
        block = self.blocks.of(tensor)
        if not block.fills:
            return False
        self._forget_done(block)
        for copy in block.fills:
            if copy.use.meets(*span(tensor)) and not self._is_in_order(call, copy):
                self._early_read(call, copy.use)
                return True
        return False

    def _is_in_order(self, call: Call, copy: Copy) -> bool:
        """Tells whether a read comes behind a copy without a wait of the host, or may do so.

        An operator is judged only on memory that its copy calls the host's: what was made without a
        device may be the device's all the same, where a default device is set.
        """
        if not (call.host or copy.named):
            return True
        # The host waits for the current stream where it reads memory of the device, and a copy
        # reads when its stream gets there.
        waits = not copy.known or call.name in _COPIES
        return waits and self.fences.ordered(copy.use.epoch, call.lane)

    def _is_shown(self) -> bool:
        """Tells whether the target of a copy keeps poison up to the copy's event."""
        streams = self.tally.streams
        if streams is None or streams.mode == "tracked":
            return False
        return self._coin is None or self._coin.random() < 0.5

    def _early_read(self, call: Call, copy: Use) -> None:
        where = self._told.line(copy.moment)
        self._told.tell(
            "FR404",
            Use(self.fences.host, copy.epoch, self._here(), 0, 0),
            call.name,
            copy,
            "copy",
            f"a wait of the host for an event recorded after {where} on stream `{copy.lane.name}`",
            "the host reads the target of an asynchronous copy that it has not waited for",
        )

    # --- FR403 ---

    def _writes(self, call: Call, tensor: torch.Tensor) -> None:
        block = self.blocks.of(tensor)
        if not block.reads:
            return
        self._forget_done(block)
        for copy in block.reads:
            if copy.known and copy.use.meets(*span(tensor)):
                block.reads.remove(copy)  # it is told of once
                self._overwritten(copy.use, call.name.rstrip("_"), self._here())
                return

    def _compare(self, block: Block, moment: int) -> None:
        """Looks for what was written out of torch's sight, by NumPy say, since copies were made."""
        self._forget_done(block)
        for copy in block.reads:
            if copy.known and self._changed(block, copy):
                self._overwritten(copy.use, "write seen", moment)
                block.reads.remove(copy)
                return

    def _changed(self, block: Block, copy: Copy) -> bool:
        storage = block.storage()
        if not copy.before or storage is None:
            return False
        if not holds(storage, copy.use.low, len(copy.before)):
            return False
        # Not by torch: that would be a read of the host's, which waits for the stream.
        return ctypes.string_at(copy.use.low, len(copy.before)) != copy.before

    def _overwritten(self, copy: Use, verb: str, moment: int) -> None:
        where = self._told.line(copy.moment)
        self._told.tell(
            "FR403",
            Use(self.fences.host, copy.epoch, moment, 0, 0),
            verb,
            copy,
            "copy",
            f"a wait of the host for an event recorded after {where} on stream "
            f"`{copy.lane.name}`, or a fresh buffer for each copy",
            "the host writes the source of an asynchronous copy that it has not waited for",
        )

    # --- FR402 ---

    def _freed(self, block: Block) -> None:
        """Judges a block's uses when its memory goes back to the allocator."""
        self._read_by_copies.discard(block)
        if not self.tally.active or self.tally.streams is None:
            return
        if block.made is None:
            return
        home = block.made.lane
        for number, use in block.uses.items():
            # The host's allocator waits for the copies from and to its memory.
            is_kept = block.home is Home.HOST and number not in block.by_kernels
            if use.lane is home or is_kept or number in block.lent:
                continue
            if not self.fences.ordered(use.epoch, home):
                self._reused(block.made, use, home)
                return

    def _reused(self, made: Use, use: Use, lane: Lane) -> None:
        used, home = f"stream `{use.lane.name}`", f"stream `{lane.name}`"
        self._told.tell(
            "FR402",
            Use(lane, use.epoch, self._here(), 0, 0),
            "free",
            use,
            "use",
            f"`record_stream({use.lane.name})`, an owner that keeps it until that stream is done, "
            f"or a wait of {home} for {used}",
            f"the memory is {home}'s, which hands it out again at once; {used} may still use it",
            made,
        )

    # --- fences ---

    def _heard(self, happened: Happening) -> None:
        """A fence: what copies read must be what it was when they were made."""
        if happened.what == "lend":
            self._told.lends = True
            self.blocks.of(happened.about()).lent.add(happened.lane.number)
        elif happened.lane is self.fences.host and happened.after is not None:
            for block in list(self._read_by_copies):
                for copy in [one for one in block.reads if self._is_done(one)]:
                    if copy.known and self._changed(block, copy):
                        self._overwritten(copy.use, "write seen", happened.moment)
                    block.reads.remove(copy)
                if not block.reads:
                    self._read_by_copies.discard(block)

    def _is_done(self, copy: Copy) -> bool:
        return self.fences.ordered(copy.use.epoch, self.fences.host)

    def _forget_done(self, block: Block) -> None:
        for kept in (block.fills, block.reads):
            kept[:] = [one for one in kept if not self._is_done(one)]

    # --- telling ---

    def _here(self) -> int:
        return self.tally.moments.on("host", self.tally.sites.here(2))

    def _text(self) -> ast.expr | None:
        frame = self.tally.sites.frame()
        return None if frame is None else call_text.call_at(frame)


def _poisoned(tensor: torch.Tensor) -> Callable[[], None] | None:
    """Fills a tensor with what nobody has written, -1 or NaN; returns what puts its values back."""
    if not (tensor.is_cpu and tensor.numel() and tensor.is_contiguous()):
        return None
    import torch

    size, begins = tensor.nbytes, tensor.storage_offset() * tensor.element_size()
    storage = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage())
    shown = storage[begins : begins + size]
    values = shown.clone()
    shown.fill_(0xFF)

    def put_back() -> None:
        shown.copy_(values)

    return put_back


def _is_surely_host(name: ast.expr | None) -> bool:
    found = call_text.names(name)[:1]
    return any(not SURE_WORDS.isdisjoint(words(one)) for one in found)


def _argument(text: Any) -> Any:
    arguments = getattr(text, "args", None)
    return arguments[0] if arguments else None

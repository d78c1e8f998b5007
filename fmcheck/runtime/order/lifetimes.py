"""FR402, FR403 and FR404: memory that is read, written or freed while a stream still works with it.

- FR402 use-after-reuse: see `freed_memory`.
- FR403 pinned-overwrite: the host writes what an asynchronous copy has yet to read, or to fill.
- FR404 early-host-read: the host reads what an asynchronous copy has yet to fill.

All three ask the fences whether the use happened before; nothing waits for a bad moment to come.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace

from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.patches import patch
from fmcheck.runtime.order.blocks import Block, BlockUse, PendingCopy, content, holds, span
from fmcheck.runtime.order.freed_memory import FreedMemory
from fmcheck.runtime.order.too_soon import TooSoon
from fmcheck.runtime.order.virtual import current_lane
from fmcheck.runtime.steps import factories, placements
from fmcheck.runtime.steps.operators import COPIES
from fmcheck.runtime.steps.placements import Placement, Placements
from fmcheck.runtime.steps.torch_modes import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.order.cross_stream import CrossStreamTensors
    from fmcheck.runtime.order.fences import Fences, Happening
    from fmcheck.runtime.order.ops import OperatorCall

# They say that the host has the memory, and do not look at what is in it.
_NO_READS = frozenset({"cpu"})
# They give an array over the host's memory, which is read later, out of torch's sight.
_VIEWS = frozenset({"numpy", "__array__"})
# Members of an enum are looked up by a call in Python.
_HOST, _DEVICE = Placement.HOST, Placement.DEVICE
_UNCERTAIN = (Placement.UNKNOWN, Placement.EITHER)
_EARLY = "the host reads the target of an asynchronous copy that it has not waited for"
_UNREAD = (
    "the array over the target of an asynchronous copy is gone, and the host never waited for it"
)
_WHOSE = (
    "nothing tells for sure that this memory is the host's: if it is the device's, its stream "
    "keeps the order; `host_values` in the contract names what is the host's"
)
# Copies of one block that are kept in mind, each way.
_KEPT_COPIES = 16


class Lifetimes:
    """Listens to operators and fences, and judges memory by them.

    `cross_stream` judges the same memory where tensors are handed over. One that `perturbs` lets
    the target of a copy keep poison up to the copy's event.
    """

    check = "FR402 to FR404"

    def __init__(
        self,
        fences: Fences,
        cross_stream: CrossStreamTensors,
        known: Placements | None = None,
        perturbs: bool = False,
    ) -> None:
        self.fences = fences
        self.tally = fences.tally
        self.placements = known or Placements()
        self._perturbs = perturbs
        self.cross_stream = cross_stream
        self.blocks = cross_stream.blocks
        self.blocks.freed = self._freed
        self._coin = None if fences.seed is None else random.Random(fences.seed)
        self._reports = TooSoon(fences)
        self._met_by_copies: set[Block] = set()
        self._met_by_devices: set[Block] = set()
        self._freed_memory = FreedMemory(fences, self._reports)
        self._views: dict[int, weakref.ref[Any]] = {}
        self._numbers = itertools.count()
        fences.listeners.append(self._heard)
        fences.on_read.append(self._host_has_waited)

    def begin_test(self) -> None:
        """Forgets the copies that nobody waited for, and what was reported."""
        self.placements.begin_test()
        self._reports.begin_test()
        if self.fences.seed is not None:
            self._coin = random.Random(self.fences.seed)
        for block in self.blocks:
            block.filled_by = block.read_by = ()
        self._met_by_copies.clear()
        self._met_by_devices.clear()
        self._freed_memory.begin_test()
        self._views.clear()

    def follow(self, is_watched: Callable[[], bool]) -> Iterator[Undo]:
        """Hears of storages that a watched thread resizes: they live on with other memory."""
        resize = torch.UntypedStorage.resize_

        @functools.wraps(resize)
        def resized(storage: torch.UntypedStorage, *size: Any, **named: Any) -> Any:
            before = storage.nbytes()
            result = resize(storage, *size, **named)
            if storage.device.type == "cpu" and storage.nbytes() != before and is_watched():
                with contained(self.tally, self.check):
                    self._resized(storage)
            return result

        yield patch(torch.UntypedStorage, "resize_", resized)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        block, lane = self.blocks.renew(storage), current_lane()
        if block is not None:
            moment = self.tally.moments.on(lane.name, self.tally.sites.here())
            block.made = BlockUse(lane, self.fences.time(lane), moment)
            block.former = self._freed_memory.former(lane)
            self._freed_memory.allocated(lane)

    # --- what the operators do ---

    def before(self, call: OperatorCall) -> Callable[[], None] | None:
        """The host is about to read or write: what copies still work with is not its to touch."""
        name = call.plan.name
        if call.host:
            self._looks(call)
        elif not call.is_async_copy:
            for tensor in call.writes:
                self._writes(call, tensor)
            if name == "copy_":
                self._blocks(call)
        if name == "_to_copy":
            self._leaves(call)
        is_async = name == "copy_" and call.is_async_copy
        if is_async and self._placement(call.args[1]) is _HOST:
            self._is_on_host(call.args[1])
        if call.reads and not (
            call.is_async_copy or call.is_view or (call.host and name in _NO_READS)
        ):
            for tensor, block in zip(call.reads, call.read_in(self.blocks), strict=True):
                if block.filled_by and self._host_reads(call, tensor, block) and self._is_shown():
                    return _poisoned(tensor)
                if call.host:
                    break
        return None

    def _leaves(self, call: OperatorCall) -> None:
        """What a copy sends to the device is the host's, unless something says that it is not."""
        asked, source = factories.asked(), call.args[0]
        if asked is None or call.kwargs.get("device") is None:
            return
        sites = self.tally.sites
        if self.placements.goes_to_device(asked, sites) and self.placements.may_be_host(
            source, sites
        ):
            self._is_on_host(source)

    def arrived(self, tensor: torch.Tensor, is_waited_for: bool, is_apart: bool) -> Any:
        """What may be the host's was sent to the device, where a CPU makes no copy.

        Where that `is_apart`, known by another tensor from then on, its first touch is returned.
        """
        block, lane, sites = self.blocks.of(tensor), current_lane(), self.tally.sites
        if block.left_out or not self.placements.may_be_host(tensor, sites):
            return None
        if self.placements.is_surely_host(tensor, sites):
            self._is_on_host(tensor)
        touch = None
        is_judged = not block.on_host
        is_guess = is_judged and self._placement(tensor) is not _HOST
        if is_judged:
            touch = self.cross_stream.arrived(tensor, lane, is_guess, is_waited_for, is_apart)
        if is_waited_for and not is_guess:
            self.fences.read_by_host(lane)
        return touch if is_apart else None

    def _looks(self, call: OperatorCall) -> None:
        """The host asks for a copy of a tensor, or an array, which no memory of a device can be."""
        tensor = call.reads[0]
        if call.name == "cpu":
            placements.pull(tensor)
        elif call.name == "numpy" and not placements.was_pulled(tensor):
            self._view_as_array(tensor)
        if call.name in _VIEWS and not placements.was_pulled(tensor):
            call.is_view = self._placement(tensor) is _HOST

    def _view_as_array(self, tensor: torch.Tensor) -> None:
        if self._placement(tensor) is not _DEVICE:
            self._is_on_host(tensor)

    def _blocks(self, call: OperatorCall) -> None:
        """A copy from or to the device that says nothing of blocking: the host waits for it."""
        target, source = call.args[:2]
        ends = self._placement(target), self._placement(source)
        if ends == (_HOST, _DEVICE):
            self._is_on_host(target)
        elif ends == (_DEVICE, _HOST):
            self._is_on_host(source)
        self._ends_in_wait(call, ends)

    def _ends_in_wait(self, call: OperatorCall, ends: tuple[Placement, Placement]) -> None:
        """A copy between these placements: the host waits for it, unless it says otherwise."""
        are_apart = ends in ((_HOST, _DEVICE), (_DEVICE, _HOST))
        call.is_waited_for = are_apart and not call.is_async_copy

    def after(self, call: OperatorCall) -> None:
        """Notes who used what."""
        if call.host:
            if call.is_view:
                self._viewed(call)
            return
        use = BlockUse(*call.now(self.fences))
        number = call.lane.number
        tensors, blocks = call.reads, call.read_in(self.blocks)
        if call.writes:
            tensors, blocks = tensors + call.writes, blocks + self.blocks.of_all(call.writes)
        by_host, is_async = False, call.is_async_copy
        for tensor, block in zip(tensors, blocks, strict=True):
            uses = block.uses
            if number not in uses and (block.made or uses):
                self._crosses(call, tensor, block)
            by_host = by_host or block.on_host
        by_host = by_host and call.plan.of_torch and self._are_surely_host(tensors)
        for block in blocks:
            if by_host:
                _is_the_hosts(block)
            if is_async:
                known = block.uses.get(number)
                by_kernel = known is not None and known.by_kernel
                block.uses[number] = BlockUse(use.lane, use.count, use.moment, by_kernel=by_kernel)
            elif not by_host:
                block.uses[number] = use
        if call.made:
            freed = self._freed_memory
            for tensor, block in zip(call.made, call.made_in(self.blocks), strict=True):
                if block.made is None:
                    block.made, block.former = use, freed.former(call.lane)
                    self._make(call, tensor)
                    if freed.in_use:
                        freed.allocated(call.lane)
                if by_host and placements.is_sure(tensor):
                    _is_the_hosts(block)
        if is_async:
            self._copied(call, use)
        elif call.is_waited_for:
            self.fences.read_by_host(call.lane)

    def _are_surely_host(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Tells whether the host itself runs an operator: all it has is the host's beyond doubt."""
        return all(self.placements.is_surely_host(one, self.tally.sites) for one in tensors)

    def _crosses(self, call: OperatorCall, tensor: torch.Tensor, block: Block) -> None:
        """A lane comes to memory of another one for the first time: may it have that yet?

        What the other lane did to the memory before it was freed last may not be done.
        """
        made = block.made
        if made is not None and made.lane is call.lane:
            return
        self.blocks.notice_end(block)
        if block.on_host:
            return
        if self.placements.is_surely_host(tensor, self.tally.sites):
            self._is_on_host(tensor)
            return
        former = block.former
        if made is None or former is None or former.lane is not made.lane:
            return  # nothing was there before
        if block.uses or block.writes:
            return  # the write of who came first is waited for
        if self.fences.ordered(former.epoch, call.lane):
            return
        placement = self._placement(tensor)
        # What is copied to or from memory that was made on "cpu" may well be the host's.
        if placement is _DEVICE or (placement is Placement.EITHER and call.name not in COPIES):
            self._freed_memory.taken(call, made)

    def _placement(self, tensor: torch.Tensor) -> Placement:
        return self.placements.of(tensor, self.tally.sites)

    def _make(self, call: OperatorCall, tensor: torch.Tensor) -> None:
        """Notes whose memory an operator's new tensor is; a factory is heard when it is called."""
        name = call.plan.name
        if name == "_to_copy" and call.kwargs.get("device") is not None:
            asked = factories.asked()
            is_factory = asked is not None and asked.name in factories.FROM_VALUES
            if is_factory and not placements.is_known(call.args[0]):
                return  # torch's own copy of an array, in a factory's call
            if asked is None or asked.device is not None or not is_factory:
                self._send(call, tensor)
                return
        operands = call.reads or placements.tensors_in(call.args[:1])
        number = call.lane.number
        for one in call.read_in(self.blocks):
            if number in one.sent and number not in one.homes:
                placements.made(tensor, _DEVICE)  # what is sent is the device's after that
                break
        if operands:
            known = placements.derive(tensor, operands, self._placement)
            # What is made in the likeness of another one may be meant for the other side.
            if (
                known is not None
                and known.made is _HOST
                and not (name.endswith("_like") or name.startswith("new_"))
            ):
                placements.settle(known, operands)

    def _send(self, call: OperatorCall, tensor: torch.Tensor) -> None:
        """A copy by `to`: from the host to the device, or the other way."""
        source, asked = self._placement(call.args[0]), factories.asked()
        if source is _HOST or self.blocks.of(call.args[0]).on_host:
            source = _HOST
            stays = asked is not None and asked.names_side and asked.goes_to_host
            target = _HOST if stays else _DEVICE
        elif asked is None or (asked.goes_to_host and source is not _DEVICE):
            return
        else:
            target = _HOST if asked.goes_to_host else _DEVICE
        is_sure = target is _HOST and self.placements.goes(asked) is _HOST
        placements.made(tensor, target, is_sure)
        self._ends_in_wait(call, (target, source))

    def _copied(self, call: OperatorCall, use: BlockUse) -> None:
        """Keeps both ends of an asynchronous copy in mind."""
        is_sent = call.name == "_to_copy"
        target, source = (call.made[0], call.args[0]) if is_sent else call.args[:2]
        are_host = [
            self.placements.is_surely_host(one, self.tally.sites) for one in (target, source)
        ]
        if all(are_host):  # torch copies from the host to the host at once, whatever it is asked
            self._is_on_host(target)
            self._is_on_host(source)
            return
        self.fences.add_event(use.lane, "copy", use.moment)
        if any(are_host):
            placements.take_for_device(source if are_host[0] else target)
        for tensor, is_target, is_host in zip(
            (target, source), (True, False), are_host, strict=True
        ):
            block = self.blocks.of(tensor)
            low, high = span(tensor)
            placement = self._placement(tensor)
            # What is sent by an asynchronous copy is the host's, unless it is brought there.
            is_doubtful = placement in _UNCERTAIN or placements.is_guess(tensor)
            doubtful = is_doubtful and is_sent and not is_target
            known = placement is _HOST or doubtful
            block.is_host = known
            if not is_target:
                self._compare(block, use.moment)
            self._met_by_copies.add(block)
            if known:
                _is_the_hosts(block)
            end = BlockUse(use.lane, use.count, use.moment, low, high)
            # One that is made again, later, changes its target itself.
            may_change = is_target and self._perturbs
            before = content(tensor) if known and not (doubtful or may_change) else b""
            is_certain = is_host and not placements.rests_on_setting(tensor)
            sure = is_certain or (is_sent and known and not doubtful and not is_target)
            storage = tensor.untyped_storage() if before else None
            borrowed = None if storage is None or storage.resizable() else storage
            copy = PendingCopy(end, known, sure, doubtful, before, borrowed)
            self._keep(block, copy, is_target)

    def _keep(self, block: Block, copy: PendingCopy, is_target: bool) -> None:
        if is_target:
            _written_in_sight(block, copy.use.low, copy.use.high)
        kept = (*(block.filled_by if is_target else block.read_by), copy)
        if len(kept) > _KEPT_COPIES:
            self.tally.untrack("copies", f"more than {_KEPT_COPIES} of one tensor unwaited for")
            kept = kept[1:]
        if is_target:
            block.filled_by = kept
        else:
            block.read_by = kept

    # --- copies of a real device ---

    @property
    def awaits_devices(self) -> bool:
        """Tells whether a device may still be copying from or to the host's memory."""
        return bool(self._met_by_devices)

    def copied_by_device(self, tensor: torch.Tensor, use: BlockUse, is_target: bool) -> None:
        """Keeps the host's end of an asynchronous copy in mind, of which a device has the other."""
        placements.declare_host(tensor)
        block = self.blocks.of(tensor)
        self._forget_done(block)
        if not is_target:
            self._compare(block, use.moment)
            self._met_by_copies.add(block)
        self._met_by_devices.add(block)
        self._is_on_host(tensor)
        end = BlockUse(use.lane, use.count, use.moment, *span(tensor))
        before = b"" if is_target else content(tensor)
        copy = PendingCopy(end, known=True, sure=True, before=before, real=True)
        self._keep(block, copy, is_target)

    def brought_by_device(self, tensor: torch.Tensor) -> None:
        """The host has waited for a copy that wrote its memory: that says nothing of the host."""
        block = self.blocks.of(tensor)
        self._forget_done(block)
        _written_in_sight(block, *span(tensor))

    def before_by_hand(self, call: OperatorCall) -> None:
        """The host itself is about to run an operator, in a thread that uses a real device."""
        for tensor in call.writes:
            self._writes(call, tensor)
        for tensor, block in zip(call.reads, call.read_in(self.blocks), strict=True):
            if block.filled_by:
                self._host_reads(call, tensor, block)

    def _is_on_host(self, tensor: torch.Tensor) -> None:
        """Host memory is touched by the host at once, whatever stream is current.

        A tensor that was made without a device is taken for that once it is copied as a host's is.
        """
        _is_the_hosts(self.blocks.of(tensor))

    # --- FR404 ---

    def _host_reads(self, call: OperatorCall, tensor: torch.Tensor, block: Block) -> bool:
        """Judges a read, by the host's own hand or an operator.

        Tells whether it came too early for a copy that only seems to be under way.
        """
        self._forget_done(block)
        for copy in block.filled_by:
            if copy.use.meets(*span(tensor)) and not self._is_in_order(call, copy):
                self._early_read(call.name, self._reports.here(), copy)
                return not copy.real
        return False

    def _viewed(self, call: OperatorCall) -> None:
        """An array over the target of a copy: it has to outlive the host's wait for that.

        Nobody sees its values being read. One that goes before was read too early, or for nothing.
        """
        tensor = call.reads[0]
        block = self.blocks.of(tensor)
        if not block.filled_by:
            return
        self._forget_done(block)
        early = [copy for copy in block.filled_by if copy.known and copy.use.meets(*span(tensor))]
        if not early:
            return
        if not np.may_share_memory(call.view, tensor.detach().numpy()):
            self._early_read(call.name, self._reports.here(), early[0])
            return
        key, moment = next(self._numbers), self._reports.here()
        gone = functools.partial(self._view_gone, key, early[0], call.name, moment)
        self._views[key] = weakref.ref(call.view, gone)

    @left_alone
    def _view_gone(self, key: int, copy: PendingCopy, verb: str, moment: int, _: object) -> None:
        self._views.pop(key, None)
        if self.tally.active and not self._is_done(copy):
            self._early_read(verb, moment, copy, _UNREAD)

    def _is_in_order(self, call: OperatorCall, copy: PendingCopy) -> bool:
        """Tells whether a read comes behind a copy without a wait of the host, or may do so.

        What was made without a device may be the device's all the same, where a default device is
        set: an operator on it is early only if it would be so there too.
        """
        if not (call.host or copy.known):
            return True
        # The host waits for the current stream where it reads memory of the device, and a copy
        # reads when its stream gets there.
        is_certain = copy.known if call.host else copy.sure
        waits = not is_certain or call.name in COPIES
        return waits and self.fences.ordered(copy.use.epoch, call.lane)

    def _is_shown(self) -> bool:
        """Tells whether the target of a copy keeps poison up to the copy's event."""
        if not self._perturbs:
            return False
        return self._coin is None or self._coin.random() < 0.5

    def _early_read(self, verb: str, moment: int, copy: PendingCopy, note: str = _EARLY) -> None:
        use = copy.use
        where = self._reports.line(use.moment)
        self._reports.report(
            "FR404",
            BlockUse(self.fences.host, use.count, moment),
            verb,
            use,
            "copy",
            f"a wait of the host for an event recorded after {where} on stream `{use.lane.name}`",
            note,
            early_writes=True,
            doubt="" if copy.sure else _WHOSE,
        )

    # --- FR403 ---

    def _writes(self, call: OperatorCall, tensor: torch.Tensor) -> None:
        block = self.blocks.of(tensor)
        if not (block.read_by or block.filled_by):
            return
        self._forget_done(block)
        low, high = span(tensor)
        _written_in_sight(block, low, high)
        for copy in block.filled_by:
            if copy.sure and copy.use.meets(low, high) and not self._is_brought(call):
                _forget(block, copy)
                self._overwritten(copy, call.name.rstrip("_"), self._reports.here(), is_target=True)
                return
        for copy in block.read_by:
            if not (copy.known and copy.use.meets(low, high)):
                continue
            # Memory that may be the device's is written when the stream gets there, and the host's
            # as well by a copy from the device.
            is_certain = copy.sure and not copy.doubtful and not self._is_brought(call)
            if is_certain or not self.fences.ordered(copy.use.epoch, call.lane):
                _forget(block, copy)  # it is reported once
                self._overwritten(copy, call.name.rstrip("_"), self._reports.here())
                return

    def _is_brought(self, call: OperatorCall) -> bool:
        """Tells whether a copy writes what may come from the device."""
        return call.name == "copy_" and self._placement(call.args[1]) in (
            _DEVICE,
            Placement.EITHER,
        )

    def _compare(self, block: Block, moment: int) -> None:
        """Looks for what was written out of torch's sight, by NumPy say, since copies were made."""
        self._forget_done(block)
        for copy in block.read_by:
            if copy.known and self._changed(block, copy):
                self._overwritten(copy, "write seen", moment)
                _forget(block, copy)
                return

    def _changed(self, block: Block, copy: PendingCopy) -> bool:
        storage = block.storage()
        if not copy.before or storage is None:
            return False
        if not holds(storage, copy.use.low, len(copy.before)):
            return False
        # Not by torch: that would be a read of the host's, which waits for the stream.
        return ctypes.string_at(copy.use.low, len(copy.before)) != copy.before

    def _overwritten(
        self, copy: PendingCopy, verb: str, moment: int, is_target: bool = False
    ) -> None:
        use, end = copy.use, "target" if is_target else "source"
        where = self._reports.line(use.moment)
        self._reports.report(
            "FR403",
            BlockUse(self.fences.host, use.count, moment),
            verb,
            use,
            "copy",
            f"a wait of the host for an event recorded after {where} on stream "
            f"`{use.lane.name}`, or a fresh buffer for each copy",
            f"the host writes the {end} of an asynchronous copy that it has not waited for",
            early_writes=is_target,
            doubt="" if copy.sure else _WHOSE,
        )

    # --- FR402 ---

    def _freed(self, block: Block) -> None:
        """Memory goes back to the allocator."""
        self._met_by_copies.discard(block)
        self._met_by_devices.discard(block)
        if self.tally.active:
            self._freed_memory.freed(block)

    # --- fences ---

    def _heard(self, happened: Happening) -> None:
        """A fence: what copies read must be what it was when they were made."""
        if happened.what == "lend":
            self._reports.lends = True
            self.blocks.of(happened.about()).lent |= {happened.lane.number}
        elif happened.lane is self.fences.host and happened.after is not None:
            self._host_has_waited(happened.moment)

    def _host_has_waited(self, moment: int | None = None) -> None:
        """What copies have read or filled by now must be what it was when they were made."""
        for block in list(self._met_by_copies):
            copies = [(one, False) for one in block.read_by]
            copies += [(one, True) for one in block.filled_by]
            for copy, is_target in copies:
                if not self._is_done(copy):
                    continue
                if copy.known and self._changed(block, copy):
                    now = self._reports.here() if moment is None else moment
                    self._overwritten(copy, "write seen", now, is_target)
                _forget(block, copy)
            if not (block.read_by or block.filled_by):
                self._met_by_copies.discard(block)
        for block in list(self._met_by_devices):
            self._forget_done(block)
            if not (block.filled_by or block.read_by):
                self._met_by_devices.discard(block)

    def _is_done(self, copy: PendingCopy) -> bool:
        return self.fences.ordered(copy.use.epoch, self.fences.host)

    def _forget_done(self, block: Block) -> None:
        if block.filled_by:
            block.filled_by = tuple(one for one in block.filled_by if not self._is_done(one))
        if block.read_by:
            block.read_by = tuple(one for one in block.read_by if not self._is_done(one))


def _is_the_hosts(block: Block) -> None:
    if not block.on_host:
        block.on_host = True
        block.writes = [one for one in block.writes if one.is_copy]
        block.reads = [one for one in block.reads if one.is_copy]


def _forget(block: Block, copy: PendingCopy) -> None:
    """Keeps a copy from or to a block in mind no longer."""
    block.filled_by, block.read_by = (
        tuple(one for one in kept if one is not copy) for kept in (block.filled_by, block.read_by)
    )


def _written_in_sight(block: Block, low: int, high: int) -> None:
    """Notes a write that was seen: the bytes of copies from or to there tell nothing any more."""
    if not (block.filled_by or block.read_by):
        return
    block.filled_by, block.read_by = (
        tuple(replace(one, before=b"") if one.use.meets(low, high) else one for one in kept)
        for kept in (block.filled_by, block.read_by)
    )


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

"""Races of SGLang's overlap loop: silent, or a stream-race, by the release.

The loops and methods that order the streams are SGLang's own, called on stand-ins that bring what
they ask for. A stand-in launches a forward as `run_batch` does, behind the schedule stream, and
waits for nothing else. Streams are those of the CPU, which fmcheck follows.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import relays
import torch

# What the scheduler's modules import, where it is not installed: nothing of it is called here.
for absent in (
    *("setproctitle", "uvicorn", "fastapi", "fastapi.responses"),
    *("sgl_kernel", "sgl_kernel.kvcacheio"),
):
    try:
        importlib.import_module(absent)
    except ImportError:
        sys.modules[absent] = MagicMock(__path__=[], __spec__=None)

import sglang.srt.disaggregation.decode as decode  # noqa: E402
import sglang.srt.disaggregation.decode_schedule_batch_mixin as prebuilding  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402

device = torch.get_device_module("cpu")
ROWS = torch.tensor([1, 2])
STEPS = 3


class Done(Exception):  # noqa: N818
    """The loop has run for as many steps as were asked for."""


class Batch:
    """A batch, and the plan that launches it."""

    running_batch = None

    @property
    def batch_to_run(self):
        return self

    def copy(self):
        return self


class Loop:
    """What `Scheduler.event_loop_overlap` asks of a scheduler."""

    _engine_paused = gracefully_exit = is_generation = enable_unified_memory = False
    _war_barrier_enabled = True
    last_batch = running_batch = None
    # SGLang's own, where the release has it.
    _apply_war_barrier = getattr(Scheduler, "_apply_war_barrier", None)

    def __init__(self, plans=False, books=False):
        self.plans, self.books, self.left = plans, books, STEPS
        self.pool = relays.request_pool()
        self.schedule_stream, self.forward_stream = device.Stream(), device.Stream()
        self.request_receiver = self
        self.server_args = SimpleNamespace(enable_unified_memory=False)
        runner = SimpleNamespace(war_fastpath_read_done_event=None)
        self.model_worker = SimpleNamespace(war_fastpath_runner=runner)

    def recv_requests(self):
        self.left -= 1
        if self.left < 0:
            raise Done

    def process_input_requests(self, requests):
        pass

    def is_disable_overlap_for_batch(self, *_, **__):
        return False

    def get_next_batch_to_run(self, **_):
        if self.plans:
            self.write_rows()
        return Batch()

    def run_batch(self, batch):
        self.forward_stream.wait_stream(self.schedule_stream)
        with device.stream(self.forward_stream):
            return self.pool.req_to_token[1:3, :4].sum(1)

    def process_batch_result(self, batch, result):
        if self.books:
            self.write_rows()

    def write_rows(self):
        self.pool.write((ROWS, slice(0, 4)), torch.full((2, 4), self.left, dtype=torch.int32))


def run(loop):
    with device.stream(loop.schedule_stream):
        loop.write_rows()
        with pytest.raises(Done):
            Scheduler.event_loop_overlap(loop)


# Other releases ask for more, or for other things, around the same code.
looped = pytest.mark.skipif(relays.RELEASE > (0, 5, 16), reason="driven up to 0.5.16")
prebuilt = pytest.mark.skipif(relays.RELEASE < (0, 5, 18), reason="driven from 0.5.18 on")


@looped
def test_planning_writes_rows_that_a_forward_reads():
    run(Loop(plans=True))


@looped
def test_results_write_rows_that_a_forward_reads():
    run(Loop(books=True))


class Prebuilt:
    """A batch of requests that another node has prefilled."""

    device, tree_cache, spec_algorithm = "cpu", None, relays.NONE
    process_prebuilt = prebuilding.ScheduleBatchDisaggregationDecodeMixin.process_prebuilt

    def __init__(self, requests):
        self.reqs = requests
        self.req_pool_indices = relays.rows_of(requests)

    def prepare_for_prebuilt(self):
        pass


class DecodeNode:
    """What `get_new_prebuilt_batch` asks of a scheduler."""

    enable_priority_scheduling = False
    enable_overlap = True
    max_running_requests = relays.POOL
    token_to_kv_pool_allocator = tree_cache = model_config = None
    spec_algorithm = relays.NONE
    grammar_manager = SimpleNamespace(has_waiting_grammars=lambda: False)
    get_new_prebuilt_batch = decode.SchedulerDisaggregationDecodeMixin.get_new_prebuilt_batch

    def __init__(self, waiting):
        self.waiting_queue = waiting
        self.req_to_token_pool = relays.request_pool()
        self.relay = relays.make_relay(self.req_to_token_pool)
        self.future_map = self.relay.map
        self.schedule_stream, self.forward_stream = device.Stream(), device.Stream()

    def forward(self, rows):
        self.forward_stream.wait_stream(self.schedule_stream)
        with device.stream(self.forward_stream):
            self.relay.stash(rows, rows + 10)


class Request(relays.Request):
    """A request whose prompt is there, with its first token."""

    grammar = last_node = prefix_indices = kv_committed_len = None
    output_ids = (7,)

    def __init__(self, rid):
        super().__init__(rid)
        self.kv_committed_len = self.kv.kv_committed_len = None

    def init_next_round_input(self, tree_cache):
        pass


@pytest.fixture
def lean(monkeypatch):
    """Leaves out what the batch asks of a server: times, prefix caches, settings."""
    settings = SimpleNamespace(disaggregation_decode_enable_radix_cache=False)
    monkeypatch.setattr(decode, "get_disagg", lambda: settings)
    monkeypatch.setattr(decode, "set_time_batch", lambda *_: None)
    monkeypatch.setattr(
        decode, "ScheduleBatch", SimpleNamespace(init_new=lambda reqs, *_: Prebuilt(reqs))
    )
    monkeypatch.setattr(prebuilding, "maybe_cache_unfinished_req", lambda *_: None)


@prebuilt
@pytest.mark.usefixtures("lean")
def test_a_prebuilt_request_seeds_a_row_that_a_forward_still_writes():
    ended, coming = relays.Request("ended"), Request("coming")
    node = DecodeNode([coming])
    pool = node.req_to_token_pool
    pool.alloc([ended])
    node.forward(relays.rows_of([ended]))  # its redundant last step
    pool.free(ended)
    if relays.RELEASE < (0, 5, 19):
        pool.free_slots.sort()  # so that the next one gets this row
    pool.alloc([coming])
    with device.stream(node.schedule_stream):
        node.get_new_prebuilt_batch(SimpleNamespace(batch_size=lambda: 0))

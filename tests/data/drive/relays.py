"""The real FutureMap of an installed sglang, under one interface for all releases.

Differences between releases are absorbed here; nothing of sglang is patched. One method of torch
is: releases up to 0.5.19 call `record_stream` on CPU tensors, which torch refuses.

`FMCHECK_DRIVE_DEVICE` says on which device, a CPU by default. For another one sglang is imported as
on a CPU all the same, for its imports ask for kernels that no other part needs.

0.5.11 and 0.5.12 relay through a ring: each batch is given fresh rows of it, and the next batch
names them. From 0.5.13 on a request's row in the pool is its row in the relay.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
from types import SimpleNamespace
from unittest import mock

import torch

with mock.patch.object(torch.cuda, "is_available", return_value=False):
    import sglang.srt.managers.overlap_utils as relay
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

DEVICE = torch.device(os.environ.get("FMCHECK_DRIVE_DEVICE", "cpu"))
tensor = functools.partial(torch.tensor, device=DEVICE)
RELEASE = tuple(int(part) for part in importlib.metadata.version("sglang").split(".")[:3])
RING = RELEASE < (0, 5, 13)
NONE, EAGLE = SpeculativeAlgorithm.NONE, SpeculativeAlgorithm.EAGLE
POOL = 12
device = torch.get_device_module(DEVICE)
WIDTH = 64

_record_stream = torch.Tensor.record_stream


def _record_stream_unless_cpu(tensor, stream):
    return None if tensor.device.type == "cpu" else _record_stream(tensor, stream)


torch.Tensor.record_stream = _record_stream_unless_cpu


class Kv:
    """What a request holds of the pool, from 0.5.19 on."""

    req_pool_idx = None
    kv_allocated_len = 1

    @property
    def holds_kv(self):
        return self.req_pool_idx is not None


class Request:
    """A request as the pool wants it, in any release."""

    def __init__(self, rid):
        self.rid = rid
        self.kv = Kv()
        self.req_pool_idx = None
        self.is_chunked = self.inflight_middle_chunks = 0
        self.kv_committed_len = 1

    @property
    def row(self):
        return self.kv.req_pool_idx if self.req_pool_idx is None else self.req_pool_idx


def request_pool(size=POOL):
    return ReqToTokenPool(
        size=size, max_context_len=WIDTH, device=str(DEVICE), enable_memory_saver=False
    )


def rows_of(requests):
    return tensor([request.row for request in requests], dtype=torch.int64)


def batch(rows, **others):
    fields = {
        "prefill_input_ids_cpu": None,
        "mix_running_indices": None,
        "input_ids": None,
        "device": str(DEVICE),
        "req_pool_indices": rows,
        "req_pool_indices_cpu": rows.cpu(),
        "enable_overlap": True,
        "is_spec_v2": False,
        "spec_algorithm": NONE,
        "spec_info": None,
        "seq_lens": None,
        "seq_lens_cpu": None,
        "seq_lens_sum": None,
    }
    return SimpleNamespace(**{**fields, **others})


def draft_of(places):
    return SimpleNamespace(
        future_indices=places,
        topk_p=None,
        topk_index=None,
        bonus_tokens=None,
        verified_id=None,
        new_seq_lens=None,
        hidden_states=None,
        draft_probs=None,
        dsa_topk_indices=None,
        future_dsa_topk_indices_available=False,
    )


def spec_batch(places):
    return batch(places, spec_algorithm=EAGLE, is_spec_v2=True, spec_info=draft_of(places))


def mixed_batch(rows):
    """A prompt of 8 tokens, and after it the running requests in `rows`."""
    return batch(
        rows,
        mix_running_indices=rows,
        mix_running_indices_cpu=rows.cpu(),
        seq_lens=tensor([8, 3, 4, 5]),
        seq_lens_cpu=torch.tensor([8, 3, 4, 5]),
        out_cache_loc=tensor([1, 2, 3, 4]),
        prefix_lens=[0, 2, 3, 4],
    )


def extras(count, step=0):
    return {
        "topk_p": torch.full((count, 2), 0.25 + step, device=DEVICE),
        "topk_index": torch.full((count, 2), step, dtype=torch.int64, device=DEVICE),
        "hidden_states": torch.full((count, 8), float(step), dtype=torch.bfloat16, device=DEVICE),
    }


class PoolRelay:
    """0.5.13 and later: a batch writes at its rows in the pool, and reads there."""

    def __init__(self, pool, algorithm=NONE, **options):
        self.map = relay.FutureMap(DEVICE, algorithm, pool, **options)

    def stash(self, rows, tokens, **more):
        """Writes what the next step reads; returns where each request reads it."""
        if hasattr(relay, "RelayPayload"):
            payload = relay.RelayPayload(bonus_tokens=tokens, **more)
        else:
            payload = SimpleNamespace(bonus_tokens=tokens, **more) if more else tokens
        self.map.stash(rows, payload)
        return rows

    def publish(self, rows, lengths):
        self.map.publish(rows, lengths)

    def tokens(self, places, prefill=None):
        mixed = {}
        if prefill is not None:
            mixed = {"prefill_input_ids_cpu": prefill, "mix_running_indices": places}
        resolved = batch(places, **mixed)
        relay.resolve_forward_inputs(resolved, self.map)
        return resolved.input_ids

    def lengths(self, places):
        return self.resolve_lengths(places).seq_lens

    def resolve_lengths(self, places):
        resolved = spec_batch(places)
        self.map.resolve_seq_lens_cpu(resolved)
        return resolved

    def pull_lengths(self):
        """Has lengths come to the host as on CUDA: by a stream and a mirror of their own."""
        self.map.fwd_prepare_d2h_stream = device.Stream()
        self.map.new_seq_lens_cpu_pinned = torch.empty(
            self.map.req_pool_size, dtype=torch.int64, pin_memory=DEVICE.type == "cuda"
        )

    def extras(self, places, **flags):
        """Returns the draft input that a batch is given, which may say more by `flags`."""
        resolved = spec_batch(places)
        vars(resolved.spec_info).update(flags)
        relay.resolve_forward_inputs(resolved, self.map)
        return resolved.spec_info


class RingRelay:
    """0.5.11 and 0.5.12: each batch is given a fresh stretch of the ring to write to."""

    def __init__(self, pool, algorithm=NONE, needs_cpu_seq_lens=True):
        self.map = relay.FutureMap(
            max_running_requests=POOL,
            chunked_prefill_size=8,
            context_len=WIDTH,
            device=DEVICE,
            spec_algo=algorithm,
        )

    def stash(self, rows, tokens, **more):
        """Writes what the next step reads; returns where each request reads it."""
        given = self.map.alloc_future_indices(len(rows))
        lengths = more.pop("new_seq_lens", torch.ones_like(tokens))
        draft = SimpleNamespace(
            bonus_tokens=tokens, verified_id=tokens, new_seq_lens=lengths, **more
        )
        self.map.store_to_map(given, SimpleNamespace(next_token_ids=tokens, next_draft_input=draft))
        return given.indices

    def tokens(self, places, prefill=None):
        ids = -places
        resolved = SimpleNamespace(input_ids=ids if prefill is None else torch.cat([prefill, ids]))
        self.map.resolve_future(resolved)
        return resolved.input_ids

    def extras(self, places):
        draft = draft_of(SimpleNamespace(indices=places))
        self.map.resolve_future(SimpleNamespace(spec_info=draft))
        if draft.bonus_tokens is None:  # its name in 0.5.11
            draft.bonus_tokens = draft.verified_id
        return draft


def make_relay(pool, algorithm=NONE, **options):
    return (RingRelay if RING else PoolRelay)(pool, algorithm, **options)


@contextlib.contextmanager
def eagle():
    """Server arguments under which the relay carries top-k values and hidden states."""
    context = _overriding_context()
    if context is not None:
        override = context.override_server_args(speculative_algorithm="EAGLE")
        override.install()
        yield
        override.restore()
        return
    import sglang.srt.server_args as server_args

    arguments = server_args.ServerArgs(model_path="dummy")
    arguments.speculative_algorithm = "EAGLE"
    server_args.set_global_server_args_for_scheduler(arguments)
    yield


def _overriding_context():
    try:
        from sglang.srt.runtime_context import get_context
    except ImportError:
        return None
    context = get_context()
    return context if hasattr(context, "override_server_args") else None

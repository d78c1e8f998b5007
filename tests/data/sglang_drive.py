"""Drives the real FutureMap of an installed sglang: run by test_real_sglang.py under fmcheck.

Differences between releases are absorbed here; nothing of sglang is patched. One method of torch
is: releases up to 0.5.19 call `record_stream` on CPU tensors, which torch refuses.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from types import SimpleNamespace

import pytest
import sglang.srt.managers.overlap_utils as relay
import torch
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

RELEASE = tuple(int(part) for part in importlib.metadata.version("sglang").split(".")[:3])
ROWS = torch.tensor([1, 2, 5])
POOL = 12
STEPS = 6

_record_stream = torch.Tensor.record_stream


def _record_stream_unless_cpu(tensor, stream):
    return None if tensor.device.type == "cpu" else _record_stream(tensor, stream)


torch.Tensor.record_stream = _record_stream_unless_cpu


def future_map(algorithm=SpeculativeAlgorithm.NONE, **options):
    pool = SimpleNamespace(
        req_to_token=torch.arange(POOL * 64, dtype=torch.int32).reshape(POOL, 64),
        req_generation=torch.zeros(POOL, dtype=torch.int64),
    )
    return relay.FutureMap(torch.device("cpu"), algorithm, pool, **options)


def stash(fm, rows, tokens, **extras):
    if hasattr(relay, "RelayPayload"):
        payload = relay.RelayPayload(bonus_tokens=tokens, **extras)
    else:
        payload = SimpleNamespace(bonus_tokens=tokens, **extras) if extras else tokens
    fm.stash(rows, payload)


def batch(rows, **others):
    fields = {
        "prefill_input_ids_cpu": None,
        "mix_running_indices": None,
        "input_ids": None,
        "device": "cpu",
        "req_pool_indices": rows,
        "req_pool_indices_cpu": rows,
        "enable_overlap": True,
        "is_spec_v2": False,
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        "spec_info": None,
        "seq_lens": None,
        "seq_lens_cpu": None,
        "seq_lens_sum": None,
    }
    return SimpleNamespace(**{**fields, **others})


def resolve(fm, rows):
    resolved = batch(rows)
    relay.resolve_forward_inputs(resolved, fm)
    return resolved.input_ids


def spec_batch(rows, algorithm=SpeculativeAlgorithm.EAGLE):
    draft = SimpleNamespace(
        future_indices=rows,
        topk_p=None,
        topk_index=None,
        bonus_tokens=None,
        hidden_states=None,
        draft_probs=None,
        dsa_topk_indices=None,
        future_dsa_topk_indices_available=False,
    )
    return batch(rows, spec_algorithm=algorithm, is_spec_v2=True, spec_info=draft)


def resolve_extras(fm, rows):
    resolved = spec_batch(rows)
    relay.resolve_forward_inputs(resolved, fm)
    return resolved.spec_info


def extras(count, step):
    return {
        "topk_p": torch.full((count, 2), 0.25 + step),
        "topk_index": torch.full((count, 2), step, dtype=torch.int64),
        "hidden_states": torch.full((count, 8), float(step), dtype=torch.bfloat16),
    }


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


def test_plain_loop_is_healthy():
    fm = future_map()
    stash(fm, ROWS, torch.tensor([3, 4, 5]))
    for step in range(STEPS):
        tokens = resolve(fm, ROWS)
        assert tokens.tolist() == [3 + step, 4 + step, 5 + step]
        assert type(tokens) is torch.Tensor
        stash(fm, ROWS, tokens + 1)
        fm.publish(ROWS, torch.tensor([9, 9, 9]) + step)


def test_padded_rows_read_the_sink():
    fm = future_map()
    fm.output_tokens_buf[0] = 0
    stash(fm, ROWS, torch.tensor([3, 4, 5]))
    padded = torch.tensor([1, 2, 5, 0, 0])
    assert resolve(fm, padded).tolist()[:3] == [3, 4, 5]


def test_mixed_batch_is_healthy():
    fm = future_map()
    stash(fm, ROWS, torch.tensor([3, 4, 5]))
    mixed = batch(None, prefill_input_ids_cpu=torch.tensor([7, 8]), mix_running_indices=ROWS)
    relay.resolve_forward_inputs(mixed, fm)
    assert mixed.input_ids.tolist() == [7, 8, 3, 4, 5]


def test_idle_rank_is_healthy():
    fm = future_map()
    none = torch.tensor([], dtype=torch.int64)
    fm.publish(none, none)
    stash(fm, none, none)


def test_lengths_are_healthy():
    fm = future_map(SpeculativeAlgorithm.EAGLE)
    for step in range(STEPS):
        fm.publish(ROWS, torch.tensor([4, 5, 6]) + step)
        resolved = spec_batch(ROWS)
        fm.resolve_seq_lens_cpu(resolved)
        assert resolved.seq_lens_cpu.tolist() == [4 + step, 5 + step, 6 + step]


def test_extras_loop_is_healthy():
    with eagle():
        fm = future_map(SpeculativeAlgorithm.EAGLE)
        for step in range(STEPS):
            stash(fm, ROWS, torch.tensor([3, 4, 5]), **extras(3, step))
            draft = resolve_extras(fm, ROWS)
            assert draft.bonus_tokens.tolist() == [3, 4, 5]
            assert draft.topk_index.tolist() == [[step, step]] * 3
            assert draft.hidden_states.float().unique().tolist() == [step]


def test_plain_double_gather():
    fm = future_map()
    stash(fm, ROWS, torch.tensor([3, 4, 5]))
    resolve(fm, ROWS)
    resolve(fm, ROWS[1:])


def test_plain_gather_before_stash():
    resolve(future_map(), ROWS)


def test_lengths_double_gather():
    fm = future_map(SpeculativeAlgorithm.EAGLE, needs_cpu_seq_lens=False)
    fm.publish(ROWS, torch.tensor([4, 5, 6]))
    fm.resolve_seq_lens_cpu(spec_batch(ROWS))
    fm._publish_fresh = True
    fm.resolve_seq_lens_cpu(spec_batch(ROWS))


def test_extras_double_gather():
    with eagle():
        fm = future_map(SpeculativeAlgorithm.EAGLE)
        stash(fm, ROWS, torch.tensor([3, 4, 5]), **extras(3, 1))
        resolve_extras(fm, ROWS)
        resolve_extras(fm, ROWS)


@pytest.mark.skipif(RELEASE < (0, 5, 23), reason="this release has no relay of the kind")
def test_adopted_buffers_are_healthy():
    offered = relay.FutureRelayBuffers(req_pool_size=POOL, device="cpu")
    relay.offer_future_relay_buffers(offered)
    try:
        fm = future_map()
    finally:
        relay._offered_relay = None
    assert offered.adopted
    offered.output_tokens[ROWS] = torch.tensor([3, 4, 5])
    assert resolve(fm, ROWS).tolist() == [3, 4, 5]

"""Drives the real fill methods of an installed sglang's graph runners on CPU, graphs left out.

Run by test_real_tails.py under fmcheck, one test a runner. A runner is made without `__init__`,
which would capture graphs; its own method fills its own buffers, three rows of a graph of eight,
up to the replay, which raises. A runner that the release lacks, or that cannot be imported on a
CPU, is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.machinery
import importlib.metadata
import inspect
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

RAW, PADDED, MOST = 3, 8, 16
FILL = 1
SPECULATIVE = "sglang.srt.speculative"
# By the names of 0.5.12 and later, and by those of 0.5.11.
ACCEPTED = (
    *("num_correct_drafts", "num_accept_tokens"),
    *("num_accepted_drafts", "num_accepted_tokens"),
)


class ReplayedError(Exception):
    """The fill is done and the graph would run now."""


class Batch(SimpleNamespace):
    """A batch that has no other field than those it was given."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return


def found(module, name):
    try:
        made = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as err:
        if not str(err.name).startswith("sglang"):
            raise
        made = None
    if made is None:
        pytest.skip(f"this release has no {module}.{name}")
    return made


def ints(count, start=5):
    return torch.arange(start, start + count)


def stale(*shape, fill=7, dtype=torch.int64):
    """An input as a larger batch left it."""
    return torch.full(shape, fill, dtype=dtype)


def batch(per_row=1, **others):
    tokens = RAW * per_row
    fields = {
        "batch_size": RAW,
        "input_ids": ints(tokens),
        "req_pool_indices": ints(RAW, 2),
        "seq_lens": ints(RAW, 20),
        "seq_lens_cpu": ints(RAW, 20),
        "seq_lens_sum": 63,
        "out_cache_loc": ints(tokens, 40),
        "positions": ints(tokens, 19),
    }
    return Batch(**{**fields, **others})


def spec_info(per_row=1):
    return Batch(
        topk_p=torch.rand(RAW, 1),
        topk_index=ints(RAW)[:, None],
        bonus_tokens=ints(RAW),
        hidden_states=torch.rand(RAW * per_row, 4),
        **{name: torch.ones(RAW, dtype=torch.int32) for name in ACCEPTED},
    )


def buffers(per_row=1, rows=MOST, **others):
    tokens = rows * per_row
    fields = {
        "input_ids": stale(tokens),
        "req_pool_indices": stale(rows),
        "out_cache_loc": stale(tokens),
        "positions": stale(tokens),
        "mrope_positions": stale(3, tokens),
        "seq_lens": stale(rows),
        "seq_lens_cpu": stale(rows),
        "extend_seq_lens": stale(rows, dtype=torch.int32),
        "extend_start_loc": stale(rows, dtype=torch.int32),
        **{name: stale(rows, dtype=torch.int32) for name in ACCEPTED},
        "select_index": stale(rows),
        "topk_p": torch.rand(rows, 1),
        "topk_index": stale(rows, 1),
        "bonus_tokens": stale(rows),
        "hidden_states": torch.rand(tokens, 4),
    }
    return Batch(**{**fields, **others})


def runner(kind, per_row=1, **others):
    graph = mock.Mock()
    graph.replay.side_effect = ReplayedError
    made = object.__new__(kind)
    model_runner = mock.MagicMock()
    model_runner.req_to_token_pool.req_to_token = torch.zeros(30, 64, dtype=torch.int32)
    model_runner.model_config.model_is_mrope = False
    model_runner.model_config.vocab_size = 1000
    model_runner.spec_algorithm.is_eagle.return_value = True
    fields = {
        "model_runner": model_runner,
        "buffers": buffers(per_row),
        "capture_bs": [PADDED, MOST],
        "max_bs": MOST,
        "max_num_token": MOST * per_row,
        "num_tokens_per_bs": per_row,
        "captured_req_width": per_row,
        "seq_len_fill_value": FILL,
        "extend_seq_lens_cpu": [per_row] * MOST,
        "require_gathered_buffer": False,
        "require_mlp_tp_gather": False,
        "is_encoder_decoder": False,
        "enable_torch_compile": False,
        "deepep_adapter": mock.Mock(),
        "speculative_num_steps": 1,
        "topk": 1,
        "raw_bs": 0,
        "bs": 0,
        "graphs": {PADDED: graph},
        "backend": graph,
        "forward_mode": mock.MagicMock(),
        "draft_attn_backend": mock.MagicMock(),
        "draft_extend_attn_backend": mock.MagicMock(),
        "frozen_kv_mtp_worker": mock.MagicMock(),
        "eagle_worker": mock.MagicMock(),
        "device": torch.device("cpu"),
        "device_module": torch.cpu,
    }
    vars(made).update({**fields, **others})
    return made


def fill_and_replay(made, *arguments):
    method = getattr(made, "execute", None) or made.replay
    with pytest.raises(ReplayedError):
        method(*arguments)


def in_place(made, name, count):
    """What the replay would have read there."""
    return getattr(made.buffers, name)[:count].tolist()


@pytest.fixture(autouse=True)
def speculative_arguments():
    """Server arguments that newer runners ask for."""
    try:
        from sglang.srt.runtime_context import get_context

        override = get_context().override_server_args(speculative_algorithm="EAGLE")
    except (ImportError, AttributeError):
        yield
        return
    override.install()
    yield
    override.restore()


def test_decode_inputs():
    kind = found("sglang.srt.model_executor.cuda_graph_runner", "DecodeInputBuffers")
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        setattr(made, field.name, None)
    vars(made).update(
        {name: value for name, value in vars(buffers()).items() if hasattr(made, name)}
    )
    known = inspect.signature(made.populate_from_forward_batch).parameters
    arguments = dict.fromkeys(known, False)
    arguments |= {
        "forward_batch": batch(mrope_positions=torch.stack([ints(RAW)] * 3)),
        "raw_bs": RAW,
        "raw_num_token": RAW,
        "bs": PADDED,
        "seq_len_fill_value": FILL,
        "num_tokens_per_bs": 1,
        "pp_proxy_tensors": None,
    }
    made.populate_from_forward_batch(**arguments)
    assert made.req_pool_indices[:RAW].tolist() == [2, 3, 4]
    assert made.seq_lens[RAW:PADDED].tolist() == [FILL] * 5


def test_cpu_runner():
    kind = found("sglang.srt.model_executor.cpu_graph_runner", "CPUGraphRunner")
    own = {name: value for name, value in vars(buffers()).items() if "hidden" not in name}
    views = {name: value[:PADDED] for name, value in own.items() if value.dim() == 1}
    captured = Batch(**{**views, "batch_size": PADDED})
    made = runner(
        kind,
        captured_forward_batches={PADDED: captured},
        captured_forward_batches_cross={PADDED: captured},
        graphs_cross={},
        capture_hidden_mode=0,
        **own,
    )
    with (
        mock.patch.object(kind, "recapture_if_needed", create=True),
        mock.patch(f"{kind.__module__}.enable_num_token_non_padded", return_value=False),
    ):
        prepared = made.prepare_replay(batch(capture_hidden_mode=0))
    assert prepared is captured
    assert made.req_pool_indices[:RAW].tolist() == [2, 3, 4]
    assert made.seq_lens[RAW:PADDED].tolist() == [FILL] * 5
    assert made.positions[RAW:PADDED].tolist() == [7] * 5


def filled_registry():
    module = "sglang.srt.model_executor.cuda_graph_buffer_registry"
    build = found(module, "build_decode_registry")
    arguments = {
        "device": torch.device("cpu"),
        "max_bs": MOST,
        "max_num_token": MOST * 2,
        "seq_len_fill_value": FILL,
        "cache_loc_dtype": torch.int64,
        "enable_mamba_track": True,
        "enable_num_token_non_padded": False,
        "share_pool": False,
    }
    known = inspect.signature(build).parameters
    missing = {
        name: False
        for name, one in known.items()
        if one.default is inspect.Parameter.empty and name not in arguments
    }
    registry = build(**{n: v for n, v in arguments.items() if n in known}, **missing)
    for name in registry.slot_names():
        registry.get_slot(name).buffer.fill_(True if "mask" in name else 7)
    registry.fill_from(
        batch(
            2,
            mrope_positions=torch.stack([ints(2 * RAW)] * 3),
            mamba_track_indices=ints(RAW),
            mamba_track_mask=torch.ones(RAW, dtype=torch.bool),
        ),
        raw_bs=RAW,
        padded_bs=PADDED,
        raw_num_tokens=2 * RAW,
        padded_num_tokens=2 * PADDED,
    )
    return registry


def test_slot_registry():
    registry = filled_registry()
    with contextlib.suppress(Exception):  # here is no graph, and nothing that it could run on
        torch.cuda.CUDAGraph.replay(mock.Mock())
    slot = registry.get_slot("req_pool_indices").buffer
    assert slot[:PADDED].tolist() == [2, 3, 4, 0, 0, 0, 0, 0]
    assert slot[PADDED:].tolist() == [7] * (MOST - PADDED)


def test_slot_registry_that_no_graph_reads():
    filled_registry()


def test_draft():
    made = runner(
        found(f"{SPECULATIVE}.eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner")
    )
    fill_and_replay(made, batch(spec_info=spec_info()))
    assert in_place(made, "req_pool_indices", 5) == [2, 3, 4, 0, 0]


def test_draft_extend():
    kind = found(
        f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner"
    )
    made = runner(kind, 2)
    method = getattr(made, "execute", None) or made.replay
    extra = [ints(RAW)] * (len(inspect.signature(method).parameters) - 1)
    fill_and_replay(made, batch(2, spec_info=spec_info(2)), *extra)
    assert in_place(made, "req_pool_indices", RAW) == [2, 3, 4]


def test_frozen_kv_mtp():
    made = runner(
        found(f"{SPECULATIVE}.frozen_kv_mtp_cuda_graph_runner", "FrozenKVMTPCudaGraphRunner")
    )
    fill_and_replay(made, batch(spec_info=spec_info()))
    assert in_place(made, "req_pool_indices", RAW) == [2, 3, 4]


MULTI_LAYER = f"{SPECULATIVE}.multi_layer_eagle_draft_extend_cuda_graph_runner"


def test_multi_layer_step():
    kind = found(MULTI_LAYER, "MultiLayerEagleDraftExtendCudaGraphRunner")
    if not hasattr(kind, "init_replay_state"):
        pytest.skip("this release fills the inputs of all steps at once")
    made = runner(kind, 2)
    made.init_replay_state(batch(2, spec_info=spec_info(2)), PADDED, RAW, 2 * RAW)
    assert in_place(made, "req_pool_indices", RAW) == [2, 3, 4]
    assert in_place(made, "seq_lens", PADDED)[RAW:] == [7] * 5


def all_steps(backends):
    kind = found(MULTI_LAYER, "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner")
    if not hasattr(kind, "prepare"):
        pytest.skip("this release fills the inputs step by step")
    made = runner(
        kind,
        2,
        num_front_tokens=0,
        draft_extend_attn_backend_list=backends,
        prune_draft_extend_logits=0,
    )
    vars(made)["runners"] = [mock.Mock(_pad_to_bucket=lambda size, sizes: PADDED)]
    return made


def test_multi_layer_all_steps():
    made = all_steps([])
    made.prepare(batch(2, spec_info=spec_info(2)))
    assert in_place(made, "req_pool_indices", RAW) == [2, 3, 4]


def staging():
    backend = mock.Mock(supports_draft_extend_metadata_staging=True)
    backend.draft_extend_metadata_captured_in_graph.return_value = False
    return backend


def test_multi_layer_staged_by_prepare():
    made = all_steps([staging()])
    if not hasattr(made, "stage_shared_reads"):
        pytest.skip("this release stages nothing")
    made.prepare(batch(2, spec_info=spec_info(2)))
    assert in_place(made, "req_pool_indices", 5) == [2, 3, 4, 0, 0]


def test_multi_layer_staged_ahead():
    made = all_steps([staging()])
    if not hasattr(made, "stage_shared_reads"):
        pytest.skip("this release stages nothing")
    one = batch(2, spec_info=spec_info(2))
    # 0.5.20 has none of the virtual locations and plans.
    known = inspect.signature(made.stage_shared_reads).parameters
    arguments = dict.fromkeys(known) | {
        "seq_lens": one.seq_lens,
        "req_pool_indices": one.req_pool_indices,
        "out_cache_loc": one.out_cache_loc,
        "positions": one.positions,
    }
    made.stage_shared_reads(**arguments)
    made.prepare(one, staged=True)
    assert in_place(made, "req_pool_indices", 5) == [2, 3, 4, 0, 0]

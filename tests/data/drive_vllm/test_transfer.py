"""vLLM's first offload of cache blocks to the host, behind a step that writes a block.

Real is `SingleDirectionOffloadingHandler`; what CUDA copies by address, torch copies here, on the
same stream.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from on_cpu import CPU, given, put_streams_in

import vllm.v1.kv_offload.worker.cpu_gpu as module  # isort: skip
from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec  # isort: skip

put_streams_in()
BLOCKS, SIZE, BLOCK = 8, 4, 2


def handler(cache: torch.Tensor, host: torch.Tensor) -> Any:
    """Makes the one that stores, with the state of any release: `__init__` asks for CUDA."""
    made = object.__new__(module.SingleDirectionOffloadingHandler)
    made.__dict__.update(
        src_tensors=[cache],
        dst_tensors=[host],
        src_block_size_factor=1,
        dst_block_size_factor=1,
        kv_dim_before_num_blocks=[False],
        priority=0,
        gpu_to_cpu=True,
        kv_cache_groups_data_refs=[[SimpleNamespace(tensor_idx=0, page_size_bytes=SIZE)]],
        _transfers=module.deque(),
        _transfer_events={},
        _stream_pool=[],
        _event_pool=[],
    )

    def copy(*_: Any) -> None:
        host[BLOCK].copy_(cache[BLOCK], non_blocking=True)

    module.ops = SimpleNamespace(swap_blocks=copy, swap_blocks_batch=copy)
    return made


def test_a_block_is_stored_that_the_step_still_writes() -> None:
    forward = torch.cuda.Stream()
    with torch.cuda.stream(forward):
        cache = torch.zeros(BLOCKS, SIZE, dtype=torch.int8, device=CPU)
    host = torch.zeros(BLOCKS, SIZE, dtype=torch.int8)
    torch.cpu.synchronize()
    stores = handler(cache, host)
    with torch.cuda.stream(forward):
        cache[BLOCK] = 7
        blocks = given(GPULoadStoreSpec, block_ids=[BLOCK], group_sizes=[1], block_indices=[0])
        assert stores.transfer_async(0, (blocks, CPULoadStoreSpec([BLOCK])))
    torch.cpu.synchronize()
    assert host[BLOCK].tolist() == [7] * SIZE

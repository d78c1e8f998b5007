"""vLLM's own offload of cache blocks to the host, beside a step that works with the blocks.

Real are what launches in `SimpleCPUOffloadWorker`, and its thread of copies, `DmaCopyBackend`; what
the CUDA driver copies by address, torch copies here, on the same stream.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from on_cpu import CPU, put_streams_in

import vllm.v1.simple_kv_offload.copy_backend as copies  # isort: skip
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata  # isort: skip
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Iterator

put_streams_in()
BLOCKS, SIZE = 8, 4


def _params(source: Any, target: Any, stream: Any, **_: Any) -> Any:
    return SimpleNamespace(source=source["layer"], target=target["layer"], stream=stream)


class Offload:
    """A worker with the cache of one layer on the device, and its copy on the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied = threading.Semaphore(0)
        monkeypatch.setattr(copies, "build_params", _params)
        monkeypatch.setattr(copies, "copy_blocks", self._copy)
        monkeypatch.setattr(copies, "current_platform", SimpleNamespace(set_device=lambda _: None))
        self.forward = torch.cuda.Stream()
        with torch.cuda.stream(self.forward):
            self.cache = torch.zeros(BLOCKS, SIZE, device=CPU)
        self.worker = SimpleCPUOffloadWorker(None, None, 0)
        host = {"layer": torch.zeros(BLOCKS, SIZE)}
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        for one in streams:
            one.wait_stream(self.forward)
        # From 0.28 on it is made with the caches.
        self.worker._backend = self.worker._backend or copies.DmaCopyBackend()
        self.worker._backend.init({"layer": self.cache}, host, CPU, *streams)

    def _copy(self, source: list[int], target: list[int], params: Any) -> None:
        with torch.cuda.stream(params.stream):
            for block, other in zip(source, target, strict=True):
                params.target[other].copy_(params.source[block], non_blocking=True)
        self.copied.release()

    def finish(self, **blocks: Any) -> None:
        """Launches a step's transfers behind its forward, and lets the thread issue them."""
        self.worker.bind_connector_metadata(SimpleCPUOffloadMetadata(**blocks))
        with torch.cuda.stream(self.forward):
            # Releases differ in which of the three launches, always behind the forward.
            self.worker.start_load_kv()
            self.worker.wait_for_save()
            self.worker.get_finished(set())
        assert self.copied.acquire(timeout=30)


@pytest.fixture
def offload(monkeypatch: pytest.MonkeyPatch) -> Iterator[Offload]:
    made = Offload(monkeypatch)
    yield made
    made.worker._backend.shutdown()
    torch.cpu.synchronize()  # before the cache goes


def test_a_block_is_stored_that_the_step_still_writes(offload: Offload) -> None:
    with torch.cuda.stream(offload.forward):
        offload.cache[2] = 7.0
    offload.finish(store_event=0, store_gpu_blocks=[2], store_cpu_blocks=[5])


def test_a_block_is_loaded_that_the_step_still_reads(offload: Offload) -> None:
    with torch.cuda.stream(offload.forward):
        offload.cache[3].sum()
    offload.finish(load_event=0, load_cpu_blocks=[5], load_gpu_blocks=[3])

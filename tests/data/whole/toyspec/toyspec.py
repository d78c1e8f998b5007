"""TOY: a speculative algorithm for SGLang that runs on a CPU.

It is registered by SGLang's own registry and loaded through its own plugin group, so that the real
scheduler takes its speculative overlapped path: resolve_seq_lens_cpu, resolve_forward_inputs, the
worker, FutureMap.publish, FutureMap.stash. The worker makes a few plain greedy steps and accepts
some of them, by position and row: tokens equal the plain ones, and how long a request is by then
is known to nobody but the relay.

`TOY_TOPK=1` relays top-k values and hidden states too, through the Triton gather; `TOY_NEEDS_CPU=0`
keeps the lengths off the host.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
from types import SimpleNamespace
from typing import Any

import torch

RELEASE = tuple(int(part) for part in importlib.metadata.version("sglang").split(".")[:3])
# 0.5.13 relays the extras of every speculative batch.
TOPK = os.environ.get("TOY_TOPK") == "1" or RELEASE < (0, 5, 14)
STEPS = 3


def register() -> None:
    """Registers the algorithm; SGLang calls it in each of its processes."""
    from sglang.srt.speculative import spec_registry
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    _lend_nothing_on_cpu()

    class ToyAlgorithm(spec_registry.CustomSpecAlgo):
        def need_topk(self) -> bool:
            return TOPK

        def has_draft_kv(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def create_future_map(
            self,
            device: Any,
            req_to_token_pool: Any,
            needs_cpu_seq_lens: bool = True,
            needs_confidence_relay: bool = False,
        ) -> Any:
            from sglang.srt.managers.overlap_utils import FutureMap

            asked = os.environ.get("TOY_NEEDS_CPU")
            on_cpu = needs_cpu_seq_lens if asked is None else asked == "1"
            return FutureMap(device, self, req_to_token_pool, on_cpu)

    register = SpeculativeAlgorithm.register("TOY", supports_overlap=True, spec_class=ToyAlgorithm)
    register(lambda server_args: worker_class())


def _lend_nothing_on_cpu() -> None:
    # Releases up to 0.5.19 lend CPU tensors to streams, which torch refuses.
    lend = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            lend(self, stream)

    torch.Tensor.record_stream = record_stream


def worker_class() -> Any:
    """Returns the worker's class, whose bases are this release's."""
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    result_names = set(inspect.signature(GenerationBatchResult).parameters)
    draft_names = set(inspect.signature(EagleDraftInput).parameters)
    set_aside = (
        *("spec_info", "spec_algorithm", "forward_mode", "input_ids"),
        *("seq_lens", "seq_lens_cpu", "seq_lens_sum", "out_cache_loc"),
    )

    class ToyWorker(BaseSpecWorker):
        adaptive_controller = None
        topk = 1
        speculative_num_draft_tokens = STEPS
        speculative_num_steps = STEPS - 1

        def __init__(self, server_args: Any, *args: Any, target_worker: Any, **kwargs: Any) -> None:
            self.server_args = server_args
            self._target_worker = target_worker
            self._draft_worker = None
            self.model_runner = target_worker.model_runner
            self.device = self.model_runner.device

        def __getattr__(self, name: str) -> Any:
            if name == "_target_worker":
                raise AttributeError(name)
            return getattr(self._target_worker, name)

        @property
        def target_worker(self) -> Any:
            return self._target_worker

        @property
        def draft_worker(self) -> Any:
            if RELEASE >= (0, 5, 19):
                return None
            # These look for the draft's KV pool.
            return SimpleNamespace(
                draft_runner=self.model_runner, draft_runner_list=[self.model_runner]
            )

        def _nothing(self, *args: Any, **kwargs: Any) -> None:
            return None

        init_attention_backends = init_cuda_graphs = alloc_memory_pool = _nothing
        init_hicache_draft_plan = on_verify_complete_cpu = clear_cache_pool = _nothing

        def forward_batch_generation(
            self, batch: Any, on_publish: Any = None, **kwargs: Any
        ) -> Any:
            if batch.forward_mode.is_extend() or getattr(batch, "is_extend_in_batch", False):
                return self._prefilled(batch, on_publish)
            if TOPK:
                _checked(batch.spec_info)
            return self._verified(batch, on_publish)

        def _prefilled(self, batch: Any, on_publish: Any) -> Any:
            result = self._target_worker.forward_batch_generation(batch)
            lengths = batch.seq_lens.clone()
            if on_publish:
                on_publish(lengths)
            bonus = result.next_token_ids.to(torch.int64)
            accepted = torch.ones(len(lengths), dtype=torch.int32)
            return self._result(result, result.next_token_ids, accepted, lengths, bonus)

        def _verified(self, batch: Any, on_publish: Any) -> Any:
            tokens = batch.spec_info.bonus_tokens.to(torch.int64)
            base = batch.seq_lens.clone()
            kept = {name: getattr(batch, name) for name in set_aside}
            made = []
            for step in range(STEPS):
                result = self._step(batch, tokens, base + step)
                tokens = result.next_token_ids.to(torch.int64)
                made.append(tokens)
            for name, value in kept.items():
                setattr(batch, name, value)
            accepted = (1 + (base + batch.req_pool_indices) % STEPS).to(torch.int32)
            drafted = torch.stack(made, 1)
            bonus = drafted.gather(1, (accepted.long() - 1)[:, None])[:, 0].contiguous()
            lengths = base + accepted
            if on_publish:
                on_publish(lengths)
            return self._result(result, drafted.flatten(), accepted, lengths, bonus)

        def _step(self, batch: Any, tokens: torch.Tensor, lengths: torch.Tensor) -> Any:
            mapping = self.model_runner.req_to_token_pool.req_to_token
            batch.spec_info = None
            batch.spec_algorithm = SpeculativeAlgorithm.NONE
            batch.forward_mode = ForwardMode.DECODE
            batch.input_ids = tokens
            batch.seq_lens = lengths + 1
            batch.seq_lens_cpu = batch.seq_lens.clone()
            batch.seq_lens_sum = int(batch.seq_lens.sum())
            slots = mapping[batch.req_pool_indices.long(), lengths]
            batch.out_cache_loc = slots.to(torch.int64)
            return self._target_worker.forward_batch_generation(batch)

        def _result(
            self,
            result: Any,
            tokens: torch.Tensor,
            accepted: torch.Tensor,
            lengths: torch.Tensor,
            bonus: torch.Tensor,
        ) -> Any:
            draft = EagleDraftInput(
                bonus_tokens=bonus,
                num_tokens_per_req=1,
                num_tokens_for_logprob_per_req=1,
                **_extras(bonus),
            )
            if "new_seq_lens" in draft_names:
                draft.new_seq_lens = lengths
            reported = {
                "logits_output": result.logits_output,
                "next_token_ids": tokens,
                "can_run_cuda_graph": False,
                "accept_lens": accepted,
                "new_seq_lens": lengths,
                "next_draft_input": draft,
                "speculative_num_draft_tokens": STEPS,
            }
            known = {name: value for name, value in reported.items() if name in result_names}
            return GenerationBatchResult(**known)

    return ToyWorker


def _extras(bonus: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is relayed beside the bonus tokens: made from them, so that it can be checked."""
    if not TOPK:  # batches slice these also where they are not relayed
        count = len(bonus)
        shape = (count, 1)
        return {"topk_p": torch.zeros(shape), "topk_index": torch.zeros(shape, dtype=torch.int64)}
    values = bonus.to(torch.float32)[:, None]
    return {
        "topk_p": values.clone(),
        "topk_index": bonus[:, None].clone(),
        "hidden_states": values.repeat(1, 4),
    }


def _checked(relayed: Any) -> None:
    """Stops where the relay brought the extras of another request."""
    bonus = relayed.bonus_tokens
    for taken in (relayed.topk_index[:, 0], relayed.topk_p[:, 0], relayed.hidden_states[:, 3]):
        if not torch.equal(taken.long(), bonus):
            raise AssertionError("the relay mixed rows")

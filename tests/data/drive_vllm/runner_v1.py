"""vLLM's own model runner V1 on a CPU, scheduled ahead of its results: a sum for a model.

Real are `GPUModelRunner._update_states`, `_prepare_inputs`, `_get_slot_mappings` and
`sample_tokens`, `InputBatch`, `CpuGpuBuffer`, `AsyncGPUModelRunnerOutput`, the sampler and the
kernel of the cache slots. A step's result is taken after the next step was launched.
"""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from on_cpu import CPU, given
from runner import BLOCK, LENGTH, REQUESTS, TOKENS, VOCABULARY, made, next_token
from serving import serve_three

import vllm.v1.worker.gpu_model_runner as runner_module  # isort: skip
from vllm.sampling_params import SamplingParams  # isort: skip
from vllm.v1.core.sched.output import CachedRequestData  # isort: skip
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput  # isort: skip
from vllm.v1.sample.logits_processor import LogitsProcessors  # isort: skip
from vllm.v1.sample.sampler import Sampler  # isort: skip
from vllm.v1.utils import CpuGpuBuffer  # isort: skip
from vllm.v1.worker.gpu_input_batch import InputBatch  # isort: skip

# One process is all ranks of a pipeline, and a connector's.
runner_module.get_pp_group = lambda: SimpleNamespace(
    world_size=1, is_last_rank=True, is_first_rank=True
)


class Runner(runner_module.GPUModelRunner):
    """The real class without its `__init__`, which wants a device and a model."""

    def __init__(self) -> None:
        self.device, self.pin_memory = CPU, False
        self.use_async_scheduling = True
        self.max_num_reqs, self.max_num_tokens, self.max_model_len = REQUESTS, TOKENS, LENGTH
        self.input_batch = given(
            InputBatch,
            max_num_reqs=REQUESTS,
            max_model_len=LENGTH,
            max_num_batched_tokens=TOKENS,
            device=CPU,
            pin_memory=False,
            vocab_size=VOCABULARY,
            block_sizes=[BLOCK],
            kernel_block_sizes=[BLOCK],
            max_num_blocks_per_req=[LENGTH // BLOCK],
            logitsprocs=LogitsProcessors(),
        )
        self._make_state()
        self._make_buffers()
        # What its scheduler knows.
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.placeholders: dict[str, int] = {}
        self.finished: set[str] = set()
        self.dropped: set[str] = set()
        self.in_flight: deque[Any] = deque()
        self.next_block = 1

    def _make_state(self) -> None:
        self.requests, self.num_prompt_logprobs, self.encoder_cache = {}, {}, {}
        self.late_interaction_runner = self.compilation_config = MagicMock()
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=None, layer_names=["layer"])]
        )
        self.cache_config = SimpleNamespace(mamba_cache_mode="none")
        self.parallel_config = SimpleNamespace(data_parallel_size=1)
        self.model_config = SimpleNamespace(is_encoder_decoder=False, is_hybrid=False)
        self.speculative_config = self.lora_config = self._pp_recv_work = None
        self.num_spec_tokens = self.prev_num_spec_tokens = 0
        self.use_async_spec_decode = self.is_pooling_model = self.enable_prompt_embeds = False
        self.uses_mrope = self.uses_xdrope_dim = self.supports_mm_inputs = False
        self.broadcast_pp_output = self.check_ep_fault = self.calculate_kv_scales = False
        self.reorder_batch_threshold = self.num_accepted_tokens_event = None
        self.valid_sampled_token_count_event = self._draft_token_req_ids = None
        self.execute_model_state = self.kv_connector_output = self.ec_connector_output = None
        # What some releases ask for.
        self.routed_experts_initialized = False
        self.mamba_prev_last_scheduled_idx = self.lookback_token_ids = None
        self.eplb_step = lambda: None
        self.sampler = Sampler()
        self.stream, self.async_output_copy_stream = torch.cuda.Stream(), torch.cuda.Stream()
        self.prepare_inputs_event = torch.cuda.Event()

    def _make_buffers(self) -> None:
        for name, size, kind in (
            ("input_ids", TOKENS, torch.int32),
            ("query_start_loc", REQUESTS + 1, torch.int32),
            ("prev_num_draft_tokens", REQUESTS, torch.int32),
            ("req_indices", TOKENS, torch.int64),
            ("prev_positions", REQUESTS, torch.int64),
            ("num_scheduled_tokens", REQUESTS, torch.int32),
            ("discard_request_mask", REQUESTS, torch.bool),
            ("num_decode_draft_tokens", REQUESTS, torch.int32),
            ("num_accepted_tokens", REQUESTS, torch.int64),
            ("query_pos", LENGTH, torch.int64),
        ):
            setattr(self, name, CpuGpuBuffer(size, dtype=kind, device=CPU, pin_memory=False))
        self.positions = torch.zeros(TOKENS, dtype=torch.int64, device=CPU)
        self.seq_lens = torch.zeros(REQUESTS, dtype=torch.int32, device=CPU)
        self.optimistic_seq_lens_cpu = torch.zeros(REQUESTS, dtype=torch.int32)
        self.num_computed_tokens = torch.zeros(REQUESTS, dtype=torch.int32, device=CPU)
        self.arange_np = np.arange(LENGTH, dtype=np.int64)
        self._arange_scratch = np.empty(LENGTH, dtype=np.int64)

    # --- what the engine's scheduler would do ---

    def add(self, request: str, prompt: list[int]) -> None:
        """Admits a request, which its first step makes known to the runner."""
        self.prompts[request], self.tokens[request] = prompt, []
        self.computed[request], self.placeholders[request] = 0, 0

    def remove(self, request: str) -> None:
        """Ends a request, of which a token may be on its way."""
        del self.prompts[request], self.computed[request], self.placeholders[request]
        self.finished.add(request)

    def step(self, plan: dict[str, int], pad: int = 0) -> None:
        """Launches a step, then takes the result of the one before."""
        with torch.cuda.stream(self.stream):
            self.in_flight.append(self._step(plan, pad))
        while len(self.in_flight) > 1:
            self.taken(self.in_flight.popleft())

    def _step(self, plan: dict[str, int], pad: int) -> Any:
        output = self._scheduled(plan)
        with self.synchronize_input_prep():
            self._update_states(output)
            counts = np.array([plan[one] for one in self.input_batch.req_ids], np.int32)
            last, *_ = self._prepare_inputs(output, counts)
        count = output.total_num_scheduled_tokens
        self._get_slot_mappings(pad or count, REQUESTS, count)
        return self.launched(output, last)

    def drain(self) -> dict[str, list[int]]:
        """Takes the results that are on their way; returns all tokens."""
        while self.in_flight:
            self.taken(self.in_flight.popleft())
        return self.tokens

    def launched(self, output: Any, last: torch.Tensor) -> Any:
        """Runs the model and samples; the result is on its way."""
        ids = self.input_ids.gpu[last].long()
        wanted = next_token(ids, self.positions[last]).unsqueeze(1)
        # Not `one_hot`, which looks at its argument: the host would wait.
        logits = torch.zeros(len(ids), VOCABULARY, device=CPU).scatter_(1, wanted, 1.0)
        self.execute_model_state = made(
            runner_module.ExecuteModelState,
            scheduler_output=output,
            logits=logits,
            hidden_states=torch.zeros(output.total_num_scheduled_tokens, 1),
        )
        return self.sample_tokens(None)

    def taken(self, result: Any) -> None:
        """Books a result, late."""
        reported = result.get_output()
        for request, tokens in zip(reported.req_ids, reported.sampled_token_ids, strict=True):
            if request in self.placeholders:
                self.placeholders[request] -= len(tokens)
                self.tokens[request] += tokens

    def _scheduled(self, plan: dict[str, int]) -> Any:
        finished, self.finished = self.finished, set()
        fresh = [request for request in plan if request not in self.requests or request in finished]
        known = [request for request in plan if request not in fresh]
        output = given(
            SchedulerOutput,
            scheduled_new_reqs=[self._fresh(request) for request in fresh],
            scheduled_cached_reqs=self._known(known),
            num_scheduled_tokens=plan,
            total_num_scheduled_tokens=sum(plan.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=finished,
            free_encoder_mm_hashes=[],
        )
        for request, count in plan.items():
            self.computed[request] += count
            if self.computed[request] >= len(self.prompts[request]):
                self.placeholders[request] += 1
        return output

    def _fresh(self, request: str) -> Any:
        count = LENGTH // BLOCK
        blocks = list(range(self.next_block, self.next_block + count))
        self.next_block += count
        return given(
            NewRequestData,
            req_id=request,
            prompt_token_ids=self.prompts[request],
            mm_features=[],
            sampling_params=SamplingParams(temperature=0, max_tokens=LENGTH),
            pooling_params=None,
            block_ids=(blocks,),
            num_computed_tokens=self.computed[request],
            lora_request=None,
        )

    def _known(self, requests: list[str]) -> Any:
        there = self.input_batch.req_id_to_index
        return given(
            CachedRequestData,
            req_ids=requests,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={
                one: [*self.prompts[one], *self.tokens[one]] for one in requests if one not in there
            },
            new_block_ids=[None] * len(requests),
            num_computed_tokens=[self.computed[one] for one in requests],
            num_output_tokens=[len(self.tokens[one]) + self.placeholders[one] for one in requests],
        )


def serve(runner: Runner | None = None) -> dict[str, list[int]]:
    """Serves three requests: chunked prompts, mixed batches, padding, rows that move."""
    runner = runner or Runner()
    serve_three(runner)
    runner.step({"c": 1, "b": 1}, pad=8)
    return runner.drain()


def work(seed: int) -> None:
    """Serves requests that come, go and are chunked and padded at random."""
    choose = random.Random(seed)
    runner, left, number = Runner(), {}, 0
    for _ in range(20):
        while len(left) < REQUESTS and choose.random() < 0.6:
            prompt = [choose.randrange(90) for _ in range(choose.randint(1, 9))]
            runner.add(name := f"r{number}", prompt)
            left[name], number = len(prompt), number + 1
        plan = {}
        for name, prompt_left in left.items():
            plan[name] = choose.randint(1, min(prompt_left, 4)) if prompt_left else 1
        if plan:
            runner.step(plan, pad=choose.choice([0, sum(plan.values()) + choose.randint(0, 3)]))
            for name, count in plan.items():
                left[name] = max(0, left[name] - count)
        for name in [one for one in left if len(runner.tokens[one]) > 6 or choose.random() < 0.05]:
            runner.remove(name)
            del left[name]
    runner.drain()

"""vLLM's own model runner V2 on a CPU: real classes, a sum for a model, guesses for drafts.

Real are `GPUModelRunner.prepare_inputs`, `prepare_attn` and `sample_tokens`, `RequestState`,
`InputBuffers`, `BlockTables`, `AsyncOutput` and their kernels, which Triton's interpreter runs.
"""

from __future__ import annotations

import inspect
import itertools
import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from on_cpu import CPU, given, put_streams_in
from serving import serve_three

import vllm.v1.worker.gpu.async_utils as async_utils  # isort: skip
import vllm.v1.worker.gpu.buffer_utils as buffer_utils  # isort: skip
import vllm.v1.worker.gpu.model_runner as runner_module  # isort: skip
from vllm.v1.worker.gpu.block_table import BlockTables  # isort: skip
from vllm.v1.worker.gpu.input_batch import InputBuffers  # isort: skip
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected  # isort: skip
from vllm.v1.worker.gpu.sample.output import SamplerOutput  # isort: skip
from vllm.v1.worker.gpu.states import RequestState  # isort: skip


class HostBuffer:
    """What stands for a buffer that host and device share."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.memory = self.cpu

    def uva(self, n: int | None = None) -> torch.Tensor:
        return self.memory if n is None else self.memory[:n]


class HostMemory(HostBuffer):
    """The same, of releases where `uva` is the memory itself."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        super().__init__(size, dtype)
        self.uva = self.memory  # type: ignore[assignment,method-assign]


put_streams_in()
_pool = inspect.getsource(buffer_utils.UvaBufferPool)
buffer_utils.UvaBuffer = HostBuffer if ".uva(" in _pool else HostMemory
buffer_utils.is_uva_available = lambda: True
async_utils.stream = lambda to_stream, from_stream: torch.cpu.stream(to_stream)

VOCABULARY, REQUESTS, TOKENS, BLOCK, LENGTH = 97, 4, 32, 4, 64


def made(kind: Any, **fields: Any) -> Any:
    """Returns a named tuple with these fields, as far as this release has them, others None."""
    return kind(**{name: fields.get(name) for name in kind._fields})


class Speculator:
    """A drafter that is right in every other step: it knows the model."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.calls = 0

    def propose(self, input_batch: Any, *given: Any, **_: Any) -> torch.Tensor:
        self.calls += 1
        state, rows = self.runner.req_states, input_batch.idx_mapping
        counts, last = given[4], given[6]
        drafts = torch.zeros(len(rows), state.num_speculative_steps, dtype=torch.int64)
        # Like the real one it goes on from the prompt where nothing was sampled.
        sampled = counts > 0
        token = last[rows[sampled], 0]
        position = state.total_len.gpu[rows[sampled]] - 1
        for step in range(state.num_speculative_steps):
            token = (next_token(token, position + step) + self.calls % 2) % VOCABULARY
            drafts[sampled, step] = token
        return drafts


def next_token(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The model: a token is a sum of the one before and its position."""
    return (token.long() * 31 + position * 7 + 3) % VOCABULARY


class Runner(runner_module.GPUModelRunner):
    """The real class without its `__init__`, which wants a device and a model."""

    def __init__(self, speculates: int = 0) -> None:
        self.device = CPU
        self.is_last_pp_rank = True
        self.use_pp = self.use_dcp = False
        self.use_async_scheduling = True
        self.max_num_reqs, self.max_num_tokens, self.max_model_len = REQUESTS, TOKENS, LENGTH
        self.num_speculative_steps, self.decode_query_len = speculates, speculates + 1
        self.req_states = given(
            RequestState,
            max_num_reqs=REQUESTS,
            max_model_len=LENGTH,
            max_num_batched_tokens=TOKENS,
            num_speculative_steps=speculates,
            vocab_size=VOCABULARY,
            device=CPU,
        )
        self.input_buffers = InputBuffers(REQUESTS, TOKENS, CPU)
        self.block_tables = given(
            BlockTables,
            block_sizes=[BLOCK],
            kernel_block_sizes=[BLOCK],
            max_num_reqs=REQUESTS,
            max_num_batched_tokens=TOKENS,
            max_model_len=LENGTH,
            max_num_blocks_per_group=[LENGTH // BLOCK],
            device=CPU,
        )
        self.model_state = MagicMock(num_new_sampled_tokens_per_step=1, supports_mm_inputs=False)
        self.adaptive_verification = self.fast_prefill = self.pcp_manager = None
        self.pp_handler = self.aux_output_connector = self.batch_sharder = None
        self.routed_experts_capturer = self.pooling_runner = self.encoder_cache = None
        self.model_config = SimpleNamespace(rswa_window=None)
        self.sampler = MagicMock()
        self.sampler.penalties_state.output_bin_counts = None
        self.prompt_logprobs_worker = MagicMock()
        self.prompt_logprobs_worker.compute_prompt_logprobs.return_value = {}
        self.prompt_logprobs_worker.compute_prompt_token_id_logprobs.return_value = {}
        self.kv_connector = self.lora_state = self.eplb = MagicMock()
        self.model = SimpleNamespace(compute_logits=None)
        self.step_timing = MagicMock()
        self.check_ep_fault = False
        self._draft_workspace_lane = 0
        self.speculator = Speculator(self) if speculates else None
        self.draft_tokens_handler = MagicMock()
        self.output_copy_stream = torch.cpu.Stream()
        self.output_copy_event = torch.cpu.Event()  # up to 0.19, for all results
        self.execute_model_state = None
        self.tokens: dict[str, list[int]] = {}
        self.next_block = 1

    @property
    def main_stream(self) -> Any:
        return torch.cpu.current_stream()

    # --- what the engine's scheduler would do ---

    def add(self, request: str, prompt: list[int], computed: int = 0) -> None:
        """Admits a request with all blocks that it can ever need."""
        state = self.req_states
        given(
            state.add_request,
            req_id=request,
            prompt_len=len(prompt),
            all_token_ids=prompt,
            num_computed_tokens=computed,
            max_tokens=LENGTH - len(prompt),
        )
        row = state.req_id_to_index[request]
        count = LENGTH // BLOCK
        blocks = list(range(self.next_block, self.next_block + count))
        self.next_block += count
        self.block_tables.append_block_ids(row, (blocks,), overwrite=True)
        state.apply_staged_writes()
        self.block_tables.apply_staged_writes()
        self.tokens.setdefault(request, [])

    def remove(self, request: str) -> None:
        """Ends a request, or preempts it."""
        self.req_states.remove_request(request)

    def step(self, plan: dict[str, int], pad: int = 0, drafts: int = 0) -> Any:
        """Runs one step: tokens for each request, `drafts` of them guesses that are verified."""
        output = self._scheduled(plan, drafts)
        batch = self.prepared(output, pad)
        self.prepare_attn(batch)
        return self.sampled(batch)

    def _scheduled(self, plan: dict[str, int], drafts: int) -> Any:
        # A request whose prompt is not done has none.
        verified = [request for request in plan if self.tokens[request] and drafts]
        guesses = {request: [-1] * drafts for request in verified}
        return SimpleNamespace(
            num_scheduled_tokens=plan,
            total_num_scheduled_tokens=sum(plan.values()),
            scheduled_spec_decode_tokens=guesses,
            has_structured_output_requests=False,
        )

    def prepared(self, output: Any, pad: int = 0) -> Any:
        """Prepares a batch, padded to `pad` tokens and as many requests as there may be."""
        count = output.total_num_scheduled_tokens
        padded = SimpleNamespace(num_tokens=pad or count, num_reqs=REQUESTS if pad else None)
        if not hasattr(self, "gather_batch_req_state"):
            return self.prepare_inputs(output, padded)
        state, _ = self.gather_batch_req_state(output, dummy_run=False)
        return given(
            self.prepare_inputs,
            scheduler_output=output,
            batch_req_state=state,
            batch_desc=padded,
            num_active_loras=0,
        )

    def sampled(self, batch: Any) -> Any:
        """Samples a batch and books the tokens."""
        self.execute_model_state = made(
            runner_module.ExecuteModelState,
            input_batch=batch,
            hidden_states=torch.zeros(batch.num_tokens, 1),
            finished_req_ids=set(),
            num_spec_tokens_to_schedule=self.num_speculative_steps,
        )
        starts = batch.num_computed_tokens_np.copy() if _mirrors(batch) else None
        state = self.req_states
        done = state.num_computed_prefill_tokens[batch.idx_mapping_np].copy()
        output = self.sample_tokens(None)
        if starts is not None:  # the scheduler tells so with the next step
            ended = np.minimum(
                done + batch.num_scheduled_tokens, state.prefill_len.np[batch.idx_mapping_np]
            )
            state.num_computed_prefill_tokens[batch.idx_mapping_np] = ended
            state.num_computed_tokens_np[batch.idx_mapping_np] += batch.num_scheduled_tokens
        reported = self.taken(output)
        for request, tokens in zip(reported.req_ids, reported.sampled_token_ids, strict=True):
            self.tokens[request] += tokens
        return reported

    def taken(self, output: Any) -> Any:
        """Waits for a result."""
        return output.get_output()

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        """Samples by the model, and verifies drafts."""
        rows = input_batch.logits_indices
        ids = input_batch.input_ids[rows].long()
        wanted = next_token(ids, input_batch.positions[rows])
        starts = input_batch.cu_num_logits.tolist()
        counts, width = [], self.num_speculative_steps + 1
        sampled = torch.zeros(input_batch.num_reqs, width, dtype=torch.int64, device=CPU)
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            right = 1
            while start + right < end and int(ids[start + right]) == int(wanted[start + right - 1]):
                right += 1
            counts.append(right)
            sampled[number, :right] = wanted[start : start + right]
        count, rejected = get_num_sampled_and_rejected(
            torch.tensor(counts, dtype=torch.int32, device=CPU),
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.req_states.prefill_len.gpu,
        )
        output = given(
            SamplerOutput,
            sampled_token_ids=sampled,
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=count,
            num_rejected=rejected,
            sampling_mask_tensors=None,
        )
        return output, count, rejected


def _mirrors(batch: Any) -> bool:
    """Tells whether this release's scheduler books what was computed, rather than the runner."""
    return hasattr(batch, "num_computed_tokens_np")


def serve(runner: Runner | None = None) -> dict[str, list[int]]:
    """Serves three requests: chunked prompts, mixed batches, padding, a row that is reused."""
    runner = runner or Runner()
    serve_three(runner)
    runner.step({"b": 1, "c": 1}, pad=8)
    return runner.tokens


def speculate(runner: Runner | None = None) -> dict[str, list[int]]:
    """Serves two requests with two drafts a step; a step without drafts is among them."""
    runner = runner or Runner(speculates=2)
    runner.add("a", [5, 6, 7])
    runner.step({"a": 3})
    runner.add("b", list(range(10, 17)))
    runner.step({"a": 3, "b": 6}, drafts=2)
    runner.step({"a": 3, "b": 1}, drafts=2, pad=8)
    runner.step({"a": 1, "b": 1})
    runner.remove("b")
    runner.add("c", [8, 9])
    runner.step({"a": 3, "c": 2})
    for pad in (0, 8, 0, 12):
        runner.step({"a": 3, "c": 3}, drafts=2, pad=pad)
    return runner.tokens


def work(seed: int, speculates: int) -> None:
    """Serves requests that come, go and are chunked, padded and left out at random."""
    choose = random.Random(seed)
    runner, left, number = Runner(speculates), {}, 0
    for _ in range(25):
        while len(left) < REQUESTS and choose.random() < 0.6:
            prompt = [choose.randrange(90) for _ in range(choose.randint(1, 9))]
            runner.add(name := f"r{number}", prompt)
            left[name], number = len(prompt), number + 1
        plan, drafts = {}, speculates if choose.random() < 0.7 else 0
        for name, prompt_left in left.items():
            done = bool(runner.tokens[name])
            if choose.random() < 0.85:
                plan[name] = 1 + drafts if done else choose.randint(1, min(prompt_left, 4))
        if plan:
            pad = choose.choice([0, sum(plan.values()) + choose.randint(0, 3)])
            runner.step(plan, pad=pad, drafts=drafts)
            for name, count in plan.items():
                left[name] = max(0, left[name] - count)
        for name in [one for one in left if len(runner.tokens[one]) > 6 or choose.random() < 0.05]:
            runner.remove(name)
            del left[name]

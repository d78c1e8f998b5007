"""Whole engines of SGLang on CPU: scheduler and detokenizer in spawned children, a made-up Llama.

Each kind is a set of arguments that sends the scheduler another way.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASE = tuple(int(part) for part in importlib.metadata.version("sglang").split(".")[:3])
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_BASE = {
    "model_path": str(Path(__file__).parent / "tiny_llama"),
    "device": "cpu",
    "load_format": "dummy",
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "max_running_requests": 4,
    "max_total_tokens": 2048,
    "disable_cuda_graph": True,
    "log_level": "warning",
    "mem_fraction_static": 0.1,
    "random_seed": 1,
}
_CHUNKED = {"chunked_prefill_size": 16, "disable_radix_cache": True}
_TOY = {
    "speculative_algorithm": "TOY",
    "speculative_num_draft_tokens": 3,
    "speculative_num_steps": 2,
    "speculative_eagle_topk": 1,
}
_PLAIN: dict[str, dict[str, Any]] = {
    "overlap": {},
    "no_overlap": {"disable_overlap_schedule": True},
    "chunked": _CHUNKED,
    "mixed": {**_CHUNKED, "enable_mixed_chunk": True},
    "tight_kv": {"max_total_tokens": 96, "disable_radix_cache": True},
}
_SPECULATIVE: dict[str, dict[str, Any]] = {
    "spec": _TOY,
    "spec_gpu_lens": {**_TOY, "environment": {"TOY_NEEDS_CPU": "0"}},
    "spec_chunked": {**_TOY, **_CHUNKED},
    "spec_tight_kv": {**_TOY, "max_total_tokens": 160, "disable_radix_cache": True},
    "spec_no_overlap": {**_TOY, "disable_overlap_schedule": True},
}


def kinds() -> dict[str, dict[str, Any]]:
    """Returns the kinds that this release can be, each with its arguments."""
    found = dict(_PLAIN)
    # Before that, a page of several tokens is allocated by a Triton kernel.
    if RELEASE >= (0, 5, 23) or INTERPRETED:
        found["page4"] = {"page_size": 4}
    if RELEASE >= (0, 5, 16) or INTERPRETED:
        found |= _SPECULATIVE
    if INTERPRETED:
        found["spec_topk"] = {**_TOY, "environment": {"TOY_TOPK": "1"}}
    return found


@contextlib.contextmanager
def engine_of(kind: str) -> Iterator[Any]:
    """Starts an engine, and shuts it down at the end."""
    arguments = {**_BASE, **kinds()[kind]}
    asked = arguments.pop("environment", {})
    # Before the import: releases look at it then.
    os.environ.update({"SGLANG_USE_CPU_ENGINE": "1", **asked})
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**arguments)
    for name in asked:
        del os.environ[name]
    engine.kind = kind
    try:
        yield engine
    finally:
        engine.shutdown()


def sampling(tokens: int, **more: Any) -> dict[str, Any]:
    """Returns the parameters of a greedy answer of so many tokens."""
    return {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def answers(engine: Any, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """Returns the tokens of greedy answers."""
    asked = [sampling(tokens) for tokens in lengths]
    reported = engine.generate(input_ids=prompts, sampling_params=asked)
    return [one["output_ids"] for one in reported]

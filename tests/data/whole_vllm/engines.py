"""Whole engines of vLLM on CPU, each kind in this process or in spawned children; a made-up Llama.

The kinds send the model runners V1 and V2 other ways.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# vLLM looks at these as it is imported, or when an engine is made.
os.environ |= {
    # With drafts V1 compiles a helper, and Inductor asks Triton for a device, which there is none.
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
_BASE = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "seed": 1,
    "enforce_eager": True,
    "disable_log_stats": True,
    "block_size": 32,
    "enable_prefix_caching": False,
}
# An answer's own tokens are searched for what follows; most drafts are wrong.
_DRAFTS = {"num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
_WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "chunked": {"max_num_batched_tokens": 16},
    # Four requests of two blocks each do not fit: some are preempted.
    "tight": {"num_gpu_blocks_override": 7},
    "children": {},
    "ngram": {"speculative_config": {"method": "ngram", **_DRAFTS}},
    "draft": {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 2}},
}
KINDS = (
    *("v1-plain", "v1-async", "v1-async-tight", "v1-plain-ngram", "v1-async-draft"),
    *("v2-plain", "v2-async", "v2-async-chunked", "v2-async-tight", "v2-async-children"),
    "v2-async-draft",
)
# The CPU's attention takes no smaller heads.
_HEAD, _HIDDEN, _KEYS, _INNER, _WORDS, _LAYERS = 32, 128, 64, 128, 256, 2


def write_model(folder: Path) -> str:
    """Writes a Llama whose answers depend on each of their tokens; returns where it is.

    Dummy weights of vLLM's are so small that two tokens take turns.
    """
    import torch
    from safetensors.torch import save_file

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_attention_heads": _HIDDEN // _HEAD,
        "num_key_value_heads": _KEYS // _HEAD,
        "head_dim": _HEAD,
        "num_hidden_layers": _LAYERS,
        "vocab_size": _WORDS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(1)
    shapes = {"model.embed_tokens": (_WORDS, _HIDDEN), "lm_head": (_WORDS, _HIDDEN)}
    norms = ["model.norm"]
    for layer in (f"model.layers.{number}" for number in range(_LAYERS)):
        shapes[f"{layer}.self_attn.q_proj"] = (_HIDDEN, _HIDDEN)
        shapes[f"{layer}.self_attn.k_proj"] = (_KEYS, _HIDDEN)
        shapes[f"{layer}.self_attn.v_proj"] = (_KEYS, _HIDDEN)
        shapes[f"{layer}.self_attn.o_proj"] = (_HIDDEN, _HIDDEN)
        shapes[f"{layer}.mlp.gate_proj"] = (_INNER, _HIDDEN)
        shapes[f"{layer}.mlp.up_proj"] = (_INNER, _HIDDEN)
        shapes[f"{layer}.mlp.down_proj"] = (_HIDDEN, _INNER)
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    weights = {
        f"{name}.weight": torch.randn(*shape, generator=draw) * 1.5 / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    weights |= {f"{name}.weight": torch.ones(_HIDDEN) for name in norms}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


@contextlib.contextmanager
def engine_of(kind: str, model: str) -> Iterator[Any]:
    """Starts an engine, and shuts it down at the end."""
    runner, loop, *ways = kind.split("-")
    way = ways[0] if ways else ""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner == "v2"))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(way == "children"))
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    options = {**_BASE, **_WAYS[way]}
    if way == "draft":
        options["speculative_config"] = {**options["speculative_config"], "model": model}
    engine = LLM(model=model, async_scheduling=loop == "async", **options)
    config = engine.llm_engine.vllm_config
    assert config.use_v2_model_runner == (runner == "v2")
    assert config.scheduler_config.async_scheduling == (loop == "async")
    try:
        yield engine
    finally:
        engine.llm_engine.engine_core.shutdown()
        if way != "children":
            cleanup_dist_env_and_memory()


def answers(
    engine: Any, prompts: list[list[int]], lengths: list[int], heats: Sequence[float] = ()
) -> list[list[int]]:
    """Returns the tokens of answers, greedy ones where the temperature is 0."""
    from vllm import SamplingParams

    asked = [
        SamplingParams(
            temperature=heat, seed=1, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        for tokens, heat in zip(lengths, heats or [0] * len(lengths), strict=True)
    ]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    reported = engine.generate(given, asked, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in reported]

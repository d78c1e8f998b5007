"""Steps: which functions run again and again while a model runs, by what they are called.

Where a contract says what runs every step, it is asked (`declared.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from fmcheck.lint.model.function import Function

#: Words of the names of functions that run for each step, each layer or each batch of a model.
_STEP = (
    r"((^|_)(forward|fwd|decode|prefill|extend|execute|propose|draft|verify|dispatch|combine|"
    r"permute|unpermute|attention|attn|embed|metadata|metas|step|seed|kvcache|router|routing|"
    r"moe|experts|clip|norm)(_|$)|get_input_embeddings$|_step_context$|^sample(_tokens)?$)"
)
#: Words of the names of those that do not, whatever else they are called.
_ONCE = (
    r"(^|_)(init(?!_\w*metadata)|capture|merge|precompile|warmup|warm|load|save|test|tests|bench|benchmark|debug|"
    r"profile|dummy|train|training|eval|evaluate|validation|validate|val|log|export|convert|"
    r"calibrate|setup|precompute|grad|grads|gradient|gradients|regularization|reset|register|plot|"
    r"print|repr|state|checkpoint|main|reference|ref|golden|"
    r"naive|fake|quantize|config|check|assert|visualize|infer|shape|collate|preprocess|loss|"
    r"summary|metrics?|stats?|report|score)(_|$)"
)
#: Names of functions that run kernels for their own sake.
WARMS_UP = regex(r"(^|_)warm_?(up)?(_|$)", re.IGNORECASE)
#: Names of functions that may run again and again: not for the start, the end or a look.
_REPEATED = f"(?!__)(?!.*{_ONCE})"
REPEATED = regex(_REPEATED, re.IGNORECASE)
#: Names of functions that run again and again while a model runs.
STEP = regex(f"{_REPEATED}(?=.*{_STEP})", re.IGNORECASE)
#: Parts of a path of code that prepares data or looks at a model, and does not run it.
_BESIDE = regex(
    r"(^|[/_])(bench\w*|calib\w*|conftest|convert\w*|data|dataloader|datasets?|datapipes?|"
    r"demos?|docs|envs?|environments?|eval\w*|examples|fault_tolerance|losses|metrics?|optim\w*|"
    r"plots?|processors?|processing|quantization|reference|"
    r"samplers?|scripts?|(self_?)?tests?|testing|tools|trainers?|training|tutorials?|visuali\w*|"
    r"weight_sync\w*)(?=[/_.])"
)

#: Words of code that decodes tokens from a cache, or replays graphs.
SERVES = (
    *("block_table", "cache_seqlens", "context_lens", "kv_cache", "kv_pool", "kvcache"),
    *("page_table", "paged", "req_pool", "seq_lens", "slot_mapping", "CUDAGraph"),
)
#: Names of classes for a CPU.
_CPU_CLASS = regex(r"AMX|Cpu|CPU|Host")

#: What stands in a test that asks whether somebody looks on.
_SWITCH = regex(r"debug|log_|_log|logger|verbose|environ|getenv|profil|__debug__", re.IGNORECASE)


def is_step(function: Function) -> bool:
    """Tells whether a function runs again and again while a model runs."""
    if STEP.match(function.name) is None or is_beside(function.part.identity):
        return False
    return not is_unused(function)


def is_unused(function: Function) -> bool:
    """Tells whether this is a private function beside classes that its file does not name again.

    Tests may call it, as they do a reference implementation.
    """
    if not function.name.startswith("_") or function.part.is_nested:
        return False
    named = re.findall(rf"\b{re.escape(function.name)}\b", function.module.text)
    return len(named) < 2


def runs_again(function: Function) -> bool:
    """Tells whether a function may run again and again: by its name, or by who calls it."""
    if not REPEATED.match(function.name) or is_unused(function):
        return False
    callers = [caller for caller, _ in function.callers()]
    return not callers or any(REPEATED.match(one.name) for one in callers)


def is_beside(identity: str) -> bool:
    """Tells whether a file prepares data, trains or looks at a model, by its path."""
    return _BESIDE.search(identity.lower()) is not None


def is_for_cpu(function: Function) -> bool:
    """Tells whether a function is of a class for a CPU, by its name."""
    family = function.part.stretch.family
    return family is not None and _CPU_CLASS.search(family.name) is not None


def is_for_debugging(node: cst.CSTNode, function: Function) -> bool:
    """Tells whether a node runs only under a switch for logs or debugging."""
    while node in function.parents and node is not function.node:
        node = function.parents[node]
        if isinstance(node, cst.If) and _SWITCH.search(function.part.code(node.test)):
            return True
    return False

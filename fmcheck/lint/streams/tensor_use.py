"""Tensor uses: what an expression launches, and what uses the values of a tensor.

Both may be unknown: a function of another file may compute a tensor or give anything else.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, is_name, last_name, non_blocking
from fmcheck.lint.model.vocabulary import CLASS, IN_PLACE, LAUNCHES, ON_HOST, READS, VIEWS
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.streams.function_streams import is_non_blocking, takes_stream
from fmcheck.regex import regex

if TYPE_CHECKING:
    from libcst import CSTNode

    from fmcheck.lint.streams.function_streams import FunctionStreams

#: Methods that copy a tensor to where they name.
MOVES = frozenset({"cuda", "npu", "to", "xpu"})
#: Methods that launch work, or read the values, and do not only look at the shape.
_USES = (
    LAUNCHES
    | IN_PLACE
    | READS
    | {"add", "all", "any", "argsort", "bfloat16", "div", "exp", "float", "half", "log", "max"}
    | {"mean", "min", "mul", "norm", "sort", "sub", "sum"}
)
#: Functions that look at a tensor and not into it, or that keep it.
_LOOKS = frozenset(
    (
        *("append", "appendleft", "callable", "cast", "debug", "deepcopy", "dir", "enumerate"),
        *("extend", "format", "get", "getattr", "hasattr", "hash", "id", "info", "insert"),
        *("isinstance", "iter", "len", "list", "next", "pop", "print", "put", "put_nowait"),
        *("range", "record_stream", "repr", "reversed", "set", "setattr", "setdefault", "str"),
        *("submit", "tuple", "type", "update", "warning", "zip"),
    )
)
#: Functions of `torch` that launch nothing.
_NO_WORK = frozenset(
    (
        *("Event", "Generator", "Size", "Stream", "as_strided", "barrier", "compile"),
        *("current_device", "current_stream", "device", "empty", "empty_cache", "empty_like"),
        *("empty_strided", "finfo", "from_numpy", "get_device_module", "iinfo", "is_available"),
        *("is_tensor", "load", "manual_seed", "new_empty", "new_empty_strided", "no_grad"),
        *("numel", "save", "set_device", "stream"),
    )
)
#: Functions of `torch.distributed` that read and write what their first argument is.
_COLLECTIVES = frozenset(
    {
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all_single",
        "broadcast",
        "reduce_scatter_tensor",
    }
)
#: Functions that take shapes and numbers, and no tensor.
_FACTORIES = frozenset({"arange", "full", "linspace", "ones", "rand", "randint", "randn", "zeros"})
#: Functions that look at the shape of a tensor alone.
_LIKE = frozenset(
    ("full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
)
#: Names of functions that give something else than what has just been computed.
_NO_RESULT = regex(
    r"_?((alloc|build|create|get|has|init|is|load|make|new|prepare|read)(_|$|ate)"
    # A time, which is a number on the host.
    r"|(do_|run_)?(bench|benchmark|measure|timeit)(_|$))"
)
#: Methods of a tensor that write it in place, by how they are named.
_WRITES = regex(r"[a-z]\w*[a-z0-9]_$")


def launches(value: CSTNode, streams: FunctionStreams) -> bool | None:
    """Tells whether an expression is what has just been launched: None for no, False for maybe."""
    if isinstance(value, cst.IfExp):
        return launches(value.body, streams)
    if not isinstance(value, cst.Call):
        return None
    if takes_stream(value):
        return None
    word = last_name(value.func)
    code = streams.part.code(value.func)
    if word in MOVES:
        given = streams.part.code(value)
        return None if '"cpu"' in given or "'cpu'" in given else is_non_blocking(value)
    if streams.launches(value):
        return True
    name = streams.part.module.resolve(dotted(value.func) or "")
    if word in _NO_WORK | _LOOKS | READS | VIEWS or CLASS.match(word):
        return None
    if name.startswith(("torch.nn.functional.", "torch_npu.npu_")):
        return True
    if name.startswith(("torch.", "dist.", "numpy.", "np.", "time.", "os.", "math.")):
        return None
    if "." not in name and hasattr(builtins, word):
        return None
    if ON_HOST.search(code) or _NO_RESULT.match(word):
        return None
    return None if "async" in word else False


def is_collective(call: cst.Call, streams: FunctionStreams) -> bool:
    """Tells whether a call has ranks exchange a tensor, which the current stream waits for."""
    name = streams.part.module.resolve(dotted(call.func) or "")
    return name.startswith(("torch.distributed.", "dist.")) and last_name(call.func) in _COLLECTIVES


def is_blocking(copy: cst.Call) -> bool:
    """Tells whether a copy says that it blocks: its source is the host's."""
    return is_name(non_blocking(copy), "False")


def values_used(node: CSTNode, streams: FunctionStreams) -> bool | None:
    """Tells whether a tensor's values are used here: None for no, False for maybe."""
    parents = streams.parents
    while True:
        inner, node = node, parents.get(node, streams.function.node)
        if isinstance(node, cst.Subscript) and inner is node.value:
            continue
        if isinstance(node, cst.Attribute):
            call = parents.get(node)
            word = node.attr.value
            if not isinstance(call, cst.Call) or call.func is not node:
                return None
            if word in VIEWS:
                node = call
                continue
            return True if word in _USES or _WRITES.match(word) else None
        if isinstance(node, cst.BinaryOperation):
            other = node.right if inner is node.left else node.left
            is_number = isinstance(other, (cst.Float, cst.Integer, cst.SimpleString))
            return not is_number and not isinstance(node.operator, cst.Modulo)
        if isinstance(node, cst.AugAssign):
            return inner is node.value
        if isinstance(node, cst.Arg):
            call = parents.get(node)
            if not isinstance(call, cst.Call):
                return None
            word = last_name(call.func)
            if word in _LOOKS | _NO_WORK | _FACTORIES | _LIKE or CLASS.match(word):
                return None
            resolved = streams.part.module.resolve(dotted(call.func) or "")
            if streams.launches(call) or resolved.startswith("torch.nn.functional."):
                return True
            if is_collective(call, streams):
                return True
            if word in IN_PLACE | LAUNCHES or (
                isinstance(call.func, cst.Attribute) and _WRITES.match(word)
            ):
                return True
            if resolved.startswith("torch.") or word.startswith(("is_", "has_", "_is", "assert")):
                return None
            return False
        return None


def is_written(node: CSTNode, streams: FunctionStreams) -> bool:
    """Tells whether a tensor is only the target of a copy."""
    parent = streams.parents.get(node)
    while isinstance(parent, cst.Subscript):
        parent = streams.parents.get(parent)
    return isinstance(parent, cst.Attribute) and parent.attr.value in (*IN_PLACE, *MOVES)


def scope_of(node: CSTNode, streams: FunctionStreams) -> CSTNode | None:
    """Returns the inner function that a node stands in, None for the function itself."""
    held: CSTNode | None = streams.parents.get(node)
    while held is not None and held is not streams.function.node:
        if isinstance(held, (cst.FunctionDef, cst.Lambda)):
            return held
        held = streams.parents.get(held)
    return None

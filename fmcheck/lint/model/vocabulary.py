"""The vocabulary of tensors and streams: which names mean what, wherever they stand."""

from __future__ import annotations

import re

from fmcheck.regex import regex

#: Calls that return another view of the whole buffer.
VIEWS = frozenset({"view", "reshape", "flatten", "squeeze", "unsqueeze", "t", "detach", "numpy"})
#: Those of them that leave each element at its place.
SAME_SHAPE = frozenset({"detach", "numpy"})
#: Calls that return a part or a view of a tensor, or the same one elsewhere.
PARTS = VIEWS | {
    "narrow",
    "select",
    "split",
    "chunk",
    "unbind",
    "expand",
    "transpose",
    "contiguous",
}
#: Attributes under which a wrapper hands out what it holds: `seq_lens.gpu` is `seq_lens`.
HELD = frozenset({"data", "T", "gpu", "cpu", "np"})
#: Parts of the name of a function that resets what it is handed.
RESET_WORDS = ("zero", "reset", "clear", "scrub")
#: How functions and methods are named that only look at what they are handed.
LOOKS = regex(
    r"^_?(assert|check|compare|critical|debug|describe|display|dump|equal|error|exception|hash|info"
    r"|inspect|is|log|measure|monitor|observe|print|record|report|repr|show|snapshot|summarize"
    r"|trace|validate|verify|warn|warning)(_|$)"
)
#: Functions that run before the first replay: what they set, a replay has overwritten since.
BEFORE_REPLAY = ("__init__", "__post_init__", "*capture*", "*warmup*", "*warm_up*")
#: Words of which one stands where a stream is entered.
ENTERED = (
    *(".stream(", " stream(", "StreamContext", "stream_ctx", "stream_context", "stream_switch("),
    *("stream_guard(", "with self*_stream():"),
)
#: Names of functions that make the stream current which they are handed.
ENTERS = regex(r"^(StreamContext|(\w+_)?stream(_(switch|context|ctx|guard))|stream)$")
#: Names of functions that order work for their caller, or wait for it.
ORDERING = regex(
    r"^(?!_?(is|has|should|needs|use|can)_)"
    r"((.*_)?((sync|synchronize|wait|fence|barrier)(_|$)|join_|(?<=_)join$)"
    r"|make_graphed_callables$"  # which waits for the device around what it captures
    r"|(?-i:[a-z]\w*(Sync|Synchronize|Wait|Fence|Barrier)([A-Z]\w*)?$))",  # of a C API
    re.IGNORECASE,
)
#: Names of functions that end something, and perhaps wait for it, where nothing else says.
ENDS = regex(
    r"^(?!_?(is|has|should|needs|use|can)_)"
    r"(.*_)?(await|complete|drain|ensure|finish|flush|join|result|until)(_|$)",
    re.IGNORECASE,
)
#: Methods that wait for the stream or event that they name.
WAITS = frozenset({"query", "synchronize", "wait", "wait_event", "wait_stream"})
#: Names of classes.
CLASS = regex(r"_?[A-Z]\w*[a-z]\w*$")
#: Names of tensors on the host, and of what is computed there.
ON_HOST = regex(r"(^|_|\b)(cpu|host|pin|pinned|np|numpy|list)(_|\b|$)")
#: What an asynchronous copy's call is named.
COPIES = frozenset({"copy_", "to"})
#: Words of which one stands where a copy does not block the host.
NON_BLOCKING = ("non_blocking", ".copy_(*, True", ".to(*, True")
#: Functions and methods that launch work and return a tensor. Containers have none of them.
LAUNCHES = frozenset(
    {
        "arange",
        "argmax",
        "bmm",
        "cat",
        "clone",
        "concat",
        "contiguous",
        "cumsum",
        "einsum",
        "full",
        "gather",
        "index_select",
        "linear",
        "masked_fill",
        "matmul",
        "mm",
        "ones",
        "repeat_interleave",
        "softmax",
        "stack",
        "topk",
        "where",
        "zeros",
        "zeros_like",
    }
)
#: Methods of a tensor that write it in place.
IN_PLACE = frozenset(
    {
        "add_",
        "copy_",
        "fill_",
        "index_copy_",
        "index_fill_",
        "index_put_",
        "masked_fill_",
        "mul_",
        "scatter_",
        "sub_",
        "zero_",
    }
)
#: Calls that wait for the stream that is current, by reading a value.
READS = frozenset({"cpu", "is_nonzero", "item", "nonzero", "tolist"})
#: Functions and methods of tensors that return a truth, for which they read all values.
COMPARES = frozenset({"allclose", "equal"})
#: Methods that bring values to the host.
TO_HOST = frozenset({"cpu", "item", "numpy", "tolist"})
#: Functions that read the number that they are handed.
NUMBERS = frozenset({"bool", "float", "int"})
#: Methods and functions whose result is one number of many.
REDUCTIONS = frozenset({"amax", "amin", "argmax", "count_nonzero", "max", "min", "sum"})
#: Methods and functions whose result is one truth of many.
TRUTHS = frozenset({"all", "any"})
#: A tensor's own ways to write all of it, which read nothing of it.
OVERWRITES = ("copy_", "zero_", "fill_")
_EVENT = regex(
    r"(event|evt|fence|(\b|_)(ready|done|finished|copied|published))s?(\[.*\]|\(\))?$",
    re.IGNORECASE,
)
_CONTEXT = regex(r"stream_(ctx|context)$")


def looks_like_event(code: str) -> bool:
    """Tells whether an expression is an event by its name: other things have `record()` too."""
    return bool(_EVENT.search(code))


def looks_like_context(name: str) -> bool:
    """Tells whether a name is that of a stream's context manager."""
    return bool(_CONTEXT.search(name))

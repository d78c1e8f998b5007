"""Untraced: calls of torch that a trace, a transform or another kind of tensor takes for itself.

What they hand on are stand-ins, without values to judge.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_PROXY, _FAKE, _FUNCTIONAL = (
    getattr(torch._C._TorchDispatchModeKey, name) for name in ("PROXY", "FAKE", "FUNCTIONAL")
)
_TRACERS = (
    (torch._C, "_create_function_from_trace"),
    (torch._C.ScriptModule, "_create_method_from_trace"),
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_traced() -> bool:
    """Tells whether calls of torch are being traced or transformed now."""
    return bool(
        _functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or (torch._C._len_torch_dispatch_stack() and _mode())
    )


def _mode() -> Any:
    """Returns the mode of torch's own that traces, None if there is none."""
    for key in (_PROXY, _FAKE, _FUNCTIONAL):
        mode = torch._C._get_dispatch_mode(key)
        if mode is not None:
            return mode
    return None


def stand_in(tensor: Any, plain: Any) -> Any:
    """Returns what goes into a trace for an alias: itself if the trace knows it, else `plain`."""
    mode = torch._C._get_dispatch_mode(_PROXY)
    traces = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if mode is None or traces is None:
        return plain
    return tensor if traces.has_proxy_slot(tensor, mode.tracer) else plain


def watch_traces(plain: Callable[[Any], Any]) -> Callable[[], None]:
    """Hands `torch.jit.trace` the tensor under an alias: a trace notes who calls, which is us."""
    originals = [
        (holder, name, getattr(holder, name))
        for holder, name in _TRACERS
        if hasattr(holder, name)  # they are torch's own affair
    ]

    def undo() -> None:
        for holder, name, original in originals:
            setattr(holder, name, original)

    def unaliased(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def trace(*args: Any, **kwargs: Any) -> Any:
            return original(*plain(args), **plain(kwargs))

        return trace

    for holder, name, original in originals:
        setattr(holder, name, unaliased(original))
    return undo


def is_mixed(types: Collection[type], own: type) -> bool:
    """Tells whether a class of tensors takes part that has its own idea of the call."""
    return len(types) > 1 and any(one is not own and one not in _PLAIN for one in types)


def reason() -> str:
    """Returns why an access is not followed now."""
    if _functorch.peek_interpreter_stack() is not None:
        return "made inside a transform of `torch.func`"
    if torch._C._get_tracing_state() is not None:
        return "made while `torch.jit.trace` traces"
    if torch._C._len_torch_dispatch_stack() and _mode() is not None:
        return f"made under torch's `{type(_mode()).__name__}`"
    return "made together with a tensor of another class"

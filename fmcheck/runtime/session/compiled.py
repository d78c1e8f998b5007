"""Compiled functions: how `torch.compile` is kept from reading a relay buffer out of our sight.

At a relay tensor, and at a function that is followed, Dynamo breaks the graph and calls it eagerly.
Where no break is allowed (`fullgraph=True`) the call fails while it is traced, before anything ran,
and is made eagerly instead.
"""

from __future__ import annotations

import functools
import os
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core.patches import patch_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fmcheck.runtime.core.patches import Undo

_DEPTH = 4
_OWN = str(Path(__file__).parent.parent)


def teach_dynamo(dynamo: ModuleType) -> Undo:
    """Makes Dynamo break the graph at relay tensors and leave this package's code alone."""
    from fmcheck.runtime.relay import relay_tensor
    from fmcheck.runtime.steps import factories, torch_modes

    for entry in (
        torch_modes.OperatorMode.__torch_dispatch__,
        factories.FactoryMode.__torch_function__,
        vars(relay_tensor.RelayTensor)["__torch_function__"].__func__,
    ):
        torch_modes.left_alone(entry)
    _skip_ours(dynamo.trace_rules)
    kind = relay_tensor.RelayTensor
    untraced = getattr(dynamo.config, "nontraceable_tensor_subclasses", None)
    if untraced is not None:
        untraced.add(kind)
    entered = {name: getattr(relay_tensor, name) for name in ("before_call", "after_call")}
    for name, function in entered.items():
        # An opaque function tells of its rows by these, from inside a compiled function too.
        setattr(relay_tensor, name, dynamo.disable(function))

    context = dynamo.eval_frame.OptimizeContext
    begin = context.__init__

    @functools.wraps(begin)
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begin(made, *args, **kwargs)
        made.enter_exit_hooks.append(factories.lift_factories)  # called around each compiled call

    context.__init__ = __init__

    def undo() -> None:
        context.__init__ = begin
        # The subclass stays untraced: tensors of it may outlive the session.
        for name, function in entered.items():
            setattr(relay_tensor, name, function)

    return undo


@functools.cache
def _skip_ours(rules: ModuleType) -> None:
    """Breaks the graph, without a word, at what is in the place of the program's functions.

    What the probes compile is ours and is to be compiled.
    """
    for room in pkgutil.iter_modules([_OWN], "fmcheck.runtime."):
        folder = os.path.join(_OWN, room.name.rpartition(".")[2])
        modules = [one.name for one in pkgutil.iter_modules([folder], f"{room.name}.")]
        watched = [name for name in modules if not name.endswith("probes")]
        # A room stands for its modules: with each entry Dynamo compiles one long pattern again.
        for name in [room.name] if watched == modules else watched:
            rules.add(name)


def watch_compile(torch: ModuleType) -> Undo:
    """Keeps what `torch.compile` makes without graph breaks watched."""
    return patch_compile(torch, eager_at_relays, asked="fullgraph")


def eager_at_relays(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `compiled`, run eagerly once it was seen to fail at what we have put there."""
    import torch

    eager = False

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal eager
        if torch.compiler.is_compiling():
            return compiled(*args, **kwargs)
        if not eager:
            try:
                return compiled(*args, **kwargs)
            except (
                torch._dynamo.exc.Unsupported,
                torch._dynamo.exc.UncapturedHigherOrderOpError,  # `torch.cond`
            ) as err:
                from fmcheck.runtime.relay.relay_tensor import RelayTensor

                names_ours = any(one in str(err) for one in (_OWN, RelayTensor.__name__))
                if not names_ours and not reaches_relay((compiled, args, kwargs)):
                    raise
                eager = True
        with torch.compiler.set_stance("force_eager"):
            return compiled(*args, **kwargs)

    return call


def reaches_relay(value: Any) -> bool:
    """Tells whether a relay tensor can be reached from a call: its arguments, or the function's."""
    from fmcheck.runtime.relay.relay_tensor import RelayTensor

    seen: set[int] = set()
    front = [value]
    for _ in range(_DEPTH):
        if any(type(item) is RelayTensor for item in front):
            return True
        fresh = [item for item in front if id(item) not in seen]
        seen.update(id(item) for item in fresh)
        front = [inner for item in fresh for inner in _inside(item)]
    return any(type(item) is RelayTensor for item in front)


def _inside(value: Any) -> Iterator[Any]:
    """Yields what a container, an object or a function holds."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif callable(value) and hasattr(value, "__code__"):
        yield from _names_of(value)
    elif not isinstance(value, (str, bytes, int, float, type, ModuleType)):
        yield from getattr(value, "__dict__", {}).values()
        yield getattr(value, "__self__", None)


def _names_of(function: Any) -> Iterator[Any]:
    yield getattr(function, "_torchdynamo_orig_callable", None)
    yield getattr(function, "__wrapped__", None)
    yield getattr(function, "__self__", None)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        yield function.__globals__.get(name) if hasattr(function, "__globals__") else None

"""Adoption: a tensor that becomes a relay buffer is replaced by an alias.

What it holds then is a placeholder, which is poisoned, or values, which are rows written. Nothing
of a tensor says which; what is known is when it was bound, by what, and what stands in it. The
statement that binds it may say that it comes straight from a factory, as `torch.zeros`: by what its
names are bound to where it runs, not by what they are called.
"""

from __future__ import annotations

import ast
import enum
import inspect
import linecache
import sys
import weakref
from collections import ChainMap
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fmcheck.contract.validation import MANY
from fmcheck.runtime.relay import device_checks, relay_array, relay_tensor
from fmcheck.runtime.relay.row_layout import Layout
from fmcheck.runtime.steps import placements
from fmcheck.runtime.steps.torch_modes import unheard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fmcheck.contract import Buffer, Relay
    from fmcheck.runtime.core.tally import Tally
    from fmcheck.runtime.relay.buffer import RelayBuffer, StreamFollower
    from fmcheck.runtime.relay.owners import Owners

    Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


# By address; a buffer keeps its storage alive, so no address is used twice while it is in here.
_by_storage: dict[tuple[Tally, str, int], weakref.ref[RelayBuffer]] = {}


class Bind(enum.Enum):
    """When a tensor was assigned to a declared attribute."""

    IN_INIT = "by `__init__`, where there was none"
    LATER = "by a method, where there was none"
    AGAIN = "in place of another one"


class BufferServices(Protocol):
    """What a session does for the buffers that it adopts."""

    @property
    def streams(self) -> StreamFollower | None:
        """What follows the session's streams, None where nothing does."""

    def before_buffers_on(self, kind: str) -> None:
        """A buffer on this kind of device is about to be adopted."""


def adopt(
    tensor: Any,
    name: str,
    buffer: Buffer,
    relay: Relay,
    tally: Tally,
    bind: Bind,
    services: BufferServices,
    owners: Owners | None = None,
    sinks: Sequence[int] = (),
    is_array: bool = False,
) -> torch.Tensor:
    """Returns the alias for a tensor assigned to a declared buffer.

    A storage that is watched already keeps its state, whichever attribute it goes by.
    """
    if isinstance(tensor, np.ndarray):
        arguments = (name, buffer, relay, tally, bind, services, owners, sinks)
        return _adopt_array(tensor, *arguments)  # type: ignore[no-any-return]
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    if type(tensor) is relay_tensor.RelayTensor and tensor._relay.tally is tally:
        return tensor
    with unheard():
        tensor = relay_tensor.plain(tensor)
        kind = tensor.device.type
        tally.kinds.add(kind)
        if kind == "meta" and type(tensor) is torch.Tensor:
            return device_checks.stray(tensor, f"{relay.qualname}.{name}", tally)  # type: ignore[no-any-return]
        if type(tensor) is not torch.Tensor:
            return _refused(tensor)
        if tensor.dim() == 0:
            raise ValueError("a tensor with no dimensions has no rows")
        key = (tally, str(tensor.device), tensor.untyped_storage().data_ptr())
        kept = _by_storage.get(key)
        known = None if kept is None else kept()
        if known is not None and _lies_in(tensor, known.base):
            return relay_tensor.alias(tensor, known, _window_if_whole(tensor, known))
    services.before_buffers_on(kind)
    with unheard():
        made = relay_tensor.relay_tensor(
            tensor,
            f"{relay.qualname}.{name}",
            relay.class_,
            tally,
            buffer.bound,
            sinks,
            owners,
            buffer.overwrite,
            services.streams,
            Layout(buffer.row_dim, buffer.columns, buffer.reads == MANY, buffer.sink_holds),
            buffer.kept,
        )
        if kind == "cpu" and placements.surely_host_s(tensor):
            made._relay.declare_host()
        _begin(made._relay, tensor, name, bind, is_array)
        tally.buffers += 1
        if tensor.numel():
            # In C: no error of a signal's handler is lost in it.
            _by_storage[key] = weakref.ref(made._relay, partial(_by_storage.pop, key))
    return made


def _adopt_array(array: Any, *arguments: Any) -> Any:
    """Returns the alias for an array of NumPy's: its memory is the host's."""
    tally = arguments[3]
    if isinstance(array, relay_array.RelayArray):
        if array._relay is not None and array._relay.tally is tally:
            return array
        array = relay_array.plain(array)
    if not array.flags.writeable:
        raise ValueError("an array that may not be written relays nothing")
    made: Any = adopt(torch.from_numpy(array), *arguments, is_array=True)  # type: ignore[misc]
    made._relay.declare_host()
    return relay_array.over(array, made._relay)


def declare_host(adopted: Any) -> None:
    """Says that a buffer is the host's, whose name the contract has among the host's."""
    relay = device_checks.buffer_of(adopted)
    if relay is not None and relay.device == "cpu":
        relay.declare_host()


def _begin(relay: RelayBuffer, tensor: torch.Tensor, name: str, bind: Bind, is_array: bool) -> None:
    """Poisons a placeholder, and takes anything else for values.

    Made by `__init__` it is a placeholder, unless it was written in place and is not one number
    throughout. Bound later it is one if it comes straight from a factory and holds one number that
    marks an empty row, and whenever it is bound if it is memory that nobody has filled
    (`torch.empty`). What else a factory gave, the engine's first access tells: it writes to a
    placeholder before it gathers.
    """
    is_one_number, is_mark = relay.fill()
    # An array counts no writes, nor does what inference mode made: those have had no other use.
    once = is_array or tensor.is_inference()
    looks = not _was_written(tensor)
    is_unfilled = looks and is_bare(name, once=True, kinds=_UNFILLED)
    looks &= bind is Bind.LATER or (is_array and bind is Bind.IN_INIT)
    comes_bare = looks and is_bare(name, once)
    is_placeholder = {
        Bind.IN_INIT: is_one_number or (comes_bare if is_array else not _was_written(tensor)),
        Bind.LATER: is_mark and comes_bare,
        Bind.AGAIN: False,
    }
    if is_unfilled or is_placeholder[bind]:
        relay.lay_poison()
    else:
        relay.adopt_values(bound=True)
        relay.is_on_trust = comes_bare and not is_array
        if bind is not Bind.IN_INIT and not comes_bare and relay.streams is not None:
            relay.streams.bound(relay)


def _was_written(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is known to have been written in place."""
    return not tensor.is_inference() and tensor._version > 0


def _refused(tensor: torch.Tensor) -> torch.Tensor:
    """Leaves a tensor that has no memory of its own to watch, as under a fake mode."""
    if tensor.device.type == "meta" or "Fake" in type(tensor).__name__:
        return tensor
    raise TypeError(f"expected a plain tensor, got {type(tensor).__name__}")


def _lies_in(tensor: torch.Tensor, base: torch.Tensor) -> bool:
    if tensor.dtype != base.dtype:
        return False
    start, end = _span(tensor)
    first, last = _span(base)
    return first <= start and end <= last


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start, start + reach


def _window_if_whole(tensor: torch.Tensor, known: RelayBuffer) -> Any:
    base = known.base
    same = tensor.shape == base.shape and tensor.stride() == base.stride()
    return known.whole if same and tensor.storage_offset() == base.storage_offset() else None


#: Factories by how their names begin, as methods of a tensor after `new_`.
_BARE = ("empty", "zeros", "full")
_UNFILLED = ("empty",)
_FACTORIES = frozenset(
    vars(module)[name] for module in (torch, np) for name in vars(module) if name.startswith(_BARE)
)
#: Methods that pass on what they are called on, elsewhere or in another form.
_PASSING = frozenset(
    {"to", "cuda", "cpu", "pin_memory", "contiguous", "view", "reshape", "requires_grad_", "detach"}
)
#: How many functions of the engine a factory's call may lie in.
_DEEPEST = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OWN = str(Path(__file__).parents[2] / "_")[:-1]  # ends in a separator
_MISSING = object()


def is_bare(name: str, once: bool, kinds: tuple[str, ...] = _BARE) -> bool:
    """Tells whether the value that is now bound to an attribute `name` comes from a factory.

    It may have a name of its own before that; with `once`, one that is used for nothing else.
    Factories of other `kinds` are none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return False
    body = _body(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name)
    bound = () if body is None else _bound(body, name, frame.f_lineno)
    names = ChainMap(frame.f_locals, frame.f_globals)
    return bool(bound) and all(_is_made_bare(one, body, names, once, kinds) for one in bound)


@lru_cache(maxsize=256)
def _body(path: str, line: int, name: str) -> Function | None:
    """Returns the function whose code begins at a line, decorators included."""
    lines = linecache.getlines(path)
    try:
        tree = ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if tree is None or name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and getattr(node, "name", "<lambda>") == name:
            first = min([node.lineno, *(one.lineno for one in _decorators(node))])
            if first == line:
                return node
    return None


def _decorators(node: Function) -> list[ast.expr]:
    return [] if isinstance(node, (ast.Lambda, ast.Module)) else node.decorator_list


@lru_cache(maxsize=1024)
def _bound(body: ast.AST, name: str, line: int) -> tuple[ast.expr, ...]:
    """Returns what the statements at a line bind to attributes of a name."""
    return tuple(_bound_at(body, name, line))


def _bound_at(body: ast.AST, name: str, line: int) -> Iterator[ast.expr]:
    for node in ast.walk(body):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Call)):
            continue
        if not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "setattr":
                yield from node.args[2:]
        elif node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from _paired(target, node.value, name)


def _paired(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Attribute) and target.attr == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield from _paired(one, its, name)


def _is_made_bare(
    value: ast.expr,
    body: Any,
    names: Mapping[str, Any],
    once: bool,
    kinds: tuple[str, ...],
    depth: int = 0,
) -> bool:
    """Tells whether an expression in `body` gives what a factory made, and nothing else."""
    if isinstance(value, ast.IfExp):
        either = value.body, value.orelse
        return all(_is_made_bare(one, body, names, once, kinds, depth) for one in either)
    if isinstance(value, ast.Name):
        given = _only_value(value.id, body, once)
        return given is not None and _is_made_bare(given, body, names, once, kinds, depth)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        if value.func.attr.startswith(tuple(f"new_{kind}" for kind in kinds)):
            return True
        if value.func.attr in _PASSING:
            return _is_made_bare(value.func.value, body, names, once, kinds, depth)
    called = _looked_up(value.func, names)
    try:
        if called in _FACTORIES:
            filled = any(one.arg == "out" for one in value.keywords)
            return not filled and called.__name__.startswith(kinds)
    except TypeError:  # not hashable
        return False
    return depth < _DEEPEST and _returns_bare(called, once, kinds, depth)


def _returns_bare(called: Any, once: bool, kinds: tuple[str, ...], depth: int) -> bool:
    """Tells whether a function of the engine returns what a factory made, wherever it returns."""
    if isinstance(called, (staticmethod, classmethod, MethodType)):
        called = called.__func__
    if not isinstance(called, FunctionType):
        return False
    code = called.__code__
    body = _body(code.co_filename, code.co_firstlineno, code.co_name)
    if body is None:
        return False
    if isinstance(body, ast.Lambda):
        returned: list[ast.expr | None] = [body.body]
    else:
        returned = [node.value for node in ast.walk(body) if isinstance(node, ast.Return)]
    names = called.__globals__
    return bool(returned) and all(
        one is not None and _is_made_bare(one, body, names, once, kinds, depth + 1)
        for one in returned
    )


@lru_cache(maxsize=1024)
def _only_value(name: str, body: ast.AST, once: bool) -> ast.expr | None:
    """Returns what a local name is bound to, if that is one thing."""
    stored = loaded = 0
    found = None
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and node.id == name:
            stored += not isinstance(node.ctx, ast.Load)
            loaded += isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.arg) and node.arg == name:
            stored += 2  # by who calls, and maybe here
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                found = node.value
    return found if stored == 1 and not (once and loaded > 1) else None


def _looked_up(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Returns what a dotted name stands for, without running anything of the engine."""
    if isinstance(node, ast.Name):
        return names.get(node.id, _MISSING)
    if not isinstance(node, ast.Attribute):
        return _MISSING
    owner = _looked_up(node.value, names)
    if isinstance(owner, ModuleType):
        return vars(owner).get(node.attr, _MISSING)
    return inspect.getattr_static(owner, node.attr, _MISSING)

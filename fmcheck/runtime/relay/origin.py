"""Origin: whether a tensor that is being bound comes straight from a factory, as `torch.zeros`.

Nothing of a tensor says whether what stands in it was written. The statement that binds it may: by
what its names are bound to where it runs, not by what they are called. Where it does not, the
tensor is taken for values.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections import ChainMap
from functools import lru_cache
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module

_BARE = ("empty", "zeros", "full", "empty_like", "zeros_like", "full_like", "empty_strided")
_FACTORIES = frozenset(
    getattr(module, name) for module in (torch, np) for name in _BARE if hasattr(module, name)
)
#: The same as methods of a tensor.
_NEW = frozenset({"new_empty", "new_zeros", "new_full", "new_empty_strided"})
#: Methods that pass on what they are called on, elsewhere or in another form.
_PASSING = frozenset(
    {"to", "cuda", "cpu", "pin_memory", "contiguous", "view", "reshape", "requires_grad_", "detach"}
)
#: How many functions of the engine a factory's call may lie in.
_DEEPEST = 3
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_OWN = str(Path(__file__).parents[2])
_MISSING = object()


def is_bare(name: str, once: bool) -> bool:
    """Tells whether the value that is now bound to an attribute `name` comes from a factory.

    It may have a name of its own before that; with `once`, one that is used for nothing else.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return False
    body = _body(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name)
    bound = () if body is None else _bound(body, name, frame.f_lineno)
    names = ChainMap(frame.f_locals, frame.f_globals)
    return bool(bound) and all(_is_made_bare(one, body, names, once) for one in bound)


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
    value: ast.expr, body: Any, names: Mapping[str, Any], once: bool, depth: int = 0
) -> bool:
    """Tells whether an expression in `body` gives what a factory made, and nothing else."""
    if isinstance(value, ast.IfExp):
        either = value.body, value.orelse
        return all(_is_made_bare(one, body, names, once, depth) for one in either)
    if isinstance(value, ast.Name):
        given = _only_value(value.id, body, once)
        return given is not None and _is_made_bare(given, body, names, once, depth)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        if value.func.attr in _NEW:
            return True
        if value.func.attr in _PASSING:
            return _is_made_bare(value.func.value, body, names, once, depth)
    called = _looked_up(value.func, names)
    try:
        if called in _FACTORIES:
            return not any(one.arg == "out" for one in value.keywords)
    except TypeError:  # not hashable
        return False
    return depth < _DEEPEST and _returns_bare(called, once, depth)


def _returns_bare(called: Any, once: bool, depth: int) -> bool:
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
        one is not None and _is_made_bare(one, body, names, once, depth + 1) for one in returned
    )


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

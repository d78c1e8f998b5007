"""Handed: what becomes of a buffer that calls are handed, followed through the package."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from fmcheck.lint.graph_inputs.fills import WriteKind, fillings
from fmcheck.lint.model.expressions import dotted, is_name, keywords, last_name, receiver
from fmcheck.lint.model.names import ANY
from fmcheck.lint.model.vocabulary import LAUNCHES, LOOKS
from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmcheck.lint.graph_inputs.fills import Filling, Handed
    from fmcheck.lint.model.function import Function

#: How many calls are followed, one from another.
_MOST_CALLS = 3
#: Functions of torch and numpy that return what they compute. Of torch's, those that write an
#: argument end in `_`.
_OF_TORCH = regex(r"torch(\.(fft|functional|linalg|nn\.functional|special))?\.[a-z]\w*[a-z0-9]$")
_OF_NUMPY = regex(r"numpy\.(?!copyto$|fill_diagonal$|place$|put|random\.)\w+(\.\w+)?$")
#: What says that a function of torch writes an argument.
_WRITES = frozenset({"inplace", "out"})
#: Names of objects that only look at what their methods are handed.
_LOOKERS = regex(
    r"(^|_)(debugger|dumper|log|logger|logging|metrics?|monitor|profiler|recorder|stats|tracer)$"
)
#: How functions are named whose result is what they are called for.
_GIVES = regex(r"^_?(compute|count|find|get|has|make|num|size)(_|$)")
#: How functions are named that reset padded rows, whoever calls them.
_PADS = regex(r"(^|_)(fill|mask|pad|padding|sanitize)(_|$)")


def may_be_reset(filling: Filling, path: str) -> bool:
    """Tells whether a call resets the tail of a buffer, or may where it is unknown.

    One that is unknown may where padded batches alone reach it, and one that is told how many rows
    are real: a kernel, or whoever is told the padded size as well.
    """
    return _may_be_reset(filling, path, {}, is_padded=False, followed=0)


def _may_be_reset(
    filling: Filling, path: str, known: Mapping[str, bool], *, is_padded: bool, followed: int
) -> bool:
    """Tells the same of a function that is called; `known` are its sizes, True for raw ones."""
    for handed, rest in _handed(filling, path):
        told = _told(filling, handed.call, known)
        is_padded_here = is_padded or filling.is_padded(handed.call)
        callee = filling.function.called(handed.call)
        if callee is None:
            may_write = is_padded_here or _may_write_tail(handed, told)
            if may_write and not _only_looks(filling, handed):
                return True
        elif followed < _MOST_CALLS:
            inner = next(fillings([callee]))
            for name in _names_of(handed, callee):
                held = f"{name}{ANY}{rest}" if handed.is_listed else name + rest
                if _resets(inner, {name, name + ANY, held}) or _may_be_reset(
                    inner,
                    held,
                    _sizes(callee, handed.call, told),
                    is_padded=is_padded_here,
                    followed=followed + 1,
                ):
                    return True
    if not path.startswith("self.") or followed >= _MOST_CALLS:
        return False
    return any(
        _may_be_reset(
            next(fillings([callee])),
            path,
            _sizes(callee, call, _told(filling, call, known)),
            is_padded=is_padded or filling.is_padded(call),
            followed=followed + 1,
        )
        for call, callee in _own(filling)
    )


def _may_write_tail(handed: Handed, told: Mapping[cst.CSTNode, bool]) -> bool:
    """Tells whether an unknown call, on its own, may reset the tail of what it is handed.

    A kernel needs to be told the raw size alone.
    """
    call = handed.call
    is_told = True in told.values() and (
        False in told.values() or isinstance(call.func, cst.Subscript)
    )
    return is_told or handed.region.is_tail or _PADS.search(last_name(call.func)) is not None


def _names_of(handed: Handed, callee: Function) -> Iterator[str]:
    """Yields the parameters by which a callee knows what it is handed."""
    return (name for name, value in callee.takes(handed.call) if value is handed.value)


def _handed(filling: Filling, path: str) -> Iterator[tuple[Handed, str]]:
    """Yields where a buffer, or what holds it, is handed to a call, and its path from there."""
    marks = (end for end in range(len(path)) if path.startswith((".", ANY), end))
    for end in (*marks, len(path)):
        for one in filling.handed.get(path[:end], ()):
            yield one, path[end:]


def _own(filling: Filling) -> Iterator[tuple[cst.Call, Function]]:
    """Yields the calls of methods of the same object."""
    for call in filling.function.calls:
        callee = filling.function.called(call) if is_name(receiver(call), "self") else None
        if callee is not None:
            yield call, callee


def _told(
    filling: Filling, call: cst.Call, known: Mapping[str, bool]
) -> Mapping[cst.CSTNode, bool]:
    """Returns the sizes that a call is told, True for raw ones."""
    sizes = filling.sizes
    found: dict[cst.CSTNode, bool] = {}
    for value in (arg.value for arg in call.args):
        if sizes.is_raw(value):
            found[value] = True
        elif sizes.is_padded(value):
            found[value] = False
        elif sizes.text(value) in known:
            found[value] = known[sizes.text(value)]
    return found


def _sizes(
    callee: Function, call: cst.Call, told: Mapping[cst.CSTNode, bool]
) -> Mapping[str, bool]:
    return {name: told[value] for name, value in callee.takes(call) if value in told}


def _resets(filling: Filling, paths: set[str]) -> bool:
    """Tells whether a function writes all or the tail of what it is handed."""
    return any(
        one.region.path in paths
        and (one.kind is WriteKind.CONSTANT or one.region.is_tail or one.region.is_whole)
        for one in filling.writes
        if one.kind is not WriteKind.REBOUND
    )


def _only_looks(filling: Filling, handed: Handed) -> bool:
    """Tells whether a call plainly does not write what it is handed: `zip`, `torch.max`."""
    call, function = handed.call, filling.function
    word, on = last_name(call.func), receiver(call)
    if any(one.by is call for one in filling.writes):
        return True  # what it writes is known
    name = function.module.resolve(dotted(call.func) or "")
    if on is None and hasattr(builtins, word):
        return True
    if LOOKS.search(word) or (on is not None and _LOOKERS.search(last_name(on))):
        return True
    if _OF_TORCH.match(name) or _OF_NUMPY.match(name):
        return _WRITES.isdisjoint(keywords(call))
    # A tensor's own methods write that tensor: `x.copy_(buffer)`, `x.gather(0, buffer)`.
    is_own = word in LAUNCHES or (word.endswith("_") and not word.endswith("__"))
    if is_own and on is not None and not function.module.imports_of(_head(on)):
        return True
    return bool(_GIVES.match(word)) and not isinstance(function.parents[call], cst.Expr)


def _head(node: cst.CSTNode) -> str:
    return (dotted(node) or "").partition(".")[0]

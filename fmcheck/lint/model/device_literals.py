"""Device literals: where a function names CUDA, beside a device that it takes from a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, is_name, last_name, targets
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.lint.model.function import Function

#: Names whose mention says that the function knows that it is on CUDA, or asks.
_ASKS = frozenset(
    {"device_count", "get_device_capability", "is_available", "is_cuda", "is_cuda_alike"}
)
#: Functions that talk to other ranks, which NCCL does for CUDA alone.
_TALKS = frozenset({"all_gather", "all_reduce", "allGather", "allReduce", "broadcast", "send"})
#: Parts of a path of code that one vendor's devices run.
_OF_VENDOR = regex(
    r"(^|[/_])(aiter|cuda|cudnn|cutlass|deep_?gemm|flash\w*|hip|hopper|nvidia|rocm|sage\w*|"
    r"tensorrt|triton|trt)(?=[/_.])"
)


def is_of_vendor(identity: str) -> bool:
    """Tells whether a file is for the devices of one vendor, by its path."""
    return _OF_VENDOR.search(identity.lower()) is not None


def beside_device(function: Function) -> tuple[Sequence[cst.CSTNode], cst.CSTNode | None]:
    """Returns where a function names CUDA, and a device that it takes from elsewhere.

    The device is None if there is none, or if the function knows that it runs on CUDA.
    """
    places = [place for node in _all(function) for place in _literals(node)]
    taken = _taken(function, places) if places else None
    return places, None if taken is None or _knows_cuda(function, places) else taken


def is_autocast(place: cst.CSTNode, function: Function) -> bool:
    """Tells whether a literal is what `autocast` is handed."""
    arg = function.parents.get(place)
    call = function.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and last_name(call.func) == "autocast"


def _all(function: Function) -> Iterator[cst.CSTNode]:
    for decorator in function.node.decorators:
        yield from function.part.nodes(decorator)
    yield from function.nodes


def _literals(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields where a call puts something on CUDA by its name."""
    if not isinstance(node, cst.Call):
        return
    word = last_name(node.func)
    if word == "cuda" and not node.args and isinstance(node.func, cst.Attribute):
        yield node
    for position, arg in enumerate(node.args):
        keyword = arg.keyword.value if arg.keyword else ""
        is_device = keyword in ("device", "device_type") or (
            not keyword and not position and word in ("to", "autocast")
        )
        text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
        if is_device and text == "cuda":
            yield arg.value


def _taken(function: Function, places: Sequence[cst.CSTNode]) -> cst.CSTNode | None:
    """Returns the first device that the function takes from a value and puts a tensor on.

    Not that of a tensor which one of the literals has put there.
    """
    moved = _moved(function, places)
    for call in function.calls:
        for position, arg in enumerate(call.args):
            keyword = arg.keyword.value if arg.keyword else ""
            is_device = keyword == "device" or (
                not keyword and not position and last_name(call.func) == "to"
            )
            value = arg.value
            if (
                is_device
                and isinstance(value, cst.Attribute)
                and value.attr.value == "device"
                and dotted(value)
                and not is_name(value.value, "torch")
                and _names(value.value).isdisjoint(moved)
            ):
                return value
    return None


def _moved(function: Function, places: Sequence[cst.CSTNode]) -> set[str]:
    """Returns the names of what is made with one of the literals, or of what was."""
    literals = set(places)
    bindings = [
        (_names(target), walk(value)) for node in function.nodes for target, value in _bound(node)
    ]
    found: set[str] = set()
    before = -1
    while len(found) != before:
        before = len(found)
        for names, value in bindings:
            if any(
                one in literals or (isinstance(one, cst.Name) and one.value in found)
                for one in value
            ):
                found |= names
    return found


def _bound(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yields what a statement, a loop or a comprehension binds, and to what."""
    if isinstance(node, (cst.For, cst.CompFor)):
        yield node.target, node.iter
    elif isinstance(node, (cst.Assign, cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
        for target in targets(node):
            yield target, node.value


def _names(target: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(target) if isinstance(one, cst.Name)} - {"self"}


def _knows_cuda(function: Function, places: Sequence[cst.CSTNode]) -> bool:
    """Tells whether the function asks for CUDA, or names it in any other way than these."""
    literals = set(places)
    for node in function.nodes:
        if isinstance(node, cst.SimpleString) and node not in literals:
            if "cuda" in str(node.evaluated_value):
                return True
        elif isinstance(node, (cst.Attribute, cst.Name)) and last_name(node) in _ASKS | _TALKS:
            return True
    return False

"""Writes: which tensors a function's statements write in place, on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import is_entry, squeezed
from fmcheck.lint.model.vocabulary import IN_PLACE, ON_HOST
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.names import Region
    from fmcheck.lint.streams.function_streams import FunctionStreams


class DeviceWrite(Struct, frozen=True):
    """A write to `buffers`, the paths that its target may go by, on one stream.

    `regions` are the parts of them that it may write. `index` is the text of what selects the rows,
    "" for none. `is_tensor` tells that only a tensor is written like this, and no list or dict.
    """

    node: CSTNode
    buffers: frozenset[str]
    regions: Sequence[Region]
    index: str
    is_tensor: bool
    stream: str
    order: int


def device_writes(streams: FunctionStreams) -> Iterator[DeviceWrite]:
    """Yields a function's writes in place, in order; not those to what is named as on the host."""
    for node, order in streams.order.items():
        for target, is_tensor in _targets(node):
            code = streams.part.code(target)
            if not ON_HOST.search(code):
                index = target.slice if isinstance(target, cst.Subscript) else ()
                inner = [one.slice for one in index]
                text = squeezed(",".join(streams.part.code(one) for one in inner))
                is_sliced = any(isinstance(one, cst.Slice) for one in inner)
                yield DeviceWrite(
                    node,
                    frozenset(streams.holders(target)),
                    streams.names.regions(target),
                    text,
                    is_tensor or is_sliced,
                    streams.stream_at(order),
                    order,
                )


def _targets(node: CSTNode) -> Iterator[tuple[CSTNode, bool]]:
    """Yields what a node writes to, and whether that is sure to be a tensor."""
    if isinstance(node, cst.Assign):
        for target in node.targets:
            # An entry under a name is bound, not written.
            if isinstance(target.target, cst.Subscript) and not is_entry(target.target):
                yield target.target, False
    elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Subscript):
        yield node.target, False
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        is_in_place = node.func.attr.value in IN_PLACE
        if is_in_place:
            yield node.func.value, True

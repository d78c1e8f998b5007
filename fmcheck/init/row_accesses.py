"""Accesses by rows: where the tree writes or gathers rows of a tensor by an index tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from fmcheck.init.kernel_parameters import uses
from fmcheck.init.tensors import looped_names
from fmcheck.lint.model.expressions import is_name, last_name, targets
from fmcheck.lint.model.relays import ROW_METHODS, ROW_WRITES
from fmcheck.lint.source.lazy import cst

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fmcheck.init.engine_tree import EngineTree, FunctionPlace
    from fmcheck.init.tensors import Tensor

#: Words of the names of indices that choose a request's row, and of those that choose else.
OF_REQUESTS = re.compile(
    r"(^|_)(req|reqs|request|requests|row|rows|seq|seqs|slot|slots|future|batch)(_|$)|idx_mapping"
)
_OTHER = re.compile(
    r"(^|_)(loc|locs|token|tokens|page|pages|block|blocks|layer|layers|expert|experts|cache|kv|lora|dim|head|heads|rank|vocab|col|cols|pos|positions)(_|$)|cache_loc"
)
#: Words of names that are plainly of several things.
_SEVERAL = re.compile(r"(indices|indexes|rows|slots|mapping|locs?|ids|idxs?|index|interval|mask)$")
_INDEX_CALLS = frozenset(("abs", "clamp", "flatten", "int", "long", "neg", "to", "view", "where"))
_NUMBERS = frozenset(("int", "str", "bool", "Optional[int]", "int | None"))


@dataclass(frozen=True)
class RowAccess:
    """Rows of the tensor `name` are written or read. `by` is a function that does it, if any."""

    name: str
    holder: str
    index: str
    is_write: bool
    place: FunctionPlace
    node: cst.CSTNode
    by: FunctionPlace | None = None
    parameter: str = ""

    @property
    def line(self) -> int:
        """The line on which it is."""
        return self.place.function.part.span(self.node).line

    @property
    def is_of_requests(self) -> bool:
        """Tells whether the index is one of requests' rows, by its name."""
        words = self.index.lower().replace(".", "_")
        return bool(OF_REQUESTS.search(words)) and not _OTHER.search(words)


@dataclass(frozen=True)
class Mentioned:
    """The attributes that a text writes or gathers by an index, hands to a function, or cuts."""

    written: frozenset[str]
    gathered: frozenset[str]
    handed: frozenset[str]
    cut: frozenset[tuple[str, str]]

    @property
    def all(self) -> frozenset[str]:
        """Those that may be accessed by rows."""
        return self.written | self.gathered | self.handed


_WRITTEN = re.compile(
    r"\.(\w+)\[\s*[A-Za-z_][\w.]*(?:\(\))?\s*\]\s*(?:=(?!=)|[-+*]=)|"
    r"\.(\w+)\.(?:index_(?:copy|fill|add|put)_|scatter_)\("
)
_GATHERED = re.compile(r"\.(\w+)\[\s*[A-Za-z_]|\.(\w+)\.(?:index_select|gather)\(")
_HANDED = re.compile(r"[(,=]\s*(?:\w+\.)+(\w+)(?=\s*[,)])")
_CUT = re.compile(r"(\w+)\.(\w+)\[\s*:\s*[\w(]")


@cache
def mentioned(text: str) -> Mentioned:
    """Returns what a text may do with the attributes that it names, without parsing it."""
    return Mentioned(
        written=frozenset(one or other for one, other in _WRITTEN.findall(text)),
        gathered=frozenset(one or other for one, other in _GATHERED.findall(text)),
        handed=frozenset(_HANDED.findall(text)),
        cut=frozenset(_CUT.findall(text)),
    )


def rows_of(tree: EngineTree, names: frozenset[str]) -> frozenset[str]:
    """Returns the names of attributes that may be accessed by rows."""
    every = [mentioned(source.text) for source in tree.sources]
    handed = frozenset().union(*(one.handed for one in every))
    written = handed.union(*(one.written for one in every))
    gathered = handed.union(*(one.gathered for one in every))
    return names & written & gathered


def is_cut(tree: EngineTree, tensor: Tensor, holders: frozenset[str]) -> bool:
    """Tells whether a tensor is cut, as `x[:n]`: it is in the order of a batch then."""
    for source in tree.sources:
        if tensor.name in source.text:
            own = holders | ({"self"} if source is tensor.place.source else set())
            if any(
                name == tensor.name and by.lstrip("_") in own
                for by, name in mentioned(source.text).cut
            ):
                return True
    return False


def accesses(tree: EngineTree, names: frozenset[str]) -> Iterator[RowAccess]:
    """Yields the accesses to tensors of these names, wherever the tree has them."""
    called: dict[str, Sequence[FunctionPlace]] = {}
    for source in tree.sources:
        here = names & mentioned(source.text).all
        if not here:
            continue
        for place in source.places((tuple(f".{name}" for name in sorted(here)),)):
            finder = _Finder(place, here)
            yield from finder.subscripts()
            for call in finder.handed():
                yield from _by_function(tree, finder, call, called)


class _Finder:
    """Finds the accesses of one function."""

    def __init__(self, place: FunctionPlace, names: frozenset[str]) -> None:
        self.place = place
        self._names = names
        self._looped = looped_names(place)
        self._written = {
            id(inner)
            for node in place.function.nodes
            for target in (
                *targets(node),
                *([node.target] if isinstance(node, cst.AugAssign) else ()),
            )
            for inner in _unpacked(target)
        }
        params = place.function.node.params
        self._numbers = {
            one.name.value
            for one in (*params.params, *params.kwonly_params, *params.posonly_params)
            if one.annotation is not None and place.code(one.annotation.annotation) in _NUMBERS
        }

    def subscripts(self) -> Iterator[RowAccess]:
        """Yields `x.name[rows]`, and the methods of a tensor that do the same."""
        for node in self.place.function.nodes:
            if isinstance(node, cst.Subscript) and len(node.slice) == 1:
                chosen = node.slice[0].slice
                if isinstance(chosen, cst.Index) and self._is_several(chosen.value):
                    yield from self._access(
                        node.value, chosen.value, id(node) in self._written, node
                    )
            elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                word = node.func.attr.value
                values = [one.value for one in node.args]
                if word in ROW_METHODS and len(values) > ROW_METHODS[word]:
                    index = values[ROW_METHODS[word]]
                    yield from self._access(node.func.value, index, word in ROW_WRITES, node)

    def handed(self) -> Iterator[cst.Call]:
        """Yields the calls that are handed one of the tensors."""
        for call in self.place.function.calls:
            if any(self.tensor(one.value) is not None for one in call.args):
                yield call

    def tensor(self, node: cst.CSTNode) -> cst.Attribute | None:
        """Returns the tensor that an argument is, by itself or by a name for it."""
        if isinstance(node, cst.Name):
            values = self.place.function.names.values(node.value)
            node = values[0] if len(values) == 1 else node
        if isinstance(node, cst.IfExp):
            node = node.body
        is_one = isinstance(node, cst.Attribute) and node.attr.value in self._names
        return node if isinstance(node, cst.Attribute) and is_one else None

    def _access(
        self, of: cst.CSTNode, index: cst.CSTNode, is_write: bool, node: cst.CSTNode
    ) -> Iterator[RowAccess]:
        if isinstance(of, cst.Name):
            values = self.place.function.names.values(of.value)
            of = values[0] if len(values) == 1 else of
        if isinstance(of, cst.Attribute) and of.attr.value in self._names:
            holder = self.place.code(of.value)
            yield RowAccess(of.attr.value, holder, self._index(index), is_write, self.place, node)

    def _index(self, node: cst.CSTNode) -> str:
        """Returns the source of an index, with where a bare name comes from."""
        text = self.place.code(node)
        if isinstance(node, cst.Name):
            values = self.place.function.names.values(node.value)
            if len(values) == 1 and isinstance(values[0], cst.Attribute):
                text = f"{text}.{values[0].attr.value}"
        return text

    def _is_several(self, index: cst.CSTNode) -> bool:
        """Tells whether an index may choose several rows: no number, string or loop's name does."""
        if isinstance(index, cst.Name):
            is_one = index.value in self._looped | self._numbers or index.value.isupper()
            return not is_one and index.value not in ("None", "i", "j", "k", "idx", "slot")
        if isinstance(index, cst.Attribute):
            return bool(_SEVERAL.search(index.attr.value))
        if isinstance(index, cst.Call):
            return last_name(index.func) in _INDEX_CALLS
        return False


def _by_function(
    tree: EngineTree, finder: _Finder, call: cst.Call, called: dict[str, Sequence[FunctionPlace]]
) -> Iterator[RowAccess]:
    """Yields what a function that is handed tensors and rows does with them."""
    word, place = last_name(call.func), finder.place
    receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
    if not word or (receiver is not None and is_name(receiver, "torch")):
        return
    if word not in called:
        called[word] = list(tree.defining(word))[:2]
        if not called[word] and receiver is not None and is_name(receiver, "self"):
            called[word] = list(_alike(tree, finder, call))
    for target in called[word]:
        given = arguments_of(call, target.function.parameters)
        for use in uses(tree, target) if given else ():
            held, rows = given.get(use.tensor), given.get(use.rows)
            tensor = finder.tensor(held) if held is not None else None
            if tensor is not None and rows is not None:
                yield RowAccess(
                    tensor.attr.value,
                    place.code(tensor.value),
                    f"{use.rows}.{place.code(rows)}",
                    use.is_write,
                    place,
                    call,
                    by=target,
                    parameter=use.tensor,
                )


def _alike(tree: EngineTree, finder: _Finder, call: cst.Call) -> Iterator[FunctionPlace]:
    """Yields the functions with parameters of the names that a call hands over.

    What is called may have been picked at run time: `self.gather(rows, self.tokens_buf)`.
    """
    handed = [finder.tensor(one.value) for one in call.args]
    wanted = [one.attr.value for one in handed if one is not None]
    for source in tree.sources if len(wanted) > 1 else ():
        if source.identifiers.issuperset(wanted):
            for place in source.places((("def ",), (wanted[0],))):
                parameters = place.function.parameters
                if not place.owner and set(wanted) <= set(parameters):
                    yield place


def arguments_of(call: cst.Call, parameters: Iterable[str]) -> Mapping[str, cst.BaseExpression]:
    """Returns what the parameters of a function are given by a call of it."""
    given: dict[str, cst.BaseExpression] = {}
    names = iter(parameters)
    for one in call.args:
        if one.star:
            break
        name = one.keyword.value if one.keyword is not None else next(names, "")
        given[name] = one.value
    return given


def _unpacked(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _unpacked(element.value)
    else:
        yield target


def of_class(
    found: Sequence[RowAccess], tensor: Tensor, holders: frozenset[str]
) -> Sequence[RowAccess]:
    """Returns the accesses to a tensor: by its own class, or by what holds an instance of it."""
    own = tensor.class_
    return [
        one
        for one in found
        if one.name == tensor.name
        and (one.place.class_ == own if one.holder == "self" else _last(one.holder) in holders)
    ]


def _last(holder: str) -> str:
    return holder.rpartition(".")[2].lstrip("_")

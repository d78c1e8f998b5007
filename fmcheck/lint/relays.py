"""Relays: which expressions of one function gather from relay buffers, and which write to them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.lint.block import walk
from fmcheck.lint.buffers import Names, squeezed
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import libcst
    from libcst import CSTNode

    from fmcheck.contract import Contract, Relay
    from fmcheck.lint.block import Block
    from fmcheck.lint.buffers import Region

#: A shorter last word that all buffers of a relay share says nothing.
LEAST_SUFFIX = 4
#: In-place methods that write rows, by the position of the rows.
_ROW_WRITES = {"index_copy_": 1, "index_fill_": 1, "index_add_": 1, "index_put_": 0}
_ROW_READS = {"index_select": 1}
_ROW_METHODS = _ROW_WRITES | _ROW_READS


@dataclass(frozen=True, slots=True)
class Access:
    """One gather from a relay buffer, or one write to it, by the rows `index`.

    `index` is the rows' source without spaces, names that stand for others replaced. `node` is the
    whole read, or the whole target. `value` is what is written, `bound` the text of what a gather
    is assigned to. `is_declared` is False for a buffer that only looks like its siblings.
    """

    buffer: str
    index: str
    node: CSTNode
    is_write: bool
    is_declared: bool = True
    is_opaque: bool = False
    value: CSTNode | None = None
    bound: tuple[str, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Tells whether one constant is written: rows are invalidated, or put back to a start."""
        value = self.value
        if isinstance(value, cst.UnaryOperation):
            value = value.expression
        if isinstance(value, cst.Name):
            return bool(value.value.isupper())
        return isinstance(value, (cst.Integer, cst.Float))


class Relays:
    """What the contracts declare of relays, as the rules ask for it."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self._relays = [relay for contract in contracts for relay in contract.relay]
        self._opaque = {
            function.rpartition(":")[2]: opaque
            for contract in contracts
            for opaque in contract.opaque
            for function in opaque.functions
        }
        self._holders = {_snake(relay.qualname.rpartition(".")[2]) for relay in self._relays}
        self._suffixes = {relay.class_: _suffix(relay) for relay in self._relays}
        self._files: dict[str, list[Relay]] = {}

    def needles(self) -> tuple[bytes, ...]:
        """Returns the names of the relay classes: of the class, and of what holds one."""
        names = {relay.qualname.rpartition(".")[2] for relay in self._relays}
        return tuple(name.encode() for name in sorted(names | {_snake(one) for one in names}))

    def anchors(self) -> tuple[bytes, ...]:
        """Returns the names of the buffers, without the marks of globs."""
        names = {buffer.name for relay in self._relays for buffer in relay.buffer}
        return tuple(sorted({name.strip("*?").encode() for name in names}))

    def of_file(self, path: str) -> Sequence[Relay]:
        """Returns the relays whose class this file defines."""
        found = self._files.get(path)
        if found is None:
            found = [relay for relay in self._relays if is_module(path, relay.module)]
            self._files[path] = found
        return found

    def peeks(self, path: str) -> frozenset[str]:
        """Returns the methods of this file's relays whose gathers do not consume."""
        return frozenset(name for relay in self.of_file(path) for name in relay.peeks)

    def declares(self, attribute: str) -> bool:
        """Tells whether a contract has a buffer of this name, whichever class it belongs to."""
        return any(self._is_declared(relay, attribute) for relay in self._relays)

    def tells_valid(self, attribute: str) -> bool:
        """Tells whether a contract says which values a buffer of this name may hold."""
        return any(
            buffer.matches(attribute) and buffer.valid
            for relay in self._relays
            for buffer in relay.buffer
        )

    def may_index(self, node: ast.AST, path: str, *contexts: type[ast.expr_context]) -> bool:
        """Tells whether a syntax tree may access rows of a declared buffer: to clear it cheaply.

        One is named, reached through what may hold it; and it, what it is assigned to or what looks
        like it is indexed in one of these `contexts`, or handed to a method or kernel that reads
        or writes rows.
        """
        inner = list(ast.walk(node))
        named = [one for one in inner if isinstance(one, ast.Attribute) and self.declares(one.attr)]
        if not named or not (self.of_file(path) or self._is_held(inner)):
            return False
        aliases = _aliases(inner, {one.attr for one in named})
        for one in inner:
            if isinstance(one, ast.Subscript):
                if isinstance(one.ctx, contexts) and not isinstance(one.slice, ast.Slice):
                    base = ast.walk(one.value)
                    if any(self._may_be_buffer(part, path, aliases) for part in base):
                        return True
            elif isinstance(one, (ast.Attribute, ast.Name)):
                word = one.attr if isinstance(one, ast.Attribute) else one.id
                if word in _ROW_METHODS or word in self._opaque:
                    return True
        return False

    def _is_held(self, nodes: Iterable[ast.AST]) -> bool:
        words = (getattr(one, "attr", getattr(one, "id", None)) for one in nodes)
        return any(isinstance(word, str) and word.lstrip("_") in self._holders for word in words)

    def _may_be_buffer(self, part: ast.AST, path: str, aliases: Collection[str]) -> bool:
        if isinstance(part, ast.Name):
            return part.id in aliases
        if not isinstance(part, ast.Attribute):
            return False
        own = self.of_file(path)
        return self.declares(part.attr) or any(self._looks_like(one, part.attr) for one in own)

    def may_write(self, nodes: Iterable[ast.AST]) -> bool:
        """Tells whether syntax trees may write rows of a declared buffer: to clear them cheaply."""
        for node in nodes:
            for one in ast.walk(node):
                if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
                    base = one.value
                    if not isinstance(base, ast.Attribute) or self.declares(base.attr):
                        return True
                elif isinstance(one, ast.Attribute) and one.attr in _ROW_WRITES:
                    return True
        return False

    def buffer(self, region: Region, path: str) -> bool | None:
        """Tells whether a region is a declared relay buffer; False if it only looks like one."""
        holder, _, attribute = region.path.rpartition(".")
        if not region.is_whole or not holder:
            return None
        own = self.of_file(path) if holder in ("self", "cls") else ()
        last = holder.rpartition(".")[2].lstrip("_")
        for relay in self._relays:
            is_held = last == _snake(relay.qualname.rpartition(".")[2])
            if (is_held or relay in own) and self._is_declared(relay, attribute):
                return True
        return False if any(self._looks_like(relay, attribute) for relay in own) else None

    def opaque_reads(self, name: str) -> str | None:
        """Returns the parameter that holds the rows of a kernel that gathers, by its name."""
        found = self._opaque.get(name)
        return found.rows if found is not None and found.reads else None

    def is_opaque(self, name: str) -> bool:
        """Tells whether a function of this name is a kernel that the contract declares."""
        return name in self._opaque

    def _is_declared(self, relay: Relay, attribute: str) -> bool:
        return any(buffer.matches(attribute) for buffer in relay.buffer)

    def _looks_like(self, relay: Relay, attribute: str) -> bool:
        suffix = self._suffixes[relay.class_]
        return bool(suffix) and attribute.endswith(suffix)


def _aliases(nodes: Iterable[ast.AST], attributes: Collection[str]) -> set[str]:
    """Returns the names that are assigned something with these attributes, through other names."""
    assigned: list[tuple[set[str], set[str]]] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            assigned.append((_words(*node.targets), _words(node.value)))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            assigned.append((_words(node.target), _words(node.value)))
        elif isinstance(node, (ast.For, ast.comprehension)):
            assigned.append((_words(node.target), _words(node.iter)))
    found = set(attributes)
    known = 0
    while known < len(found):
        known = len(found)
        for targets, words in assigned:
            if not words.isdisjoint(found):
                found |= targets
    return found


def _words(*nodes: ast.AST) -> set[str]:
    words = (
        getattr(one, "attr", getattr(one, "id", "")) for node in nodes for one in ast.walk(node)
    )
    return {word for word in words if word}


def is_module(path: str, module: str) -> bool:
    """Tells whether a file may be the module of this dotted name."""
    tail = module.replace(".", "/") + ".py"
    path = path.replace("\\", "/")
    return path == tail or path.endswith("/" + tail)


def functions(block: Block) -> Iterator[libcst.FunctionDef]:
    """Yields the functions and methods of a block, those nested in functions left out."""
    stack: list[CSTNode] = list(reversed(block.module.body))
    while stack:
        node = stack.pop()
        if isinstance(node, cst.FunctionDef):
            yield node
        elif isinstance(node, (cst.ClassDef, cst.If, cst.Else, cst.Try)):
            for name in ("orelse", "body"):
                suite = getattr(node, name, None)
                inner = getattr(suite, "body", ()) if name == "body" else (suite,)
                stack.extend(reversed([one for one in inner if one is not None]))


class Accesses:
    """The gathers and writes of relay buffers in one function, in source order.

    Buffers that only look like declared ones count where a declared one is named beside them.
    """

    def __init__(self, function: libcst.FunctionDef, block: Block, relays: Relays) -> None:
        self.function = function
        self._block = block
        self._relays = relays
        self.names = Names(function, block)
        self._written: dict[CSTNode, CSTNode | None] = {}
        self._bound: dict[CSTNode, tuple[str, ...]] = {}
        self._calls: list[libcst.Call] = []
        subscripts: list[libcst.Subscript] = []
        self._is_told = False
        for node in walk(function):
            if isinstance(node, cst.Attribute) and relays.declares(node.attr.value):
                self._is_told = True
            if isinstance(node, cst.Subscript):
                subscripts.append(node)
            elif isinstance(node, cst.Call):
                self._calls.append(node)
            self._note(node)
        found = [access for node in subscripts for access in self._subscript(node)]
        found += [access for node in self._calls for access in self._call(node)]
        order = {id(node): number for number, node in enumerate(walk(function))}
        self.all: Sequence[Access] = sorted(found, key=lambda one: order[id(one.node)])

    @property
    def gathers(self) -> Sequence[Access]:
        """The reads of rows."""
        return [one for one in self.all if not one.is_write]

    @property
    def writes(self) -> Sequence[Access]:
        """The writes of rows."""
        return [one for one in self.all if one.is_write]

    @property
    def calls(self) -> Sequence[libcst.Call]:
        """Every call of the function."""
        return self._calls

    def guards(self, index: str) -> Iterator[libcst.Call]:
        """Yields the calls that are handed a relay buffer and these rows, and are no gather."""
        for call in self._calls:
            if last_name(call.func) in _ROW_WRITES or self._relays.is_opaque(last_name(call.func)):
                continue
            values = [argument.value for argument in call.args]
            if any(self._is_relay(one) for one in values) and any(
                self.index_text(one) == index for one in values
            ):
                yield call

    def index_text(self, node: CSTNode) -> str:
        """Returns the source of an index, a name that stands for one other thing replaced by it."""
        seen: set[str] = set()
        while isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            values = self.names.values(node.value)
            if len(values) != 1 or not isinstance(values[0], (cst.Name, cst.Attribute)):
                break
            node = values[0]
        return squeezed(self._block.code(node))

    def _note(self, node: CSTNode) -> None:
        if isinstance(node, cst.Assign):
            targets = [target.target for target in node.targets]
            for target in targets:
                for inner in _unpacked(target):
                    self._written[inner] = node.value
            self._bind(node.value, targets)
        elif isinstance(node, (cst.AugAssign, cst.AnnAssign)):
            self._written[node.target] = node.value
            if node.value is not None:
                self._bind(node.value, [node.target])
        elif isinstance(node, cst.Del):
            self._written[node.target] = None

    def _bind(self, value: CSTNode, targets: Iterable[CSTNode]) -> None:
        texts = tuple(squeezed(self._block.code(target)) for target in targets)
        for inner in walk(value):
            self._bound[inner] = texts

    def _subscript(self, node: libcst.Subscript) -> Iterator[Access]:
        index = node.slice[0].slice if node.slice else None
        if not isinstance(index, cst.Index) or _is_one_row(index.value):
            return
        is_write = node in self._written
        if is_write and self._written[node] is None:
            return
        for buffer, declared in self._relay_buffers(node.value):
            yield Access(
                buffer,
                self.index_text(index.value),
                node,
                is_write,
                declared,
                value=self._written.get(node),
                bound=self._bound.get(node, ()),
            )

    def _call(self, call: libcst.Call) -> Iterator[Access]:
        word = last_name(call.func)
        values = [argument.value for argument in call.args]
        if isinstance(call.func, cst.Attribute) and word in _ROW_METHODS:
            position = _ROW_METHODS[word]
            if len(values) > position:
                value = values[-1] if word in _ROW_WRITES else None
                for buffer, declared in self._relay_buffers(call.func.value):
                    yield Access(
                        buffer,
                        self.index_text(values[position]),
                        call,
                        word in _ROW_WRITES,
                        declared,
                        value=value,
                        bound=self._bound.get(call, ()),
                    )
        rows = self._relays.opaque_reads(word)
        if rows is not None:
            index = self._rows_of(call, rows)
            for value in values:
                for buffer, declared in self._relay_buffers(value):
                    bound = self._bound.get(call, ())
                    yield Access(buffer, index, call, False, declared, is_opaque=True, bound=bound)

    def _rows_of(self, call: libcst.Call, rows: str) -> str:
        """Returns the rows that a kernel is handed: by keyword, or the first that is no buffer."""
        for argument in call.args:
            if argument.keyword is not None and argument.keyword.value == rows:
                return self.index_text(argument.value)
        others = [one.value for one in call.args if not self._is_relay(one.value)]
        return self.index_text(others[0]) if others else ""

    def _is_relay(self, node: CSTNode) -> bool:
        return any(True for _ in self._relay_buffers(node))

    def _relay_buffers(self, node: CSTNode) -> Iterator[tuple[str, bool]]:
        found: dict[str, bool] = {}
        for region in self.names.regions(node):
            declared = self._relays.buffer(region, self._block.path)
            if declared or (declared is False and self._is_told):
                found[region.leaf] = bool(declared)
        yield from found.items()


def last_name(node: CSTNode) -> str:
    """Returns the last part of what is called: `f` of `a.b().f`."""
    if isinstance(node, cst.Attribute):
        return str(node.attr.value)
    return dotted(node) or ""


def parents(function: CSTNode, kind: type[CSTNode]) -> Mapping[int, CSTNode]:
    """Returns the innermost node of a kind above each node, by the `id` of the node."""
    found: dict[int, CSTNode] = {}
    for outer in walk(function):
        if isinstance(outer, kind):
            for inner in walk(outer):
                if inner is not outer:
                    found[id(inner)] = outer
    return found


def _unpacked(target: CSTNode) -> Iterator[CSTNode]:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _unpacked(element.value)
    else:
        yield target


def _is_one_row(index: CSTNode) -> bool:
    if isinstance(index, cst.UnaryOperation):
        index = index.expression
    return isinstance(index, (cst.Integer, cst.SimpleString, cst.Ellipsis)) or (
        isinstance(index, cst.Name) and index.value == "None"
    )


def _snake(name: str) -> str:
    """Returns the name that an instance of a class commonly has: `future_map` for `FutureMap`."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).lstrip("_")


def _suffix(relay: Relay) -> str:
    """Returns the last word that all buffer names of a relay share, as `_buf`, or ""."""
    names = [buffer.name for buffer in relay.buffer if not buffer.is_glob]
    endings = {name[name.rfind("_") :] if "_" in name else "" for name in names}
    ending = endings.pop() if len(names) > 1 and len(endings) == 1 else ""
    return ending if len(ending) >= LEAST_SUFFIX else ""

"""The walk over the nodes of a tree, in the order of the source.

It leaves out what says nothing to a rule: white space, comments, brackets, commas, operators.
"""

from __future__ import annotations

from typing import TypeVar

from fmcheck.lint.source.lazy import cst

T = TypeVar("T", bound="cst.CSTNode")

#: Fields that hold no node a rule asks for.
_BARE = frozenset(
    (
        *("asynchronous", "comma", "colon", "comment", "default_indent", "default_newline", "dot"),
        *("encoding", "equal", "first_colon", "footer", "has_trailing_newline", "header", "indent"),
        *("lbrace", "lbracket", "leading_lines", "lines_after_decorators", "lpar", "newline"),
        *("open_curly", "operator", "posonly_ind", "rbrace", "rbracket", "relative", "rpar"),
        *("second_colon", "semicolon", "separator", "star", "trailing_whitespace", "value_", "bar"),
        *("conversion", "end", "start", "has_default_indent", "lines_after_module_docstring"),
    )
)
#: Where the order of the fields is not that of the source.
_ORDER = {
    "FunctionDef": ("decorators", "name", "type_parameters", "params", "returns", "body"),
    "ClassDef": ("decorators", "name", "type_parameters", "bases", "keywords", "body"),
    "Parameters": ("posonly_params", "params", "star_arg", "kwonly_params", "star_kwarg"),
    "IfExp": ("body", "test", "orelse"),
    "Arg": ("keyword", "value"),
    "ImportFrom": ("module", "names"),
    "ExceptHandler": ("type", "name", "body"),
    "ExceptStarHandler": ("type", "name", "body"),
    "MatchCase": ("pattern", "guard", "body"),
    "Module": ("body",),
    "SimpleStatementSuite": ("body",),
    "IndentedBlock": ("body",),
    "If": ("test", "body", "orelse"),
    "Name": (),
    "Integer": (),
    "Float": (),
    "Imaginary": (),
    "SimpleString": (),
    "Slice": ("lower", "upper", "step"),
    "MatchMapping": ("elements", "rest"),
}
#: The fields of each class of nodes that hold others, as the classes were met.
_FIELDS: dict[type[cst.CSTNode], tuple[str, ...]] = {}
#: The classes of what fields hold beside nodes, as they were met.
_NO_NODES: set[type] = {type(None)}


def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Returns the fields of a class of nodes that hold others, in the order of the source."""
    found = _ORDER.get(kind.__name__)
    if found is None:
        from dataclasses import fields  # slow, and libcst has imported it by now

        names = (one.name for one in fields(kind) if not one.name.startswith("whitespace"))
        found = tuple(name for name in names if name not in _BARE)
    _FIELDS[kind] = found
    return found


def walk(root: cst.CSTNode) -> list[cst.CSTNode]:
    """Returns `root` and all below it in the order of the source."""
    found: list[cst.CSTNode] = []
    stack: list[cst.CSTNode] = [root]
    pop, add, known = stack.pop, found.append, _FIELDS
    while stack:
        node = pop()
        add(node)
        kind = node.__class__
        names = known.get(kind)
        if names is None:
            names = _fields(kind)
        if names:
            below: list[cst.CSTNode] = []
            for name in names:
                value = getattr(node, name)
                # By class: to ask `isinstance` of libcst's abstract ones takes three times as long.
                if value.__class__ in known:
                    below.append(value)
                elif value.__class__ is list or value.__class__ is tuple:
                    below += value
                elif value.__class__ not in _NO_NODES and _is_node(value):
                    below.append(value)
            below.reverse()
            stack += below
    return found


def _is_node(value: object) -> bool:
    """Tells a node of a class that was not met yet from what is no node."""
    kind = value.__class__
    if issubclass(kind, cst.CSTNode):
        _fields(kind)
        return True
    _NO_NODES.add(kind)
    return False


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Returns the nodes right below another one, in the order of the source."""
    names = _FIELDS.get(node.__class__)
    found: list[cst.CSTNode] = []
    for name in _fields(node.__class__) if names is None else names:
        value = getattr(node, name)
        if value.__class__ in _FIELDS:
            found.append(value)
        elif value.__class__ is tuple or value.__class__ is list:
            found += value
        elif value.__class__ not in _NO_NODES and _is_node(value):
            found.append(value)
    return found


def below(root: cst.CSTNode, kind: type[T]) -> list[T]:
    """Returns the nodes of one class at and below `root`, in the order of the source."""
    return [node for node in walk(root) if isinstance(node, kind)]

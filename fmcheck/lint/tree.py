"""The syntax tree that rules look at: libcst's nodes by name and by field, without their spaces.

Nodes are made from `ast` (`grow.py`), in a tenth of libcst's time and without importing it, which
costs more than linting most files. What `ast` cannot parse libcst does, and `grow.py` copies it.

Left out is what says nothing: whitespace, commas, brackets, dots. Type checkers are told that this
module is libcst, so a field that libcst's node does not have is found there; see `lazy.py`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Order(list["CSTNode"]):
    """All nodes of a tree in source order; `owner` knows their places."""

    owner: Any = None


class CSTNode:
    """A node. `at` is where it stands, as `places.py` knows it; identity is equality.

    `first` and `last` are the stretch of `order`, all nodes of its tree in source order, that the
    node and all below it take.
    """

    fields: tuple[str, ...] = ()
    at: Any = None
    order: Order = Order()
    first = last = 0

    def __init__(self, at: Any = None, **fields: Any) -> None:
        vars(self).update(fields)
        self.at = at

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def children(self) -> Sequence[CSTNode]:
        """The nodes directly below this one."""
        found: list[CSTNode] = []
        for name in self.fields:
            value = getattr(self, name)
            if isinstance(value, CSTNode):
                found.append(value)
            elif value.__class__ is tuple:
                found += value
        return found


class BaseExpression(CSTNode):
    """Anything that has a value."""


class BaseSmallStatement(CSTNode):
    """A statement that may share its line with others."""


class BaseCompoundStatement(CSTNode):
    """A statement that holds others."""


class BaseSuite(CSTNode):
    """The statements that a compound one holds."""

    fields = ("body",)


class SimpleString(BaseExpression):
    """One literal of text or bytes; `value` is its source."""

    @property
    def evaluated_value(self) -> str | bytes:
        """What it stands for."""
        found = ast.literal_eval(self.value)
        assert isinstance(found, (str, bytes))
        return found


#: The other nodes by their base, each with the fields that hold nodes, in libcst's order.
_EXPRESSIONS = """
Name; Integer; Float; Imaginary; Ellipsis; FormattedString parts; ConcatenatedString left right
Comparison left comparisons; UnaryOperation operator expression; BinaryOperation left operator right
BooleanOperation left operator right; Attribute value attr; Subscript value slice
Lambda params body; Call func args; Await expression; IfExp test body orelse; Yield value
Tuple elements; List elements; Set elements; Dict elements; GeneratorExp elt for_in
ListComp elt for_in; SetComp elt for_in; DictComp key value for_in; NamedExpr target value
StarredElement value
"""
_SMALL = """
Del target; Return value; Expr value; Import names; ImportFrom module names relative
Assign targets value; AnnAssign target annotation value; AugAssign target operator value
Raise exc cause; Assert test msg; Global names; Nonlocal names; Pass; Break; Continue
TypeAlias name value
"""
_COMPOUND = """
If test body orelse; Try body handlers orelse finalbody; TryStar body handlers orelse finalbody
FunctionDef name params body decorators returns asynchronous; With items body asynchronous
ClassDef name body bases keywords decorators; For target iter body orelse asynchronous
While test body orelse; Match subject cases
"""
_SUITES = "IndentedBlock body; SimpleStatementSuite body"
_OTHERS = """
Module body; FormattedStringText; FormattedStringExpression expression format_spec
ComparisonTarget operator comparator; Index value; Slice lower upper step; SubscriptElement slice
Annotation annotation; Param name annotation default; ParamStar; ParamSlash
Parameters params star_arg kwonly_params star_kwarg posonly_params posonly_ind; Arg value keyword
From item; Element value; DictElement key value; StarredDictElement value
CompFor target iter ifs inner_for_in asynchronous; CompIf test; SimpleStatementLine body; Else body
AsName name; ExceptHandler body type name; ExceptStarHandler body type name; Finally body
ImportAlias name asname; ImportStar; Dot; AssignTarget target; Decorator decorator; Asynchronous
WithItem item asname; NameItem name; MatchCase pattern body guard; MatchValue value
MatchSingleton value; MatchSequenceElement value; MatchStar name; MatchList patterns
MatchTuple patterns; MatchMappingElement key pattern; MatchMapping elements rest
MatchKeywordElement key pattern; MatchClass cls patterns kwds; MatchAs pattern name
MatchOrElement pattern; MatchOr patterns; Unknown parts
And; Or; Not; Invert; Plus; Minus; BitInvert
Add; Subtract; Multiply; Divide; FloorDivide; Modulo; Power; MatrixMultiply
LeftShift; RightShift; BitAnd; BitOr; BitXor
AddAssign; SubtractAssign; MultiplyAssign; DivideAssign; FloorDivideAssign; ModuloAssign
PowerAssign; MatrixMultiplyAssign; LeftShiftAssign; RightShiftAssign; BitAndAssign; BitOrAssign
BitXorAssign; Equal; NotEqual; LessThan; LessThanEqual; GreaterThan; GreaterThanEqual; Is; IsNot
In; NotIn
"""


def _declare() -> Iterator[tuple[str, type[CSTNode]]]:
    bases: tuple[tuple[str, type[CSTNode]], ...] = (
        (_EXPRESSIONS, BaseExpression),
        (_SMALL, BaseSmallStatement),
        (_COMPOUND, BaseCompoundStatement),
        (_SUITES, BaseSuite),
        (_OTHERS, CSTNode),
    )
    for table, base in bases:
        for line in table.replace(";", "\n").split("\n"):
            if line.strip():
                name, *fields = line.split()
                yield name, type(name, (base,), {"fields": tuple(fields), "__module__": __name__})


globals().update(_declare())


if TYPE_CHECKING:

    def __getattr__(name: str) -> type[Any]: ...


def walk(root: CSTNode) -> Sequence[CSTNode]:
    """Returns `root` and all below it in source order."""
    return root.order[root.first : root.last] if root.last else (root,)

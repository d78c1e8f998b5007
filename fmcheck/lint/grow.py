"""Growing the tree that rules look at: out of `ast`, or out of libcst's for newer grammar."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree
from fmcheck.lint.literals import opening, pieces, placeholders
from fmcheck.lint.places import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fmcheck.lint.literals import Placeholder
    from fmcheck.lint.tree import CSTNode

#: Deeper than `engine.MOST_DEPTH` nothing gets here; each level takes two or three calls.
_DEEPEST = 4000

_OPERATORS = {
    ast.And: "And", ast.Or: "Or", ast.Not: "Not", ast.Invert: "BitInvert", ast.UAdd: "Plus",
    ast.USub: "Minus", ast.Add: "Add", ast.Sub: "Subtract", ast.Mult: "Multiply",
    ast.Div: "Divide", ast.FloorDiv: "FloorDivide", ast.Mod: "Modulo", ast.Pow: "Power",
    ast.MatMult: "MatrixMultiply", ast.LShift: "LeftShift", ast.RShift: "RightShift",
    ast.BitAnd: "BitAnd", ast.BitOr: "BitOr", ast.BitXor: "BitXor", ast.Eq: "Equal",
    ast.NotEq: "NotEqual", ast.Lt: "LessThan", ast.LtE: "LessThanEqual", ast.Gt: "GreaterThan",
    ast.GtE: "GreaterThanEqual", ast.Is: "Is", ast.IsNot: "IsNot", ast.In: "In",
    ast.NotIn: "NotIn",
}  # fmt: skip
#: Operators say nothing but their class: one node of each will do.
_SIGNS = {kind: getattr(tree, name)() for kind, name in _OPERATORS.items()}
_AUGMENTED = {
    kind: getattr(tree, f"{name}Assign")()
    for kind, name in _OPERATORS.items()
    if hasattr(tree, f"{name}Assign")
}
_ASYNC, _STAR, _SLASH = tree.Asynchronous(), tree.ParamStar(), tree.ParamSlash()
_DOT, _ALL = tree.Dot(), tree.ImportStar()
_NAMES = ("FunctionDef", "AsyncFunctionDef", "ClassDef", "If", "For", "AsyncFor", "While", "With")
_COMPOUND = tuple(
    getattr(ast, name)
    for name in (*_NAMES, "AsyncWith", "Try", "TryStar", "Match")
    if hasattr(ast, name)
)


class Tree:
    """A tree grown out of `ast`, and where its nodes stand in `text`.

    The lines of `parsed` are by `moved` further down than those of the text.
    """

    def __init__(self, parsed: ast.Module, text: str, moved: int = 0) -> None:
        self.places = Places(text, parsed, moved)
        self.order = tree.Order()
        self.order.owner = self
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, _DEEPEST))
        try:
            first = self._open()
            statements = self._statements(parsed.body)
        finally:
            sys.setrecursionlimit(before)
        self.module = self._close(first, tree.Module, None, body=statements)

    def span(self, node: CSTNode) -> tuple[int, int, int, int]:
        """Returns first line and column and last line and column of a node, from 1."""
        start, end = self.places.of(node)
        return (*self.places.line_and_column(start), *self.places.line_and_column(end))

    def code(self, node: CSTNode) -> str:
        """Returns the source of a node."""
        return self.places.code(node)

    def _open(self) -> int:
        """Keeps a node's place in the order; what is opened next is below it."""
        self.order.append(_DOT)
        return len(self.order) - 1

    def _close(self, first: int, kind: type[CSTNode], at: Any, **fields: Any) -> CSTNode:
        """Makes the node of a place that was kept. Its fields come in the order of the class."""
        node = object.__new__(kind)
        order = self.order
        fields["at"], fields["first"], fields["last"] = at, first, len(order)
        fields["order"] = order
        node.__dict__ = fields
        order[first] = node
        return node

    def _leaf(self, kind: type[CSTNode], at: Any, **fields: Any) -> CSTNode:
        self.order.append(_DOT)
        return self._close(len(self.order) - 1, kind, at, **fields)

    def _sign(self, node: CSTNode) -> CSTNode:
        self.order.append(node)
        return node

    def _name(self, value: str, at: Any) -> CSTNode:
        """Grows a name that is no expression, so that brackets around it are not its own."""
        return self._leaf(tree.Name, at, value=value, bare=1)

    def _one(self, node: ast.AST) -> CSTNode:
        return _GROWN[node.__class__](self, node)

    def _maybe(self, node: ast.AST | None) -> CSTNode | None:
        return None if node is None else _GROWN[node.__class__](self, node)

    def _all(self, nodes: Iterable[ast.AST]) -> tuple[CSTNode, ...]:
        return tuple([_GROWN[node.__class__](self, node) for node in nodes])

    def _wrapped(self, kind: type[CSTNode], field: str, node: ast.AST | None) -> CSTNode | None:
        """Grows a node that does nothing but hold another one."""
        if node is None:
            return None
        first = self._open()
        held = self._one(node)
        return self._close(first, kind, (held, held), **{field: held})

    # Expressions.

    def _identifier(self, node: ast.Name) -> CSTNode:
        return self._leaf(tree.Name, node, value=node.id)

    def _constant(self, node: ast.Constant) -> CSTNode:
        value = node.value
        if value is None or value is True or value is False:
            return self._leaf(tree.Name, node, value=str(value))
        if value is ...:
            return self._leaf(tree.Ellipsis, node)
        text = self.places.text_at(node)
        if isinstance(value, (str, bytes)):
            return self._string(node, text)
        kind = {int: tree.Integer, float: tree.Float}.get(value.__class__, tree.Imaginary)
        return self._leaf(kind, node, value=text)

    def _string(self, node: ast.Constant | ast.JoinedStr, text: str) -> CSTNode:
        parts = pieces(text)
        if len(parts) == 1:
            return self._piece(node, text, 0)
        if not parts:
            assert isinstance(node, ast.JoinedStr)
            return self._joined_newer(node)
        # "a" "b" "c" is "a" before what "b" before "c" is.
        start, _ = self.places.of(node)
        opened = []
        for at, part in parts[:-1]:
            first = self._open()
            opened.append((first, at, self._piece(None, part, start + at)))
        at, part = parts[-1]
        right = self._piece(None, part, start + at)
        for first, at, left in reversed(opened):
            place = (start + at, start + len(text))
            right = self._close(first, tree.ConcatenatedString, place, left=left, right=right)
        return right

    def _piece(self, node: ast.expr | None, text: str, start: int) -> CSTNode:
        """Grows one literal: that of a `node`, or one at an offset."""
        at: Any = (start, start + len(text)) if node is None else node
        prefix, begin, end = opening(text)
        if "f" not in prefix:
            return self._leaf(tree.SimpleString, at, value=text)
        if sys.version_info >= (3, 12) and isinstance(node, ast.JoinedStr):
            return self._joined_newer(node)
        first = self._open()
        start = start if node is None else self.places.of(node)[0]
        parts = self._fields(text[begin:end], start + begin, "r" in prefix)
        return self._close(first, tree.FormattedString, at, parts=parts)

    def _joined(self, node: ast.JoinedStr) -> CSTNode:
        return self._string(node, self.places.text_at(node))

    def _joined_newer(self, node: ast.JoinedStr) -> CSTNode:
        """Grows formatted text where `ast` knows where the parts stand: from 3.12 on."""
        first = self._open()
        parts = tuple(
            self._text(one) if isinstance(one, ast.Constant) else self._one(one)
            for one in node.values
        )
        return self._close(first, tree.FormattedString, node, parts=parts)

    def _text(self, node: ast.Constant) -> CSTNode:
        return self._leaf(tree.FormattedStringText, node, value=node.value)

    def _formatted(self, node: ast.FormattedValue) -> CSTNode:
        first = self._open()
        expression = self._one(node.value)
        spec = node.format_spec
        parts = None
        if isinstance(spec, ast.JoinedStr):
            parts = tuple(
                self._text(one) if isinstance(one, ast.Constant) else self._one(one)
                for one in spec.values
            )
        return self._close(
            first, tree.FormattedStringExpression, node, expression=expression, format_spec=parts
        )

    def _fields(self, text: str, start: int, is_raw: bool) -> tuple[CSTNode, ...]:
        """Grows the content of a formatted literal: up to 3.11, where `ast` errs about places."""
        return tuple([self._field(one, start, is_raw) for one in placeholders(text, is_raw)])

    def _field(self, part: str | Placeholder, start: int, is_raw: bool) -> CSTNode:
        if isinstance(part, str):
            return self._leaf(tree.FormattedStringText, None, value=part)
        first = self._open()
        expression = self._one(self.places.parsed(part.code, start + part.start))
        spec = None
        if part.spec is not None:
            spec = self._fields(part.spec, start + part.spec_start, is_raw)
        return self._close(
            first, tree.FormattedStringExpression, (expression, expression),
            expression=expression, format_spec=spec,
        )  # fmt: skip

    def _attribute(self, node: ast.Attribute) -> CSTNode:
        first = self._open()
        value = self._one(node.value)
        attr = self._name(node.attr, (node, len(node.attr)))
        return self._close(first, tree.Attribute, node, value=value, attr=attr)

    def _subscript(self, node: ast.Subscript) -> CSTNode:
        first = self._open()
        value = self._one(node.value)
        inner = node.slice
        is_list = isinstance(inner, ast.Tuple) and not self.places.has_own_brackets(inner)
        parts = inner.elts if isinstance(inner, ast.Tuple) and is_list else [inner]
        elements = tuple([self._element_of_subscript(one) for one in parts])
        return self._close(first, tree.Subscript, node, value=value, slice=elements)

    def _element_of_subscript(self, node: ast.expr) -> CSTNode:
        first = self._open()
        if isinstance(node, ast.Slice):
            inner = self._open()
            lower, upper = self._maybe(node.lower), self._maybe(node.upper)
            step = self._maybe(node.step)
            held = self._close(inner, tree.Slice, node, lower=lower, upper=upper, step=step)
        else:
            inner = self._open()
            star = "*" if isinstance(node, ast.Starred) else None
            value = self._one(node.value if isinstance(node, ast.Starred) else node)
            held = self._close(inner, tree.Index, (value, value), value=value, star=star)
        return self._close(first, tree.SubscriptElement, (held, held), slice=held)

    def _call(self, node: ast.Call) -> CSTNode:
        first = self._open()
        func = self._one(node.func)
        args = self._arguments(node.args, node.keywords)
        return self._close(first, tree.Call, node, func=func, args=args)

    def _arguments(
        self, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> tuple[CSTNode, ...]:
        given: list[ast.expr | ast.keyword] = [*args, *keywords]
        if args and keywords and _place(args[-1]) > _place(keywords[0]):
            given.sort(key=_place)
        found = tuple([self._argument(one) for one in given])
        if len(found) == 1 and not found[0].star and found[0].keyword is None:
            # The call's own brackets are not those of its one argument.
            found[0].value.bare = 1
        return found

    def _argument(self, node: ast.expr | ast.keyword) -> CSTNode:
        first = self._open()
        star = ""
        held: ast.expr
        if isinstance(node, ast.keyword):
            held, star = node.value, "" if node.arg else "**"
        elif isinstance(node, ast.Starred):
            held, star = node.value, "*"
        else:
            held = node
        value = self._one(held)
        keyword = None
        if isinstance(node, ast.keyword) and node.arg:
            start, _ = self.places.of(node)
            keyword = self._name(node.arg, (start, start + len(node.arg)))
        return self._close(
            first, tree.Arg, node if star or keyword else (value, value),
            value=value, keyword=keyword, star=star,
        )  # fmt: skip

    def _comparison(self, node: ast.Compare) -> CSTNode:
        first = self._open()
        left = self._one(node.left)
        found = []
        for sign, right in zip(node.ops, node.comparators, strict=True):
            target = self._open()
            operator = self._sign(_SIGNS[sign.__class__])
            comparator = self._one(right)
            found.append(
                self._close(
                    target, tree.ComparisonTarget, (comparator, comparator),
                    operator=operator, comparator=comparator,
                )
            )  # fmt: skip
        return self._close(first, tree.Comparison, node, left=left, comparisons=tuple(found))

    def _unary(self, node: ast.UnaryOp) -> CSTNode:
        first = self._open()
        operator = self._sign(_SIGNS[node.op.__class__])
        expression = self._one(node.operand)
        return self._close(
            first, tree.UnaryOperation, node, operator=operator, expression=expression
        )

    def _binary(self, node: ast.BinOp) -> CSTNode:
        first = self._open()
        left = self._one(node.left)
        operator = self._sign(_SIGNS[node.op.__class__])
        right = self._one(node.right)
        return self._close(
            first, tree.BinaryOperation, node, left=left, operator=operator, right=right
        )

    def _boolean(self, node: ast.BoolOp) -> CSTNode:
        # `a and b and c` is one node of `ast`, and here (a and b) and c.
        sign = _SIGNS[node.op.__class__]
        opened = [self._open() for _ in node.values[1:]]
        left = start = self._one(node.values[0])
        for first, value in zip(reversed(opened), node.values[1:], strict=True):
            operator, right = self._sign(sign), self._one(value)
            at = node if value is node.values[-1] else (start, right)
            left = self._close(
                first, tree.BooleanOperation, at, left=left, operator=operator, right=right
            )
        return left

    def _lambda(self, node: ast.Lambda) -> CSTNode:
        first = self._open()
        params, body = self._parameters(node.args), self._one(node.body)
        return self._close(first, tree.Lambda, node, params=params, body=body)

    def _parameters(self, given: ast.arguments) -> CSTNode:
        first = self._open()
        usual = [*given.posonlyargs, *given.args]
        missing: list[ast.expr | None] = [None] * (len(usual) - len(given.defaults))
        defaults = [*missing, *given.defaults]
        split = len(given.posonlyargs)
        pairs = list(zip(usual, defaults, strict=True))
        params = tuple([self._param(one, value) for one, value in pairs[split:]])
        star_arg: CSTNode | None = None
        if given.vararg is not None:
            star_arg = self._param(given.vararg, None, "*")
        elif given.kwonlyargs:
            star_arg = self._sign(_STAR)
        kwonly = tuple(
            [
                self._param(one, value)
                for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            ]
        )
        star_kwarg = None if given.kwarg is None else self._param(given.kwarg, None, "**")
        posonly = tuple([self._param(one, value) for one, value in pairs[:split]])
        slash = self._sign(_SLASH) if posonly else None
        return self._close(
            first, tree.Parameters, None,
            params=params, star_arg=star_arg, kwonly_params=kwonly, star_kwarg=star_kwarg,
            posonly_params=posonly, posonly_ind=slash,
        )  # fmt: skip

    def _param(self, node: ast.arg, default: ast.expr | None, star: str = "") -> CSTNode:
        first = self._open()
        start, _ = self.places.of(node)
        name = self._name(node.arg, (start, start + len(node.arg)))
        annotation = self._wrapped(tree.Annotation, "annotation", node.annotation)
        value = self._maybe(default)
        return self._close(
            first, tree.Param, (name, value) if value else node,
            name=name, annotation=annotation, default=value, star=star,
        )  # fmt: skip

    def _await(self, node: ast.Await) -> CSTNode:
        first = self._open()
        return self._close(first, tree.Await, node, expression=self._one(node.value))

    def _if_else(self, node: ast.IfExp) -> CSTNode:
        first = self._open()
        # In libcst's order of fields, which is not that of the source.
        test, body, orelse = self._one(node.test), self._one(node.body), self._one(node.orelse)
        return self._close(first, tree.IfExp, node, test=test, body=body, orelse=orelse)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> CSTNode:
        first = self._open()
        is_from = isinstance(node, ast.YieldFrom)
        value = self._wrapped(tree.From, "item", node.value) if is_from else self._maybe(node.value)
        return self._close(first, tree.Yield, node, value=value)

    def _elements(self, nodes: Iterable[ast.expr]) -> tuple[CSTNode, ...]:
        found = []
        for node in nodes:
            first = self._open()
            is_starred = isinstance(node, ast.Starred)
            value = self._one(node.value if isinstance(node, ast.Starred) else node)
            kind = tree.StarredElement if is_starred else tree.Element
            at = node if is_starred else (value, value)
            found.append(self._close(first, kind, at, value=value))
        return tuple(found)

    def _display(self, node: ast.Tuple | ast.List | ast.Set) -> CSTNode:
        kind = {ast.Tuple: tree.Tuple, ast.List: tree.List, ast.Set: tree.Set}[node.__class__]
        first = self._open()
        return self._close(first, kind, node, elements=self._elements(node.elts))

    def _starred(self, node: ast.Starred) -> CSTNode:
        first = self._open()
        return self._close(first, tree.StarredElement, node, value=self._one(node.value))

    def _dict(self, node: ast.Dict) -> CSTNode:
        first = self._open()
        found = []
        for key, value in zip(node.keys, node.values, strict=True):
            element = self._open()
            if key is None:
                held = self._one(value)
                found.append(
                    self._close(element, tree.StarredDictElement, (held, held), value=held)
                )
            else:
                left, right = self._one(key), self._one(value)
                found.append(
                    self._close(element, tree.DictElement, (left, right), key=left, value=right)
                )
        return self._close(first, tree.Dict, node, elements=tuple(found))

    def _comprehension(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> CSTNode:
        kind = getattr(tree, node.__class__.__name__)
        first = self._open()
        elt = self._one(node.elt)
        return self._close(first, kind, node, elt=elt, for_in=self._for_in(node.generators))

    def _dict_comprehension(self, node: ast.DictComp) -> CSTNode:
        first = self._open()
        key, value = self._one(node.key), self._one(node.value)
        for_in = self._for_in(node.generators)
        return self._close(first, tree.DictComp, node, key=key, value=value, for_in=for_in)

    def _for_in(self, given: Sequence[ast.comprehension]) -> CSTNode | None:
        if not given:
            return None
        first = self._open()
        one, *inner = given
        target, over = self._one(one.target), self._one(one.iter)
        ifs = tuple([self._wrapped(tree.CompIf, "test", test) for test in one.ifs])
        inner_for_in = self._for_in(inner)
        asynchronous = self._sign(_ASYNC) if one.is_async else None
        return self._close(
            first, tree.CompFor, (target, over),
            target=target, iter=over, ifs=ifs, inner_for_in=inner_for_in, asynchronous=asynchronous,
        )  # fmt: skip

    def _named_expression(self, node: ast.NamedExpr) -> CSTNode:
        first = self._open()
        target, value = self._one(node.target), self._one(node.value)
        return self._close(first, tree.NamedExpr, node, target=target, value=value)

    # Statements.

    def _statements(self, body: Sequence[ast.stmt]) -> tuple[CSTNode, ...]:
        found: list[CSTNode] = []
        at, end = 0, len(body)
        while at < end:
            node = body[at]
            at += 1
            if isinstance(node, _COMPOUND):
                found.append(self._one(node))
                continue
            first = self._open()
            line = [self._one(node)]
            while at < end and body[at].lineno == body[at - 1].end_lineno:
                line.append(self._one(body[at]))
                at += 1
            place = (line[0], line[-1])
            found.append(self._close(first, tree.SimpleStatementLine, place, body=tuple(line)))
        return tuple(found)

    def _suite(self, body: Sequence[ast.stmt]) -> CSTNode:
        first = self._open()
        if self.places.starts_line(body[0]) or isinstance(body[0], _COMPOUND):
            statements = self._statements(body)
            at = (statements[0], statements[-1])
            return self._close(first, tree.IndentedBlock, at, body=statements)
        statements = self._all(body)
        at = (statements[0], statements[-1])
        return self._close(first, tree.SimpleStatementSuite, at, body=statements)

    def _clause(self, kind: type[CSTNode], body: Sequence[ast.stmt]) -> CSTNode | None:
        """Grows `else` or `finally`."""
        if not body:
            return None
        first = self._open()
        suite = self._suite(body)
        return self._close(first, kind, (suite, suite), body=suite)

    def _if(self, node: ast.If) -> CSTNode:
        first = self._open()
        test, body = self._one(node.test), self._suite(node.body)
        orelse = None
        if len(node.orelse) == 1 and self.places.is_elif(node.orelse[0]):
            orelse = self._one(node.orelse[0])
        else:
            orelse = self._clause(tree.Else, node.orelse)
        return self._close(first, tree.If, node, test=test, body=body, orelse=orelse)

    def _while(self, node: ast.While) -> CSTNode:
        first = self._open()
        test, body = self._one(node.test), self._suite(node.body)
        orelse = self._clause(tree.Else, node.orelse)
        return self._close(first, tree.While, node, test=test, body=body, orelse=orelse)

    def _for(self, node: ast.For | ast.AsyncFor) -> CSTNode:
        first = self._open()
        target, over = self._one(node.target), self._one(node.iter)
        body, orelse = self._suite(node.body), self._clause(tree.Else, node.orelse)
        asynchronous = self._sign(_ASYNC) if isinstance(node, ast.AsyncFor) else None
        return self._close(
            first, tree.For, node,
            target=target, iter=over, body=body, orelse=orelse, asynchronous=asynchronous,
        )  # fmt: skip

    def _with(self, node: ast.With | ast.AsyncWith) -> CSTNode:
        first = self._open()
        items = []
        for one in node.items:
            opened = self._open()
            item = self._one(one.context_expr)
            asname = self._wrapped(tree.AsName, "name", one.optional_vars)
            items.append(
                self._close(opened, tree.WithItem, (item, asname or item), item=item, asname=asname)
            )
        body = self._suite(node.body)
        asynchronous = self._sign(_ASYNC) if isinstance(node, ast.AsyncWith) else None
        return self._close(
            first, tree.With, node, items=tuple(items), body=body, asynchronous=asynchronous
        )

    def _try(self, node: ast.Try) -> CSTNode:
        first = self._open()
        is_star = node.__class__.__name__ == "TryStar"
        body = self._suite(node.body)
        handlers = tuple([self._handler(one, is_star) for one in node.handlers])
        orelse = self._clause(tree.Else, node.orelse)
        finalbody = self._clause(tree.Finally, node.finalbody)
        return self._close(
            first, tree.TryStar if is_star else tree.Try, node,
            body=body, handlers=handlers, orelse=orelse, finalbody=finalbody,
        )  # fmt: skip

    def _handler(self, node: ast.ExceptHandler, is_star: bool) -> CSTNode:
        first = self._open()
        body, kind = self._suite(node.body), self._maybe(node.type)
        name = self._as_name(node.name, self.places.of(node.type)[1] if node.type else 0)
        made = tree.ExceptStarHandler if is_star else tree.ExceptHandler
        return self._close(first, made, node, body=body, type=kind, name=name)

    def _as_name(self, name: str | None, after: int) -> CSTNode | None:
        """Grows `as name`, which stands after an offset."""
        if name is None:
            return None
        first = self._open()
        held = self._name(name, self.places.next_name(after, "as", name))
        return self._close(first, tree.AsName, (held, held), name=held)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> CSTNode:
        first = self._open()
        name = self._name(node.name, self.places.name_after(node, "def", node.name))
        params, body = self._parameters(node.args), self._suite(node.body)
        decorators = self._decorators(node)
        returns = self._wrapped(tree.Annotation, "annotation", node.returns)
        asynchronous = self._sign(_ASYNC) if isinstance(node, ast.AsyncFunctionDef) else None
        return self._close(
            first, tree.FunctionDef, node,
            name=name, params=params, body=body, decorators=decorators, returns=returns,
            asynchronous=asynchronous,
        )  # fmt: skip

    def _decorators(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> tuple[CSTNode, ...]:
        found = [self._wrapped(tree.Decorator, "decorator", one) for one in node.decorator_list]
        return tuple([one for one in found if one is not None])

    def _class(self, node: ast.ClassDef) -> CSTNode:
        first = self._open()
        name = self._name(node.name, self.places.name_after(node, "class", node.name))
        body = self._suite(node.body)
        given = self._arguments(node.bases, node.keywords)
        bases = tuple([one for one in given if one.keyword is None and one.star != "**"])
        keywords = tuple([one for one in given if one not in bases])
        decorators = self._decorators(node)
        return self._close(
            first, tree.ClassDef, node,
            name=name, body=body, bases=bases, keywords=keywords, decorators=decorators,
        )  # fmt: skip

    def _expression(self, node: ast.Expr) -> CSTNode:
        first = self._open()
        return self._close(first, tree.Expr, node, value=self._one(node.value))

    def _return(self, node: ast.Return) -> CSTNode:
        first = self._open()
        return self._close(first, tree.Return, node, value=self._maybe(node.value))

    def _assign(self, node: ast.Assign) -> CSTNode:
        first = self._open()
        targets = tuple([self._wrapped(tree.AssignTarget, "target", one) for one in node.targets])
        value = self._one(node.value)
        return self._close(first, tree.Assign, node, targets=targets, value=value)

    def _annotated(self, node: ast.AnnAssign) -> CSTNode:
        first = self._open()
        target = self._one(node.target)
        annotation = self._wrapped(tree.Annotation, "annotation", node.annotation)
        value = self._maybe(node.value)
        return self._close(
            first, tree.AnnAssign, node, target=target, annotation=annotation, value=value
        )

    def _augmented(self, node: ast.AugAssign) -> CSTNode:
        first = self._open()
        target = self._one(node.target)
        operator = self._sign(_AUGMENTED[node.op.__class__])
        value = self._one(node.value)
        return self._close(
            first, tree.AugAssign, node, target=target, operator=operator, value=value
        )

    def _delete(self, node: ast.Delete) -> CSTNode:
        first = self._open()
        if len(node.targets) == 1:
            target = self._one(node.targets[0])
        else:
            opened = self._open()
            elements = self._elements(node.targets)
            at = (elements[0], elements[-1])
            target = self._close(opened, tree.Tuple, at, elements=elements)
        return self._close(first, tree.Del, node, target=target)

    def _raise(self, node: ast.Raise) -> CSTNode:
        first = self._open()
        exc, cause = self._maybe(node.exc), self._wrapped(tree.From, "item", node.cause)
        return self._close(first, tree.Raise, node, exc=exc, cause=cause)

    def _assert(self, node: ast.Assert) -> CSTNode:
        first = self._open()
        test, msg = self._one(node.test), self._maybe(node.msg)
        return self._close(first, tree.Assert, node, test=test, msg=msg)

    def _import(self, node: ast.Import) -> CSTNode:
        first = self._open()
        names = tuple([self._alias(one) for one in node.names])
        return self._close(first, tree.Import, node, names=names)

    def _import_from(self, node: ast.ImportFrom) -> CSTNode:
        first = self._open()
        module = None
        if node.module:
            module = self._dotted(node.module, self.places.name_after(node, "from", node.module)[0])
        if node.names[0].name == "*":
            names: Any = self._sign(_ALL)
        else:
            names = tuple([self._alias(one) for one in node.names])
        relative = tuple([self._sign(_DOT) for _ in range(node.level or 0)])
        return self._close(
            first, tree.ImportFrom, node, module=module, names=names, relative=relative
        )

    def _alias(self, node: ast.alias) -> CSTNode:
        first = self._open()
        start, end = self.places.of(node)
        name, asname = self._dotted(node.name, start), None
        if node.asname is not None:
            opened = self._open()
            held = self._name(node.asname, (end - len(node.asname), end))
            asname = self._close(opened, tree.AsName, (held, held), name=held)
        return self._close(first, tree.ImportAlias, node, name=name, asname=asname)

    def _dotted(self, name: str, start: int) -> CSTNode:
        """Grows the name of a module that stands at an offset."""
        head, dot, last = name.rpartition(".")
        end = start + len(name)
        if not dot:
            return self._name(name, (start, end))
        first = self._open()
        value, attr = self._dotted(head, start), self._name(last, (end - len(last), end))
        return self._close(first, tree.Attribute, (start, end), value=value, attr=attr)

    def _declared(self, node: ast.Global | ast.Nonlocal) -> CSTNode:
        word = "global" if isinstance(node, ast.Global) else "nonlocal"
        first = self._open()
        items = []
        for one in node.names:
            opened = self._open()
            name = self._name(one, self.places.name_after(node, word, one))
            items.append(self._close(opened, tree.NameItem, node, name=name))
        kind = tree.Global if word == "global" else tree.Nonlocal
        return self._close(first, kind, node, names=tuple(items))

    def _word(self, node: ast.AST) -> CSTNode:
        return self._leaf(getattr(tree, node.__class__.__name__), node)

    # Patterns.

    def _match(self, node: ast.Match) -> CSTNode:
        first = self._open()
        subject = self._one(node.subject)
        cases = []
        for one in node.cases:
            opened = self._open()
            pattern, body = self._one(one.pattern), self._suite(one.body)
            guard = self._maybe(one.guard)
            cases.append(
                self._close(
                    opened, tree.MatchCase, (pattern, body),
                    pattern=pattern, body=body, guard=guard,
                )
            )  # fmt: skip
        return self._close(first, tree.Match, node, subject=subject, cases=tuple(cases))

    def _match_value(self, node: ast.MatchValue) -> CSTNode:
        first = self._open()
        return self._close(first, tree.MatchValue, node, value=self._one(node.value))

    def _match_singleton(self, node: ast.MatchSingleton) -> CSTNode:
        first = self._open()
        value = self._name(str(node.value), node)
        return self._close(first, tree.MatchSingleton, node, value=value)

    def _match_sequence(self, node: ast.MatchSequence) -> CSTNode:
        first = self._open()
        is_list = self.places.text_at(node).startswith("[")
        patterns = self._match_elements(node.patterns)
        kind = tree.MatchList if is_list else tree.MatchTuple
        return self._close(first, kind, node, patterns=patterns)

    def _match_elements(self, nodes: Iterable[ast.pattern]) -> tuple[CSTNode, ...]:
        found = []
        for one in nodes:
            if isinstance(one, ast.MatchStar):
                found.append(self._match_star(one))
            else:
                opened = self._open()
                value = self._one(one)
                found.append(self._close(opened, tree.MatchSequenceElement, one, value=value))
        return tuple(found)

    def _last_name(self, name: str | None, node: ast.AST) -> CSTNode | None:
        """Grows the name that a pattern ends in."""
        return None if name is None else self._name(name, (node, len(name)))

    def _match_star(self, node: ast.MatchStar) -> CSTNode:
        first = self._open()
        name = self._last_name(node.name, node)
        return self._close(first, tree.MatchStar, node, name=name)

    def _match_mapping(self, node: ast.MatchMapping) -> CSTNode:
        first = self._open()
        found = []
        for key, pattern in zip(node.keys, node.patterns, strict=True):
            opened = self._open()
            left, right = self._one(key), self._one(pattern)
            found.append(
                self._close(opened, tree.MatchMappingElement, pattern, key=left, pattern=right)
            )
        rest = None
        if node.rest is not None:
            after = self.places.of(node.patterns[-1] if node.patterns else node)
            at = self.places.next_name(after[bool(node.patterns)], "**", node.rest)
            rest = self._name(node.rest, at)
        return self._close(first, tree.MatchMapping, node, elements=tuple(found), rest=rest)

    def _match_class(self, node: ast.MatchClass) -> CSTNode:
        first = self._open()
        held, patterns = self._one(node.cls), self._match_elements(node.patterns)
        words = []
        for key, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
            opened = self._open()
            end = self.places.of(pattern)[0]
            start = self.places.text.rfind(key, 0, end)
            left, right = self._name(key, (start, start + len(key))), self._one(pattern)
            words.append(
                self._close(opened, tree.MatchKeywordElement, pattern, key=left, pattern=right)
            )
        return self._close(
            first, tree.MatchClass, node, cls=held, patterns=patterns, kwds=tuple(words)
        )

    def _match_as(self, node: ast.MatchAs) -> CSTNode:
        first = self._open()
        pattern = self._maybe(node.pattern)
        name = self._last_name(node.name, node)
        return self._close(first, tree.MatchAs, node, pattern=pattern, name=name)

    def _match_or(self, node: ast.MatchOr) -> CSTNode:
        first = self._open()
        found = []
        for one in node.patterns:
            opened = self._open()
            found.append(self._close(opened, tree.MatchOrElement, one, pattern=self._one(one)))
        return self._close(first, tree.MatchOr, node, patterns=tuple(found))

    def _type_alias(self, node: Any) -> CSTNode:
        first = self._open()
        name, value = self._one(node.name), self._one(node.value)
        return self._close(first, tree.TypeAlias, node, name=name, value=value)


def _place(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


_MAKERS: dict[str, Callable[[Tree, Any], CSTNode]] = {
    "Name": Tree._identifier,
    "Constant": Tree._constant,
    "JoinedStr": Tree._joined,
    "FormattedValue": Tree._formatted,
    "Attribute": Tree._attribute,
    "Subscript": Tree._subscript,
    "Call": Tree._call,
    "Compare": Tree._comparison,
    "UnaryOp": Tree._unary,
    "BinOp": Tree._binary,
    "BoolOp": Tree._boolean,
    "Lambda": Tree._lambda,
    "Await": Tree._await,
    "IfExp": Tree._if_else,
    "Yield": Tree._yield,
    "YieldFrom": Tree._yield,
    "Tuple": Tree._display,
    "List": Tree._display,
    "Set": Tree._display,
    "Starred": Tree._starred,
    "Dict": Tree._dict,
    "GeneratorExp": Tree._comprehension,
    "ListComp": Tree._comprehension,
    "SetComp": Tree._comprehension,
    "DictComp": Tree._dict_comprehension,
    "NamedExpr": Tree._named_expression,
    "If": Tree._if,
    "While": Tree._while,
    "For": Tree._for,
    "AsyncFor": Tree._for,
    "With": Tree._with,
    "AsyncWith": Tree._with,
    "Try": Tree._try,
    "TryStar": Tree._try,
    "FunctionDef": Tree._function,
    "AsyncFunctionDef": Tree._function,
    "ClassDef": Tree._class,
    "Expr": Tree._expression,
    "Return": Tree._return,
    "Assign": Tree._assign,
    "AnnAssign": Tree._annotated,
    "AugAssign": Tree._augmented,
    "Delete": Tree._delete,
    "Raise": Tree._raise,
    "Assert": Tree._assert,
    "Import": Tree._import,
    "ImportFrom": Tree._import_from,
    "Global": Tree._declared,
    "Nonlocal": Tree._declared,
    "Pass": Tree._word,
    "Break": Tree._word,
    "Continue": Tree._word,
    "Match": Tree._match,
    "MatchValue": Tree._match_value,
    "MatchSingleton": Tree._match_singleton,
    "MatchSequence": Tree._match_sequence,
    "MatchStar": Tree._match_star,
    "MatchMapping": Tree._match_mapping,
    "MatchClass": Tree._match_class,
    "MatchAs": Tree._match_as,
    "MatchOr": Tree._match_or,
    "TypeAlias": Tree._type_alias,
}
_GROWN = {getattr(ast, name): make for name, make in _MAKERS.items() if hasattr(ast, name)}

"""Growing expressions, and the parameters and arguments that they stand in."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree
from fmcheck.lint.growing import Growing
from fmcheck.lint.literals import opening, pieces, placeholders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fmcheck.lint.literals import Placeholder
    from fmcheck.lint.tree import CSTNode

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
AUGMENTED = {
    kind: getattr(tree, f"{name}Assign")()
    for kind, name in _OPERATORS.items()
    if hasattr(tree, f"{name}Assign")
}
ASYNC = tree.Asynchronous()
_STAR, _SLASH = tree.ParamStar(), tree.ParamSlash()


class Expressions(Growing):
    """Grows what has a value."""

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
        asynchronous = self._sign(ASYNC) if one.is_async else None
        return self._close(
            first, tree.CompFor, (target, over),
            target=target, iter=over, ifs=ifs, inner_for_in=inner_for_in, asynchronous=asynchronous,
        )  # fmt: skip

    def _named_expression(self, node: ast.NamedExpr) -> CSTNode:
        first = self._open()
        target, value = self._one(node.target), self._one(node.value)
        return self._close(first, tree.NamedExpr, node, target=target, value=value)


def _place(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset

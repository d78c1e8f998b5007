"""Growing statements."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from fmcheck.lint import tree
from fmcheck.lint.grow_expressions import ASYNC, AUGMENTED, Expressions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.lint.tree import CSTNode

_DOT, _ALL = tree.Dot(), tree.ImportStar()
_NAMES = ("FunctionDef", "AsyncFunctionDef", "ClassDef", "If", "For", "AsyncFor", "While", "With")
_COMPOUND = tuple(
    getattr(ast, name)
    for name in (*_NAMES, "AsyncWith", "Try", "TryStar", "Match")
    if hasattr(ast, name)
)


class Statements(Expressions):
    """Grows what a suite is made of."""

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
        asynchronous = self._sign(ASYNC) if isinstance(node, ast.AsyncFor) else None
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
        asynchronous = self._sign(ASYNC) if isinstance(node, ast.AsyncWith) else None
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
        asynchronous = self._sign(ASYNC) if isinstance(node, ast.AsyncFunctionDef) else None
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
        operator = self._sign(AUGMENTED[node.op.__class__])
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

    def _type_alias(self, node: Any) -> CSTNode:
        first = self._open()
        name, value = self._one(node.name), self._one(node.value)
        return self._close(first, tree.TypeAlias, node, name=name, value=value)

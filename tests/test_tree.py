"""The tree that rules look at: libcst's, node by node, with its places and its source."""

from __future__ import annotations

import ast

import libcst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from fmcheck.lint import nodes, tree
from fmcheck.lint.grow import Tree
from fmcheck.lint.newer import Copied, CstError
from tests.sources import chosen

ODD = '''\
import a.b as c, d
from .. import e
from .f import (g as h, i,)
from j import *
async def f(a, /, b: int = 1, *args, c=(2), **more) -> None:
    async with (yield) as x, y: pass
    async for i in (await z): break
    else: continue
def g(*, a, b=lambda x, *y: (x)): return (a), b
class A((B), metaclass=M): x: int; y = z = 1
if a: pass
elif (b): x = (1 + 2) * -3 // not_ % ~4
else:
    if c and d and (e or not f): pass
    x = "a" "b" 'c' f"d{e!r:>{width}}" rf"\\d{x=}{{}}"
    y = f"{a['b']} {c:%Y-%m} {d != e} {(lambda: 1)()}"
    z = """a
    b""", b"x", 0x10, 1_0.5e3, 2j, ..., None
while (x := f(y)): del x, y[0], z.a
try:
    raise E from (e)
except (A, B) as e: raise
except C: assert x, "no"
finally: global q
try: pass
except* D: pass
s = x[a], x[a, b], x[(a, b)], x[a:b, ::c, ...], x[:], [*a, b], {*a}, {**a, b: c}, (*a,)
t = (a for b in c if d for e in f), [a async for b in c], {a: b for c in d}, {a for b in c}
u = f(a for b in c), f((a for b in c)), f((a)), f((a), b), f(*a, b=c, **d), f(b=(c)), f((yield))
v = (
    a  # why
    + (  # this
        b
    )
)
match x:
    case [1, *_, A(b, c=d)] | {"k": v, **rest} if y: z
    case None | -1 | a.b: pass
    case (a, b) as c: pass
    case _: pass
ä = "ü"; ö = ä.é + f(ß)
@d.e(1)
@f
def k(): nonlocal_ = 1
'''

#: What libcst's tree has beside the nodes that are grown.
SPACES = (
    *("Asynchronous", "AssignEqual", "Colon", "Comma", "Comment", "Dot", "EmptyLine", "Newline"),
    *("LeftCurlyBrace", "LeftSquareBracket", "ParenthesizedWhitespace", "RightCurlyBrace"),
    *("RightSquareBracket", "SimpleWhitespace", "TrailingWhitespace"),
)
LEFT_OUT = (
    "whitespace", "leading_lines", "lpar", "rpar", "semicolon", "comma", "header", "footer",
    "separator",
)  # fmt: skip
#: Nodes whose places rules do not ask for: they are told from those of what is in them.
INEXACT = (
    *("Annotation", "AsName", "CompFor", "CompIf", "ComparisonTarget", "Decorator", "Element"),
    *("Else", "ExceptHandler", "ExceptStarHandler", "Finally", "FormattedStringExpression", "From"),
    *("ImportStar", "IndentedBlock", "Index", "NameItem", "Param", "Parameters", "Slice"),
    *("SimpleStatementLine", "SimpleStatementSuite", "StarredDictElement", "SubscriptElement"),
    "WithItem",
)


def nodes_of(root: libcst.CSTNode) -> list[libcst.CSTNode]:
    """Returns libcst's nodes in the order of their fields, spaces and brackets left out."""
    found, stack = [], [root]
    while stack:
        node = stack.pop()
        if isinstance(node, (list, tuple)):
            stack += node[::-1]
        elif isinstance(node, libcst.CSTNode) and type(node).__name__ not in SPACES:
            found.append(node)
            names = [name for name in node.__dataclass_fields__ if not name.startswith(LEFT_OUT)]
            stack += [getattr(node, name) for name in reversed(names)]
    return found


def kinds(found) -> list[str]:
    return [type(one).__name__ for one in found if type(one).__name__ not in SPACES]


def is_exact(node: tree.CSTNode) -> bool:
    kind = type(node).__name__
    return node.at is not None and kind not in INEXACT and not kind.startswith("Match")


def compare(source: str) -> None:
    grown = Tree(ast.parse(source), source)
    wrapper = MetadataWrapper(libcst.parse_module(source), unsafe_skip_copy=True)
    ranges = wrapper.resolve(PositionProvider)
    theirs = nodes_of(wrapper.module)
    ours = [one for one in tree.walk(grown.module) if type(one).__name__ not in SPACES]
    assert kinds(ours) == kinds(theirs)
    for own, other in zip(ours, theirs, strict=True):
        if is_exact(own):
            at = ranges[other]
            expected = at.start.line, at.start.column + 1, at.end.line, at.end.column + 1
            assert grown.span(own) == expected, (type(own).__name__, grown.code(own))
        if isinstance(other, libcst.BaseExpression) and not isinstance(own, tree.StarredElement):
            code = wrapper.module.code_for_node(other)
            assert "".join(grown.code(own).split()) == "".join(code.split())
        if isinstance(other, (libcst.Name, libcst.SimpleString, libcst.Integer, libcst.Float)):
            assert own.value == other.value


def test_grown_tree_is_that_of_libcst():
    for path in chosen():
        compare(path.read_text(encoding="utf-8"))


def test_grown_tree_of_odd_source_is_that_of_libcst():
    source = ODD
    if not hasattr(ast, "TryStar"):
        source = source.replace("except* D", "except D")
    compare(source)


def test_copied_tree_is_the_grown_one():
    for path in chosen()[::8]:
        source = path.read_text(encoding="utf-8")
        copied, grown = Copied(source), Tree(ast.parse(source), source)
        assert kinds(tree.walk(copied.module)) == kinds(tree.walk(grown.module)), path


def test_copied_tree_knows_newer_grammar():
    copied = Copied("type X[T] = list[T]\nevent = torch.cuda.Event()\n")
    (call,) = [one for one in tree.walk(copied.module) if isinstance(one, tree.Call)]

    assert copied.code(call) == "torch.cuda.Event()"
    assert copied.span(call) == (2, 9, 2, 27)


def test_what_nobody_parses_is_an_error():
    with pytest.raises(CstError):
        Copied("def f(:\n")


def test_statements_on_one_line_are_one_node():
    grown = Tree(ast.parse("a; b\nc\n"), "a; b\nc\n")

    assert [len(line.body) for line in grown.module.body] == [2, 1]


def test_code_is_less_the_indentation_of_its_statement():
    source = "if x:\n    if y:\n        f(a,\n            b)\n"
    grown = Tree(ast.parse(source), source)
    (call,) = [one for one in tree.walk(grown.module) if isinstance(one, tree.Call)]

    assert grown.code(call) == "f(a,\n    b)"


def test_walk_yields_what_ast_walk_does_but_operators():
    signs = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
    parsed = ast.parse(ODD.replace("except* D", "except D"))

    expected = {id(one) for one in ast.walk(parsed) if not isinstance(one, signs)}
    assert {id(one) for one in nodes.walk(parsed)} == expected


def test_depth_counts_layers():
    assert nodes.depth(ast.parse("x")) == 3
    assert nodes.depth(ast.parse("-" * 50 + "x")) == 53

"""FM601: an async assert without a message is deleted by torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint import Edit, Example, Judged, ModuleRule, Severity, cst
from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.source.changes import replaced
from fmcheck.lint.source.walking import below

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Module, Part

ASSERTS = frozenset(
    {
        "torch._assert_async",
        "torch.ops.aten._assert_async",
        "torch.ops.aten._assert_async.default",
    }
)
#: Decorators of functions that a compiled one calls, and that run as they are written.
_DISABLED = frozenset({"torch.compiler.disable", "torch._dynamo.disable"})


class MessagelessAsyncAssert(ModuleRule):
    """An async assert without a message is deleted by `torch.compile`.

    ## What it does
    Looks for `torch._assert_async(condition)` with one argument in a function that this module
    hands to `torch.compile`, by decorator or by call, through functions of its own that pass on a
    parameter, and in the module's functions that such a function calls. Left alone is what
    runs only where `torch.compiler.is_compiling()` is false.

    ## Why is this bad
    FX knows that `aten._assert_async.msg` has an effect, and does not know it of
    `aten._assert_async.default`. So the overload without a message is dead code to the compiler:
    with the backends `inductor` and `aot_eager` the assert is gone from the graph, and the guard
    that it was meant to be never fires (torch 2.11 and 2.13, measured).

    ## Example
    ```python
    @torch.compile(dynamic=True)
    def check(values):
        torch._assert_async((values >= 0).all())
    ```

    ## Use instead
    ```python
    @torch.compile(dynamic=True)
    def check(values):
        torch._assert_async((values >= 0).all(), "check: (values >= 0).all()")
    ```
    """

    code = "FM601"
    name = "messageless-async-assert"
    severity = Severity.ERROR
    words = (("_assert_async",), ("compile",))
    seen_in = ("https://github.com/sgl-project/sglang/pull/26108",)
    judged = (Judged("sglang 0.5.23", 1, 1), Judged("vllm 0.20.2", 0, 0))

    bad = (
        Example(
            """\
import torch

@torch.compile(dynamic=True)
def check(values):
    torch._assert_async((values >= 0).all())
""",
            at=((5, 5),),
            fixed="""\
import torch

@torch.compile(dynamic=True)
def check(values):
    torch._assert_async((values >= 0).all(), "check: (values >= 0).all()")
""",
        ),
        Example(
            """\
import torch
from torch import _assert_async as require

def check(values):
    require(
        (values >= 0).all(),
    )

check_compiled = torch.compile(check)
""",
            at=((5, 5),),
            fixed="""\
import torch
from torch import _assert_async as require

def check(values):
    require(
        (values >= 0).all(), "check: (values >= 0).all()",
    )

check_compiled = torch.compile(check)
""",
        ),
        Example(
            """\
from functools import partial
import torch

def not_stale(values):
    torch._assert_async(values.min() >= 0)

@partial(torch.compile, dynamic=True)
def gather(buf, rows):
    values = buf[rows]
    not_stale(values)
    return values
""",
            at=((5, 5),),
        ),
        Example(
            """\
import torch

class Relay:
    def __init__(self):
        self.guard = torch.compile(model=self._guard, dynamic=True)

    def _guard(self, values):
        self._not_stale(values)

    def _not_stale(self, values):
        torch.ops.aten._assert_async.default((values >= 0).all())
""",
            at=((11, 9),),
        ),
        Example(
            """\
import torch

def not_stale(values):
    torch._assert_async((values >= 0).all())

def fast(check, backend):
    return torch.compile(check, backend=backend)

class Guard:
    def pick(self, check):
        return fast(check, "inductor") if self.on else check

    def tokens(self, values):
        self.pick(not_stale)(values)
""",
            at=((4, 5),),
        ),
        Example(
            """\
import torch

check = torch.compile(lambda values: torch._assert_async(input=values["\\n"] >= 0))
""",
            at=((3, 38),),
            fixed="""\
import torch

check = torch.compile(lambda values: torch._assert_async(input=values["\\n"] >= 0, \
assert_msg="lambda: values[\\"\\\\n\\"] >= 0"))
""",
        ),
        Example(
            """\
import torch

@torch.compile
def check(values):
    if torch.compiler.is_compiling():
        torch._assert_async((values >= 0).all())
    else:
        values = values.clone()
    return values
""",
            at=((6, 9),),
        ),
    )
    good = (
        Example(
            """\
import torch

def check(values):
    torch._assert_async((values >= 0).all())

def fast(check):
    return torch.compile(check)
"""
        ),
        Example(
            """\
import torch

@torch.compile(dynamic=True)
def check(values):
    torch._assert_async((values >= 0).all(), "stale row")
"""
        ),
        Example(
            """\
import torch

@torch.compile
def check(*arguments):
    torch._assert_async(*arguments)
"""
        ),
        Example(
            """\
import torch

def check(values):
    torch._assert_async((values >= 0).all())

@torch.compile
def double(values):
    return values * 2
"""
        ),
        Example(
            """\
import torch

@torch.compile(backend="eager")
def check(values):
    torch._assert_async((values >= 0).all())
"""
        ),
        Example(
            """\
import torch

def check(values):
    if not torch.compiler.is_compiling():
        torch._assert_async((values >= 0).all())
    return values

def other(values):
    if torch.compiler.is_compiling():
        return values
    else:
        torch._assert_async((values >= 0).all())

checked, others = torch.compile(check), torch.compile(other)
"""
        ),
    )

    def check(self, module: Module) -> Iterator[Finding]:
        """Yields a finding for each message-less assert that the compiler will see."""
        near = module.parts_with(self.words[:1])
        calls = (call for part in near for call in below(part.node, cst.Call))
        if not any(_is_messageless(call, module) for call in calls):
            return  # for what is compiled the whole module is parsed
        seen: set[CSTNode] = set()
        for function in Compiled(module).functions():
            for call in function.compiled_calls():
                if _is_messageless(call, module) and call not in seen:
                    seen.add(call)
                    yield self._finding(call, function)

    def _finding(self, call: cst.Call, function: Body) -> Finding:
        part, where = function.part, function.name
        condition = " ".join(part.code(call.args[0].value).split())
        keyword = "assert_msg=" if call.args[0].keyword else ""
        name = part.code(call.func)
        # An overload named `.default` takes no message: that call is for its author to rewrite.
        fixable = not name.endswith(".default")
        instead = name if fixable else f"{name.removesuffix('.default')}.msg"
        return part.finding(
            self,
            call,
            "async assert without a message: torch.compile deletes it",
            note=f"`{where}` is compiled",
            help=f'add a message: `{instead}({condition}, {keyword}"...")`',
            edits=(_with_message(call, f"{where}: {condition}", part),) if fixable else (),
        )


def _with_message(call: cst.Call, message: str, part: Part) -> Edit:
    """Returns the edit that gives an assert a message."""
    text = message.replace("\\", "\\\\").replace('"', '\\"')
    condition = call.args[0]
    keyword = cst.Name("assert_msg") if condition.keyword is not None else None
    given = cst.Arg(cst.SimpleString(f'"{text}"'), keyword)
    if keyword is not None:
        bare = cst.SimpleWhitespace("")
        given = given.with_changes(equal=cst.AssignEqual(bare, bare))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(condition.comma, cst.Comma):
        given = given.with_changes(comma=condition.comma)
    return replaced(
        part, call, call.with_changes(args=[condition.with_changes(comma=comma), given])
    )


def _is_messageless(call: cst.Call, module: Module) -> bool:
    name = dotted(call.func)
    if name is None or module.resolve(name) not in ASSERTS:
        return False
    return len(call.args) == 1 and not call.args[0].star


class Body(Struct, frozen=True, eq=False):
    """A function of the module, or a lambda; `name` is what it is called, `part` where it is."""

    node: cst.FunctionDef | cst.Lambda
    part: Part

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name.value if isinstance(self.node, cst.FunctionDef) else "lambda"

    def compiled_calls(self) -> Iterator[cst.Call]:
        """Yields its calls, less those that it makes only where nothing compiles it."""
        for call in below(self.node, cst.Call):
            if not self._is_left_to_python(call):
                yield call

    def _is_left_to_python(self, node: CSTNode) -> bool:
        while node is not self.node:
            inner, node = node, self.part.parents[node]
            if (
                isinstance(node, (cst.If, cst.IfExp))
                and inner is not node.test
                and self._asks(node.test, wants=inner is not node.body)
            ):
                return True
            # `if torch.compiler.is_compiling(): return`
            before = (
                node.body[: node.body.index(inner)] if isinstance(node, cst.IndentedBlock) else ()
            )
            if any(
                isinstance(one, cst.If) and _returns(one) and self._asks(one.test, wants=True)
                for one in before
            ):
                return True
        return False

    def _asks(self, test: CSTNode, *, wants: bool) -> bool:
        """Tells whether a test is `is_compiling()`, or its reverse: compiled, it is as `wants`."""
        if isinstance(test, cst.BooleanOperation):
            is_and = isinstance(test.operator, cst.And)
            # `not is_compiling() and debug` holds in Python alone, as `is_compiling() or x` fails.
            return is_and is not wants and (
                self._asks(test.left, wants=wants) or self._asks(test.right, wants=wants)
            )
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._asks(test.expression, wants=not wants)
        name = dotted(test.func) if isinstance(test, cst.Call) else None
        resolved = self.part.module.resolve(name or "")
        return wants and resolved.startswith("torch.") and resolved.endswith("is_compiling")


def _returns(node: cst.If) -> bool:
    """Tells whether nothing behind a test runs where it holds."""
    last = node.body.body[-1] if node.body.body else None
    end = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(end, (cst.Return, cst.Raise))


class Taker(Struct):
    """What compiles its arguments: torch.compile, or a function that hands them on to it."""

    parameters: Sequence[str]
    compiled: set[str] = set()

    def picked(self, call: cst.Call) -> Iterator[cst.BaseExpression]:
        """Yields the arguments of a call that this function compiles."""
        for position, argument in enumerate(call.args):
            name = _keyword(argument) or "".join(self.parameters[position : position + 1])
            if name in self.compiled:
                yield argument.value


#: What torch.compile itself compiles.
COMPILE = Taker(["model"], {"model"})


class Compiled:
    """What torch.compile is handed in a module, and what that calls by plain name."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._bodies: list[Body] = []
        #: The calls of the module, each with the functions that it stands in, the innermost last.
        self._calls: dict[cst.Call, list[cst.FunctionDef]] = {}
        self._parts: dict[cst.CSTNode, Part] = {}
        #: Names for `torch.compile` with some of its arguments.
        self._compilers: set[str] = set()
        for part in module.parts_with(()):
            for one in below(part.node, cst.Assign):
                if self._is_compile(one.value) or self._makes_compiler(one.value):
                    self._compilers |= {dotted(target.target) or "" for target in one.targets}
            for call in below(part.node, cst.Call):
                self._calls[call] = []
                self._parts[call] = part
            for function in below(part.node, cst.FunctionDef):
                self._bodies.append(Body(function, part))
                for call in below(function, cst.Call):
                    self._calls[call].append(function)

    def functions(self) -> Sequence[Body]:
        """Returns the functions that the compiler will see."""
        handed = self._handed_over()
        found = [one for one in self._bodies if one.name in handed or self._is_decorated(one.node)]
        found += [one for one in handed.values() if one is not None]
        by_name = {one.name: one for one in self._bodies}
        for one in found:  # grows while it is walked: calls of calls
            for call in one.compiled_calls():
                callee = by_name.get(_own_name(call.func) or "")
                if callee is None or callee in found or self._is_disabled(callee.node):
                    continue
                found.append(callee)
        return found

    def _handed_over(self) -> dict[str, Body | None]:
        """Returns the names that torch.compile is handed, and lambdas under names of ours."""
        parameters = {call_of.node: _parameters(call_of.node) for call_of in self._bodies}
        takers = {one.name: Taker(parameters[one.node]) for one in self._bodies}
        handed: dict[str, Body | None] = {}
        found: set[cst.CSTNode] = set()
        more = True
        while more:  # a call of a taker may make its caller one
            more = False
            for call, within in self._calls.items():
                for argument in self._compiled_arguments(call, takers):
                    if argument in found:
                        continue
                    found.add(argument)
                    more = True
                    name = _own_name(argument) or f"<lambda {len(found)}>"
                    owners = [one.name.value for one in within if name in parameters[one]]
                    if owners:
                        takers[owners[-1]].compiled.add(name)
                    else:
                        handed[name] = None
                        if isinstance(argument, cst.Lambda):
                            handed[name] = Body(argument, self._parts[call])
        return handed

    def _compiled_arguments(
        self, call: cst.Call, takers: dict[str, Taker]
    ) -> Iterator[cst.BaseExpression]:
        compiles = self._is_compile(call.func) and not _keeps_asserts(call)
        taker = COMPILE if compiles else takers.get(_own_name(call.func) or "")
        if taker is not None:
            yield from taker.picked(call)

    def _is_decorated(self, function: cst.FunctionDef | cst.Lambda) -> bool:
        for decorator in getattr(function, "decorators", ()):
            made_by = decorator.decorator
            if self._is_compile(made_by) or self._makes_compiler(made_by):
                return True
        return False

    def _makes_compiler(self, node: cst.CSTNode) -> bool:
        """Tells whether this is `torch.compile(dynamic=True)`, or a `partial` of it."""
        if not isinstance(node, cst.Call) or _keeps_asserts(node):
            return False
        if self._is_compile(node.func):
            return not any(True for _ in COMPILE.picked(node))
        return bool(node.args) and self._is_compile(node.args[0].value)

    def _is_disabled(self, function: cst.FunctionDef | cst.Lambda) -> bool:
        """Tells whether the compiler leaves a function to Python."""
        made_by = [one.decorator for one in getattr(function, "decorators", ())]
        names = (dotted(one.func if isinstance(one, cst.Call) else one) or "" for one in made_by)
        return any(self._module.resolve(name) in _DISABLED for name in names)

    def _is_compile(self, node: cst.CSTNode) -> bool:
        name = dotted(node)
        return name is not None and (
            self._module.resolve(name) == "torch.compile" or name in self._compilers
        )


def _parameters(function: cst.FunctionDef | cst.Lambda) -> list[str]:
    """Returns the names of a function's parameters as its caller counts them, without `self`."""
    params = function.params
    names = [one.name.value for one in (*params.posonly_params, *params.params)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _own_name(node: cst.CSTNode) -> str | None:
    """Returns the name of a function of this module: `f`, `self.f` or `cls.f`."""
    name = dotted(node) or ""
    head, dot, last = name.rpartition(".")
    return last if not dot or head in ("self", "cls") else None


def _keyword(argument: cst.Arg) -> str:
    return argument.keyword.value if argument.keyword else ""


def _keeps_asserts(call: cst.Call) -> bool:
    """Tells whether this way of compiling runs the function as written."""
    for argument in call.args:
        if _keyword(argument) == "backend" and isinstance(argument.value, cst.SimpleString):
            return argument.value.evaluated_value == "eager"
        if _keyword(argument) == "disable" and isinstance(argument.value, cst.Name):
            return argument.value.value == "True"
    return False

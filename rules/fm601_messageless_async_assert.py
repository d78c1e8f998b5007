"""FM601: an async assert without a message is deleted by torch.compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fmcheck.finding import Edit, Severity, Span
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted
from fmcheck.lint.rule import Example, Judged, Rule, Scope

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

    import libcst
    from libcst import CSTNode, FunctionDef, Lambda

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

ASSERTS = frozenset(
    {
        "torch._assert_async",
        "torch.ops.aten._assert_async",
        "torch.ops.aten._assert_async.default",
    }
)


class MessagelessAsyncAssert(Rule):
    """An async assert without a message is deleted by `torch.compile`.

    ## What it does
    Looks for `torch._assert_async(condition)` with one argument in a function that this module
    hands to `torch.compile`, by decorator or by call, through functions of its own that hand on a
    parameter, and in the module's functions that such a function calls.

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
    scope = Scope.MODULE
    needles = ((b"_assert_async",), (b"compile",))
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
    )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears modules that make no async assert, or compile nothing."""
        mentioned = facts.mentioned(node)
        return "torch.compile" in mentioned and not ASSERTS.isdisjoint(mentioned)

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each message-less assert that the compiler will see."""
        seen: set[CSTNode] = set()
        for function in _compiled_functions(block):
            for call in block.nodes(function):
                if isinstance(call, cst.Call) and _is_messageless(call, block) and call not in seen:
                    seen.add(call)
                    yield self._finding(call, function, block)

    def _finding(self, call: libcst.Call, function: FunctionDef | Lambda, block: Block) -> Finding:
        where = function.name.value if isinstance(function, cst.FunctionDef) else "lambda"
        condition = " ".join(block.code(call.args[0].value).split())
        keyword = "assert_msg=" if call.args[0].keyword else ""
        name = block.code(call.func)
        text = f"{where}: {condition}".replace("\\", "\\\\").replace('"', '\\"')
        end = block.span(call.args[0].value)
        insert = Span(end.end_line, end.end_column, end.end_line, end.end_column)
        # An overload named `.default` takes no message: that call is for its author to rewrite.
        fixable = not name.endswith(".default")
        instead = name if fixable else f"{name.removesuffix('.default')}.msg"
        return block.finding(
            self,
            call,
            f"async assert without a message in `{where}`, which torch.compile compiles: "
            "the compiler deletes it",
            help=f'give it a message: `{instead}({condition}, {keyword}"...")`',
            edits=(Edit(insert, f', {keyword}"{text}"'),) if fixable else (),
        )


def _is_messageless(call: libcst.Call, block: Block) -> bool:
    name = dotted(call.func)
    if name is None or block.facts.resolve(name) not in ASSERTS:
        return False
    return len(call.args) == 1 and not call.args[0].star


def _compiled_functions(block: Block) -> list[FunctionDef | Lambda]:
    """Returns what torch.compile is handed in this module, and what that calls by plain name."""
    functions = [node for node in block.nodes() if isinstance(node, cst.FunctionDef)]
    handed = _handed_over(block, functions)
    found: list[FunctionDef | Lambda] = [
        function
        for function in functions
        if function.name.value in handed or _is_decorated(function, block)
    ]
    found += [node for node in handed.values() if isinstance(node, cst.Lambda)]
    by_name = {function.name.value: function for function in functions}
    for function in found:  # grows while it is walked: calls of calls
        for call in block.nodes(function):
            if isinstance(call, cst.Call):
                callee = by_name.get(_own_name(call.func) or "")
                if callee is not None and callee not in found:
                    found.append(callee)
    return found


def _handed_over(block: Block, functions: Sequence[FunctionDef]) -> dict[str, CSTNode]:
    """Returns what torch.compile is handed, by name; a function may hand on its parameters."""
    calls = [node for node in block.nodes() if isinstance(node, cst.Call)]
    within: dict[CSTNode, list[FunctionDef]] = {call: [] for call in calls}
    for function in functions:  # the innermost comes last
        for node in block.nodes(function):
            if isinstance(node, cst.Call):
                within[node].append(function)
    parameters = {function: _parameters(function) for function in functions}
    takers = {function.name.value: Taker(names) for function, names in parameters.items()}
    handed: dict[str, CSTNode] = {}
    found: set[CSTNode] = set()
    more = True
    while more:  # a call of a taker may make its caller one
        more = False
        for call in calls:
            for argument in _compiled_arguments(call, takers, block):
                if argument in found:
                    continue
                found.add(argument)
                more = True
                name = _own_name(argument) or f"<lambda {len(found)}>"
                owners = [one.name.value for one in within[call] if name in parameters[one]]
                if owners:
                    takers[owners[-1]].compiled.add(name)
                else:
                    handed[name] = argument
    return handed


@dataclass(slots=True)
class Taker:
    """A function by its parameters, and which of them it compiles."""

    parameters: Sequence[str]
    compiled: set[str] = field(default_factory=set)

    def picked(self, call: libcst.Call) -> Iterator[CSTNode]:
        """Yields the arguments of a call that this function compiles."""
        for position, argument in enumerate(call.args):
            name = _keyword(argument) or "".join(self.parameters[position : position + 1])
            if name in self.compiled:
                yield argument.value


#: What torch.compile itself compiles.
COMPILE = Taker(["model"], {"model"})


def _compiled_arguments(
    call: libcst.Call, takers: dict[str, Taker], block: Block
) -> Iterator[CSTNode]:
    taker = COMPILE if _compiles(call, block) else takers.get(_own_name(call.func) or "")
    if taker is not None:
        yield from taker.picked(call)


def _parameters(function: FunctionDef) -> list[str]:
    """Returns the names of a function's parameters as its caller counts them, without `self`."""
    names = [one.name.value for one in (*function.params.posonly_params, *function.params.params)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _own_name(node: CSTNode) -> str | None:
    """Returns the name of a function of this module: `f`, `self.f` or `cls.f`."""
    name = dotted(node) or ""
    head, dot, last = name.rpartition(".")
    return last if not dot or head in ("self", "cls") else None


def _keyword(argument: libcst.Arg) -> str:
    return argument.keyword.value if argument.keyword else ""


def _is_decorated(function: FunctionDef, block: Block) -> bool:
    for decorator in function.decorators:
        made_by = decorator.decorator
        if isinstance(made_by, cst.Call):
            if _compiles(made_by, block):
                return True
            # functools.partial(torch.compile, ...)
            if made_by.args and _is_compile(made_by.args[0].value, block):
                return not _keeps_asserts(made_by)
        elif _is_compile(made_by, block):
            return True
    return False


def _compiles(call: libcst.Call, block: Block) -> bool:
    return _is_compile(call.func, block) and not _keeps_asserts(call)


def _is_compile(node: CSTNode, block: Block) -> bool:
    name = dotted(node)
    return name is not None and block.facts.resolve(name) == "torch.compile"


def _keeps_asserts(call: libcst.Call) -> bool:
    """Tells whether this way of compiling runs the function as written."""
    for argument in call.args:
        if _keyword(argument) == "backend" and isinstance(argument.value, cst.SimpleString):
            return bool(argument.value.evaluated_value == "eager")
        if _keyword(argument) == "disable" and isinstance(argument.value, cst.Name):
            return bool(argument.value.value == "True")
    return False

"""The platform: which nodes of a part run on CUDA only, by the tests before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.model.expressions import dotted, is_name, last_name, literal_elements
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part


#: How many callers are looked through, one called by another.
_MOST_CALLERS = 4
#: Names of torch that are true where its CUDA API works.
_PRESENT = ("cuda.is_available", "version.cuda", "version.hip")
#: Names of devices that are reached through the CUDA API.
_CUDA = frozenset({"cuda", "hip", "rocm"})
#: Devices that code is written for beside CUDA.
_OTHER_DEVICES = frozenset({"cpu", "hpu", "mlu", "mps", "musa", "npu", "tpu", "xla", "xpu"})


class Platform:
    """Reads tests for CUDA. `guards` are the names whose truth means that the code runs there."""

    def __init__(self, guards: Collection[str]) -> None:
        self._guards = guards

    def guarded(self, part: Part) -> set[CSTNode]:
        """Returns the nodes that run only where a test for CUDA held."""
        guarded: set[CSTNode] = set()
        for node in part.nodes():
            if isinstance(node, (cst.If, cst.IfExp)):
                guarded.update(self._branch(node, part))
            elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
                if self.asks_for_cuda(node.left) is True:
                    guarded.update(part.nodes(node.right))
            elif isinstance(node, cst.MatchCase):
                if isinstance(node.pattern, cst.MatchValue) and _is_cuda(node.pattern.value):
                    guarded.update(part.nodes(node.body))
            elif isinstance(node, cst.IndentedBlock):
                guarded.update(self._after_early_exit(node, part))
        return guarded

    def _branch(self, node: cst.If | cst.IfExp, part: Part) -> Iterator[CSTNode]:
        asks = self.asks_for_cuda(node.test)
        if asks is True:
            yield from part.nodes(node.body)
        elif asks is False and node.orelse is not None:
            yield from part.nodes(node.orelse)
        elif isinstance(node, cst.If):
            yield from _last_branch(node, part)

    def _after_early_exit(self, body: cst.IndentedBlock, part: Part) -> Iterator[CSTNode]:
        """Yields what follows `if not x.is_cuda: return` or `assert x.is_cuda`."""
        statements = iter(body.body)
        for statement in statements:
            if self._leaves_unless_cuda(statement):
                break
        for statement in statements:
            yield from part.nodes(statement)

    def _leaves_unless_cuda(self, statement: CSTNode) -> bool:
        if isinstance(statement, cst.If):
            return self.asks_for_cuda(statement.test) is False and _leaves(statement.body)
        if isinstance(statement, cst.SimpleStatementLine):
            first = statement.body[0]
            return isinstance(first, cst.Assert) and self.asks_for_cuda(first.test) is True
        return False

    def asks_for_cuda(self, test: CSTNode) -> bool | None:
        """Returns True if `test` holding implies CUDA, False if its failing does, else None."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self.asks_for_cuda(test.expression)
            return None if inner is None else not inner
        if isinstance(test, cst.BooleanOperation):
            sides = {self.asks_for_cuda(side) for side in (test.left, test.right)}
            wanted = isinstance(test.operator, cst.And)
            if wanted in sides:
                return wanted
            return sides.pop() if len(sides) == 1 else None
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            return _compares_with_cuda(test)
        if isinstance(test, cst.Call) and dotted(test.func) in ("any", "all") and test.args:
            each = test.args[0].value
            return self.asks_for_cuda(each.elt) if isinstance(each, cst.GeneratorExp) else None
        if isinstance(test, cst.Call):
            if last_name(test.func) == "startswith" and test.args:
                return True if _is_cuda(test.args[0].value) else None
            test = test.func
        name = dotted(test) or (test.attr.value if isinstance(test, cst.Attribute) else "")
        is_guard = name.rpartition(".")[2].lstrip("_") in self._guards
        return True if is_guard or name.endswith(_PRESENT) else None


def callers_choose_cuda(function: Function, most: int = _MOST_CALLERS) -> bool:
    """Tells whether each caller in the file, or what calls that, has chosen a CUDA device before.

    No other device lives to see what comes after `torch.cuda.set_device`.
    """
    callers = list(function.callers()) if most else []
    return bool(callers) and all(
        _chooses_cuda_before(call, caller) or callers_choose_cuda(caller, most - 1)
        for caller, call in callers
    )


def _chooses_cuda_before(call: cst.Call, function: Function) -> bool:
    """Tells whether a function always chooses a CUDA device before it makes a call."""
    chosen = set(function.calls_of("torch.cuda.set_device"))
    for statement in function.node.body.body if chosen else ():
        inside = walk(statement)
        if call in inside:
            return False
        if isinstance(statement, cst.SimpleStatementLine) and not chosen.isdisjoint(inside):
            return True
    return False


def _last_branch(node: cst.If, part: Part) -> Iterator[CSTNode]:
    """Yields the `else` after branches for other accelerators: what they leave is CUDA."""
    tests = [node.test]
    last = node.orelse
    while isinstance(last, cst.If):
        tests.append(last.test)
        last = last.orelse
    named = [_other_device(test) for test in tests]
    if last is not None and all(named) and set(named) - {"cpu"}:
        yield from part.nodes(last)


def _other_device(test: CSTNode) -> str:
    """Returns the device that a test compares with, "" if that is no other one than CUDA."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return ""
    target = test.comparisons[0]
    value = target.comparator
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    is_equal = isinstance(target.operator, (cst.Equal, cst.Is))
    return str(text) if is_equal and text in _OTHER_DEVICES else ""


def _leaves(body: CSTNode) -> bool:
    statements = getattr(body, "body", ())
    last = statements[-1] if statements else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue))


def _compares_with_cuda(test: cst.Comparison) -> bool | None:
    operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
    if isinstance(operator, (cst.In, cst.NotIn)):
        # `"cuda" in str(device)`, `device.type in ("cuda", "hip")`
        listed = literal_elements(right)
        named = (
            _is_cuda(test.left) if listed is None else bool(listed) and all(map(_is_cuda, listed))
        )
        return isinstance(operator, cst.In) if named else None
    if is_name(right, "None"):
        is_version = (dotted(test.left) or "").endswith(_PRESENT)
        return isinstance(operator, cst.IsNot) if is_version else None
    # What is called `cuda_ipc` is CUDA's as well.
    literal = any(
        isinstance(side, cst.SimpleString) and str(side.evaluated_value).partition("_")[0] == "cuda"
        for side in (test.left, right)
    )
    if literal and isinstance(operator, (cst.Equal, cst.Is)):
        return True
    if literal and isinstance(operator, (cst.NotEqual, cst.IsNot)):
        return False
    return None


def _is_cuda(node: CSTNode) -> bool:
    """Tells whether this is the name of a device that the CUDA API is for, as a literal."""
    return isinstance(node, cst.SimpleString) and node.evaluated_value in _CUDA

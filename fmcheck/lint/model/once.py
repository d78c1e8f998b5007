"""Once: what a method does in its first call only, by the tests that lead there.

if self.is_made:                    if not hasattr(self, "rows"):
    return                              self.rows = torch.empty(64)
self.is_made = True                     self.lens = torch.empty(64)
self.rows = torch.empty(64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint.model.expressions import dotted, is_name, last_name
from fmcheck.lint.source.lazy import cst
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.lint.model.function import Function

#: Names of methods that free what a class has created, or create it again.
_UNMAKES = regex(
    r"(^|_)(de_?alloc|deallocate|delete|drop|free|offload|re_?init(ialize)?|restart|resume|"
    r"shutdown|sleep|stop|suspend|teardown|unload|wake)(_|$)"
)
_FALSY = ("False", "None", "0")


class TestedPath(Struct, frozen=True):
    """What a test found out: whether the value at a path is there, or true."""

    path: str
    is_there: bool


class Once:
    """The methods of a class, asked for what they do but once.

    `prepares` tells from its name that a method runs before the steps, or starts afresh.
    """

    def __init__(
        self, methods: Mapping[str, Function], prepares: Callable[[str], object | None]
    ) -> None:
        self._methods = methods
        self._prepares = prepares

    def makes_once(self, node: CSTNode, paths: Collection[str], function: Function) -> bool:
        """Tells whether `node`, which gives an attribute a value, runs in a first call only.

        `paths` are the names of the attribute: `self.buffers.rows`, and `buffers.rows`.
        """
        if self._is_guarded(node, paths, function, ()):
            return True
        return self._is_called_once(paths, function, (function,))

    def _is_guarded(
        self, node: CSTNode, paths: Collection[str], function: Function, called: Sequence[Function]
    ) -> bool:
        """Tells whether a test keeps later calls from `node`, which may call others to do it."""
        tests = list(self._tests(node, function))
        if any(
            one.path in paths and not one.is_there
            for test, holds in tests
            for one in self.asked(test, holds, lenient=True)
        ):
            return True
        return any(
            self._is_settled(
                one,
                (
                    *_assigned(function, one.path, (test, holds)),
                    *(value for other in called for value in _assigned(other, one.path)),
                ),
            )
            for test, holds in tests
            for one in self.asked(test, holds)
        )

    def _is_settled(self, asked: TestedPath, turned: Sequence[CSTNode]) -> bool:
        """Tells whether an assignment makes a test come out otherwise from then on."""
        if not any(_is_falsy(value) is asked.is_there for value in turned):
            return False
        return not any(
            _is_falsy(value) is not asked.is_there
            for name, method in self._methods.items()
            if not (self._prepares(name) or _UNMAKES.search(name))
            for value in _assigned(method, asked.path)
        )

    def _is_called_once(
        self, paths: Collection[str], function: Function, called: Sequence[Function]
    ) -> bool:
        """Tells whether a private method is called, and only where it runs in a first call."""
        name = function.name
        if not name.startswith("_") or name.startswith("__") or len(called) > 3:
            return False
        uses = [
            (node, method)
            for method in self._methods.values()
            for node in method.named.get(f"self.{name}", ())
        ]
        return bool(uses) and all(
            isinstance(method.parents.get(node), cst.Call)
            and (
                self._prepares(method.name)
                or self._is_guarded(node, paths, method, called)
                or (method not in called and self._is_called_once(paths, method, (*called, method)))
            )
            for node, method in uses
        )

    def _tests(self, node: CSTNode, function: Function) -> Iterator[tuple[CSTNode, bool]]:
        """Yields the tests that are decided where a node runs, and how."""
        flow = function.flow
        if flow.contains(node):
            yield from ((one.test, one.holds) for one in flow.known(node))
            for one in function.of(cst.Assert):
                if flow.contains(one) and flow.dominates(one, node):
                    yield one.test, True

    def asked(
        self, test: CSTNode, holds: bool, *, lenient: bool = False, depth: int = 0
    ) -> Iterator[TestedPath]:
        """Yields what a test is certain to have found out; what it may have if `lenient`."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            yield from self.asked(test.expression, not holds, lenient=lenient, depth=depth)
        elif isinstance(test, cst.BooleanOperation):
            if lenient or holds is isinstance(test.operator, cst.And):
                for side in (test.left, test.right):
                    yield from self.asked(side, holds, lenient=lenient, depth=depth)
        elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            other = test.comparisons[0]
            if is_name(other.comparator, "None"):
                is_there = holds is isinstance(other.operator, (cst.IsNot, cst.NotEqual))
                yield from (TestedPath(path, is_there) for path in _paths(test.left))
        else:
            yield from (TestedPath(path, holds) for path in _paths(test))
            named = dotted(test.func if isinstance(test, cst.Call) else test) or ""
            method = self._methods.get(named.removeprefix("self."))
            if named.startswith("self.") and method is not None and depth < 3:
                for value in _returned(method):
                    yield from self.asked(value, holds, lenient=lenient, depth=depth + 1)


def _paths(node: CSTNode) -> Iterator[str]:
    """Yields the path of an attribute, however it is named."""
    path = dotted(node.func if isinstance(node, cst.Call) else node)
    if path is not None:
        yield path
    if isinstance(node, cst.Call) and len(node.args) > 1:
        key = node.args[1].value
        if last_name(node.func) in ("getattr", "hasattr") and isinstance(key, cst.SimpleString):
            yield f"{dotted(node.args[0].value)}.{key.raw_value}"


def _returned(method: Function) -> Sequence[CSTNode]:
    """Returns the one value that a method returns, nothing if it does more than that."""
    returns = method.of(cst.Return)
    return [one.value for one in returns if one.value is not None] if len(returns) == 1 else []


def _assigned(
    function: Function, path: str, where: tuple[CSTNode, bool] | None = None
) -> Iterator[CSTNode]:
    """Yields what a function assigns to an attribute, where a test comes out so if it is given."""
    flow = function.flow
    for node in function.bindings.get(path, ()) if "." in path else ():
        value = getattr(node, "value", None)
        if value is not None and flow.contains(node):
            known = flow.known(node)
            if where is None or any((one.test, one.holds) == where for one in known):
                yield value


def _is_falsy(value: CSTNode) -> bool:
    return isinstance(value, (cst.Name, cst.Integer)) and value.value in _FALSY

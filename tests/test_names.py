"""Versions of names: what a name may be bound to where it is used, against programs that run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import libcst as cst
import pytest

from tests.parts import function_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.lint.model.function import Function

PROGRAMS = 150
SEED = 20261127
ROUNDS = 12
#: Ways to bind `x` to a number.
BINDING = ("x = {}", "x, y = {}, 0", "c((x := {}))", "if c() or (x := {}): pass")


def seen_by_uses(function: Function) -> Iterator[tuple[int, set[str]]]:
    """Yields the number of each `use(number, x)`, with the texts that `x` may stand for there."""
    for call in function.calls_of("use"):
        number, name = (one.value for one in call.args)
        assert isinstance(number, cst.Integer)
        assert isinstance(name, cst.Name)
        texts = {function.part.code(one) for one in function.names.bound(name)}
        given = {"given"} if function.names.is_given(name) else set()
        yield int(number.value), texts | given


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x = 1; use(0, x); x = 2; use(1, x)", [{"1"}, {"2"}]),
        ("use(0, x); x = 1; use(1, x)", [{"given"}, {"1"}]),
        ("if c():\n  x = 1\nuse(0, x)", [{"given", "1"}]),
        ("x = 1\nif c():\n  x = 2\n  use(0, x)\nuse(1, x)", [{"2"}, {"1", "2"}]),
        ("x = 1\nwith c():\n  x = 2\nuse(0, x)", [{"2"}]),
        ("x = 1\nfor i in c():\n  use(0, x)\n  x = 2\nuse(1, x)", [{"1", "2"}, {"1", "2"}]),
        ("for i in c():\n  x = 1\n  use(0, x)\n  x = 2", [{"1"}]),
        ("x = 1\nfor x in c():\n  use(0, x)\nuse(1, x)", [set(), {"1"}]),
        ("x = 1; x, y = c(); use(0, x)", [set()]),
        ("x, y = 1, 2; use(0, x); use(1, y)", [{"1"}, {"2"}]),
        ("x = 1\nwith c() as x:\n  use(0, x)", [set()]),
        ("x = 1\ntry:\n  x = 2\n  c()\nexcept E:\n  use(0, x)\nuse(1, x)", [{"1", "2"}] * 2),
        ("x = 1; f = [x for x in c()]; use(0, x)", [{"1"}]),
        ("x = 1\nf = lambda: use(0, x)\nx = 2", [{"1", "2", "given"}]),
        ("x = 1\ndef f():\n  use(0, x)\nx = 2", [{"1", "2", "given"}]),
        ("x = 1\ndef f():\n  x = 3\nuse(0, x)", [{"1", "3"}]),
        ("x = 1\nif (x := c()) or d():\n  use(0, x)", [{"1", "c()"}]),
        ("x = 1\nif c(x := 2) and use(0, x):\n  pass", [{"1", "2"}]),
        ("while c():\n  for x in d():\n    use(0, x)\n    x = 2", [set()]),
        ("x = 1; x = g(x); use(0, x)", [{"g(x)"}]),
        ("if c():\n  z = 1\nuse(0, z)", [{"1"}]),
    ],
)
def test_a_name_stands_for_what_reaches_it(body: str, expected: list[set[str]]) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    function = function_of(f"def f(x, c, d, g, use):\n{lines}")
    assert [texts for _, texts in sorted(seen_by_uses(function))] == expected


def test_a_name_that_is_bound_very_often_stands_for_all_of_it() -> None:
    lines = "".join(f"    x = {number}\n" for number in range(40))
    ((_, texts),) = seen_by_uses(function_of(f"def f(x, use):\n{lines}    use(0, x)\n"))
    assert {str(number) for number in range(40)} <= texts


# --- random programs, which are run ---


class Writer:
    """Writes a function that binds `x` to numbers, and uses it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.uses = self.bindings = 0

    def suite(self, depth: int, indent: str, in_loop: bool = False) -> str:
        made = [self.statement(depth, indent, in_loop) for _ in range(self.draw.randint(1, 4))]
        return "".join(made)

    def statement(self, depth: int, indent: str, in_loop: bool) -> str:
        kind = self.draw.random()
        if depth == 0 or kind < 0.3:
            if self.draw.random() < 0.5:
                self.uses += 1
                return f"{indent}use({self.uses}, x)\n"
            self.bindings += 1
            form = self.draw.choice(
                ("x = {}", "x, y = {}, 0", "c((x := {}))", "if c() or (x := {}): pass")
            )
            return f"{indent}{form.format(self.bindings + 1000)}\n"
        inner = indent + "  "
        if kind < 0.5:
            text = f"{indent}if c():\n{self.suite(depth - 1, inner, in_loop)}"
            if self.draw.random() < 0.5:
                text += f"{indent}else:\n{self.suite(depth - 1, inner, in_loop)}"
            return text
        if kind < 0.65:
            return f"{indent}while c():\n{self.suite(depth - 1, inner, True)}"
        if kind < 0.7:
            return f"{indent}for x in n():\n{self.suite(depth - 1, inner, True)}"
        if kind < 0.8:
            return f"{indent}with w():\n{self.suite(depth - 1, inner, in_loop)}"
        if kind < 0.9:
            return (
                f"{indent}try:\n{self.suite(depth - 1, inner, in_loop)}{inner}r()\n"
                f"{self.suite(depth - 1, inner, in_loop)}"
                f"{indent}except ValueError:\n{self.suite(depth - 1, inner, in_loop)}"
            )
        leave = self.draw.choice(("break", "continue", "return") if in_loop else ("return",))
        return f"{indent}if c():\n{inner}{leave}\n"


class Context:
    """What `with` enters."""

    def __enter__(self) -> None:
        """Enters nothing."""

    def __exit__(self, *error: object) -> None:
        """Lets every error pass."""


def run(source: str, draw: random.Random) -> set[tuple[int, str]]:
    """Runs a program; returns what `x` was at each use, a number, `given` or `looped`."""
    seen: set[tuple[int, str]] = set()
    left = 200

    def c(*_: object) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and draw.random() < 0.5

    def r() -> None:
        if draw.random() < 0.3:
            raise ValueError

    def n() -> list[str]:
        return ["looped"] * draw.randint(0, 2)

    def use(number: int, x: object) -> None:
        seen.add((number, str(x)))

    names: dict[str, Any] = {}
    exec(source, names)
    names["f"]("given", c, n, Context, r, use)
    return seen


def test_what_a_name_is_in_a_run_is_among_what_it_may_be() -> None:
    draw = random.Random(SEED)
    uses = 0
    for _ in range(PROGRAMS):
        source = f"def f(x, c, n, w, r, use):\n{Writer(draw).suite(3, '  ')}  use(0, x)\n"
        may_be = dict(seen_by_uses(function_of(source)))
        for _ in range(ROUNDS):
            for number, value in run(source, draw):
                assert value == "looped" or value in may_be[number], source
                uses += 1
    assert uses > PROGRAMS * ROUNDS

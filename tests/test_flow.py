"""Flow: order, dominance and conditions, on functions whose calls are named after their place."""

from __future__ import annotations

import textwrap

import pytest

from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from tests.parts import function_of


class Paths:
    """A function's flow; each `name()` in it is a place called `name`."""

    def __init__(self, body: str) -> None:
        source = "def f(x, y):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        function = function_of(source)
        self.flow = function.flow
        self.at = {
            node.func.value: node
            for node in walk(function.node)
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Name)
        }

    def says(self, question: str, *names: str) -> bool:
        return getattr(self.flow, question)(*(self.at[name] for name in names))

    def passes(self, name: str) -> bool:
        return self.flow.any_on_every_path([self.at[name]])

    def leads_by(self, first: str, then: str) -> bool:
        return self.flow.any_always_follows(self.at[first], [self.at[then]])

    def known(self, name: str) -> list[tuple[str, bool]]:
        return [(one.text, one.holds) for one in self.flow.known(self.at[name])]


STRAIGHT = "a()\nb()\n"
BRANCH = "if x:\n    a()\nelse:\n    c()\nb()\n"
EARLY = "if x:\n    a()\n    return\nb()\n"
BOTH = "if x:\n    a()\nelse:\n    raise E\nb()\n"
LOOP = "for i in x:\n    a()\n    if i:\n        continue\n    b()\nc()\n"
ENDLESS = "while True:\n    a()\n    if x:\n        break\n    b()\nc()\n"
TRY = "try:\n    a()\n    b()\nexcept E:\n    c()\nd()\n"
FINALLY = "try:\n    if x:\n        return a()\n    b()\nfinally:\n    c()\nd()\n"
WITH = "with x:\n    a()\nb()\n"
MATCH = "match x:\n    case 1:\n        a()\n    case _:\n        c()\nb()\n"


@pytest.mark.parametrize(
    ("body", "first", "then", "expected"),
    [
        (STRAIGHT, "a", "b", True),
        (STRAIGHT, "b", "a", False),
        (STRAIGHT, "a", "a", True),
        (BRANCH, "a", "b", False),
        (EARLY, "a", "b", False),
        (BOTH, "a", "b", True),
        (LOOP, "a", "b", True),
        (LOOP, "a", "c", False),
        (ENDLESS, "a", "c", True),
        (ENDLESS, "b", "c", False),
        (TRY, "a", "b", True),
        (TRY, "a", "d", False),
        (TRY, "a", "c", False),
        (FINALLY, "b", "c", False),
        (FINALLY, "c", "d", True),
        (WITH, "a", "b", True),
        (MATCH, "a", "b", False),
    ],
)
def test_dominates(body: str, first: str, then: str, expected: bool) -> None:
    assert Paths(body).says("dominates", first, then) is expected


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        (STRAIGHT, "b", True),
        (BRANCH, "a", False),
        (BRANCH, "b", True),
        (EARLY, "b", False),
        (BOTH, "a", True),
        (LOOP, "a", False),
        (LOOP, "c", True),
        (ENDLESS, "a", True),
        (FINALLY, "c", True),
        (FINALLY, "d", False),
        (MATCH, "b", True),
    ],
)
def test_on_every_path_to_a_return(body: str, name: str, expected: bool) -> None:
    assert Paths(body).passes(name) is expected


def test_branches_together_are_on_every_path() -> None:
    paths = Paths(BRANCH)
    assert paths.flow.any_on_every_path([paths.at["a"], paths.at["c"]])
    assert not paths.flow.any_on_every_path([paths.at["a"]])


@pytest.mark.parametrize(
    ("last", "expected"), [("_", True), ("name", True), ("2", False), ("_ if y", False)]
)
def test_the_cases_of_a_match_are_on_every_path_if_the_last_catches_all(
    last: str, expected: bool
) -> None:
    paths = Paths(f"match x:\n    case 1:\n        a()\n    case {last}:\n        c()\nb()\n")
    assert paths.flow.any_on_every_path([paths.at["a"], paths.at["c"]]) is expected


@pytest.mark.parametrize(
    ("body", "first", "then", "expected"),
    [
        (STRAIGHT, "a", "b", True),
        (STRAIGHT, "b", "a", False),
        (STRAIGHT, "a", "a", False),
        (EARLY, "a", "b", False),
        (BRANCH, "a", "c", False),
        (LOOP, "b", "a", True),
        (LOOP, "a", "a", True),
        (TRY, "b", "c", True),
    ],
)
def test_may_follow(body: str, first: str, then: str, expected: bool) -> None:
    assert Paths(body).says("may_follow", first, then) is expected


def test_always_follows_up_to_a_return() -> None:
    paths = Paths("a()\nif x:\n    return\nb()\nc()\n")
    assert not paths.leads_by("a", "b")
    assert paths.leads_by("b", "c")


def test_several_together_always_follow() -> None:
    paths = Paths("a()\nif x:\n    b()\n    return\nc()\n")
    b, c = paths.at["b"], paths.at["c"]
    assert paths.flow.any_always_follows(paths.at["a"], [b, c])
    assert not paths.flow.any_always_follows(paths.at["a"], [b])
    assert paths.flow.any_always_follows(c, [c])


@pytest.mark.parametrize(
    ("body", "without", "starts"),
    [
        ("a()\nb()\nc()\nd()\n", "", "abc"),
        ("a()\nb()\nc()\nd()\n", "b", "bc"),  # from a barred one a path may start
        ("a()\nb()\nc()\nd()\n", "d", ""),
        ("a()\nif x:\n    b()\nelse:\n    c()\nd()\n", "b", "abc"),
        ("a()\nif x:\n    b()\nelse:\n    c()\nd()\n", "bc", "bc"),
        ("for i in x:\n    a()\n    d()\n    b()\n", "b", "ab"),
        ("while x:\n    a()\n    d()\n    b()\n", "a", "a"),
    ],
)
def test_paths_that_pass_none_of_some_nodes(body: str, without: str, starts: str) -> None:
    paths = Paths(body)
    barred = [paths.at[name] for name in without]
    found = paths.flow.starts(paths.at["d"], barred)
    assert {name for name, node in paths.at.items() if paths.flow.position(node) in found} == {
        *starts
    }
    for name, node in paths.at.items():
        led = paths.flow.led_to([node], barred)
        assert (led.get(paths.flow.position(paths.at["d"])) is node) is (name in starts)


def test_a_step_is_led_to_from_the_first_that_reaches_it() -> None:
    paths = Paths("a()\nif x:\n    b()\nelse:\n    c()\nd()\n")
    a, b, c = (paths.at[name] for name in "abc")
    led = paths.flow.led_to([b, c, a], [])
    at = paths.flow.position
    assert (led[at(paths.at["d"])], led[at(c)], led[at(b)]) == (b, a, a)


@pytest.mark.parametrize(
    ("body", "first", "then", "expected"),
    [
        ("a()\nw()\nb()\n", "a", "b", True),
        ("a()\nb()\nw()\n", "a", "b", False),
        ("w()\na()\nb()\n", "a", "b", False),
        ("a()\nif x:\n    w()\nb()\n", "a", "b", True),
        ("a()\nif x:\n    w()\n    return\nb()\n", "a", "b", False),
        ("for i in x:\n    b()\n    a()\n    w()\n", "a", "b", True),
        ("for i in x:\n    b()\n    a()\nw()\n", "a", "b", False),
    ],
)
def test_paths_past_a_node(body: str, first: str, then: str, expected: bool) -> None:
    paths = Paths(body)
    past = paths.flow.past([paths.at["w"]])
    assert past.reaches(paths.at[first], paths.at[then]) is expected
    if not past.reaches(paths.at[first], paths.at[then]):
        assert not past.reaches_all_from(paths.at[first], paths.at[then])


def test_past_reaches_all_that_stands_after() -> None:
    paths = Paths("a()\nw()\nb()\nif x:\n    c()\nelse:\n    d()\n")
    past = paths.flow.past([paths.at["w"], paths.at["c"]])
    assert past.reaches_all_from(paths.at["a"], paths.at["b"])
    assert not past.reaches_all_from(paths.at["b"], paths.at["c"])


def test_a_raise_is_no_return() -> None:
    assert Paths("a()\nif x:\n    raise E\nb()\n").leads_by("a", "b")


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("x", "not x", True),
        ("x", "y and not x", True),
        ("x and y", "not (y or z)", True),
        ("x and y", "not (x and y)", True),
        ("x or y", "not x", False),
        ("x", "y", False),
    ],
)
def test_tests_that_contradict_exclude(first: str, then: str, expected: bool) -> None:
    paths = Paths(f"if {first}:\n    a()\nif {then}:\n    b()\n")
    assert paths.says("excludes", "a", "b") is expected


def test_known_are_the_branches_and_what_has_left() -> None:
    body = """\
        if not x:
            return
        if y:
            a()
        elif y > 2:
            b()
        else:
            raise E
        c()
        """
    paths = Paths(body)
    assert paths.known("a") == [("notx", False), ("y", True)]
    assert paths.known("b") == [("notx", False), ("y", False), ("y>2", True)]
    assert paths.known("c") == [("notx", False)]


def test_an_elif_chain_that_leaves_is_known_after_it() -> None:
    paths = Paths("if x:\n    return\nelif y:\n    return\na()\n")
    assert paths.known("a") == [("x", False), ("y", False)]


def test_known_tells_a_branch_from_a_way_out() -> None:
    paths = Paths("if x:\n    return\nif y:\n    a()\n")
    assert [one.leaves for one in paths.flow.known(paths.at["a"])] == [True, False]


def test_what_encloses_a_node() -> None:
    body = "for i in x:\n    with i, y:\n        with y:\n            a()\n    b()\n"
    paths = Paths(body)
    assert [len(one.items) for one in paths.flow.withs(paths.at["a"])] == [2, 1]
    assert len(paths.flow.loops(paths.at["a"])) == 1
    assert paths.flow.withs(paths.at["b"]) == ()


def test_a_nested_function_is_one_step() -> None:
    paths = Paths("a()\ndef g():\n    return b()\nc()\n")
    assert paths.says("dominates", "b", "c")
    assert len(paths.flow.steps) == 3


def test_a_raise_leaves_through_the_finally() -> None:
    paths = Paths("try:\n    if x:\n        a()\n        raise E\n    b()\nfinally:\n    c()\n")
    assert paths.says("may_follow", "a", "c")
    assert not paths.passes("b")


def test_raise_into_a_handler_does_not_leave() -> None:
    paths = Paths("try:\n    a()\n    raise E\nexcept E:\n    b()\nc()\n")
    assert paths.passes("c")
    assert paths.says("may_follow", "a", "b")

"""Row conditions: which of the rows that a kernel is handed it touches, in the contract's words.

A condition is a comparison of sums, `seq_lens > prefill_len[rows]`, a mask, or
`drafts is not None`. Its names are parameters of the kernel: numbers, or arrays with one entry for
each row index. `name[index]` has the entries that an index picks, `name[1:]` is moved by one; what
is longer than the rows is cut. Of what is None, no other condition holds.
"""

from __future__ import annotations

import ast
import operator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What may stand between the two sides of a condition, and in a side.
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
#: A longer condition is nobody's: the parser takes time and stack for nothing.
_MOST_CHARACTERS = 500


class ConditionError(ValueError):
    """A condition that is none."""


class Condition(NamedTuple):
    """A parsed condition."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it is about."""
        found = (one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name))
        return tuple(dict.fromkeys(found))

    def holds(self, value_of: Callable[[str], Any], count: int) -> Any:
        """Tells of each of `count` rows whether the condition holds.

        `value_of` returns what a parameter holds: arrays of one kind, NumPy's or torch's.
        """
        if any(value_of(name) is None for name in self.names):
            return False
        if _asks_for_none(self.tree):
            return True
        if isinstance(self.tree, ast.Compare):
            sides = [_value(side, value_of, count) for side in _sides(self.tree)]
            return COMPARISONS[type(self.tree.ops[0])](*sides)
        return _value(self.tree, value_of, count) != 0


@cache
def condition(text: str) -> Condition:
    """Returns what a text of the contract says.

    Raises:
        ConditionError: if it is not of the form above.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConditionError(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConditionError(text) from None
    found = Condition(text, tree)
    is_one = _is_comparison(tree) if isinstance(tree, ast.Compare) else _is_sum(tree)
    if not is_one or not found.names:
        raise ConditionError(text)
    return found


def _is_comparison(tree: ast.Compare) -> bool:
    if _asks_for_none(tree):
        return isinstance(tree.left, ast.Name)
    is_known = len(tree.ops) == 1 and type(tree.ops[0]) in COMPARISONS
    return is_known and all(_is_sum(side) for side in _sides(tree))


def _asks_for_none(tree: ast.expr) -> bool:
    """Tells whether a condition is `... is not None`."""
    if not isinstance(tree, ast.Compare) or [type(one) for one in tree.ops] != [ast.IsNot]:
        return False
    (other,) = tree.comparators
    return isinstance(other, ast.Constant) and other.value is None


def _sides(tree: ast.Compare) -> Iterator[ast.expr]:
    yield tree.left
    yield from tree.comparators


def _is_sum(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _SUMS and _is_sum(tree.left) and _is_sum(tree.right)
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub) and _is_number(tree.operand)
    if isinstance(tree, ast.Subscript):
        return isinstance(tree.value, ast.Name) and _is_index(tree.slice)
    return isinstance(tree, ast.Name) or _is_number(tree)


def _is_number(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Constant) and type(tree.value) is int


def _is_index(tree: ast.expr) -> bool:
    if isinstance(tree, ast.Slice):
        starts = tree.lower is not None and _is_number(tree.lower)
        return starts and tree.upper is None and tree.step is None
    return isinstance(tree, ast.Name)


def _value(tree: ast.expr, value_of: Callable[[str], Any], count: int) -> Any:
    """Returns what a sum comes to: a number, or an array of `count` entries."""
    if isinstance(tree, ast.BinOp):
        left, right = (_value(side, value_of, count) for side in (tree.left, tree.right))
        return _SUMS[type(tree.op)](left, right)
    if isinstance(tree, ast.UnaryOp):
        return -_value(tree.operand, value_of, count)
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name):
        return _cut(value_of(tree.id), count)
    assert isinstance(tree, ast.Subscript)
    assert isinstance(tree.value, ast.Name)
    whole = value_of(tree.value.id)
    if isinstance(tree.slice, ast.Slice):
        assert isinstance(tree.slice.lower, ast.Constant)
        return _cut(whole[tree.slice.lower.value :], count)
    assert isinstance(tree.slice, ast.Name)
    return whole[_cut(value_of(tree.slice.id), count)]


def _cut(value: Any, count: int) -> Any:
    """Returns the entries that belong to rows; a number stays what it is."""
    return value if isinstance(value, (bool, int)) else value[:count]

"""Sieves: the next thing that passes a test, as looking at all of them finds it."""

from __future__ import annotations

import random

import pytest

from fmcheck.lint.model.sieve import Sieve, any_between

ORDERS = [2, 3, 5, 7, 11, 13, 17, 19]


@pytest.mark.parametrize("seed", range(20))
def test_a_sieve_finds_what_a_look_at_all_finds(seed: int) -> None:
    draw = random.Random(seed)
    passing = {one for one in ORDERS if draw.random() < 0.4}
    sieve = Sieve(ORDERS, ORDERS, passing.__contains__)
    for _ in range(50):
        after, end = draw.randrange(-1, 21), draw.choice([None, draw.randrange(1, 22)])
        expected = [one for one in ORDERS if one in passing and after < one < (end or 99)]
        assert list(sieve.between(after, end)) == expected
        assert sieve.first(after, end) == (expected[0] if expected else None)
        if end is not None:
            assert sieve.last(after, end) == (expected[-1] if expected else None)


def test_each_thing_is_tested_once_and_only_where_somebody_asks() -> None:
    tested: list[int] = []
    sieve = Sieve(ORDERS, ORDERS, lambda one: tested.append(one) or one == 13)
    assert sieve.first(4, 12) is None
    assert tested == [5, 7, 11]
    assert sieve.first(2) == 13
    assert sieve.last(0, 12) is None
    assert sieve.first(2) == 13
    assert sorted(tested) == [2, 3, 5, 7, 11, 13]


@pytest.mark.parametrize(
    ("after", "end", "expected"), [(2, 3, False), (2, 4, True), (18, 30, True), (19, 30, False)]
)
def test_any_between(after: int, end: int, expected: bool) -> None:
    assert any_between(ORDERS, after, end) is expected

"""Random programs do watched as they do bare; `python -m tests.differential` runs many more."""

from __future__ import annotations

import warnings

import pytest

from tests.differential import MODES, Program, compare, draw, judged


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_do_as_they_do_unwatched(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = compare(range(1, 41), [mode])
    assert ran.failures == []
    assert ran.fenced >= 10
    assert ran.codes[f"{mode} FR401"] > 0  # else no fence was missing


def test_a_seed_draws_the_same_program_again() -> None:
    assert draw(3).steps == draw(3).steps
    assert draw(3).steps != draw(4).steps
    assert all(30 <= len(draw(seed).steps) <= 210 for seed in range(50))


FENCED, UNFENCED = Program(1, [], fenced=True), Program(1, [], fenced=False)


@pytest.mark.parametrize(
    ("mode", "program", "is_equal", "codes", "is_well"),
    [
        ("tracked", FENCED, True, set(), True),
        ("tracked", FENCED, True, {"FR401"}, False),
        ("tracked", UNFENCED, False, {"FR401"}, False),
        ("delayed", FENCED, False, {"FR102"}, False),
        ("delayed", FENCED, False, {"FR404"}, True),
        ("delayed", UNFENCED, False, {"FR401"}, True),
        ("delayed", UNFENCED, False, set(), False),
    ],
)
def test_what_may_differ(
    mode: str, program: Program, is_equal: bool, codes: set[str], is_well: bool
) -> None:
    assert (judged(mode, program, is_equal, codes) == "") is is_well

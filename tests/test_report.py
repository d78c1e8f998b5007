"""Violations as text, made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fmcheck.finding import CHECKS, Access, Counts, Coverage, Neighbour, Site, Violation
from fmcheck.report.run.closing import closing_line, gaps
from fmcheck.report.run.violation import KEYS, MISSING, key_values, render

ROOT = Path("project")
GATHER = Site("project/engine.py", 14, "gather", Site("project/loop.py", 9, "step"))
WRITE = Site("project/engine.py", 11, "stash")
BARE = Violation(
    code="FR602",
    name="dead-assert",
    buffer="guard",
    access=Access("assert", GATHER),
    test="",
    device="any",
    pid=7,
)
FULL = Violation(
    code="FR102",
    name="double-read",
    buffer="FutureMap.buf",
    rows=(17,),
    row_count=1,
    values=("-1",),
    access=Access("gather", GATHER, 312, "schedule", "r-9f3", 41),
    last_write=Access("write", WRITE, 311, "forward", "r-77a", 40),
    last_read=Access("gather", GATHER, 311),
    test="test_it[a b]",
    device="cuda:0",
    pid=7,
    count=3,
    owner="r-9f3",
    previous_owner="r-77a",
    neighbours=(
        Neighbour(16, "live", "5", "r-1"),
        Neighbour(17, "consumed", "-1", "r-9f3"),
        Neighbour(18, "empty", ""),
    ),
    expected=">= 0",
    notes=("gather waited on event 7",),
)


def test_the_whole_story_is_reported_in_order() -> None:
    assert render(FULL, ROOT).splitlines() == [
        "FMCHECK: FR102 double-read in FutureMap.buf row 17",
        "  gather      engine.py:14 in gather, called at loop.py:9, step 312, stream schedule, "
        "owner r-9f3, generation 41",
        "    values    -1",
        "    expected  >= 0",
        "  last write  engine.py:11 in stash, step 311, stream forward, owner r-77a, generation 40",
        "  last read   engine.py:14 in gather, called at loop.py:9, step 311",
        "  owner       r-9f3, before: r-77a",
        "  nearby      16 live 5 (r-1) | 17 consumed -1 (r-9f3) <- | 18 empty",
        "  missing     a write of these rows between the last read and this gather",
        "  note        gather waited on event 7",
        "  test        test_it[a b]",
        "  seen 3 times; first shown",
        "fmcheck violation: rule=FR102 buf=FutureMap.buf rows=17 row_count=1 site=engine.py:14 "
        "count=3 device=cuda:0 pid=7 step=312 stream=schedule owner=r-9f3 generation=41 "
        'test="test_it[a b]"',
    ]


def test_what_is_absent_leaves_no_line() -> None:
    assert render(BARE, ROOT).splitlines() == [
        "FMCHECK: FR602 dead-assert in guard",
        "  assert      engine.py:14 in gather, called at loop.py:9",
        f"  missing     {MISSING['FR602']}",
        "  test        none: outside of any test",
        "fmcheck violation: rule=FR602 buf=guard rows=- row_count=0 site=engine.py:14 count=1 "
        "device=any pid=7 step=- stream=- owner=- generation=- test=-",
    ]


#: Checks of a row whose last accesses are the story, also where there were none.
OF_A_ROW = {"FR101", "FR102", "FR103", "FR104", "FR105", "FR109", "FR110", "FR204"}


@pytest.mark.parametrize("code", sorted({*CHECKS, *MISSING}))
def test_every_check_says_what_is_missing(code: str) -> None:
    text = render(replace(BARE, code=code, name="any"), ROOT)
    assert f"  missing     {MISSING[code]}\n" in text
    assert ("last write  none" in text) is (code in OF_A_ROW)
    assert all(line.strip() for line in text.splitlines())


@pytest.mark.parametrize("violation", [BARE, FULL])
def test_the_last_line_has_every_key_in_the_promised_order(violation: Violation) -> None:
    line = key_values(violation, ROOT)
    assert tuple(re.findall(r"(\w+)=", line)) == KEYS


def test_keys_that_were_promised_are_kept() -> None:
    assert KEYS[:8] == ("rule", "buf", "rows", "row_count", "site", "count", "device", "pid")


def test_many_rows_are_cut_short() -> None:
    many = replace(FULL, rows=(1, 2), values=("-1", "-1"), row_count=9)
    text = render(many, ROOT)
    assert "in FutureMap.buf rows 1, 2 and 7 more\n" in text
    assert "    values    -1, -1 and 7 more\n" in text


def test_the_closing_line_never_hides_what_was_suppressed_or_only_reported() -> None:
    coverage = Coverage(Counts(1, 2, 3, 4), violations=1, warnings=2, suppressed=5)
    assert closing_line(coverage) == (
        "fmcheck: 1 buffer, 2 writes, 3 gathers, 4 peeks checked; "
        "1 violation, 2 warnings, 5 suppressed"
    )


def test_padded_tails_are_counted_where_there_are_any() -> None:
    assert "4 peeks, 5 padded tails checked" in closing_line(Coverage(Counts(1, 2, 3, 4, tails=5)))


@pytest.mark.parametrize(
    ("coverage", "gap"),
    [
        (Coverage(), "no relay was checked (the contracts name none)"),
        (Coverage(declared=("e:F",)), "nothing was checked (the contracts name `e:F`)"),
        (
            Coverage(declared=tuple("abcdef")),
            "nothing was checked (the contracts name `a`, `b`, `c`, `d` and 2 more)",
        ),
        (Coverage(Counts(tails=1)), "no relay was checked (the contracts name none)"),
    ],
)
def test_what_was_declared_is_named_where_nothing_of_it_was_imported(
    coverage: Coverage, gap: str
) -> None:
    assert gaps(coverage) == [f"no declared relay was imported: {gap}"]
    assert (coverage + Coverage(imported=("e:F",), touched=("e:F",))).declared == coverage.declared


def test_what_is_not_followed_is_counted_in_the_singular_and_the_plural() -> None:
    coverage = Coverage(
        untracked=(("classes", "replaced", 1), ("tensors", "written by index", 1234)),
        imported=("e:F",),
        touched=("e:F",),
    )
    assert gaps(coverage) == [
        "not followed: 1,234 tensors: written by index",
        "not followed: 1 class: replaced",
    ]


def test_a_suppression_that_one_worker_met_is_not_told_as_unmatched() -> None:
    one = Coverage(matched=("a",), unmatched=("b",))
    other = Coverage(unmatched=("a", "b"))
    assert (one + other).unmatched == ("b",)
    assert any("suppression b matched nothing" in gap for gap in gaps(one + other))

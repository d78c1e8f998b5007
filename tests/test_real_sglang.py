"""The real, unmodified FutureMap of SGLang releases, driven on CPU under `pytest -p fmcheck`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.drives import codes, drive
from tests.sglang_env import RELEASES, NoEnvironment, release_folder

if TYPE_CHECKING:
    from tests.drives import Drive

ENGINE = "sglang/srt/managers/overlap_utils.py"
RING = ("0.5.11", "0.5.12")
POOL = tuple(release for release in RELEASES if release not in RING)
#: The planted faults, each with what must be said of it.
EVERYWHERE = {
    "test_double_gather": "FR102",
    "test_double_gather_in_a_mixed_batch": "FR102",
    "test_gather_before_stash": "FR101",
    "test_dropped_stash": "FR102",
    "test_extras_double_gather": "FR102",
}
IN_THE_POOL = {
    **EVERYWHERE,
    "test_dropped_row": "FR102",
    "test_stash_to_the_wrong_row": "FR102",
    "test_stale_owner": "FR104",
    "test_lost_write": "FR103",
    "test_lengths_double_gather": "FR102",
    "test_dropped_publish": "FR102",
    "test_lengths_that_wait_for_no_publish": "FR401",
    "test_lengths_read_before_their_copy_is_done": "FR404",
}
IN_THE_RING = {**EVERYWHERE, "test_stale_owner_in_the_ring": "FR104"}

every = pytest.mark.parametrize("release", RELEASES)


def drove(release: str, name: str, in_ci: bool = False, mode: str = "fail") -> Drive:
    try:
        return drive(release, name, in_ci, mode)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)


@every
def test_healthy_drives_are_silent(release: str) -> None:
    reported = drove(release, "healthy")
    assert dict(reported.failures) == {}
    assert len(reported.passed) >= 40
    assert "fmcheck error" not in reported.output


@pytest.mark.sweep
@pytest.mark.parametrize(("release", "has"), [("0.5.16", 1), ("0.5.19", 5), ("0.5.23", 5)])
def test_drives_of_what_few_engines_switch_on_are_silent(release: str, has: int) -> None:
    reported = drove(release, "rarer")
    assert dict(reported.failures) == {}
    assert len(reported.passed) == has


@pytest.mark.sweep
@pytest.mark.parametrize("release", ["0.5.13", "0.5.23"])
def test_healthy_drives_are_silent_beside_the_own_guard(release: str) -> None:
    reported = drove(release, "healthy", in_ci=True)
    assert dict(reported.failures) == {}
    assert len(reported.passed) >= 40


@pytest.mark.parametrize("in_ci", [False, True], ids=["production", "in CI"])
@pytest.mark.parametrize("release", ["0.5.13", "0.5.23"])
def test_the_own_guard_is_reported_to_be_dead_where_it_is(release: str, in_ci: bool) -> None:
    output = drove(release, "healthy", in_ci=in_ci).output
    reported = re.findall(r"^FMCHECK: FR602 dead-assert in (\w+)$", output, re.MULTILINE)
    assert reported == (["_assert_nonneg_and_invalidate"] if in_ci else [])
    sites = lines_of(output, "assert")
    assert len(sites) == len(reported)
    for number in sites:
        assert "_assert_async((values >= 0).all())" in source_line(release, number)


@every
def test_the_closing_line_counts_what_was_checked(release: str) -> None:
    buffers, writes, gathers = drove(release, "healthy").counts
    assert buffers >= 90
    assert writes >= 2000
    assert gathers >= 1000


@every
def test_each_planted_fault_is_reported_under_its_code(release: str) -> None:
    reported = drove(release, "planted")
    expected = IN_THE_RING if release in RING else IN_THE_POOL
    assert {name: codes(text) for name, text in reported.failures.items()} == {
        name: [code] for name, code in expected.items()
    }


@every
def test_without_fmcheck_no_planted_fault_is_seen(release: str) -> None:
    reported = drove(release, "planted", mode="off")
    assert dict(reported.failures) == {}
    assert len(reported.passed) >= len(EVERYWHERE)


@pytest.mark.parametrize("release", POOL)
def test_the_own_guard_of_sglang_sees_a_dropped_publish_at_most(release: str) -> None:
    reported = drove(release, "planted", in_ci=True, mode="off")
    assert set(reported.failures) <= {"test_dropped_publish"}


@pytest.mark.parametrize("release", POOL)
@pytest.mark.parametrize(
    ("test", "buffers", "written", "read"),
    [
        (
            *("test_double_gather", ["output_tokens_buf"]),
            *("self.output_tokens_buf[indices] =", "future_map.output_tokens_buf["),
        ),
        (
            *("test_gather_before_stash", ["output_tokens_buf"]),
            *(None, "future_map.output_tokens_buf["),
        ),
        (
            *("test_lengths_double_gather", ["new_seq_lens_buf"]),
            *("self.new_seq_lens_buf[indices] =", "self.new_seq_lens_buf[fi]"),
        ),
        (
            "test_extras_double_gather",
            ["topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf"],
            "_buf[indices] =",
            "gather_spec_extras(",
        ),
    ],
    ids=["plain double gather", "gather before stash", "lengths", "speculative extras"],
)
def test_a_report_names_both_sites(
    release: str, test: str, buffers: list[str], written: str | None, read: str
) -> None:
    failure = drove(release, "planted").failures[test]
    assert re.findall(r"FMCHECK: \w+ [\w-]+ in FutureMap\.(\w+) rows", failure) == buffers
    gathers = lines_of(failure, "gather")
    assert len(gathers) == len(buffers)
    assert all(read in source_line(release, number) for number in gathers)
    if written is None:
        assert "last write  none" in failure
        return
    writes, reads = lines_of(failure, "last write"), lines_of(failure, "last read")
    assert len(writes) == len(reads) == len(buffers)
    assert all(written in source_line(release, number) for number in writes)
    assert all(read in source_line(release, number) for number in reads)


def lines_of(failure: str, label: str) -> list[int]:
    return [int(n) for n in re.findall(rf"{label} +\S*{re.escape(ENGINE)}:(\d+) in ", failure)]


def source_line(release: str, number: int) -> str:
    return (release_folder(release) / ENGINE).read_text().splitlines()[number - 1]


SLOT_FAULTS = {
    "test_a_position_that_nobody_mapped": "FR101",
    "test_positions_of_the_request_before": "FR104",
    "test_a_row_that_is_freed_twice": "FR108",
}


@pytest.mark.parametrize("release", ["0.5.13", "0.5.23"])
def test_the_table_of_slots_is_followed_element_by_element(release: str) -> None:
    try:
        reported = drive(release, "slots", settings="slots_settings.toml")
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    assert reported.passed == {"test_healthy"}
    assert {name: codes(reported.failures[name])[0] for name in SLOT_FAULTS} == SLOT_FAULTS

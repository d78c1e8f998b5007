"""Three races of SGLang's overlap loop: the last release that has one is reported, the next is not.

The release's own loops and methods order the streams, which are the CPU's; `test_races.py` of the
drives says what stands in for the rest.
"""

from __future__ import annotations

import pytest

from tests.drives import codes, drive
from tests.sglang_env import NoEnvironment

PLANNING = "test_planning_writes_rows_that_a_forward_reads"
RESULTS = "test_results_write_rows_that_a_forward_reads"
PREBUILT = "test_a_prebuilt_request_seeds_a_row_that_a_forward_still_writes"

#: Each race takes two releases that nothing else of `make test` runs.
sweep = pytest.mark.sweep


@pytest.mark.parametrize(
    ("race", "last_faulty", "first_fixed"),
    [
        pytest.param(*(PLANNING, "0.5.12.post1", "0.5.13"), id="sglang#26380", marks=sweep),
        pytest.param(*(RESULTS, "0.5.15.post1", "0.5.16"), id="sglang#31687", marks=sweep),
        pytest.param(PREBUILT, "0.5.18", "0.5.19", id="sglang#35748"),
    ],
)
def test_the_last_faulty_release_is_reported_and_the_first_fixed_is_not(
    race: str, last_faulty: str, first_fixed: str
) -> None:
    try:
        faulty = drive(last_faulty, "races", settings="races_settings.toml")
        fixed = drive(first_fixed, "races", settings="races_settings.toml")
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    assert codes(faulty.failures.get(race, "")) == ["FR401"]
    assert race in fixed.passed, fixed.failures.get(race, fixed.output)

"""vLLM's own model runners V1 and V2, unmodified, driven on CPU under `pytest -p fmcheck`."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING

import pytest

from fmcheck.cli import main
from tests.drives import codes
from tests.sglang_env import NoEnvironment
from tests.vllm_drives import RUNNERS, STREAMS, drive, workloads
from tests.vllm_env import RELEASES, release_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.drives import Drive

RUNNER = "vllm/v1/worker/gpu/model_runner.py"
#: The planted faults, each with what must be said of it, in this order.
PLANTED = {
    "test_dropped_post_update": ["FR102"],
    "test_dropped_row_of_the_post_update": ["FR102"],
    "test_token_of_another_row": ["FR109", "FR102"],
    "test_second_prepare": ["FR102"],
    "test_dropped_drafts": ["FR102"],
    "test_first_token_of_a_new_owner": ["FR104"],
    "test_result_that_is_read_before_its_copy_is_done": ["FR404"],
}

#: The same of model runner V1.
PLANTED_V1 = {
    "test_ids_are_prepared_twice": ("FR102",),
    "test_tokens_of_the_step_before_the_last": ("FR102",),
    "test_request_that_is_left_out_of_the_mapping": ("FR202",),
    "test_result_that_is_read_before_its_copy_is_done": ("FR404",),
    # The count of computed tokens is a relay buffer on the host.
    "test_inputs_that_are_filled_while_they_are_copied": ("FR401", "FR403"),
}

#: Random workloads; `python -m tests.vllm_drives --workloads 200` runs more.
SEEDS = range(8)

every = pytest.mark.parametrize("release", RELEASES)


def drove(release: str, name: str, mode: str = "fail") -> Drive:
    try:
        return drive(release, name, mode)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)


@every
def test_healthy_drives_are_silent_and_much_was_checked(release: str) -> None:
    reported = drove(release, "healthy")
    assert dict(reported.failures) == {}, reported.output
    assert len(reported.passed) >= 10
    assert "fmcheck error" not in reported.output
    assert "no tracked write" not in reported.output
    buffers, writes, gathers = reported.counts
    assert buffers >= 20
    assert writes >= 300
    assert gathers >= 400


@every
def test_each_planted_fault_is_reported_under_its_code(release: str) -> None:
    reported = drove(release, "planted")
    assert {name: codes(text) for name, text in reported.failures.items()} == PLANTED, (
        reported.output
    )


@every
def test_vllm_itself_says_nothing_of_a_planted_fault(release: str) -> None:
    reported = drove(release, "planted", mode="off")
    assert dict(reported.failures) == {}
    assert reported.passed == set(PLANTED)


@every
def test_a_report_names_the_calls_of_both_kernels(release: str) -> None:
    failure = drove(release, "planted").failures["test_second_prepare"]
    written, read = ("postprocess", "post_update("), ("prepare_inputs", "combine_sampled")
    for label, (function, text) in (
        ("gather", read),
        ("last write", written),
        ("last read", read),
    ):
        found = re.search(rf"{label} +\S*{re.escape(RUNNER)}:(\d+) in \w+\.(\w+)", failure)
        assert found, failure
        assert found[2].startswith(function)
        assert text in source_line(release, int(found[1]))


@every
def test_healthy_drives_of_v1_are_silent_and_much_was_checked(release: str) -> None:
    reported = drove(release, "healthy_v1")
    assert dict(reported.failures) == {}, reported.output
    assert len(reported.passed) >= 7
    assert "fmcheck error" not in reported.output
    assert reported.counts[2] >= 70
    assert int(re.findall(r"(\d+) padded tails", reported.output)[-1]) >= 150


@every
def test_each_planted_fault_of_v1_is_reported_under_its_code(release: str) -> None:
    reported = drove(release, "planted_v1")
    found = {name: tuple(codes(text)) for name, text in reported.failures.items()}
    assert found == PLANTED_V1, reported.output


@every
def test_vllm_itself_says_nothing_of_a_planted_fault_of_v1(release: str) -> None:
    reported = drove(release, "planted_v1", mode="off")
    assert dict(reported.failures) == {}
    assert reported.passed == set(PLANTED_V1)


@pytest.mark.sweep
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("streams", STREAMS)
def test_random_workloads_are_silent_in_each_mode_of_streams(streams: str, runner: str) -> None:
    try:
        reported = workloads(runner, streams, SEEDS)
    except NoEnvironment as err:
        pytest.fail(str(err), pytrace=False)
    assert dict(reported.failures) == {}, reported.output
    assert len(reported.passed) == len(SEEDS)
    assert "fmcheck error" not in reported.output
    assert reported.counts[2] >= 10 * len(SEEDS)


def source_line(release: str, number: int) -> str:
    return (release_folder(release) / RUNNER).read_text().splitlines()[number - 1]


STORED = "test_a_block_is_stored_that_the_step_still_writes"
BEGUN = "test_the_first_step_of_a_request_that_was_computed_elsewhere"


@pytest.mark.parametrize(
    ("file", "test", "release", "found"),
    [
        # vllm#45704: blocks were copied to the host while the step might still write them.
        ("offload", STORED, "0.23.0", ["FR401"]),
        ("offload", STORED, "0.24.0", []),
        # vllm#31341: the same in the first offload of cache blocks to the host.
        pytest.param("transfer", STORED, "0.13.0", ["FR401"], marks=pytest.mark.sweep),
        pytest.param("transfer", STORED, "0.20.0", [], marks=pytest.mark.sweep),
        # vllm#39833: a request that was computed elsewhere begins with the last owner's token.
        pytest.param("until_0_19", BEGUN, "0.19.1", ["FR104"], marks=pytest.mark.sweep),
        pytest.param("until_0_19", BEGUN, "0.20.0", [], marks=pytest.mark.sweep),
    ],
)
def test_a_public_fault_is_reported_in_the_last_release_that_has_it(
    file: str, test: str, release: str, found: list[str]
) -> None:
    done = drove(release, file)
    assert codes(done.failures.get(test, "")) == found
    assert (test in done.passed) is (not found), done.output


def test_a_load_that_does_not_wait_is_reported_in_the_newest_release() -> None:
    """vllm#47282, which is open: blocks are filled while the step may still read them."""
    done = drove(RELEASES[-1], "offload")
    assert codes(done.failures["test_a_block_is_loaded_that_the_step_still_reads"]) == ["FR401"]
    assert STORED in done.passed


@pytest.mark.sweep
def test_open_reports_are_reported_where_they_are_wrong_and_only_there() -> None:
    """vllm#47644 is a race; vllm#36942 views what it has not waited for, and reads it behind."""
    done = drove(RELEASES[-1], "open")
    assert {name: set(codes(text)) for name, text in done.failures.items()} == {
        "test_steps_of_a_pipeline_overlap_and_wait_for_no_copy": {"FR401", "FR403"}
    }, done.output
    assert done.passed == {
        "test_steps_of_a_pipeline_with_the_event_of_asynchronous_scheduling",
        "test_pooled_results_are_viewed_before_the_wait_and_read_behind_it",
    }


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("file", "code", "function", "seen"),
    [
        ("worker/gpu_model_runner.py", "FM403", "execute_model", {"0.13.0": True, "0.20.0": False}),
        (
            "sample/rejection_sampler.py",
            *("FM502", "_get_logprobs_tensors"),
            {"0.13.0": True, "0.20.0": False},
        ),
    ],
)
def test_the_linter_reports_a_fault_in_the_last_release_that_has_it(
    file: str, code: str, function: str, seen: dict[str, bool], tmp_path: Path
) -> None:
    """vllm#31373: inputs prepared outside of the guard; vllm#31336: masks the host waits for."""
    settings = tmp_path / "fmcheck.toml"
    settings.write_text('contracts = ["vllm"]\n')
    for release, is_seen in seen.items():
        path = release_folder(release) / "vllm" / "v1" / file
        found = tmp_path / f"{release}.json"
        how = ["--select", code, "--config", str(settings), "--no-cache", "--format", "json"]
        main(["lint", str(path), *how, "--output-file", str(found)])
        lines = [one["line"] for one in json.loads(found.read_text())]
        assert bool(_lines_in(path, function) & set(lines)) is is_seen, (release, lines)


def _lines_in(path: Path, function: str) -> set[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    raise AssertionError(f"{path}: no {function}")

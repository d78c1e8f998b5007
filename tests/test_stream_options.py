"""How streams are followed: the flag, the environment, the ini file, and what `watch` takes."""

from __future__ import annotations

import pytest

import fmcheck
from fmcheck.errors import UsageError
from fmcheck.stream_options import STREAM_MODES, StreamOptions, stream_options


def test_the_first_source_that_says_anything_counts() -> None:
    modes = [("--fmcheck-streams", None), ("FMCHECK_STREAMS", "random"), ("ini", "off")]
    assert stream_options(modes, [("--fmcheck-seed", ""), ("ini", "7")]) == StreamOptions(
        "random", 7
    )


def test_by_default_streams_are_followed() -> None:
    assert stream_options([], []) == StreamOptions("tracked", 0)


def test_a_seed_that_nobody_gave_is_drawn_and_told() -> None:
    drawn = {stream_options([("ini", "random")], []).seed for _ in range(3)}
    assert len(drawn) > 1
    assert str(StreamOptions("random", 7)) == "random, seed 7"


@pytest.mark.parametrize(
    ("modes", "seeds", "said"),
    [
        ([("--fmcheck-streams", "delaid")], [], "did you mean `delayed`"),
        ([], [("FMCHECK_SEED", "-1")], "expected a number"),
        ([], [("--fmcheck-seed", "x")], "--fmcheck-seed"),
    ],
)
def test_what_does_not_fit_is_named(modes, seeds, said) -> None:
    with pytest.raises(UsageError, match=said):
        stream_options(modes, seeds)


@pytest.mark.parametrize("mode", STREAM_MODES)
def test_watch_takes_each_mode(mode: str) -> None:
    with fmcheck.watch(streams=mode, seed=3, mode="warn", allow_unchecked=True) as session:
        assert session.streams == StreamOptions(mode, 3)


def test_watch_refuses_another() -> None:
    with pytest.raises(UsageError, match=r"fmcheck\.watch: streams"):
        fmcheck.watch(streams="fast")


RACE = """
import torch

def test_hands_over_unfenced():
    forward = torch.cpu.Stream()
    schedule = torch.cpu.Stream()
    with torch.cpu.stream(forward):
        tokens = torch.arange(4) + 1
    {fence}
    with torch.cpu.stream(schedule):
        {read}
"""


def written(pytester: pytest.Pytester, fence: str = "pass", read: str = "tokens + 1") -> None:
    pytester.makepyfile(RACE.format(fence=fence, read=read))


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "fmcheck", *options)


def test_a_race_fails_its_test(pytester: pytest.Pytester) -> None:
    written(pytester)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*streams tracked*",
            "FMCHECK: FR401 stream-race in tensor of *",
            "*missing     a wait of stream `schedule` for an event recorded after *",
        ]
    )


def test_its_fenced_twin_passes(pytester: pytest.Pytester) -> None:
    written(pytester, "schedule.wait_stream(forward)")
    run(pytester).assert_outcomes(passed=1)


def test_delayed_the_value_itself_is_wrong(pytester: pytest.Pytester) -> None:
    read = "assert (tokens + 1).tolist() == [2, 3, 4, 5]"
    written(pytester, read=read)
    result = run(pytester, "--fmcheck-streams=delayed")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert ?1, 1, 1, 1? == ?2, 3, 4, 5?*"])


def test_the_seed_of_a_random_run_is_reported(pytester: pytest.Pytester) -> None:
    written(pytester)
    result = run(pytester, "--fmcheck-streams=random", "--fmcheck-seed=11")
    result.stdout.fnmatch_lines(
        ["*streams random, seed 11*", "*--fmcheck-streams=random --fmcheck-seed 11*"]
    )


def test_off_by_the_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMCHECK_STREAMS", "off")
    written(pytester)
    run(pytester).assert_outcomes(passed=1)


def test_a_wrong_mode_stops_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--fmcheck-streams=delaid")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*did you mean `delayed`*"])

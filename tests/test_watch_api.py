"""`fmcheck.watch` and `fmcheck.sync`: the way in for engines without pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fmcheck
from fmcheck.errors import UsageError
from fmcheck.runtime.session import probes, session
from tests.toy import CONTRACT, FutureMap

if TYPE_CHECKING:
    from pathlib import Path

ROWS = torch.tensor([1, 2])


@pytest.fixture
def contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "toy.toml"
    path.write_text(CONTRACT)
    monkeypatch.chdir(tmp_path)
    return str(path)


def double_read() -> FutureMap:
    fm = FutureMap()
    fm.buf[ROWS] = 5
    for _ in range(2):
        fm.buf[ROWS]
    return fm


def test_it_raises_at_the_end_with_the_whole_report(contract: str) -> None:
    with pytest.raises(fmcheck.ViolationError) as caught, fmcheck.watch([contract]) as watched:
        double_read()
    report = str(caught.value)
    assert "FMCHECK: FR102 double-read in FutureMap.buf rows 1, 2" in report
    assert report.endswith("1 buffer, 1 write, 2 gathers, 0 peeks checked; 1 violation")
    assert [one.code for one in watched.violations] == ["FR102"]
    assert watched.coverage().counts.gathers == 2
    assert type(FutureMap().buf) is torch.Tensor


def test_a_healthy_block_says_nothing(contract: str) -> None:
    with fmcheck.watch([contract]) as watched:
        fm = FutureMap()
        fm.buf[ROWS] = 5
        assert fm.buf[ROWS].tolist() == [5, 5]
    assert watched.violations == ()


def test_an_error_of_the_block_is_kept_and_noted(contract: str) -> None:
    with pytest.raises(KeyError) as caught, fmcheck.watch([contract]):
        {}[len(double_read().buf)]
    if sys.version_info >= (3, 11):
        assert "FMCHECK: FR102" in "\n".join(caught.value.__notes__)


def test_mode_warn_warns(contract: str) -> None:
    with pytest.warns(fmcheck.FmcheckWarning, match="FR102"), fmcheck.watch([contract], "warn"):
        double_read()


def test_mode_halt_raises_at_the_line_when_the_books_are_done(contract: str) -> None:
    watched = fmcheck.watch([contract], mode="halt")
    watched.start()
    try:
        fm = FutureMap()
        with pytest.raises(fmcheck.ViolationError, match=r"FR101 .*FutureMap\.buf rows 1, 2.*at "):
            fm.buf[ROWS]
        assert fm.buf._relay.ledger.last_read(1)
        fm.buf[ROWS] = 5
        assert fm.buf[ROWS].tolist() == [5, 5]
    finally:
        watched.stop()
    assert [one.code for one in watched.violations] == ["FR101"]


def test_mode_off_watches_nothing(contract: str) -> None:
    with fmcheck.watch([contract], mode="off") as watched:
        assert type(double_read().buf) is torch.Tensor
    assert watched.violations == ()


def test_a_block_in_which_no_contract_applied_warns(contract: str) -> None:
    with pytest.warns(fmcheck.FmcheckWarning) as warned, fmcheck.watch(["sglang"]):
        pass
    assert [str(one.message) for one in warned] == [
        "fmcheck: no contract applied: nothing that a contract declares was checked (not imported: "
        "`sglang`); pass the contract of your engine in `contracts`, or `allow_unchecked=True`"
    ]
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("contracts", "options"),
    [
        (["sglang"], {"allow_unchecked": True}),
        (["sglang"], {"mode": "off"}),
        ([CONTRACT, "sglang"], {}),
    ],
)
def test_a_block_that_may_check_nothing_or_did_not_warns_of_nothing(
    contract: str, contracts: list[str], options: dict[str, Any]
) -> None:
    named = [contract if one is CONTRACT else one for one in contracts]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fmcheck.watch(named, **options):
            FutureMap().buf[ROWS] = 5


def test_a_report_says_itself_that_no_contract_applied(contract: str) -> None:
    found = pytest.warns(fmcheck.FmcheckWarning)
    with found as warned, fmcheck.watch(["sglang"], mode="warn", uninitialized=True):
        torch.empty(4).tolist()
    (only,) = warned
    assert "FR701" in str(only.message)
    assert str(only.message).count("no contract applied") == 1


def test_a_second_watch_is_refused_and_the_first_goes_on(contract: str) -> None:
    with fmcheck.watch([contract]) as watched:
        with (
            pytest.raises(
                UsageError, match=r"already active in this process, started by fmcheck\.watch"
            ),
            fmcheck.watch([contract]),
        ):
            pass
        fm = FutureMap()
        fm.buf[ROWS] = 5
    assert watched.coverage().counts.writes == 1
    with fmcheck.watch([contract], allow_unchecked=True):
        pass


def test_a_mode_and_a_contract_that_are_unknown_are_named(contract: str) -> None:
    with pytest.raises(UsageError, match=r"got `hlat`; did you mean `halt`"):
        fmcheck.watch([contract], mode="hlat")
    with pytest.raises(UsageError, match="did you mean `sglang`"):
        fmcheck.watch(["sglan"])


def test_settings_suppress_and_the_report_says_how_many(contract: str, tmp_path: Path) -> None:
    settings = tmp_path / "fmcheck.toml"
    settings.write_text(
        'contracts = ["toy.toml"]\n[[suppress]]\ncheck = "FR102"\nbuffer = "FutureMap.buf"\n'
        'reason = "known"\nexpires = 2999-01-01\n'
    )
    with fmcheck.watch(config=settings) as watched:
        double_read()
    assert watched.violations == ()
    assert watched.coverage().suppressed == 1
    assert watched.coverage().unmatched == ()


def test_sync_asks_each_device_side_finder(contract: str) -> None:
    asked = []
    with fmcheck.watch([contract], allow_unchecked=True) as watched:
        watched._watch.tally.pending.append(lambda: asked.append(1))
        fmcheck.sync()
        assert asked == [1]
    before = len(asked)
    fmcheck.sync()
    assert len(asked) == before


def test_a_dead_detector_ends_the_block_in_an_error(
    contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(place: probes.ProbeTarget) -> str:
        return "was silent"

    monkeypatch.setattr(probes, "PROBES", [probes.Probe("FR102", silent)])
    with (
        pytest.raises(
            fmcheck.DetectorError, match="FR102 double-read does not work on cpu: was silent"
        ),
        fmcheck.watch([contract]),
    ):
        FutureMap()


@pytest.mark.parametrize("mode", ["fail", "warn"])
def test_a_buffer_that_never_appeared_ends_the_block(
    contract: str, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "toy.toml").write_text(f'{CONTRACT}\n[[relay.buffer]]\nname = "other"\n')
    expected = (
        pytest.raises(fmcheck.CoverageError, match="other")
        if mode == "fail"
        else pytest.warns(fmcheck.FmcheckWarning, match="other")
    )
    with expected, fmcheck.watch([contract], mode):
        FutureMap().buf[ROWS] = 5


def test_the_session_is_over_after_an_error_in_the_block(contract: str) -> None:
    with pytest.raises(KeyError), fmcheck.watch([contract]):
        raise KeyError
    assert session._active is None


def test_a_watch_whose_engine_is_never_imported_loads_no_library(contract: str) -> None:
    script = f"""
        import sys
        from pathlib import Path
        from fmcheck.contract import load_contract
        from fmcheck.runtime.session.watch import Watch

        watch = Watch([load_contract(Path({contract!r}))])
        watch.start()
        watch.coverage()
        watch.stop()
        print(*{{"numpy", "torch"}}.intersection(sys.modules))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("\n", "")

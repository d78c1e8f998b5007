"""The random workloads reach every system, and the command says what it should."""

from collections import Counter

import hypothesis
import pytest
import torch

from fixtures.engine.__main__ import main
from fixtures.engine.faults import FAULTS
from fixtures.engine.faults.registry import replaced
from fixtures.engine.worker import Worker
from fixtures.engine.workload import run
from tests.engine.strategies import workloads
from tests.engine.test_equality import steady


def test_workloads_reach_every_system() -> None:
    met: Counter[str] = Counter()

    def make(forward):
        def noting(self, batch, on_publish):
            output = forward(self, batch, on_publish)
            padded = self.runner.padded_bs(batch.size)
            met[batch.kind.value] += 1
            met["middle chunk"] += len(batch.final_members) < batch.size
            if batch.kind.value == "decode":
                met["padded"] += padded is not None and padded > batch.size
                met["eager"] += padded is None
            for count in [] if output.accept_lens is None else output.accept_lens.tolist():
                met[f"{self.settings.algorithm.value} accepts {count}"] += 1
            return output

        return noting

    @hypothesis.settings(steady, max_examples=200)
    @hypothesis.given(workloads())
    def serve_all(workload) -> None:
        served = run(workload.settings, workload.asks, overlap=True)
        met["retraction"] += served.retractions
        for outcome in served.outcomes:
            met[outcome.finish] += 1

    with replaced(Worker, "forward", make):
        serve_all()
    systems = ["extend", "mixed", "decode", "middle chunk", "padded", "eager"]
    systems += ["retraction", "abort", "stop", "length"]
    for algorithm in ("eagle", "frozen_kv_mtp", "multi_layer"):
        systems += [f"{algorithm} accepts {count}" for count in range(4)]
    assert all(met[system] >= 5 for system in systems), {s: met[s] for s in systems}


def test_the_command_serves_and_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--algorithm", "eagle", "--requests", "6"]) == 0
    reported = capsys.readouterr().out
    assert reported.count("tokens/s") == 2
    assert "tokens: equal" in reported


def test_the_command_shows_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fault", "prefill_forgets_stash"]) == 0
    reported = capsys.readouterr().out
    assert "https://github.com/sgl-project/sglang/pull/26108" in reported
    assert "FR101" in reported


def test_the_command_knows_no_other_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fault", "prefill_forgets_stsh"]) == 2
    assert "did you mean prefill_forgets_stash?" in capsys.readouterr().err


def test_the_command_says_that_a_device_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--check", "--device", "cuda"]) == 2
    assert "--device cuda: this torch sees no such device" in capsys.readouterr().err


def test_the_table_has_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults"]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in reported[1:-1]] == [
        fault.name for fault in sorted(FAULTS.values(), key=lambda f: (f.family, f.check))
    ]


def test_the_check_fails_when_tokens_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from fixtures.engine import check

    monkeypatch.setattr(check, "differing", lambda one, other: [0])
    assert not check.check_equalities(FAULTS["hidden_sync"].settings.device, 1)

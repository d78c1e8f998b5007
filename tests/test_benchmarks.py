"""The table of benchmarks: whole, and kept in a file."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks.ratio import Ratio


@pytest.mark.torch
def test_every_module_with_ratios_is_a_part():
    parts = {"endurance", "fused_gather", "guard", "lint", "scaling", "startup", "streams", "watch"}
    assert set(benchmarks.parts()) == parts
    assert "ratio" not in benchmarks.parts()


@pytest.fixture
def two_parts(monkeypatch):
    def fails(scratch):
        yield Ratio("a first one", 3.0, 1.0)
        raise OSError("no wheel")

    parts = {
        "broken": SimpleNamespace(ratios=fails),
        "whole": SimpleNamespace(ratios=lambda scratch: [Ratio("ours / theirs", 1.0, 2.0)]),
    }
    monkeypatch.setattr(benchmarks, "parts", lambda: parts)


def test_the_table_is_kept_in_a_file(two_parts, tmp_path, capsys):
    out = tmp_path / "ratios.json"
    assert benchmarks.main(["--output", str(out), "--part", "whole"]) == 0
    assert "0.50" in capsys.readouterr().out
    table = json.loads(out.read_text())
    assert table["failed"] == {}
    assert table["ratios"] == [
        {"part": "whole", "what": "ours / theirs", "ratio": 0.5, "ours": 1.0, "other": 2.0}
    ]


def test_a_part_that_cannot_be_measured_is_reported_and_the_others_are(two_parts, tmp_path, capsys):
    out = tmp_path / "ratios.json"
    assert benchmarks.main(["--output", str(out)]) == 1
    assert "broken could not be measured: OSError: no wheel" in capsys.readouterr().err
    table = json.loads(out.read_text())
    assert [one["what"] for one in table["ratios"]] == ["a first one", "ours / theirs"]
    assert table["failed"] == {"broken": "OSError: no wheel"}

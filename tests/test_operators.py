"""The operator table, and the watch, on the samples that torch has of its own operators."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import batch_norm

from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch

CONTRACT = parse_contract('[engine]\nname = "toy"\n', "toy.toml")
ROOT = Path(__file__).parent.parent


def found(*arguments: str) -> dict[str, Any]:
    """Returns what `python -m tests.operators` says: torch's samples change its settings."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.operators", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@pytest.mark.process
def test_the_table_says_what_each_operator_writes_and_shows() -> None:
    said = found("table", "2")
    assert said["operators"] > 600
    assert said["wrong"] == {}


@pytest.mark.process
def test_a_relay_buffer_is_to_torch_s_samples_what_a_plain_tensor_is() -> None:
    said = found("relay", "2")
    assert said["operators"] > 500
    assert said["buffers"] > 3000
    assert (said["differ"], said["reported"], said["problems"]) == ([], [], [])


@pytest.mark.process
@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["tracked", "delayed", "random"])
def test_torch_s_samples_do_as_they_do_unwatched_and_nothing_is_reported(mode: str) -> None:
    said = found(mode, "2")
    assert said["operators"] > 600
    assert (said["differ"], said["reported"], said["problems"]) == ([], [], [])


# --- what torch's schemas do not say ---


@pytest.mark.parametrize("trains", [True, False])
def test_a_batch_norm_that_trains_writes_its_running_values(trains: bool) -> None:
    watch = Watch([CONTRACT], streams="tracked")
    watch.start()
    try:
        side = torch.cpu.Stream()
        mean, var, batch = torch.zeros(3), torch.ones(3), torch.rand(4, 3)
        side.wait_stream(torch.cpu.current_stream())
        with torch.cpu.stream(side):
            batch_norm(batch, mean, var, training=trains)
        _ = mean + 1
        assert [one.code for one in watch.drain()] == ["FR401"] * trains
    finally:
        watch.stop()


def test_a_batch_norm_of_unwritten_values_updates_its_running_ones_once() -> None:
    watch = Watch([CONTRACT], uninitialized=True)
    watch.start()
    try:
        mean, var, batch = torch.zeros(1), torch.ones(1), torch.empty(4, 1)
        batch[:3] = 1
        batch_norm(batch, mean, var, training=True, momentum=0.5)
        expected = batch.mean() / 2
    finally:
        watch.stop()
    torch.testing.assert_close(mean[0], expected, equal_nan=True)


@pytest.mark.parametrize("split", [torch.unsafe_chunk, torch.unsafe_split])
def test_a_view_that_torch_calls_none_reads_nothing(split: Any) -> None:
    watch = Watch([CONTRACT], streams="tracked")
    watch.start()
    try:
        side = torch.cpu.Stream()
        with torch.cpu.stream(side):
            made = torch.arange(6.0) + 1
        parts = split(made, 3)
        torch.cpu.current_stream().wait_stream(side)
        _ = parts[0] + 1
        assert watch.drain() == ()
    finally:
        watch.stop()

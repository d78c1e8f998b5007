"""`fmcheck doctor`, and the same proof in a run of pytest, with detectors sabotaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import Done, run_each

REPOSITORY = Path(__file__).parent.parent
CPU = ("--device", "cpu", "--backend", "eager")
AOT = ("--device", "cpu", "--backend", "aot_eager")
# What kills each detector, as a change to fmcheck's own modules.
SABOTAGE = {
    "FR101": "from fmcheck.runtime.core import verdicts\n"
    "known = verdicts.of_gather\n"
    "verdicts.of_gather = lambda *a: 0 if known(*a) == verdicts.UNWRITTEN else known(*a)\n",
    "FR102": "from fmcheck.runtime.relay.buffer import RelayBuffer\n"
    "RelayBuffer._poison_over = lambda *args: None\n",
    "FR103": "from fmcheck.runtime.core import verdicts\n"
    "verdicts.of_write = lambda state, held: verdicts.GOOD\n",
    "FR104": "from fmcheck.runtime.core.ledger import Ledger\n"
    "Ledger.is_stale = lambda self, rows: rows < 0\n",
    "FR201": "from fmcheck.runtime.graphs.fill_patches import FillPatch\n"
    "FillPatch.install = lambda *args: ()\n",
    "FR301": "from fmcheck.runtime.relay import device_checks, relay_tensor\n"
    "device_checks.one_device = lambda name, translate, alias: translate\n",
    "FR105": "from fmcheck.runtime.core.verdicts import Poison\n"
    "Poison.is_invalid = lambda self, bits: self.is_poison(bits) & False\n",
    "FR106": "from fmcheck.runtime.core import verdicts\nverdicts.of_hand_out = lambda *_: 0\n",
    "FR107": "from fmcheck.runtime.core import verdicts\n"
    "known = verdicts.of_hand_out\n"
    "verdicts.of_hand_out = lambda whose, sink, other: known(whose, sink, False)\n",
    "FR108": "from fmcheck.runtime.core import verdicts\nverdicts.of_take_back = lambda _: 0\n",
    "FR109": "from fmcheck.runtime.core import verdicts\nverdicts.of_owned_write = lambda *_: 0\n",
    "FR110": "from fmcheck.runtime.relay.buffer import RelayBuffer\n"
    "RelayBuffer._judge_repeats = lambda *_: None\n",
    "FR111": "from fmcheck.runtime.core import verdicts\nverdicts.of_use = lambda *_: 0\n",
    "FR202": "from fmcheck.runtime.graphs.tails import HostTail\n"
    "HostTail.judge_values = lambda *_: None\n",
    "FR203": "from fmcheck.runtime.graphs.tails import HostTail\n"
    "HostTail.judge_rewritten = lambda *_: None\n",
    "FR204": "from fmcheck.runtime.relay.buffer import RelayBuffer\n"
    "RelayBuffer._judge_sinks = lambda *_: None\n",
    "FR401": "from fmcheck.runtime.core import clocks\n"
    "clocks.Shadow._unordered = lambda *_: iter(())\n",
    "FR402": "from fmcheck.runtime.order.freed_memory import FreedMemory\n"
    "FreedMemory._reused = lambda *_: None\n",
    "FR403": "from fmcheck.runtime.order.lifetimes import Lifetimes\n"
    "Lifetimes._overwritten = lambda *_: None\n",
    "FR404": "from fmcheck.runtime.order.lifetimes import Lifetimes\n"
    "Lifetimes._host_reads = lambda *_: False\n",
    "FR405": "from fmcheck.runtime.order.stale_events import StaleEvents\n"
    "StaleEvents._report_wait = lambda *_: None\n",
    "FR501": "from fmcheck.runtime.steps.step_syncs import StepMode\n"
    "StepMode._report = lambda *_, **__: None\n",
    "FR502": "from fmcheck.runtime.steps.step_syncs import StepMode\n"
    "StepMode._launched = lambda *_: None\nStepMode.counting = property(\n"
    "    lambda _: 0, lambda *_: None\n)\n",
    "FR601": "from fmcheck.runtime.graphs.captures import Captures\n"
    "Captures.judge = lambda *_: None\n",
    "FR603": "from fmcheck.runtime.graphs.outputs import Outputs\nOutputs.read = lambda *_: None\n",
    "FR701": "from fmcheck.runtime.steps import twins\ntwins.are_alike = lambda *_: True\n",
    "FR602": "from fmcheck.runtime.graphs import dead_assert\n"
    "dead_assert.gone = lambda asked, left: ()\n",
}
WRAPPER_UNDONE = (
    "from fmcheck.runtime.relay.relay_tensor import RelayTensor\n"
    "import torch\n"
    "RelayTensor.__torch_function__ = torch._C._disabled_torch_function_impl\n"
)


def doctor(sabotage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = f"{sabotage}\nimport sys\nfrom fmcheck.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", script, "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_in_health_every_detector_fires() -> None:
    done = doctor("", "--device", "cpu", "--backend", "eager", "--backend", "aot_eager", "--json")
    assert done.returncode == 0, done.stderr
    states = {(cell["code"], cell["place"]): cell["state"] for cell in json.loads(done.stdout)}
    assert set(SABOTAGE) <= {code for code, _ in states}
    assert states.pop(("FR602", "cpu")) == "-"
    assert set(states.values()) <= {"fires", "-"}


@pytest.fixture(scope="module")
def sabotaged() -> dict[str, Done]:
    asked = [
        (sabotage, ("doctor", *(AOT if code == "FR602" else CPU)))
        for code, sabotage in SABOTAGE.items()
    ]
    return dict(zip(SABOTAGE, run_each(asked), strict=True))


@pytest.mark.parametrize("code", SABOTAGE)
def test_a_detector_that_is_sabotaged_is_named(code: str, sabotaged: dict[str, Done]) -> None:
    done = sabotaged[code]
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"fmcheck: {code} " in done.stderr
    assert " dead" in done.stdout


def test_a_write_that_is_not_judged_is_named() -> None:
    sabotage = (
        "from fmcheck.runtime.relay.buffer import RelayBuffer\n"
        "RelayBuffer._judge_values = lambda *args: None\n"
    )
    done = doctor(sabotage, *CPU)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fmcheck: FR105 " in done.stderr


def test_a_tensor_that_nobody_wraps_kills_them_all() -> None:
    done = doctor(WRAPPER_UNDONE, *CPU)
    assert done.returncode == 1
    rows = ("FR101", "FR102", "FR103", "FR104", "FR105", "FR109", "FR110")
    assert [code for code in rows if f"fmcheck: {code} " not in done.stderr] == []


def test_a_device_that_is_not_there_is_not_passed() -> None:
    hidden = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
    done = doctor(hidden, "--device", "cuda", "--backend", "eager")
    assert done.returncode == 1
    assert "no such device" in done.stdout
    assert "fires" not in done.stdout.partition("fmcheck doctor")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--device", "cdua"), "did you mean `cuda`"), (("--backend", "aot"), "expected one of")],
)
def test_a_wrong_option_is_named(arguments: tuple[str, ...], message: str) -> None:
    done = doctor("", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_torch_it_says_which_one_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from fmcheck.cli import main\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("fmcheck: doctor: needs torch, which cannot be imported: ")
    assert done.stderr.endswith("; install the one that your engine uses\n")

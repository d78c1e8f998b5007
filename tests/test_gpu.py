"""`make gpu`: its harness on made-up parts; each part on a CPU, which must not pass for a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest

from tests.gpu import __main__ as command
from tests.gpu import binaries
from tests.gpu.facts import Fact, at_most, exactly, not_shown
from tests.gpu.parts import PARTS, Part

MADE_UP = {
    "good": "yield Fact('launches', 1, '', 'at most 1', True)\n    yield Fact('bytes', 32)",
    "misses": "yield Fact('launches', 3, '', 'at most 1', False)",
    "fails": "yield Fact('seen', 1, '', '1', True)\n    raise ValueError('no such kernel')",
    "hangs": "yield Fact('seen', 1, '', '1', True)\n    time.sleep(600)",
    "garbage": "print('{]')\n    os.write(int(sys.argv[3]), b'{]garbage\\n')\n    yield GOOD",
    "killed": "yield Fact('seen', 1, '', '1', True)\n    os.kill(os.getpid(), 9)",
    "exits": "yield Fact('seen', 1, '', '1', True)\n    os._exit(3)",
    "silent": "yield from ()",
    "prints": "print('{]', flush=True)\n    print('x' * 100_000, flush=True)\n    yield GOOD",
    "leaves": "import subprocess\n    subprocess.Popen(['sleep', '600'])\n    yield GOOD",
    "absent": "yield GOOD",
}
HEAD = """\
import os, sys, time
from tests.gpu.facts import Fact
GOOD = Fact('seen', 1, '', '1', True)
def run(device):
    """


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, body in MADE_UP.items():
        if name != "absent":
            (tmp_path / f"made_up_{name}.py").write_text(f"{HEAD}{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def run(folder, *names, seconds=300.0, limit=60.0):
    """Runs made-up parts; returns the status and the report as a reader of the file has it."""
    from tests.gpu.harness import Harness, Report

    parts = [Part(name, f"made_up_{name}", 2 if name == "hangs" else limit) for name in names]
    report = Report("cpu", {}, seconds)
    with (folder / "gpu.log").open("w") as log:
        status = Harness(report, folder / "gpu.json", log).run(parts)
    return status, json.loads((folder / "gpu.json").read_text())


def states(report):
    return {part["name"]: part["state"] for part in report["parts"]}


@pytest.fixture
def short(monkeypatch):
    """Lets parts begin that have little time."""
    from tests.gpu import harness

    monkeypatch.setattr(harness, "LEAST", 1.0)


def test_a_part_that_does_not_end_well_is_said_to_and_stops_no_other(folder, short):
    names = ("fails", "killed", "exits", "garbage", "silent", "absent", "misses", "hangs", "good")
    status, report = run(folder, *names)
    assert status == report["status"] == 1
    assert states(report) == {
        **dict.fromkeys(("fails", "killed", "exits", "garbage", "silent", "absent"), "failed"),
        "misses": "missed",
        "hangs": "timed out",
        "good": "reached",
    }
    reasons = {part["name"]: part["reason"] for part in report["parts"]}
    assert reasons["fails"] == "ValueError: no such kernel"
    assert reasons["killed"] == "killed by SIGKILL"
    assert reasons["exits"] == "exit status 3"
    assert reasons["garbage"] == "not a fact: b'{]garbage'"
    assert reasons["silent"] == "it ended without a fact"
    assert "No module named 'made_up_absent'" in reasons["absent"]
    assert reasons["misses"] == "launches"
    assert reasons["hangs"] == "still running after 2 s"
    facts = {part["name"]: len(part["facts"]) for part in report["parts"]}
    assert facts["fails"] == facts["killed"] == facts["hangs"] == 1  # what was seen is kept
    assert facts["good"] == 2


def test_what_a_part_prints_is_in_the_log_and_no_fact(folder):
    status, report = run(folder, "prints")
    assert (status, states(report)) == (0, {"prints": "reached"})
    assert "{]" in (folder / "gpu.log").read_text()


def test_what_a_part_leaves_running_is_ended_with_it(folder):
    status, report = run(folder, "leaves", "good")
    assert (status, states(report)) == (0, {"leaves": "reached", "good": "reached"})


def test_a_part_for_which_no_time_is_left_is_missed(folder):
    status, report = run(folder, "good", seconds=1)
    assert status == 1
    (part,) = report["parts"]
    assert (part["state"], part["reason"]) == ("not run", "no time was left of the budget")


def test_the_budget_cuts_a_part_that_has_a_longer_limit(folder, short):
    (folder / "made_up_hangs.py").rename(folder / "made_up_slow.py")
    status, report = run(folder, "slow", "good", seconds=3)
    assert status == 1
    assert states(report) == {"slow": "timed out", "good": "not run"}


SCRIPT = """
import sys
from pathlib import Path
from tests.gpu.harness import Harness, Report
from tests.gpu.parts import Part
parts = [Part(name, f"made_up_{name}", 100) for name in ("good", "hangs", "silent")]
sys.exit(Harness(Report("cpu", {}, 300), Path(sys.argv[1]), open(sys.argv[2], "w")).run(parts))
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_cut_leaves_what_was_seen(folder, sent):
    output, log = folder / "gpu.json", folder / "gpu.log"
    path = os.pathsep.join([str(folder), str(command.Path(command.__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path}
    script = [sys.executable, "-c", SCRIPT, str(output), str(log)]
    child = subprocess.Popen(script, env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        parts = json.loads(output.read_text())["parts"] if output.exists() else []
        if child.poll() is not None or (len(parts) == 2 and parts[1]["facts"]):
            break
        time.sleep(0.05)
    child.send_signal(sent)
    status = child.wait(60)
    report = json.loads(output.read_text())
    seen = [len(part["facts"]) for part in report["parts"]]
    assert seen[:2] == [2, 1]
    assert report["status"] == 1
    assert "bytes: 32" in log.read_text()
    if sent == signal.SIGKILL:
        assert report["state"] == "running"
        return
    assert (status, report["state"]) == (1, "interrupted")
    assert states(report) == {"good": "reached", "hangs": "failed", "silent": "not run"}


def test_a_slow_part_leaves_the_others_their_least(folder, short):
    from tests.gpu.harness import Harness, Report

    parts = [Part("hangs", "made_up_hangs", 100, 1), Part("good", "made_up_good", 100, 57)]
    report = Report("cpu", {}, 60)
    with (folder / "gpu.log").open("w") as log:
        Harness(report, folder / "gpu.json", log).run(parts)
    assert states(json.loads((folder / "gpu.json").read_text())) == {
        "hangs": "timed out",
        "good": "reached",
    }
    assert report.parts[0].limit == 3
    assert report.parts[1].limit >= 55


def test_the_least_of_all_parts_fits_into_the_budget():
    budget = command.parser().parse_args([]).seconds
    assert sum(part.least for part in PARTS) <= budget == 480
    assert all(0 < part.least <= part.seconds for part in PARTS)


# --- the command ---


def test_without_what_it_needs_it_ends_at_once_with_2_and_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "missing", lambda: ["triton", "wrapt"])
    assert command.main([]) == 2
    assert capsys.readouterr() == ("", "tests.gpu: not installed: triton, wrapt\n")
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_it_ends_at_once_with_2_and_one_line(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(command, "missing", list)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 2
    assert capsys.readouterr() == ("", f"tests.gpu: torch {torch.__version__} finds no GPU\n")


def test_an_older_torch_is_refused_by_its_version(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(command, "missing", list)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    assert command.main([]) == 2
    expected = "tests.gpu: torch 2.9.1+cu128 is too old: expected 2.11 or newer\n"
    assert capsys.readouterr() == ("", expected)


def test_the_make_target_builds_no_environment_of_its_own(root):
    rule = re.search(r"^gpu:(.*)##.*\n\t(.*)$", (root / "Makefile").read_text(), re.M)
    assert rule is not None
    assert (rule[1].strip(), rule[2]) == ("", "$(PYTHON) -m tests.gpu")


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"libcst", "jinja2", "rich", "pathspec", "xdist"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def test_no_part_imports_what_a_gpu_s_machine_may_not_have(tmp_path):
    """Neither the linter's libcst nor what the reports are made with."""
    modules = [*(part.module for part in PARTS), "tests.gpu.harness", "tests.conftest"]
    modules += ["tests.test_cuda", "fmcheck.cli.doctor"]
    script = f"{BLOCKED}\nimport importlib\nfor name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- the parts, on a CPU ---


def part(name):
    (found,) = [one for one in PARTS if one.name == name]
    return sys.modules.get(found.module) or __import__(found.module, fromlist=["run"])


@pytest.mark.parametrize("name", ["launches", "captured", "clocks", "memory", "times"])
def test_what_a_cpu_cannot_show_is_missed_and_not_passed(name):
    facts = list(part(name).run("cpu"))
    assert facts
    assert all(fact.ok is False and str(fact.value).startswith("not shown: ") for fact in facts)


class Replayed:
    """A graph of a step that is made again, as a CPU can."""

    def __init__(self, step):
        self.replay = step


@pytest.fixture
def captures(monkeypatch):
    torch = pytest.importorskip("torch")
    captured = part("captured")
    monkeypatch.setattr(torch.cpu, "CUDAGraph", Replayed, raising=False)

    def made(buffer, rows, steps):
        out = torch.zeros_like(rows)

        def step():
            out.copy_(buffer[rows])
            if steps:
                buffer[rows] = out + 1

        return Replayed(step), out

    monkeypatch.setattr(captured, "_captured", made)
    return captured


@pytest.mark.parametrize(("added", "is_ok"), [(2, True), (3, False)])
def test_replays_are_held_against_their_bare_twin(captures, monkeypatch, added, is_ok):
    counts = iter([2, 2 + added])
    monkeypatch.setattr(captures, "launches", lambda *_: next(counts))
    facts = {fact.what: fact for fact in captures.run("cpu")}
    assert facts.pop("launches that the watch adds to a replay").ok is is_ok
    assert len(facts) == 5
    assert all(fact.ok for fact in facts.values()), facts


def test_launches_of_a_replay_that_nobody_counts_are_missed(captures):
    facts = [fact for fact in captures.run("cpu") if "launches" in fact.what]
    assert [fact.ok for fact in facts] == [False]


@pytest.mark.parametrize("added", [0, 1, 2])
@pytest.mark.parametrize("waited", [0, 1])
def test_launches_and_waits_are_held_against_their_goals(monkeypatch, added, waited):
    launches = part("launches")
    counts = iter([5, 5 + added] * 1000)
    monkeypatch.setattr(launches, "launches", lambda *_: next(counts))
    monkeypatch.setattr(launches, "syncs", lambda *_: waited)
    facts = list(launches.run("cpu"))
    bare = [fact for fact in facts if "launches" in fact.what and "streams" not in fact.what]
    followed = [fact for fact in facts if "launches" in fact.what and "streams" in fact.what]
    assert [fact.ok for fact in bare] == [added < 2] * 8
    assert all(fact.ok for fact in followed)
    assert {fact.ok for fact in facts if "syncs" in fact.what} == {waited == 0}


@pytest.mark.parametrize(("watched", "is_ok"), [(1.0, True), (1.05, False), (1.2, False)])
def test_a_step_that_takes_too_long_misses_its_goal(monkeypatch, watched, is_ok):
    times, torch = part("times"), pytest.importorskip("torch")
    model = times.Decoder("cpu", 16, 1, 61)
    calls = times.steps("cpu", model, times.assert_nonneg_and_invalidate)
    for call in [value for name, value in calls.items() if name != "tally"]:
        call()
    assert calls["tally"].drain() == ()
    took = {"bare": 1.0, "watched": watched, "compiled guard": 1.1}
    monkeypatch.setattr(times, "medians", lambda *_: took)
    monkeypatch.setattr(times, "_captured", times._as_it_is)
    monkeypatch.setattr(times, "compile_check", lambda *_: times.assert_nonneg_and_invalidate)
    monkeypatch.setattr(times, "steps", lambda *_: dict(calls))
    monkeypatch.setattr(times, "Decoder", lambda *_: model)
    facts = {fact.what: fact.ok for fact in times.run("cuda")}
    assert facts["step under a graph, watched / bare"] is is_ok
    assert facts["step eager, watched / bare"] is (watched < 1.1)
    assert facts["findings"] is True
    assert torch.is_tensor(model.head)


def test_tests_that_are_all_skipped_are_no_pass():
    report = ElementTree.fromstring(
        "<testsuite><testcase name='a'><skipped/></testcase></testsuite>"
    )
    facts = {fact.what: fact.ok for fact in part("tests").facts(report)}
    assert facts == {"passed": False, "failed": True, "skipped": False}


def test_a_test_that_failed_is_named():
    report = ElementTree.fromstring(
        "<testsuite><testcase name='a'/><testcase name='b'><failure/></testcase></testsuite>"
    )
    facts = {fact.what: (fact.value, fact.ok) for fact in part("tests").facts(report)}
    assert facts["b"] == ("failed", False)
    assert facts["failed"] == (1, False)
    assert facts["passed"] == (1, True)


@pytest.mark.process
def test_the_doctor_s_word_on_each_detector_is_a_fact():
    facts = list(part("doctor").run("cpu", backends=["eager"]))
    assert len(facts) > 10
    assert all(fact.ok for fact in facts), [fact for fact in facts if not fact.ok]
    assert facts[0].what.startswith("FR101 ")


@pytest.mark.release
def test_the_engine_s_answers_and_findings_are_facts_in_each_mode():
    facts = list(part("healthy").run("cpu", workloads=1))
    assert [fact.ok for fact in facts] == [True] * 12
    modes = [fact.what.partition(":")[0] for fact in facts]
    assert list(dict.fromkeys(modes)) == [
        f"streams {mode}" for mode in ("off", "tracked", "delayed", "random")
    ]


def test_an_answer_that_differs_and_a_finding_miss_their_goals(monkeypatch):
    healthy = part("healthy")
    monkeypatch.setattr(healthy, "_healthy", lambda *_: (["FR401"], 1))
    facts = list(healthy.run("cpu", workloads=1))
    assert [fact.ok for fact in facts] == [True, False, False] * 4


@pytest.mark.release
def test_a_planted_fault_is_reported_and_a_healthy_engine_would_be_missed(monkeypatch):
    faults = part("faults")
    (fact,) = faults.run("cpu", names=["every_third_stash_dropped"])
    assert fact == exactly("every_third_stash_dropped", "FR102", "FR102")
    monkeypatch.setattr(faults, "_said", lambda *_: "reported: ")
    (fact,) = faults.run("cpu", names=["every_third_stash_dropped"])
    assert fact.ok is False


def test_a_fault_that_time_does_not_reach_is_missed():
    (fact,) = part("faults").run("cpu", names=["every_third_stash_dropped"], seconds=0)
    assert fact == not_shown("every_third_stash_dropped, FR102", "no time was left")


def test_each_check_that_works_on_a_gpu_has_a_fault_there():
    names = part("faults").shown_on("cuda")
    assert len(names) > 50
    assert "event_of_cuda" not in names
    from fixtures.engine.faults import FAULTS

    first = [FAULTS[name].check for name in names[:11]]
    assert len(set(first)) == len(first)


@pytest.mark.process
@pytest.mark.parametrize("message", ["", ", 'stale'"])
def test_whether_an_assert_fires_is_said_as_it_was_seen(message):
    asserts = part("asserts")
    assert asserts._said("cpu", "eager", message) == "raises"


@pytest.mark.compile
def test_an_assert_that_is_gone_is_said_to_be():
    asserts = part("asserts")
    assert asserts._said("cpu", "aot_eager", "") == "deleted: no error"


def test_figures_are_held_against_their_goals():
    assert at_most("a", 1.02, 1.02).ok
    assert not at_most("a", 1.03, 1.02).ok
    assert str(at_most("a", 1.5, 1.02)) == "MISSED a: 1.5  (goal: at most 1.02)"
    assert str(Fact("memory", 33.0, "bytes a row")) == "       memory: 33 bytes a row"


# --- kernels as binaries ---


@pytest.mark.compile
@pytest.mark.sweep
def test_every_kernel_is_a_binary_for_each_target_and_takes_no_more_registers_than_before():
    """A compiler's newer release may shift a figure by a few: a tenth, and eight, is let pass."""
    made = binaries.made_elsewhere()
    expected = {(figure.kernel, figure.target): figure for figure in binaries.kept()}
    seen = {(figure.kernel, figure.target): figure for figure in binaries.figures(made)}
    assert seen.keys() == expected.keys()
    assert {target for _, target in seen} == {name for name, *_ in binaries.TARGETS}
    for key, figure in seen.items():
        before = expected[key]
        assert figure.binaries == before.binaries, key
        assert figure.registers <= before.registers * 1.1 + 8, key
        assert figure.spills <= before.spills * 1.1 + 8, key


def test_the_table_names_every_kernel_that_is_launched(root):
    """By the source alone: what the two modules launch, and what the table has."""
    launched = set()
    for name in ("kernels", "clock_kernels"):
        source = (root / "fmcheck" / "runtime" / "device" / f"{name}.py").read_text()
        launched |= set(re.findall(r"^def ([a-z]\w+)\(", source, re.M))
    assert {figure.kernel for figure in binaries.kept()} == launched


def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = [binaries.Figure("gather_guard", "sm_90", 32, 128, 0)]
    page = tmp_path / "page.md"
    page.write_text(f"{binaries.BEGIN}\n{binaries.table(rows)}\n{binaries.END}\n")
    assert binaries.kept(page) == rows


# --- the drives of SGLang ---


def test_sglang_s_drives_need_a_folder_that_holds_it(tmp_path, monkeypatch, capsys):
    from tests.gpu import sglang

    monkeypatch.setattr(sys, "argv", ["sglang", str(tmp_path)])
    assert sglang.main() == 2
    assert "expected a folder that holds `sglang`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("healthy", "planted", "status"),
    [
        ({}, {}, 0),
        ({"test_x": "FMCHECK: FR101 in a healthy one"}, {}, 1),
        ({}, {"test_double_gather": "passed by, and nothing said"}, 1),
        ({}, {"test_double_gather": "FMCHECK: FR102 and\nFMCHECK: FR202 of its poison"}, 0),
        ({}, {"test_double_gather": "FMCHECK: FR102 and\nFMCHECK: FR401 of nothing"}, 1),
    ],
)
def test_what_sglang_s_drives_say_is_held_against_a_cpu_s(
    tmp_path, monkeypatch, healthy, planted, status
):
    from tests.drives import Drive
    from tests.gpu import sglang

    right = {name: f"FMCHECK: {code} here" for name, code in sglang.IN_THE_POOL.items()}

    def drove(arguments, environment, python):
        assert environment["FMCHECK_DRIVE_DEVICE"] == "cuda"
        failures = {**right, **planted} if "planted" in arguments[-1] else healthy
        return Drive(failures, frozenset(map(str, range(40))), frozenset(), "", {}, 0, 1.0)

    (tmp_path / "sglang").mkdir()
    monkeypatch.setattr(sys, "argv", ["sglang", str(tmp_path)])
    monkeypatch.setattr(sglang, "under_pytest", drove)
    assert sglang.main() == status


# --- programs, bare and watched ---


SAID = {"result": [1], "certain": [], "incomplete": [], "problems": []}


@pytest.mark.parametrize(
    ("name", "bare", "watched", "ok"),
    [
        ("ddp", SAID, SAID, True),
        ("ddp", SAID, {**SAID, "result": [2]}, False),
        ("ddp", SAID, {**SAID, "certain": ["FR401"]}, False),
        ("ddp", SAID, {**SAID, "incomplete": ["FR401"]}, False),
        ("ddp", SAID, {**SAID, "problems": ["the detector of FR701"]}, False),
        ("ddp", SAID, {"error": "a crash"}, False),
        ("ddp", {"error": "no GPU"}, SAID, None),
        ("ddp", {"lacking": "no module"}, SAID, None),
        ("batching", SAID, {**SAID, "incomplete": ["FR401"]}, True),
        ("batching", SAID, {**SAID, "certain": ["FR401"]}, False),
        ("batching_without_download_wait", SAID, SAID, False),
        ("batching_without_download_wait", SAID, {**SAID, "certain": ["FR404", "FR403"]}, True),
        ("pinned_memory_touched_early", SAID, {**SAID, "certain": ["FR404"]}, False),
    ],
)
def test_a_program_is_right_if_it_is_as_it_was_and_reported_as_it_has_to_be(
    name, bare, watched, ok
):
    from tests.gpu import programs

    assert programs.judged(name, bare, watched).ok is ok


def test_programs_run_apart_bare_and_watched(monkeypatch, capsys):
    from tests.gpu import programs

    monkeypatch.setenv("FMCHECK_PROGRAM_DEVICE", "cpu")
    assert programs.main(["ddp"]) == 0
    assert "1 right of 1 that ran, 0 not run" in capsys.readouterr().out
    assert programs.main(["captured_training"]) == 1
    assert "0 right of 0 that ran, 1 not run" in capsys.readouterr().out
    assert programs.main(["dpp"]) == 2
    assert "no `dpp`" in capsys.readouterr().err

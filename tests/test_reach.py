"""What child processes find is reported in the right test, whatever they do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from fmcheck.processes.journal.collect import gather
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.run_folder import is_gone
from tests.reach import matrix
from tests.reach.kills import violation
from tests.reach.project import REPOSITORY, Project, make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def project(installed: Project, tmp_path: Path) -> Project:
    """A fresh folder in the same environment."""
    fresh = Project(tmp_path, installed.python)
    for name in ("pyproject.toml", "toy.toml", "toy_engine.py"):
        fresh.write(name, (installed.folder / name).read_text())
    return fresh


CELLS = [
    *((way, "SIGKILL") for way in matrix.WAYS),
    *(("popen", end) for end in matrix.ENDS if end != "SIGKILL"),
    ("fork", "returns"),
]


def test_each_child_is_reached_and_tells_before_it_dies(project: Project) -> None:
    assert [cell for cell in matrix.run(project, CELLS) if cell.wrong] == []


@pytest.mark.parametrize("kills", [8, pytest.param(25, marks=pytest.mark.sweep)])
def test_real_engines_lose_nothing_to_kills(kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reach.kills", "0", str(kills)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"engine: {kills} killed after " in done.stdout


RANKS = """
    import pytest
    from fixtures.engine.ranks import Ranks

    @pytest.fixture(scope="module")
    def ranks():
        with Ranks() as ranks:
            yield ranks

    @pytest.mark.parametrize("seed", range(2))
    def test_healthy(ranks, seed):
        assert [run.tokens > 0 for run in ranks.serve(seed)] == [True, True]

    @pytest.mark.parametrize("name", {faults})
    def test_fault(ranks, name):
        ranks.serve(0, name)

    def test_healthy_again(ranks):
        ranks.serve(2)
"""
FAULTS = {
    "resolve_retried": "FR102",
    "prefill_forgets_stash": "FR101",
    "old_owner_answers": "FR104",
    "stale_tail.decode.req_pool_indices": "FR201",
    "every_third_stash_dropped": "FR102",
}


def test_two_ranks_over_a_socket_tell_each_fault_in_its_test(project: Project) -> None:
    contract = REPOSITORY / "fixtures" / "engine" / "fmcheck.toml"
    project.write("pyproject.toml", f"[tool.fmcheck]\ncontracts = [{str(contract)!r}]\n")
    project.write("test_ranks.py", RANKS.format(faults=list(FAULTS)))
    done = project.pytest("-p", "fmcheck", "-v", "--tb=short")
    outcomes = dict(re.findall(r"test_ranks\.py::(\S+) (PASSED|FAILED)", done.stdout))
    assert outcomes == {
        "test_healthy[0]": "PASSED",
        "test_healthy[1]": "PASSED",
        **{f"test_fault[{name}]": "FAILED" for name in FAULTS},
        "test_healthy_again": "PASSED",
    }, done.stdout + done.stderr
    for name, code in FAULTS.items():
        block = done.stdout.partition(f"_ test_fault[{name}] _")[2].partition("\n____")[0]
        assert f"FMCHECK: {code}" in block
        assert f"test        test_ranks.py::test_fault[{name}]" in block
    assert "(rank 0), a child of" in done.stdout
    assert "(rank 1), a child of" in done.stdout
    assert "checked in 2 processes" in done.stdout


MIXED = """
    import multiprocessing, subprocess, sys
    import pytest

    def child(what):
        import toy_engine
        getattr(toy_engine, what)()

    @pytest.mark.parametrize("what", ["healthy", "stale"])
    @pytest.mark.parametrize("where", ["here", "fork", "popen"])
    def test_it(where, what):
        if where == "here":
            child(what)
        elif where == "fork":
            process = multiprocessing.get_context("fork").Process(target=child, args=(what,))
            process.start()
            process.join()
        else:
            code = f"import toy_engine; toy_engine.{what}()"
            subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_workers_find_and_count_what_one_process_does(project: Project) -> None:
    project.write("test_mixed.py", MIXED)
    reported = []
    for workers in ("0", "2"):
        journal = project.folder / f"journal-{workers}"
        done = project.pytest("-p", "fmcheck", "-n", workers, f"--fmcheck-journal={journal}")
        assert "3 failed, 3 passed" in done.stdout, done.stdout + done.stderr
        run = gather([journal])
        (closing,) = re.findall(
            r"^fmcheck: (.*) checked in .* process(?:es)?; (.*)$", done.stdout, re.M
        )
        findings = sorted((one.code, one.test, one.count) for one in run.violations)
        reported.append((closing, findings, run.coverage.counts, run.coverage.violations))
    assert reported[0] == reported[1]
    assert len(reported[0][1]) == 3
    assert reported[0][3] == 1


def test_a_server_that_outlives_its_test_is_reported_of_by_the_clock(project: Project) -> None:
    project.write(
        "test_late.py",
        """
        import subprocess, sys, time
        import pytest

        SERVER = (
            "import sys, toy_engine\\n"
            "print(flush=True)\\n"
            "for line in sys.stdin:\\n"
            "    getattr(toy_engine, line.strip())()\\n"
            "    print(flush=True)\\n"
        )

        @pytest.fixture(scope="module")
        def ask():
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen([sys.executable, "-c", SERVER], **options) as server:
                server.stdout.readline()

                def ask(what):
                    server.stdin.write(what + "\\n")
                    server.stdin.flush()
                    server.stdout.readline()

                yield ask
                ask("stale")

        def test_stale(ask):
            ask("stale")

        def test_healthy(ask):
            ask("healthy")

        @pytest.fixture
        def fails_after(ask):
            yield
            ask("stale")

        def test_teardown(fails_after):
            pass

        def test_stale_again(ask):
            ask("stale")
            raise ValueError("my own")
        """,
    )
    done = project.pytest("-p", "fmcheck", "-rA", "--tb=short")
    reported = re.findall(r"^(PASSED|FAILED|ERROR) test_late\.py::(\w+)", done.stdout, re.M)
    assert sorted(reported) == [
        ("ERROR", "test_stale_again"),
        ("ERROR", "test_teardown"),
        ("FAILED", "test_stale"),
        ("FAILED", "test_stale_again"),
        ("PASSED", "test_healthy"),
        ("PASSED", "test_teardown"),
    ], done.stdout
    assert "ValueError: my own" in done.stdout
    assert "1 violation in 3 tests\n" in done.stdout


def test_mode_halt_raises_in_the_child(project: Project) -> None:
    project.write(
        "test_halt.py",
        """
        import subprocess, sys

        CODE = (
            "import fmcheck, toy_engine\\n"
            "try:\\n"
            "    toy_engine.stale()\\n"
            "except fmcheck.ViolationError:\\n"
            "    raise SystemExit(7)\\n"
        )

        def test_it():
            assert subprocess.run([sys.executable, "-c", CODE]).returncode == 7
        """,
    )
    done = project.pytest("-p", "fmcheck", "--fmcheck=halt")
    assert "1 failed" in done.stdout
    assert "FMCHECK: FR102" in done.stdout
    assert "== 7" not in done.stdout


def test_settings_travel_whole(project: Project, tmp_path: Path) -> None:
    """Suppressions and a contract by a relative path hold in a child in another folder."""
    project.write(
        "pyproject.toml",
        """
        [tool.fmcheck]
        contracts = ["toy.toml"]

        [[tool.fmcheck.suppress]]
        check = "FR102"
        buffer = "FutureMap.tokens_buf"
        reason = "waits for the next release"
        expires = 2999-01-31
        """,
    )
    project.write(
        "test_it.py",
        """
        import subprocess, sys

        def test_it(tmp_path):
            code = "import toy_engine; toy_engine.stale()"
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert "1 passed" in done.stdout, done.stdout
    assert "0 violations, 1 suppressed" in done.stdout
    assert "matched nothing" not in done.stdout


def test_a_child_that_cannot_be_watched_fails_the_session(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import subprocess, sys

        def test_it():
            code = "import sys; sys.modules['wrapt'] = None; import toy_engine; print('on')"
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            assert done.stdout == b"on\\n"
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == 20  # and so nothing was checked
    assert "1 passed" in done.stdout
    assert re.search(r"fmcheck error: process \d+ \(.*\) is not watched: .*wrapt", done.stdout)


#: As SGLang's scheduler does when it fails: the pytest process goes down with it.
TAKES_PYTEST_WITH_IT = """
    import os, subprocess, sys

    def test_it():
        code = "import os, toy_engine; toy_engine.stale(); os.kill(os.getppid(), 9)"
        child = subprocess.Popen([sys.executable, "-c", code])
        with open("child", "w") as file:
            file.write(str(child.pid))
        child.wait()
"""


def wait_for_child(project: Project) -> None:
    """Waits for the child that took pytest with it: until it is gone, its run is not over."""
    pid = int((project.folder / "child").read_text())
    for _ in range(3000):
        if is_gone(pid):
            return
        time.sleep(0.01)
    raise AssertionError("the child goes on")


def test_a_run_that_was_killed_is_reported_of_by_the_next(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.write("test_it.py", TAKES_PYTEST_WITH_IT)
    assert project.pytest("-p", "fmcheck", TMPDIR=str(scratch)).returncode == -signal.SIGKILL
    wait_for_child(project)
    project.write("test_it.py", "def test_it():\n    pass\n")
    following = [project.pytest("-p", "fmcheck", TMPDIR=str(scratch)).stdout for _ in range(2)]
    what = r"FR102 double-read in FutureMap.tokens_buf rows 1, 2 at toy_engine.py:\d+"
    reported = rf"run \(process \d+\) was killed before it could report {what}: fmcheck report show"
    (folder,) = re.findall(rf"^fmcheck: an earlier {reported} (.+)$", following[0], re.MULTILINE)
    assert following[0].index("an earlier run") < following[0].index("fmcheck: mode")
    assert "an earlier run" not in following[1]
    shown = subprocess.run(
        [sys.executable, "-m", "fmcheck", "report", "show", folder], capture_output=True, text=True
    )
    assert shown.returncode == 1
    assert shown.stdout.startswith("FMCHECK: FR102 ")
    assert "\n  test        test_it.py::test_it\n" in shown.stdout


def test_a_quiet_run_reports_an_earlier_one_too(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.write("test_it.py", TAKES_PYTEST_WITH_IT)
    project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    wait_for_child(project)
    project.write("test_it.py", "def test_it():\n    pass\n")
    assert "fmcheck: an earlier run" in project.pytest("-qp", "fmcheck", TMPDIR=str(scratch)).stdout


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(0, signal.SIGTERM)", -signal.SIGTERM),
        ("signal.raise_signal(signal.SIGQUIT)", -signal.SIGQUIT),
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(3)", 3),
    ],
)
def test_a_run_whose_engine_ends_it_shows_what_was_found(
    project: Project, tmp_path: Path, end: str, code: int
) -> None:
    project.write(
        "test_it.py",
        f"""
        import os, signal, toy_engine

        def test_it():
            os.setpgid(0, 0)
            toy_engine.stale()
            {end}
        """,
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    assert done.returncode == code
    assert (
        done.stdout.count("\nFMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2\n") == 1
    )
    assert done.stdout.rstrip().endswith("; 1 violation")
    project.write("test_it.py", "def test_it():\n    pass\n")
    assert "an earlier run" not in project.pytest("-p", "fmcheck", TMPDIR=str(scratch)).stdout


def test_a_signal_that_is_handled_or_of_no_effect_shows_nothing(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, signal, toy_engine

        def test_it(fmcheck):
            signal.signal(signal.SIGTERM, lambda *_: None)
            with fmcheck.expect("FR102"):
                toy_engine.stale()
            os.kill(os.getpid(), 0)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGCHLD)
            for end in (lambda: os.kill("no number", "no signal"), lambda: os._exit("no number")):
                try:
                    end()
                except TypeError:
                    pass
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == 0
    assert "are ending this process" not in done.stdout


def test_what_stands_in_for_a_function_of_the_system_is_pickled_as_it(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import multiprocessing, os, pickle, signal, toy_engine

        FUNCTIONS = (os.kill, os.killpg, os.abort, os._exit, os.waitpid, signal.raise_signal)

        def test_it():
            toy_engine.healthy()
            assert [pickle.loads(pickle.dumps(one)) for one in FUNCTIONS] == list(FUNCTIONS)
            process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(5,))
            process.start()
            process.join()
            assert process.exitcode == 5
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == 0, done.stdout


def test_an_error_before_the_run_leaves_no_journal_behind(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.write("test_it.py", "def test_it():\n    pass\n")
    ends = [
        project.pytest("-p", "fmcheck", *more, TMPDIR=str(scratch)).returncode
        for more in (("--no-such-option",), ("-VV",))
    ]
    project.write("conftest.py", "raise ValueError")
    ends.append(project.pytest("-p", "fmcheck", TMPDIR=str(scratch)).returncode)
    assert ends == [4, 0, 4]
    assert list(scratch.glob("fmcheck-run-*")) == []


def test_a_folder_whose_name_is_no_text_is_watched_as_any_other(
    installed: Project, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    project = Project(folder, installed.python)
    for name in ("pyproject.toml", "toy.toml", "toy_engine.py"):
        project.write(name, (installed.folder / name).read_text())
    project.write(
        "test_it.py",
        """
        import subprocess, sys, toy_engine

        def test_it():
            toy_engine.stale()

        def test_of_a_child():
            path = toy_engine.__file__.rpartition("/")[0]
            code = "import sys; sys.path.append(sys.argv[1]); import toy_engine as e; e.stale()"
            subprocess.run([sys.executable, "-c", code, path], check=True)
        """,
    )
    reports = ("--fmcheck-report=a.json", "--fmcheck-report=a.sarif", "--fmcheck-report=a.html")
    options = ("-p", "fmcheck", *reports, "--fmcheck-trace=t.json")
    done = project.pytest(*options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fmcheck error" not in done.stdout
    assert "checked in 2 processes; 1 violation" in done.stdout
    assert "= 2 failed in" in done.stdout
    for name in ("a.json", "a.sarif", "a.html", "t.json"):
        assert (folder / name).read_bytes().decode()


def test_a_journal_that_is_removed_fails_the_run(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import json, os, shutil, toy_engine

        def test_it():
            toy_engine.healthy()
            shutil.rmtree(json.loads(os.environ["FMCHECK_RUN"])[1])
            child = os.fork()
            if not child:
                toy_engine.stale()
                os._exit(0)
            os.waitpid(child, 0)
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "fmcheck error: 1 process was not watched: no journal could be made" in done.stdout
    assert (
        "was removed during the run: the later results of child processes are lost" in done.stdout
    )


def test_a_journal_that_cannot_be_written_is_one_clear_error(
    project: Project, tmp_path: Path
) -> None:
    project.write("test_it.py", "def test_it():\n    pass\n")
    limited = 'ulimit -f 1; exec "$@"'
    done = subprocess.run(
        [
            *("bash", "-c", limited, "-", project.python, "-m", "pytest"),
            *(
                "-p",
                "no:cacheprovider",
                "-p",
                "fmcheck",
                f"--fmcheck-journal={tmp_path / 'journal'}",
            ),
        ],
        cwd=project.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the journal cannot be written: No space left on device; name a folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "journal").iterdir()) == []


def test_tests_that_run_in_forks_of_pytest_lose_no_line(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import os
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item):
            child = os.fork()
            if not child:
                runtestprotocol(item, log=False, nextitem=None)
                os._exit(0)
            os.waitpid(child, 0)
            return True
        """,
    )
    project.write("test_it.py", "import toy_engine\ndef test_it():\n    toy_engine.healthy()\n")
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == 0, done.stdout
    assert "fmcheck: 1 buffer, 1 write, 1 gather, 0 peeks checked in 1 process; 0" in done.stdout


def test_a_journal_goes_once_its_run_is_over_and_read(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    theirs = scratch / "fmcheck-run-999999999-theirs"
    theirs.mkdir()
    (theirs / "notes.txt").write_text("of a user")
    project.write(
        "test_it.py",
        """
        import subprocess, sys

        def test_it():
            code = "import os, toy_engine; toy_engine.healthy(); os.kill(os.getpid(), 9)"
            subprocess.run([sys.executable, "-c", code])
        """,
    )
    done = project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    assert "1 process killed by SIGKILL" in done.stdout
    assert [one.name for one in scratch.glob("fmcheck-run-*")] == [theirs.name]
    assert (theirs / "notes.txt").read_text() == "of a user"


def test_a_journal_that_a_process_still_writes_stays_until_that_is_gone(
    project: Project, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.write(
        "test_it.py",
        """
        import subprocess, sys

        def test_it():
            code = "import toy_engine, time; toy_engine.healthy(); print(1, flush=True)"
            child = subprocess.Popen(
                [sys.executable, "-c", code + "; time.sleep(600)"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # else the outer test waits for it
            )
            child.stdout.readline()
            print("child", child.pid)
        """,
    )
    done = project.pytest("-sp", "fmcheck", TMPDIR=str(scratch))
    assert "fmcheck: the journal is in " in done.stdout
    (child,) = re.findall(r"child (\d+)", done.stdout)
    project.write("test_it.py", "def test_it():\n    pass\n")
    project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    assert len(list(scratch.glob("fmcheck-run-*"))) == 1
    os.kill(int(child), signal.SIGKILL)
    while not is_gone(int(child)):
        time.sleep(0.01)
    project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    assert list(scratch.glob("fmcheck-run-*")) == []


OUTLIVES = """
    import os, subprocess, sys, time

    def test_it():
        code = [
            "import os, time, toy_engine",
            "toy_engine.{before}()",
            "open('ready', 'w').close()",
            "while not os.path.exists('go'): time.sleep(0.01)",
            "toy_engine.{after}()",
        ]
        child = subprocess.Popen([sys.executable, "-c", "\\n".join(code)])
        with open("child", "w") as file:
            file.write(str(child.pid))
        while not os.path.exists("ready"):
            time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("healthy", "stale", True),
        ("healthy", "healthy", False),
        ("stale", "healthy", False),
        ("import", "stale", True),
    ],
)
def test_what_a_process_finds_after_its_run_is_reported_by_the_next(
    project: Project, tmp_path: Path, before: str, after: str, told: bool
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    test = OUTLIVES.format(before=before, after=after)
    if before == "import":  # the run ends while the child still imports the engine
        wait = "while not os.path.exists('go'): time.sleep(0.01)\n"
        engine = (project.folder / "toy_engine.py").read_text()
        slow = f"import os, time\nopen('ready', 'w').close()\n{wait}{engine}"
        (project.folder / "toy_engine.py").write_text(slow)
        test = test.replace("toy_engine.import()", "pass")
    project.write("test_it.py", test)
    done = project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    status = {"healthy": 0, "stale": 1, "import": 20}[before]
    assert done.returncode == status, done.stdout + done.stderr
    pid = (project.folder / "child").read_text()
    (folder,) = scratch.glob("fmcheck-run-*")
    assert f"fmcheck: 1 process still ran when the run ended: {pid}; " in done.stdout
    assert f"fails nothing: `fmcheck report show {folder}` shows it\n" in done.stdout
    project.write("go", "")
    wait_for_child(project)
    project.write("test_it.py", "def test_it():\n    pass\n")
    following = [project.pytest("-p", "fmcheck", TMPDIR=str(scratch)).stdout for _ in range(2)]
    what = r"FR102 double-read in FutureMap.tokens_buf rows 1, 2 at toy_engine.py:\d+"
    reported = rf"an earlier run .* ended before a process that it had started found {what}: "
    assert bool(re.search(f"{reported}fmcheck report show {folder}\n", following[0])) is told
    assert "an earlier run" not in following[1]
    assert folder.exists() is told


def test_a_run_of_other_tests_is_not_told_of(project: Project, tmp_path: Path) -> None:
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.mkdir()
    project.write("test_it.py", TAKES_PYTEST_WITH_IT)
    project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    wait_for_child(project)
    project.write("test_it.py", "def test_it():\n    pass\n")
    done = project.pytest("-p", "fmcheck", f"--rootdir={other}", TMPDIR=str(scratch))
    assert "an earlier run" not in done.stdout


def test_a_problem_of_a_child_fails_the_session_though_it_is_killed(project: Project) -> None:
    project.write("toy.toml", (project.folder / "toy.toml").read_text() + SECOND_BUFFER)
    project.write(
        "test_it.py",
        """
        import subprocess, sys

        def test_it():
            code = "import os, toy_engine; toy_engine.healthy(); os.kill(os.getpid(), 9)"
            subprocess.run([sys.executable, "-c", code])
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert done.returncode == 1
    assert "1 passed" in done.stdout
    assert "fmcheck error: contract `toy`" in done.stdout
    assert "buffer `other_buf`: `__init__` did not create it" in done.stdout
    assert re.search(r"fmcheck: 1 process killed by SIGKILL: \d+;", done.stdout)


SECOND_BUFFER = """
[[relay.buffer]]
name = "other_buf"
"""


@pytest.mark.parametrize("way", ["import", "fork"])
def test_a_child_that_may_write_no_file_says_so_in_the_report_alone(
    project: Project, way: str
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    child = {
        "import": f"{limit}; import toy_engine; toy_engine.stale()",
        "fork": f"import os, toy_engine; {limit}; os.fork() or os._exit(0); os.wait()",
    }[way]
    project.write(
        "test_it.py",
        f"""
        import subprocess, sys, toy_engine

        def test_it():
            toy_engine.healthy()
            command = [sys.executable, "-c", {child!r}]
            done = subprocess.run(command, capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert "1 passed" in done.stdout, done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "fmcheck error: 1 process was not watched: no journal could be made" in done.stdout


def test_a_session_within_a_session_keeps_to_itself(project: Project) -> None:
    (project.folder / "inner").mkdir()
    project.write(
        "inner/test_inner.py", "import toy_engine\n\ndef test_it():\n    toy_engine.stale()\n"
    )
    project.write(
        "test_outer.py",
        """
        import subprocess, sys

        def test_pytest():
            command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "inner"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert "1 failed" in done.stdout
            assert "1 violation" in done.stdout

        def test_watch():
            code = (
                "import fmcheck\\n"
                "with fmcheck.watch(mode='warn'):\\n"
                "    import toy_engine\\n"
                "    toy_engine.stale()\\n"
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert "FmcheckWarning" in done.stderr
        """,
    )
    done = project.pytest("-p", "fmcheck", "--fmcheck-allow-unchecked", "test_outer.py")
    assert "2 passed" in done.stdout, done.stdout
    assert "0 violations" in done.stdout
    assert "fmcheck error" not in done.stdout


def test_a_run_in_good_order_leaves_nothing_behind(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    project.write(
        "test_it.py",
        """
        import os, subprocess, sys

        def test_it():
            found = [name.partition("-run-")[0] for name in os.listdir(os.environ["TMPDIR"])]
            asked = any(argument.startswith("--fmcheck-journal") for argument in sys.argv)
            assert found == ([] if asked else ["fmcheck"])
            subprocess.run([sys.executable, "-c", "import toy_engine"], check=True)
        """,
    )
    done = project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    assert "1 passed" in done.stdout, done.stdout
    assert list(scratch.iterdir()) == []
    kept = tmp_path / "kept"
    for _ in range(2):
        project.pytest("-p", "fmcheck", f"--fmcheck-journal={kept}", TMPDIR=str(scratch))
    assert len(list(kept.iterdir())) == 2
    assert len(gather([kept]).processes) == 4


@pytest.mark.parametrize("mode", ["off", None])
def test_off_nothing_is_handed_on(project: Project, mode: str | None) -> None:
    project.write(
        "test_it.py",
        """
        import json, os, subprocess, sys

        def test_it():
            assert not [name for name in os.environ if name.startswith("FMCHECK")]
            code = "import json, sys; print(json.dumps([m for m in sys.modules if 'fmcheck' in m]))"
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            assert json.loads(done.stdout) == []
        """,
    )
    done = project.pytest(*(["-p", "fmcheck", f"--fmcheck={mode}"] if mode else []))
    assert "1 passed" in done.stdout, done.stdout


def test_a_child_that_imports_no_engine_imports_little(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import json, subprocess, sys

        def test_it():
            code = "import json, sys; print(json.dumps(list(sys.modules)))"
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            loaded = set(json.loads(done.stdout))
            assert "fmcheck.processes.child.child_start" in loaded
            heavy = {"torch", "numpy", "msgspec", "wrapt", "pytest", "fmcheck.config", "libcst"}
            assert not heavy & loaded
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert "1 passed" in done.stdout, done.stdout


def test_what_is_not_reached_is_said_first(tmp_path: Path) -> None:
    project = make(tmp_path, installed=False)
    project.write("test_it.py", "def test_it():\n    pass\n")
    done = project.pytest("-p", "fmcheck", SGLANG_PLUGINS="other")
    assert "fmcheck: not installed in this environment" in done.stdout
    assert "fmcheck: SGLANG_PLUGINS=other leaves fmcheck out" in done.stdout
    done = project.pytest("-p", "fmcheck", SGLANG_PLUGINS="other, fmcheck")
    assert "SGLANG_PLUGINS" not in done.stdout


def test_not_installed_it_reaches_what_multiprocessing_starts(tmp_path: Path) -> None:
    project = make(tmp_path, installed=False)
    ways = ("spawn", "forkserver", "fork", "os.fork")
    judged = matrix.run(project, [(way, "os._exit") for way in ways])
    assert [cell for cell in judged if cell.wrong] == []


EMPTIED = """
    import os, subprocess, sys

    CODE = "import sys; sys.path.append({here!r}); {first}import toy_engine; toy_engine.stale()"

    def run(first, *options):
        code = CODE.format(here=os.path.dirname(__file__), first=first)
        subprocess.run([sys.executable, *options, "-c", code], env={}, check=True)

    def test_by_the_entry_point():
        run("from fmcheck.processes.sglang import activate; activate(); ")

    def test_not_at_all():
        run("")
"""


def test_an_emptied_environment_is_got_over_by_the_entry_point_alone(project: Project) -> None:
    project.write("test_emptied.py", EMPTIED)
    done = project.pytest("-p", "fmcheck", "-rA", "--tb=short")
    assert re.findall(r"^(PASSED|FAILED) test_emptied\.py::(\w+)", done.stdout, re.M) == [
        ("PASSED", "test_not_at_all"),
        ("FAILED", "test_by_the_entry_point"),
    ], done.stdout
    assert re.search(
        r"fmcheck: `python\S* -c .*` \(process \d+\) was started but not instrumented: not watched",
        done.stdout,
    )


def test_the_entry_point_does_nothing_outside_of_a_run(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import sys
        from fmcheck.processes.sglang import activate

        def test_it():
            activate()
            assert "fmcheck.processes.child.child_start" not in sys.modules
        """,
    )
    assert "1 passed" in project.pytest().stdout


def test_old_journals_are_removed_but_for_the_latest_that_nobody_reported(
    project: Project, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    for number in range(6):
        folder = scratch / f"fmcheck-run-99999999{number}-x"
        folder.mkdir(parents=True)
        killed = Journal(str(folder), "pytest", "pytest")
        killed.violation(violation(1), advice=False)
        head = folder / f"{killed.name}.jsonl"
        # Another process wrote it, which is gone.
        head.write_text(head.read_text().replace(f'"pid":{os.getpid()}', '"pid":999999999'))
    (scratch / "fmcheck-run-999999998-nothing-found").mkdir()
    (scratch / "fmcheck-run-1-lives").mkdir()
    project.write("test_it.py", "def test_it():\n    pass\n")
    project.pytest("-p", "fmcheck", TMPDIR=str(scratch))
    left = sorted(path.name for path in scratch.iterdir())
    assert len(left) == 4
    assert left[0] == "fmcheck-run-1-lives"
    assert all(name.endswith("-x") for name in left[1:])


def test_what_a_child_keeps_on_a_device_is_fetched_at_the_end_of_the_test(project: Project) -> None:
    """The device is made up: findings that the child holds back until it is asked for them."""
    project.write(
        "held_back.py",
        """
        import sys, torch
        import toy_engine
        from fmcheck.finding import Access, Site, Violation
        from fmcheck.processes import process_watch

        here = process_watch.here()
        tally = here.session._watch.tally
        held = []

        def drain():
            while held:
                site = Site("kernels.py", held.pop(), "gather")
                access = Access("gather", site)
                tally.report(
                    Violation("FR102", "double-read", "Map.buf", access, "", "cuda:0", 1, (1,), 1)
                )

        tally.pending.append(drain)
        tally.kinds.add("cuda")
        here.milestone()
        print(flush=True)
        for line in sys.stdin:
            held.append(int(line))
            print(flush=True)
        """,
    )
    project.write(
        "test_device.py",
        """
        import subprocess, sys
        import pytest

        @pytest.fixture(scope="module")
        def launch():
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen([sys.executable, "held_back.py"], **options) as server:
                server.stdout.readline()

                def launch(line):
                    server.stdin.write(f"{line}\\n")
                    server.stdin.flush()
                    server.stdout.readline()

                yield launch
                server.kill()

        def test_healthy(launch):
            pass

        @pytest.mark.parametrize("line", [3, 4])
        def test_stale(launch, line):
            launch(line)

        def test_nothing(launch):
            pass
        """,
    )
    done = project.pytest("-p", "fmcheck", "-rA", "--tb=short")
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    for line in (3, 4):
        block = done.stdout.partition(f"_ test_stale[{line}] _")[2].partition("\n____")[0]
        assert f"kernels.py:{line} in gather" in block


def test_what_outlives_the_run_is_left_alone(project: Project, tmp_path: Path) -> None:
    """A server that was left behind forks and starts Pythons when the journal is gone."""
    project.write(
        "server.py",
        """
        import os, subprocess, sys
        import toy_engine

        print(flush=True)
        sys.stdin.readline()
        if pid := os.fork():
            _, status = os.waitpid(pid, 0)
            child = subprocess.run([sys.executable, "-c", "import toy_engine; toy_engine.stale()"])
            print(os.waitstatus_to_exitcode(status), child.returncode, flush=True)
        else:
            toy_engine.stale()
        """,
    )
    project.write(
        "test_it.py",
        """
        import shutil, subprocess, sys

        def test_it(tmp_path, pytestconfig):
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen([sys.executable, "server.py"], **options) as server:
                server.stdout.readline()
                session = pytestconfig.pluginmanager.getplugin("fmcheck-session")
                shutil.move(session.coordinator.folder, tmp_path / "away")
                out, _ = server.communicate("go\\n")
                assert out.split() == ["0", "0"]
                shutil.move(tmp_path / "away", session.coordinator.folder)
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert "1 passed" in done.stdout, done.stdout


def test_a_test_that_replaces_clocks_and_calls_of_the_system_sees_its_own_calls_alone(
    project: Project,
) -> None:
    project.write(
        "test_replaced.py",
        """
        import faulthandler, os, subprocess, sys, time
        import toy_engine

        faulthandler.dump_traceback_later(120, exit=True)  # who waits by a stopped clock hangs

        def test_replaced(monkeypatch):
            calls = []
            for name in ("time", "monotonic", "monotonic_ns", "perf_counter"):
                monkeypatch.setattr(time, name, lambda: 1)
            monkeypatch.setattr(time, "sleep", calls.append)
            monkeypatch.setattr(os, "write", lambda *given: calls.append(given))
            command = [sys.executable, "-c", "import toy_engine; toy_engine.healthy()"]
            assert subprocess.run(command).returncode == 0
            toy_engine.healthy()
            assert calls == []

        def test_status_by_its_name():
            pid = os.fork()
            if not pid:
                os._exit(status=9)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

        def test_a_module_in_the_way(tmp_path):
            (tmp_path / "json.py").write_text("raise SystemExit(3)")
            child = subprocess.run(
                [sys.executable, "-c", "print(1)"],
                env={**os.environ, "PYTHONPATH": str(tmp_path)},
                capture_output=True, text=True,
            )
            assert (child.stdout, child.returncode) == ("1\\n", 0)
        """,
    )
    done = project.pytest("-p", "fmcheck")
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert "could not be written" not in done.stdout

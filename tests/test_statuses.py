"""Exit statuses: 0 nothing found, 1 found, 2 not everything checked, 130 and 141 cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fmcheck import cli
from fmcheck.cli import main

ROOT = Path(__file__).parent.parent
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
ENVIRON.pop("FMCHECK_TRACEBACK", None)
FMCHECK = f"{sys.executable} -m fmcheck"
FOUND = (
    "import torch\n\n\ndef f(a):\n    torch.get_device_module()\n    return torch.cuda.Event()\n"
)
posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell and its devices")


def _shell(command: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**ENVIRON, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def broken(monkeypatch):
    """Makes `fmcheck rules` end in an error."""

    def make(error: BaseException) -> None:
        def fail(_: object) -> int:
            raise error

        monkeypatch.setattr(cli, "_list_rules", fail)

    return make


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ValueError("of\x1b[31m old\nand more"), "internal error: ValueError: of\\x1b[31m old;"),
        (KeyError("lost"), "internal error: KeyError: 'lost';"),
        (RecursionError("too deep"), "internal error: RecursionError: too deep;"),
        (AssertionError(), "internal error: AssertionError;"),
        (OSError(5, "broken", "a file"), "internal error: OSError: [Errno 5] broken: 'a file';"),
        (MemoryError(), "out of memory: not everything was checked"),
        (SystemExit(0), "internal error: RuntimeError: something called sys.exit(0);"),
        (SystemExit(1), "internal error: RuntimeError: something called sys.exit(1);"),
    ],
)
def test_an_unforeseen_error_is_status_2_and_a_line_or_two(broken, capsys, error, reported):
    broken(error)
    assert main(["rules"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fmcheck: {reported}")
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err
    assert "--traceback" in err or isinstance(error, MemoryError)


@pytest.mark.parametrize("argv", [["--traceback", "rules"], ["rules", "--traceback"]])
def test_the_traceback_is_shown_to_those_who_ask(broken, capsys, argv):
    broken(ValueError("of old"))
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "in fail" in err


def test_the_traceback_may_be_asked_for_by_the_environment(broken, capsys, monkeypatch):
    broken(ValueError("of old"))
    monkeypatch.setenv("FMCHECK_TRACEBACK", "1")
    main(["rules"])
    assert "Traceback" in capsys.readouterr().err


def test_a_run_that_failed_is_not_replayed(tmp_path):
    (tmp_path / "a.py").write_text(FOUND)
    code = (
        "import sys; from fmcheck.__main__ import main; import fmcheck.lint.run.outcome as run\n"
        "def fail(request): run.plan(request); raise ValueError('once')\n"
        "run.lint_paths = fail\n"
        "sys.exit(main())"
    )
    cache = str(tmp_path / "cache")
    (tmp_path / "once.py").write_text(code)
    failed = _shell(f"{sys.executable} once.py lint a.py", tmp_path, FMCHECK_CACHE_DIR=cache)
    assert (failed.returncode, "ValueError: once" in failed.stderr) == (2, True)
    assert _shell(f"{FMCHECK} lint a.py", tmp_path, FMCHECK_CACHE_DIR=cache).returncode == 1


COMMANDS = [
    "rules",
    "explain FM201",
    "lint a.py",
    "lint --no-cache a.py",
    "lint --format json a.py",
    "lint --help",
    "--version",
    "report schema",
]


@posix
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("output", ["> /dev/full", ">&-"])
def test_an_output_that_takes_nothing_is_status_2(tmp_path, command, output):
    (tmp_path / "a.py").write_text(FOUND)
    done = _shell(f"{FMCHECK} {command} {output}", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fmcheck: standard output: cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


@posix
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_is_gone_ends_a_run_quietly_and_as_sigpipe_would(tmp_path, command):
    (tmp_path / "a.py").write_text(FOUND)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*FMCHECK.split(), *command.split()],
        cwd=tmp_path,
        env=ENVIRON,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@posix
def test_a_closed_output_that_nothing_is_written_to_is_no_error(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert _shell(f"{FMCHECK} lint -q a.py >&-", tmp_path).returncode == 0


@posix
def test_closed_streams_leave_the_status_as_it_is(tmp_path):
    (tmp_path / "a.py").write_text(FOUND)
    assert _shell(f"{FMCHECK} lint a.py 2>&-", tmp_path).returncode == 1
    assert _shell(f"{FMCHECK} lint nowhere.py 2>&-", tmp_path).returncode == 2
    assert _shell(f"{FMCHECK} lint a.py <&- >&- 2>&-", tmp_path).returncode == 2


@posix
def test_a_closed_standard_input_is_one_line(tmp_path):
    done = _shell(f"{FMCHECK} lint - <&-", tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "fmcheck: -: expected source on the standard input, which is closed\n",
    )


@posix
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_130(tmp_path, end):
    os.mkfifo(tmp_path / "never")
    process = subprocess.Popen(
        f"exec {FMCHECK} lint - < never",
        shell=True,
        cwd=tmp_path,
        env=ENVIRON,
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(tmp_path / "never", "w"):  # until then it waits for its standard input
        for line in process.stderr or ():
            assert "--stdin-filename" in line  # it has begun to read
            break
        time.sleep(0.2)
        process.send_signal(end)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "fmcheck: interrupted\n")


@posix
@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "gitlab", "junit"])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_no_file_name_and_no_locale_ends_a_run(tmp_path, form, encoding):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.py", "w") as file:
        file.write(FOUND.replace("f(a)", "f(a, \N{LATIN SMALL LETTER E WITH ACUTE})"))
    for more in ("", "--output-file report"):
        command = f"{FMCHECK} lint --no-cache --format {form} {more} ."
        done = _shell(command, tmp_path, PYTHONIOENCODING=encoding, LC_ALL="C")
        assert (done.returncode, done.stderr) == (1, "")


@posix
def test_a_baseline_holds_names_that_are_not_utf_8(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.py", "w") as file:
        file.write(FOUND)
    made = _shell(f"{FMCHECK} lint --no-cache --baseline b.json --update-baseline .", tmp_path)
    assert made.returncode == 0, made.stderr
    assert _shell(f"{FMCHECK} lint --no-cache --baseline b.json .", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("argv", "reported"),
    [
        (["--verson"], "--verson: no such option; did you mean `fmcheck --version`?"),
        (["-v"], "-v: no such option; did you mean `fmcheck --version`?"),
        (["lint", "--fxi", "."], "--fxi: no such option or argument; did you mean `--fix`?"),
        (
            ["lint", "-j", "0", "."],
            "--jobs: must be a whole number of at least 1 (got `0`)",
        ),
        (
            ["lint", "-j", "many", "."],
            "--jobs: must be a whole number of at least 1 (got `many`)",
        ),
        (["rule", "FM9"], "rule: there is no `FM9`; families: FM0, FM1, FM2"),
        (["rule", "FM2O1"], "rule: there is no `FM2O1`; did you mean `FM201`?"),
        (["explain", "FR999"], "explain: there is no `FR999`; families: FR1, FR2"),
        (["explain", "FR12"], "explain: there is no `FR12`; did you mean `FR102`?"),
    ],
)
def test_what_is_misspelt_on_the_command_line_is_one_line_with_the_nearest_name(
    capsys, argv, reported
):
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fmcheck: {reported}")
    assert err.count("\n") == 1

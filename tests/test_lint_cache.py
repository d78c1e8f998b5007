"""The cache: the same output without the work, and never an old answer to a new question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fmcheck.lint import stored
from fmcheck.lint.cache import pack, unpack

EVENT = """\
import torch

def publish(device):
    module = torch.get_device_module(device)
    ready = torch.cuda.Event()
    return module, ready
"""
ROOT = Path(__file__).parent.parent


class Project:
    """A folder with a settings file, linted by processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pyproject.toml").write_text("[tool.fmcheck]\n")
        (folder / "src").mkdir()
        (folder / "src" / "a.py").write_text(EVENT)
        (folder / "src" / "b.py").write_text("x = 1\n")

    def age(self) -> None:
        """Makes everything old enough for its times to be trusted, and keep them."""
        for at, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                os.utime(os.path.join(at, name), ns=(10**18, 10**18))

    def run(self, *arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess:
        command = code or "import sys; from fmcheck.__main__ import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", command, "lint", *(arguments or ("src",))],
            cwd=self.folder,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FMCHECK_CACHE_DIR": "", **environ},
        )

    @property
    def cache(self) -> Path:
        return self.folder / ".fmcheck_cache"


#: Runs the command, and tells on stderr whether it was made anew.
TELLING = """
import sys
import time
before = set(sys.modules)  # an editable install has pathlib there at start-up
from fmcheck.__main__ import main
status = main()
heavy = {"argparse", "msgspec", "pathlib", "ast", "libcst", "typing", "dataclasses"} - before
print("anew" if "fmcheck.cli" in sys.modules else "again", file=sys.stderr)
print(*heavy.intersection(sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def how(done: subprocess.CompletedProcess) -> str:
    return done.stderr.decode().splitlines()[-2]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_second_run_says_the_same_bytes_without_a_heavy_import(project, form, jobs):
    arguments = ("--format", form, "--jobs", jobs, "src")
    cold = project.run(*arguments, "--no-cache")
    assert not project.cache.exists()

    first = project.run(*arguments)
    again = project.run(*arguments, code=TELLING)

    assert cold.returncode == first.returncode == again.returncode == 1
    assert cold.stdout == first.stdout == again.stdout
    assert b"FM301" in again.stdout
    assert again.stderr.decode() == "again\n\n"


def test_packages_count_by_their_entry_points_and_not_by_their_times(project):
    installed = project.folder / "libs" / "acme-1.0.dist-info"
    installed.mkdir(parents=True)
    points = installed / "entry_points.txt"
    points.write_text("[console_scripts]\nacme = acme:main\n")
    path = os.pathsep.join([str(ROOT), str(installed.parent)])
    project.run(PYTHONPATH=path)
    time.sleep(0.05)
    project.run(PYTHONPATH=path)

    for one in (points, installed):
        os.utime(one, (0, 0))
    assert how(project.run(code=TELLING, PYTHONPATH=path)) == "again"

    points.write_text("[console_scripts]\nacme = acme:other\n")
    assert how(project.run(code=TELLING, PYTHONPATH=path)) == "anew"


def test_cache_is_in_the_projects_folder_and_hides_from_git(project):
    project.run()

    assert (project.cache / ".gitignore").read_text().endswith("*\n")


def test_cache_folder_may_be_named(project, tmp_path):
    project.run("--cache-dir", str(tmp_path / "one"), "src")
    project.run("src", FMCHECK_CACHE_DIR=str(tmp_path / "two"))

    assert (tmp_path / "one").is_dir()
    assert (tmp_path / "two").is_dir()
    assert not project.cache.exists()


def edit(project):
    (project.folder / "src" / "b.py").write_text(EVENT)


def edit_keeping_size_and_time(project):
    path = project.folder / "src" / "a.py"
    at = path.stat()
    path.write_text(EVENT.replace("Event", "event"))
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def add(project):
    (project.folder / "src" / "c.py").write_text(EVENT)


def add_in_new_folder(project):
    (project.folder / "src" / "new").mkdir()
    (project.folder / "src" / "new" / "c.py").write_text(EVENT)


def remove(project):
    (project.folder / "src" / "a.py").unlink()


def rename(project):
    (project.folder / "src" / "a.py").rename(project.folder / "src" / "z.py")


def change_settings(project):
    (project.folder / "pyproject.toml").write_text('[tool.fmcheck]\nignore = ["FM301"]\n')


def add_nearer_settings(project):
    (project.folder / "src" / "pyproject.toml").write_text('[tool.fmcheck]\nignore = ["FM301"]\n')


CHANGES = [
    edit,
    edit_keeping_size_and_time,
    add,
    add_in_new_folder,
    remove,
    rename,
    change_settings,
    add_nearer_settings,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("aged", [True, False], ids=["old files", "files just written"])
def test_a_change_is_seen(project, change, aged):
    if aged:
        project.age()
    before = project.run("--format", "json", "src")
    project.run("--format", "json", "src")

    change(project)

    expected = project.run("--format", "json", "--no-cache", "src")
    done = project.run("--format", "json", "src")
    assert done.stdout == expected.stdout != before.stdout
    assert done.returncode == expected.returncode


def test_other_times_with_the_same_content_are_no_change(project):
    first = project.run()
    for path in (project.folder / "src").iterdir():
        path.write_bytes(path.read_bytes())
        os.utime(path)
    (project.folder / "pyproject.toml").write_text("[tool.fmcheck]\n")

    again = project.run(code=TELLING)

    assert how(again) == "again"
    assert again.stdout == first.stdout


def test_a_file_that_is_no_source_is_no_change(project):
    project.run()
    (project.folder / "src" / "notes.txt").write_text("")
    (project.folder / "src" / "__pycache__").mkdir()

    assert how(project.run(code=TELLING)) == "again"


def test_one_changed_file_leaves_the_others_findings_in_the_cache(project):
    project.run("--format", "json", "src")
    edit(project)
    spying = """
import sys
import time
from fmcheck.lint import tasks
def spy(text, path, rules, lint=tasks.lint_text):
    print(path, file=sys.stderr)
    return lint(text, path, rules)
tasks.lint_text = spy
from fmcheck.__main__ import main
sys.exit(main())
"""

    done = project.run("--format", "json", "src", code=spying)

    assert done.stderr.decode().split() == ["src/b.py"]
    assert [entry["path"] for entry in json.loads(done.stdout)] == ["src/a.py", "src/b.py"]


@pytest.mark.parametrize(
    "more",
    [{"NO_COLOR": "1"}, {"TERM": "dumb"}],
    ids=lambda more: next(iter(more)),
)
def test_an_environment_that_changes_output_is_another_run(project, more):
    project.run()

    assert how(project.run(code=TELLING, **more)) == "anew"


@pytest.mark.parametrize(
    "options",
    [
        ("--select", "FM3", "--ignore=FM6"),
        ("--jobs", "1"),
        ("-j", "1"),
        ("-j2",),
        ("--config", "pyproject.toml"),
        ("--cache-dir", "other"),
        ("--cache-dir=other",),
    ],
    ids=" ".join,
)
def test_a_run_with_options_is_told_again(project, options):
    first = project.run(*options, "src")

    again = project.run(*options, "src", code=TELLING)

    assert how(again) == "again"
    assert again.stdout == first.stdout


@pytest.mark.parametrize("option", ["--select=FM6", "--ignore=FM3", "--format=json"])
def test_another_command_line_is_another_run(project, option):
    project.run()

    done = project.run(option, "src", code=TELLING)

    assert how(done) == "anew"
    assert done.stdout == project.run(option, "--no-cache", "src").stdout


def test_a_fixing_run_is_never_told_again(project):
    project.run("--fix", "src")

    assert how(project.run("--fix", "src", code=TELLING)) == "anew"


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"fmcheck cache 1\n", os.urandom(2000)],
    ids=["empty", "x", "head", "noise"],
)
def test_a_broken_cache_is_as_good_as_none(project, content):
    expected = project.run()
    broken = [path for path in project.cache.iterdir() if path.name != ".gitignore"]
    assert len(broken) == 2
    for path in broken:
        path.write_bytes(content)

    done = project.run()

    assert (done.returncode, done.stdout, done.stderr) == (1, expected.stdout, b"")


def test_a_cut_off_cache_is_as_good_as_none(project):
    expected = project.run()
    for path in project.cache.iterdir():
        path.write_bytes(path.read_bytes()[:-10])

    assert project.run().stdout == expected.stdout


def test_a_cache_that_cannot_be_written_is_no_error(project):
    # Root may write anywhere, but not below a file.
    (project.folder / "file").write_text("")

    done = project.run("--cache-dir", "file/cache", "src")

    assert (done.returncode, done.stderr) == (1, b"")


def test_two_runs_at_once_leave_a_cache_that_holds(project):
    command = [sys.executable, "-m", "fmcheck", "lint", "src"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "FMCHECK_CACHE_DIR": ""}
    both = [
        subprocess.Popen(command, cwd=project.folder, env=environ, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    outputs = {one.communicate()[0] for one in both}

    assert len(outputs) == 1
    assert project.run().stdout in outputs
    assert not list(project.cache.glob("*.tmp"))


def test_no_project_no_cache_in_anybodys_folder(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "a.py").write_text(EVENT)
    subprocess.run(
        [sys.executable, "-m", "fmcheck", "lint", "a.py"],
        cwd=here,
        capture_output=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FMCHECK_CACHE_DIR": "",
            "XDG_CACHE_HOME": str(tmp_path / "home"),
        },
    )

    assert [path.name for path in here.iterdir()] == ["a.py"]
    assert (tmp_path / "home" / "fmcheck" / "lint").is_dir()


def test_oldest_runs_make_room(project):
    for number in range(stored.MOST_KEPT + 5):
        stored.save(str(project.cache / f"run-{number}"), number)

    kept = {path.name for path in project.cache.glob("run-*")}

    assert len(kept) == stored.MOST_KEPT
    assert f"run-{stored.MOST_KEPT + 4}" in kept


def test_a_finding_is_the_same_after_the_cache():
    from tests.test_rules import RULES, found, make

    for rule in RULES:
        for example in rule.bad:
            for finding in found(make(rule, example), example):
                assert unpack(pack(finding)) == finding


def test_a_state_that_a_later_write_may_share_is_not_trusted():
    assert stored.trusted((100, 100, 1, 1), 100 + stored.RACE + 1) == (100, 100, 1, 1)
    assert stored.trusted((100, 100, 1, 1), 100 + stored.RACE - 1) == ()
    assert stored.trusted(None, 0) is None

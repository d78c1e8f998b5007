"""The cache: the same output without the work, and never an old answer to a new question."""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from msgspec import convert, to_builtins

from fmcheck.finding import Finding
from fmcheck.lint.run import stored
from fmcheck.lint.run.plan import plan
from fmcheck.lint.run.tasks import task_for
from fmcheck.lint.scope.request import Request
from tests.test_neighbours import READ, WAITS

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
        folder.mkdir(exist_ok=True)
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


#: Runs the command, and tells on stderr whether it was made again.
TELLING = """
import sys
import time
before = set(sys.modules)  # an editable install has pathlib there at start-up
from fmcheck.__main__ import main
status = main()
heavy = {"argparse", "msgspec", "pathlib", "ast", "libcst", "typing", "dataclasses"} - before
print("again" if "fmcheck.cli" in sys.modules else "again", file=sys.stderr)
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
    assert how(project.run(code=TELLING, PYTHONPATH=path)) == "again"


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


def test_other_times_of_a_file_that_another_one_calls_are_no_change(project):
    helper = project.folder / "src" / "helper.py"
    helper.write_text(textwrap.dedent(WAITS))
    step = project.folder / "src" / "step.py"
    step.write_text(textwrap.dedent(READ).format(module="src.helper", name="settle"))
    time.sleep(0.05)
    first = project.run()
    for path in (helper, step):
        os.utime(path)

    again = project.run(code=TELLING)

    assert how(again) == "again"
    assert again.stdout == first.stdout

    helper.write_text(helper.read_text().replace("synchronize", "synchronise"))
    assert project.run().stdout != first.stdout


def test_a_link_that_is_led_back_into_the_tree_is_a_change(project, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "c.py"
    outside.write_text(EVENT)
    link = project.folder / "src" / "link.py"
    link.symlink_to(outside)
    (project.folder / "src" / "a.py").write_text("x = 1\n")
    (project.folder / "lib.py").write_text(EVENT)
    assert project.run().returncode == 0

    link.unlink()
    link.symlink_to("../lib.py")

    assert project.run().returncode == 1


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
from fmcheck.lint.run import tasks
def spy(text, path, rules, lint=tasks.lint_text, **more):
    print(path, file=sys.stderr)
    return lint(text, path, rules, **more)
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

    assert how(project.run(code=TELLING, **more)) == "again"


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
def test_a_run_with_options_is_reported_again(project, options):
    first = project.run(*options, "src")

    again = project.run(*options, "src", code=TELLING)

    assert how(again) == "again"
    assert again.stdout == first.stdout


@pytest.mark.parametrize("option", ["--select=FM6", "--ignore=FM3", "--format=json"])
def test_another_command_line_is_another_run(project, option):
    project.run()

    done = project.run(option, "src", code=TELLING)

    assert how(done) == "again"
    assert done.stdout == project.run(option, "--no-cache", "src").stdout


def test_a_fixing_run_is_never_told_again(project):
    project.run("--fix", "src")

    assert how(project.run("--fix", "src", code=TELLING)) == "again"


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"fmcheck cache 1\n", os.urandom(2000)],
    ids=["empty", "x", "head", "noise"],
)
def test_a_broken_cache_is_as_good_as_none(project, content):
    expected = project.run()
    broken = [*project.cache.glob("run-*"), *project.cache.glob("files-*")]
    assert len(broken) == 2
    for path in broken:
        path.write_bytes(content)

    done = project.run()

    assert (done.returncode, done.stdout, done.stderr) == (1, expected.stdout, b"")


def test_a_cut_off_cache_is_as_good_as_none(project):
    expected = project.run()
    for path in [*project.cache.glob("run-*"), *project.cache.glob("files-*")]:
        path.write_bytes(path.read_bytes()[:-10])

    assert project.run().stdout == expected.stdout


def test_a_cache_that_cannot_be_written_is_no_error(project):
    # Root may write anywhere, but not below a file.
    (project.folder / "file").write_text("")

    done = project.run("--cache-dir", "file/cache", "src")

    assert (done.returncode, done.stderr) == (1, b"")


def test_a_file_is_refused_as_a_cache(project):
    (project.folder / "file").write_text("kept")

    done = project.run("--cache-dir", "file", "src")

    assert done.returncode == 2
    assert b"file: is not a folder; expected a new or an empty folder" in done.stderr
    assert (project.folder / "file").read_text() == "kept"


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


def fill(folder: Path) -> set[str]:
    """Stores more runs than are kept; returns the names of those that are left."""
    for number in range(stored.MOST_KEPT + 5):
        stored.save(str(folder / f"run-{number:08x}"), number)
    return {path.name for path in folder.glob("run-*")}


def test_oldest_runs_make_room(project):
    kept = fill(project.cache)

    assert len(kept) == stored.MOST_KEPT
    assert f"run-{stored.MOST_KEPT + 4:08x}" in kept


def test_files_of_the_users_in_a_cache_stay(project):
    project.run()
    users = {
        "run-1.json": "{}",
        "files-list": "a",
        "run-0badcafe": "no blob of ours",
        "run-0badcafe.txt": "",
    }
    for name, content in users.items():
        (project.cache / name).write_text(content)
        os.utime(project.cache / name, (0, 0))
    (project.folder / "precious").write_bytes(stored.LAYOUT)
    (project.cache / "run-11111111").symlink_to(project.folder / "precious")
    os.utime(project.cache / "run-11111111", (0, 0), follow_symlinks=False)

    fill(project.cache)

    assert {name: (project.cache / name).read_text() for name in users} == users
    assert (project.cache / "run-11111111").is_symlink()
    assert (project.folder / "precious").exists()


def results(folder: Path) -> dict[str, str]:
    """Makes a folder of somebody's results, with names much like ours; returns what is in it."""
    folder.mkdir()
    for number in range(40):
        (folder / f"run-{number}.json").write_text("{}")
        (folder / f"files-{number:08x}").write_text("mine")
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("way", ["option", "variable", "link", "default"])
def test_a_folder_that_is_no_cache_of_ours_is_refused_and_stays_as_it_is(project, way):
    folder = project.cache if way == "default" else project.folder / "results"
    before = results(folder)
    if way == "link":
        project.cache.symlink_to(folder, target_is_directory=True)
    options = ("--cache-dir", "results") if way == "option" else ()
    named = str(folder) if way == "variable" else ""

    done = project.run(*options, "src", FMCHECK_CACHE_DIR=named)

    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    refused = project.cache if way == "link" else folder
    why = "is a symbolic link" if way == "link" else "is not empty, and no cache of fmcheck"
    assert line.startswith(f"fmcheck: {refused}: {why}")
    assert "--no-cache" in line
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_a_marker_that_is_a_link_makes_no_folder_ours(project, tmp_path):
    project.run("--cache-dir", "real", "src")
    before = results(tmp_path / "results")
    (tmp_path / "results" / stored.MARKER).symlink_to(tmp_path / "real" / stored.MARKER)

    assert project.run("--cache-dir", "results", "src").returncode == 2
    assert before.keys() < {path.name for path in (tmp_path / "results").iterdir()}


@pytest.mark.parametrize("name", [stored.MARKER, ".gitignore"])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_marker_that_was_cut_short_is_written_again(project, name, kept):
    project.run("--cache-dir", "c", "src")
    (project.folder / "c" / stored.MARKER).write_bytes(stored.MARK[:kept])
    path = project.folder / "c" / name
    path.write_bytes(path.read_bytes()[:kept])
    (project.folder / "src" / "more.py").write_text(EVENT)

    assert project.run("--cache-dir", "c", "src").returncode == 1
    assert (project.folder / "c" / stored.MARKER).read_bytes() == stored.MARK
    assert (project.folder / "c" / ".gitignore").read_text() == "# Made by fmcheck.\n*\n"


def test_an_empty_marker_beside_files_of_others_makes_no_folder_ours(project, tmp_path):
    before = results(tmp_path / "results")
    for name in (stored.MARKER, ".gitignore"):
        (tmp_path / "results" / name).touch()

    assert project.run("--cache-dir", "results", "src").returncode == 2
    assert before.keys() < {path.name for path in (tmp_path / "results").iterdir()}


def test_an_empty_folder_becomes_a_cache_and_one_of_0_1_stays_one(project):
    for name in ("empty", "older"):
        (project.folder / name).mkdir()
    (project.folder / "older" / ".gitignore").write_text("# Made by fmcheck.\n*\n")
    (project.folder / "older" / "run-0badcafe").write_bytes(b"fmcheck cache 1\n")

    for name in ("empty", "older"):
        assert project.run("--cache-dir", name, "src").returncode == 1
        assert (project.folder / name / stored.MARKER).read_bytes() == stored.MARK


def test_a_record_that_somebody_else_wrote_says_nothing(project, tmp_path):
    """What another user, or a commit, puts there is no answer, however right it looks."""
    forged = {"XDG_CACHE_HOME": str(tmp_path / "attacker")}
    saving = f"""
import os, sys
from fmcheck.import_path import leave_out_working_folder
leave_out_working_folder()
from fmcheck.lint.run import replay, stored
inputs = replay.Inputs()
inputs.note_file({str(project.folder / "pyproject.toml")!r})
replay.keep(sys.argv[1:], inputs, "1 file checked: no findings\\n", "", 0)
"""
    project.run(code=saving, **forged)
    assert (tmp_path / "attacker" / "fmcheck" / "key").stat().st_mode & 0o777 == 0o600

    assert project.run(code=TELLING, **forged).returncode == 0  # whose key it is, believes it
    done = project.run(code=TELLING)
    assert (done.returncode, how(done)) == (1, "again")


@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_a_key_that_others_can_read_signs_nothing(project, tmp_path, mode):
    home = {"XDG_CACHE_HOME": str(tmp_path / "home")}
    project.run(**home)
    (tmp_path / "home" / "fmcheck" / "key").chmod(mode)

    assert how(project.run(code=TELLING, **home)) == "again"


def test_the_users_cache_is_never_looked_for_in_the_tree(project, tmp_path):
    """A relative XDG_CACHE_HOME would be a folder of whatever is linted."""
    project.run(XDG_CACHE_HOME="inside", HOME=str(tmp_path / "home"))

    assert not (project.folder / "inside").exists()
    assert (tmp_path / "home" / ".cache" / "fmcheck" / "key").exists()


SHAPES = [5, "text", (), (1, 2), None, ("key", "stamp", {}, {}, "all is well\n", "", 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_a_record_of_another_shape_or_without_inputs_is_as_good_as_none(project, shape):
    project.run()
    planting = f"""
import glob, marshal
from fmcheck.finding import Finding
from fmcheck.lint.run import stored
from fmcheck.lint.run.replay import _key
for path in glob.glob(".fmcheck_cache/*-*"):
    shape, found = {shape!r}, stored.load(path)
    if isinstance(shape, tuple) and shape[:1] == ("key",):
        shape = (*found[:2], *shape[2:])
    stored.save(path, shape)
    assert stored.load(path) == shape
"""
    planted = project.run(code=planting)
    assert planted.stderr == b""

    done = project.run()

    assert (done.returncode, done.stderr) == (1, b"")
    assert b"FM301" in done.stdout


def test_a_pipe_or_a_folder_in_a_records_place_is_as_good_as_none(project):
    expected = project.run()
    for path in [*project.cache.glob("run-*"), *project.cache.glob("files-*")]:
        path.unlink()
        os.mkfifo(path) if path.name.startswith("run") else path.mkdir()

    assert project.run().stdout == expected.stdout


def test_a_link_where_the_cache_writes_is_not_written_through(project):
    """A tree may bring a cache folder along: with our marker, and with links in it."""
    project.run()
    victim = project.folder / "victim"
    for path in [*project.cache.glob("run-*"), *project.cache.glob("files-*")]:
        path.unlink()
        path.symlink_to(victim)
    (project.cache / ".gitignore").unlink()
    (project.cache / ".gitignore").symlink_to(victim)

    project.run()

    assert not victim.exists()


def test_a_finding_is_the_same_after_the_cache():
    from tests.test_rules import RULES, found, make

    for rule in RULES:
        for example in rule.bad:
            for finding in found(make(rule, example), example):
                stored_as = marshal.dumps(to_builtins(finding))
                assert convert(marshal.loads(stored_as), Finding) == finding


def test_a_state_that_a_later_write_may_share_is_not_trusted():
    assert stored.trusted((100, 100, 1, 1), 100 + stored.RACE + 1) == (100, 100, 1, 1)
    assert stored.trusted((100, 100, 1, 1), 100 + stored.RACE - 1) == ()
    assert stored.trusted(None, 0) is None


def test_files_share_the_text_of_what_their_findings_hang_on(tmp_path):
    package = tmp_path / "sglang"
    package.mkdir()
    for name in ("a.py", "b.py"):
        (package / name).write_text("x = 1\n")

    one, other = plan(Request(paths=(tmp_path,))).jobs

    # It holds the contracts whole: one for each of thousands of files were hundreds of megabytes.
    assert task_for(one).way is task_for(other).way

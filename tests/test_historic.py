"""Historic faults: real files before and after a fix, what is seen, and what is flagged wrongly."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests import historic, trees
from tests.corpus import CorpusError
from tests.corpus_first_sight import Place, lint
from tests.historic import SETS, Fault, faults, fetch, main, measured, touched_lines
from tests.museum import entries
from tests.sight_records import Found, load_record, record_path, records

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "import torch\nmodule = torch.get_device_module()\n"
WRONG = HEAD + "def step():\n    return torch.cuda.Event()\n"
RIGHT = HEAD + "def step():\n    return module.Event()\n"
BESIDE = "def other():\n    return torch.cuda.Event()\n"


def git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def events(folder: Path, *options: str) -> tuple[int, list[Found]]:
    """A linter that reports each line with an event of CUDA, in code that asks for its device, and
    in all code if all rules are on.
    """
    lines = [
        (path, number)
        for path in sorted(folder.rglob("*.py"))
        if "get_device_module" in path.read_text() or options == ("--select", "ALL")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "torch.cuda.Event" in line
    ]
    return 1, [
        Found(
            number=number,
            path=path.relative_to(folder).as_posix(),
            line=line,
            code="FM301",
            severity="warning",
            message="stray event",
            in_tests=False,
        )
        for number, (path, line) in enumerate(lines, 1)
    ]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of someone/engine in an empty cache, and a linter that knows one thing."""
    monkeypatch.setattr(historic, "lint", events)
    monkeypatch.setenv("FMCHECK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "clones" / "someone+engine"
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    return folder


def fault(clone: Path, before: str, after: str, number: int = 1, visible: bool = True) -> Fault:
    """A fault of the clone that a commit fixed."""
    commits = []
    for text in (before, after):
        (clone / "engine.py").write_text(text)
        git(clone, "add", ".")
        git(clone, "commit", "--allow-empty", "-qm", "a change")
        commits.append(git(clone, "rev-parse", "HEAD"))
    return Fault(
        thread=f"someone/engine#{number}",
        class_="D",
        date="2026-01-01",
        before=commits[0],
        after=commits[1],
        paths=("engine.py",),
        what="an event of one device",
        visible=visible,
        because="by name",
    )


def outcome(clone: Path, before: str, after: str) -> tuple[list[int], list[int]]:
    """The lines of the findings that the fix removed, and of those that flag the fixed form."""
    one = fault(clone, before, after)
    fetch(one)
    _, gone, flags = measured(one)
    return [found.line for found in gone], [found.line for found in flags]


def test_files_are_copied_from_a_clone_as_they_were(clone):
    one = fault(clone, WRONG, RIGHT)
    fetch(one)
    assert (one.folder / "before" / "engine.py").read_text() == WRONG
    assert (one.folder / "after" / "engine.py").read_text() == RIGHT


def test_a_fork_s_clone_will_do(clone):
    from msgspec.structs import replace

    one = replace(fault(clone, WRONG, RIGHT), thread="upstream/engine#1", clone="someone/engine")
    fetch(one)
    assert (one.folder / "after" / "engine.py").read_text() == RIGHT


def test_a_file_that_the_fix_created_has_no_form_before(clone):
    from msgspec.structs import replace

    one = fault(clone, WRONG, RIGHT)
    (clone / "new.py").write_text("")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "a file")
    one = replace(one, after=git(clone, "rev-parse", "HEAD"), paths=("engine.py", "new.py"))
    fetch(one)
    assert (one.folder / "after" / "new.py").exists()
    assert not (one.folder / "before" / "new.py").exists()


def test_without_a_clone_it_says_where_to_put_one(clone):
    one = fault(clone, WRONG, RIGHT)
    clone.rename(clone.with_name("elsewhere"))
    with pytest.raises(
        CorpusError, match=r"a clone of someone/engine: put or link one at .*clones"
    ):
        fetch(one)


def test_files_that_were_not_fetched_are_no_silence(clone):
    with pytest.raises(CorpusError, match=r"`python -m tests.historic fetch` copies them"):
        measured(fault(clone, WRONG, RIGHT))


def test_a_fault_is_seen_if_its_finding_is_gone_after_the_fix(clone):
    assert outcome(clone, WRONG, RIGHT) == ([4], [])


def test_the_project_s_linter_is_asked(clone, monkeypatch):
    monkeypatch.setattr(historic, "lint", lint)
    stray = HEAD + "ready = torch.cuda.Event()\n"
    assert outcome(clone, stray, HEAD + "ready = module.Event()\n") == ([3], [])


def test_a_finding_that_stays_is_not_about_the_fault(clone):
    changed = WRONG.replace("def step():", "def step():\n    print()")
    assert outcome(clone, WRONG, changed)[0] == []


def test_a_finding_in_a_function_that_the_fix_touched_flags_the_fixed_form(clone):
    changed = WRONG.replace("def step():", "def step():\n    print()")
    assert outcome(clone, WRONG, changed)[1] == [5]


def test_a_finding_elsewhere_in_the_file_does_not(clone):
    assert outcome(clone, WRONG + BESIDE, RIGHT + BESIDE) == ([4], [])


def test_a_finding_that_the_fix_brought_flags_it_wherever_it_is(clone):
    old = "import torch\n" + "\n" * 9 + BESIDE
    assert outcome(clone, old, HEAD + "\n" * 9 + BESIDE) == ([], [13])


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a\nb\n", "a\nb\n", set()),
        ("x = 1\ny = 2\nz = 3\n", "x = 1\ny = 0\nz = 3\n", {1, 2, 3}),
        ("def f():\n  a\n  b\n  c\n", "def f():\n  a\n  c\n", {1, 2, 3, 4}),
        ("def f():\n  a\n\n\n\ndef g():\n  b\n", "def f():\n  a\n\n\n\ndef g():\n  c\n", {6, 7, 8}),
        ("def f(:\n", "def f(\n", {0, 1, 2}),
    ],
)
def test_the_lines_that_a_fix_touched(before, after, lines):
    assert touched_lines(before, after) == lines


@pytest.fixture
def place(clone, tmp_path, monkeypatch) -> Place:
    """A checkout, and a list of three faults: one seen, one missed, one not visible."""
    root = tmp_path / "checkout"
    (root / "rules").mkdir(parents=True)
    (root / "rules" / "one.py").write_text("x = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "linter")
    listed = [
        fault(clone, WRONG, RIGHT, 1),
        fault(clone, RIGHT, RIGHT + "y = 1\n", 2),
        fault(clone, RIGHT, RIGHT + "z = 1\n", 3, visible=False),
    ]
    monkeypatch.setattr(historic, "faults", lambda name: listed)
    assert main(["fetch"]) == 0
    return Place(root, root / "sight", root / "trees.toml")


def test_the_first_measurement_is_recorded(place, capsys):
    assert main(["measure", "historic"], place) == 1
    out = capsys.readouterr().out
    assert "visible: 1 of 2 seen" in out
    assert "fixed forms flagged: 0 of 3" in out
    (found,) = load_record(record_path(place.records, "historic")).found
    assert found.path == "someone+engine-1/before/engine.py"


def test_all_rules_have_a_record_of_their_own(place, clone, monkeypatch, capsys):
    bare = "import torch\n"
    listed = [fault(clone, bare + BESIDE, bare, 4)]
    monkeypatch.setattr(historic, "faults", lambda name: listed)
    main(["fetch"])
    main(["measure"], place)
    assert "visible: 0 of 1 seen" in capsys.readouterr().out
    main(["measure", "--all-rules"], place)
    assert "visible: 1 of 1 seen" in capsys.readouterr().out
    kept = records(place.records)
    found = {one.tree: len(one.found) for one in kept}
    assert found == {SETS[-1]: 0, f"{SETS[-1]}-all": 1}


def test_a_later_measurement_leaves_the_first_as_it_is(place, capsys):
    main(["measure", "historic"], place)
    kept = record_path(place.records, "historic").read_bytes()
    main(["measure", "historic"], place)
    assert record_path(place.records, "historic").read_bytes() == kept
    assert "not recorded: the first measurement stands" in capsys.readouterr().out


def test_a_fault_counts_as_seen_where_two_readers_say_that_the_finding_is_about_it(place, capsys):
    from tests.corpus_first_sight import main as sight

    main(["measure", "historic"], place)
    git(place.root, "add", ".")
    git(place.root, "commit", "-qm", "first measurement")
    for reader, by in (("first", "ann"), ("second", "bob")):
        capsys.readouterr()
        main(["table", "historic"], place)
        assert "visible: 0 of 2 seen" in capsys.readouterr().out
        command = ["verdict", "historic", "1", reader, "right", "names the event", "--by", by]
        assert sight(command, place) == 0
    main(["table", "historic"], place)
    assert "visible: 1 of 2 seen" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "most"), [("historic", 12), ("historic2", 10), ("historic3", 5)])
def test_the_list_has_enough_faults_that_source_shows(name, most):
    listed = faults(name)
    assert len(listed) >= 36
    assert sum(one.visible for one in listed) >= 30
    assert max(Counter(one.thread.partition("#")[0] for one in listed).values()) <= most


def test_no_fault_is_listed_twice_or_known_to_the_museum():
    threads = [one.thread for name in SETS for one in faults(name)]
    assert len(set(threads)) == len(threads)
    assert not set(threads) & set(entries())


@pytest.mark.parametrize("name", SETS)
def test_a_fault_has_whole_commits_and_python_files(name):
    for one in faults(name):
        assert re.fullmatch("[0-9a-f]{40}", one.before), one.thread
        assert re.fullmatch("[0-9a-f]{40}", one.after), one.thread
        assert 0 < len(one.paths) <= 6, one.thread
        assert all(path.endswith(".py") for path in one.paths), one.thread


def projects(name: str) -> set[str]:
    return {trees.project(one.thread.partition("#")[0]) for one in faults(name)}


def test_no_fault_is_of_a_project_that_is_still_fresh():
    folder = Place().records
    unread = {
        one.project for one in trees.load().fresh if not record_path(folder, one.name).exists()
    }
    assert not (projects("historic2") | projects("historic3")) & unread
    assert not projects("historic") & {one.project for one in trees.load().fresh}

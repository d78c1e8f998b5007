"""First sight: a tree is linted once, read twice, and nothing is read before the figure stands."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import corpus_first_sight as command
from tests import trees
from tests.corpus_first_sight import Place, main
from tests.sight_records import Found, RecordError, is_test, load_record, record_path

if TYPE_CHECKING:
    from pathlib import Path

LIST = """
suspected = ["famous"]
[[opened]]
name = "home"
versions = ["1.0"]
when = "2026-11-21"
purpose = "rules were written on it"
[[fresh]]
name = "toy"
version = "1.0"
kind = "wheel"
about = "an engine"
files = 2
lines = 6
"""
STRAY = "import torch\nmodule = torch.get_device_module()\nready = torch.cuda.Event()\n"


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A checkout with a linter and a list of one fresh tree, which has a fault and a test."""
    root = tmp_path / "checkout"
    (root / "rules").mkdir(parents=True)
    (root / "rules" / "one.py").write_text("x = 1\n")
    (root / "trees.toml").write_text(LIST)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "linter")
    source = tmp_path / "toy"
    (source / "toy" / "tests").mkdir(parents=True)
    (source / "toy" / "x.py").write_text(STRAY)
    (source / "toy" / "tests" / "test_x.py").write_text(STRAY)
    monkeypatch.setattr(trees, "wheel_source", lambda *names: source)
    return Place(root, root / "sight", root / "trees.toml")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linter's answer at once: two warnings, one of them in a test, and a note."""
    found = [
        finding(1, "toy/x.py", "warning"),
        finding(2, "toy/tests/test_x.py", "warning"),
        finding(3, "toy/x.py", "note"),
        finding(4, "toy/x.py", "error", "FM001"),
    ]
    monkeypatch.setattr(command, "lint", lambda folder: (1, found))


def finding(number: int, path: str, severity: str, code: str = "FM301") -> Found:
    return Found(
        number=number,
        path=path,
        line=3,
        code=code,
        severity=severity,
        message="stray event",
        in_tests=is_test(path),
    )


def recorded(place: Place) -> None:
    assert main(["sight", "toy"], place) == 0
    git(place.root, "add", ".")
    git(place.root, "commit", "-qm", "first sight")


def read(place: Place, reader: str, by: str, *said: str) -> None:
    for number, word in enumerate(said, 1):
        assert main(["verdict", "toy", str(number), reader, word, "why", "--by", by], place) == 0


def test_the_linter_s_findings_are_recorded_and_not_printed(place, capsys):
    assert main(["sight", "toy"], place) == 0
    record = load_record(record_path(place.records, "toy"))
    assert [(one.path, one.line, one.code, one.in_tests) for one in record.found] == [
        ("toy/x.py", 3, "FM301", False),
        ("toy/tests/test_x.py", 3, "FM301", True),
    ]
    assert (record.files, record.lines, record.status) == (2, 6, 1)
    out = capsys.readouterr().out
    assert "{'FM301': 2}" in out
    assert "x.py" not in out


def test_a_file_of_the_tree_stands_in_for_no_module_of_python(place):
    for name in ("argparse", "ast", "fmcheck", "json"):
        (place.root.parent / "toy" / f"{name}.py").write_text("raise SystemExit(9)\n")
    assert main(["sight", "toy"], place) == 0


def test_a_tree_that_takes_too_long_is_named_and_has_no_record(place, monkeypatch, capsys):
    monkeypatch.setattr(command, "LONGEST", 0)
    assert main(["sight", "toy"], place) == 2
    assert "toy: the linter took more than 0 s" in capsys.readouterr().err
    assert not place.records.exists()


def test_a_record_names_the_commit_that_linted(place, quick):
    recorded(place)
    head = subprocess.check_output(["git", "rev-parse", "HEAD~1"], cwd=place.root, text=True)
    assert load_record(record_path(place.records, "toy")).linter == head.strip()


def test_a_linter_with_changes_that_are_not_committed_makes_no_record(place, quick, capsys):
    (place.root / "rules" / "one.py").write_text("x = 2\n")
    assert main(["sight", "toy"], place) == 2
    assert "not committed:" in capsys.readouterr().err
    assert not place.records.exists()


def test_a_tree_is_linted_once(place, quick, capsys):
    recorded(place)
    assert main(["sight", "toy"], place) == 2
    assert "a tree counts once, take another" in capsys.readouterr().err


def test_changed_rules_give_no_second_figure(place, quick, capsys):
    recorded(place)
    before = record_path(place.records, "toy").read_bytes()
    (place.root / "rules" / "one.py").write_text("x = 2\n")
    git(place.root, "commit", "-qam", "other rules")
    assert main(["sight", "toy"], place) == 2
    assert "the rules have changed since, and it never counts" in capsys.readouterr().err
    assert record_path(place.records, "toy").read_bytes() == before


def test_all_takes_only_what_has_no_figure(place, quick, capsys):
    recorded(place)
    capsys.readouterr()
    assert main(["sight", "--all"], place) == 0
    assert "FM301" not in capsys.readouterr().out


def test_a_tree_that_is_not_listed_is_refused(place, quick, capsys):
    assert main(["sight", "home"], place) == 2
    assert "not listed as fresh" in capsys.readouterr().err


def test_nobody_reads_before_the_record_is_committed(place, quick, capsys):
    assert main(["sight", "toy"], place) == 0
    assert main(["show", "toy", "first"], place) == 2
    assert main(["verdict", "toy", "1", "first", "right", "why", "--by", "ann"], place) == 2
    assert "is not committed: commit it before anybody reads" in capsys.readouterr().err


def test_a_record_that_was_changed_does_not_count(place, quick, capsys):
    recorded(place)
    path = record_path(place.records, "toy")
    content = json.loads(path.read_text())
    content["found"] = content["found"][:1]
    path.write_text(json.dumps(content))
    assert main(["table"], place) == 2
    assert "was changed after it was written" in capsys.readouterr().err


def test_one_tree_under_two_names_counts_once(place, quick, capsys):
    recorded(place)
    other = place.trees.read_text().replace('name = "toy"', 'name = "toy-two"')
    place.trees.write_text(other)
    assert main(["sight", "toy-two"], place) == 0
    assert main(["table"], place) == 2
    assert "toy has the same files as toy-two: a tree counts once" in capsys.readouterr().err


def test_the_second_reader_does_not_see_what_the_first_says(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "wrong")
    capsys.readouterr()
    assert main(["show", "toy", "second"], place) == 1
    out = capsys.readouterr().out
    assert "[1] toy/x.py:3 FM301 warning" in out
    assert ">     3 ready = torch.cuda.Event()" in out
    assert "wrong" not in out
    assert "ann" not in out


def test_a_reader_is_shown_what_they_have_not_judged(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "right", "right")
    capsys.readouterr()
    main(["show", "toy", "first"], place)
    out = capsys.readouterr().out
    assert "[3]" in out
    assert "[1]" not in out


def test_one_person_is_not_both_readers(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "right")
    assert main(["verdict", "toy", "1", "second", "right", "why", "--by", "ann"], place) == 2
    assert "`ann` is the first reader of toy: another has to read" in capsys.readouterr().err


def test_a_verdict_stays(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "wrong")
    assert main(["verdict", "toy", "1", "first", "right", "why", "--by", "ann"], place) == 2
    assert "has given a verdict on finding 1: it stays" in capsys.readouterr().err


def test_a_finding_that_is_not_there_has_no_verdict(place, quick, capsys):
    recorded(place)
    assert main(["verdict", "toy", "4", "first", "right", "why", "--by", "ann"], place) == 2
    assert "toy has no finding 4" in capsys.readouterr().err


def test_readers_that_differ_are_reported_with_both_reasons(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "right", "right", "right")
    read(place, "second", "bob", "wrong", "right", "right")
    capsys.readouterr()
    assert main(["disagree"], place) == 1
    assert capsys.readouterr().out.splitlines() == [
        "toy [1] toy/x.py:3 FM301: stray event",
        "  first reader: right, why",
        "  second reader: wrong, why",
    ]


def test_a_finding_is_right_where_both_readers_say_so(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "right", "right", "right")
    read(place, "second", "bob", "debatable", "right", "right")
    capsys.readouterr()
    assert main(["table"], place) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["toy", "0/1", "1/1", "1/1"]
    assert "outside tests: 0% of 1 (wanted: at least 85% of at least 30)" in "\n".join(out)


def test_what_one_reader_has_not_read_is_said(place, quick, capsys):
    recorded(place)
    read(place, "first", "ann", "right", "right", "right")
    read(place, "second", "bob", "right")
    capsys.readouterr()
    assert main(["table"], place) == 1
    assert "1/1" in capsys.readouterr().out.splitlines()[1]


def test_a_tree_that_was_passed_over_is_named(place, quick, capsys):
    recorded(place)
    entry = place.trees.read_text().split("[[fresh]]")[1]
    earlier = next(name for name in map("a{}".format, range(9999)) if before(name, "toy"))
    place.trees.write_text(
        place.trees.read_text() + "[[fresh]]" + entry.replace('"toy"', f'"{earlier}"')
    )
    main(["table"], place)
    assert f"left out, though earlier in the order: {earlier}" in capsys.readouterr().out


def before(name: str, other: str) -> bool:
    fresh = [
        trees.Fresh(name=one, version="1", kind="wheel", about="", files=0, lines=0)
        for one in (name, other)
    ]
    return trees._place(fresh[0]) < trees._place(fresh[1])


@pytest.mark.parametrize("name", ["home", "Home", "someone/home", "famous", "toy"])
def test_a_known_tree_cannot_be_fresh(place, name):
    entry = place.trees.read_text().split("[[fresh]]")[1]
    place.trees.write_text(
        place.trees.read_text() + "[[fresh]]" + entry.replace('"toy"', f'"{name}"')
    )
    with pytest.raises(trees.TreesError, match=f"fresh tree `{name}` (has|may|is)"):
        trees.load(place.trees)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("pkg/tests/helper.py", True),
        ("tests/a.py", True),
        ("pkg/test_a.py", True),
        ("pkg/a_test.py", True),
        ("conftest.py", True),
        ("pkg/latest/a.py", False),
        ("pkg/contest.py", False),
    ],
)
def test_a_test_is_known_by_its_path(path, is_one):
    assert is_test(path) is is_one


def test_the_list_of_trees_can_be_loaded():
    listed = trees.load()
    assert len(listed.fresh) >= 32
    assert all(tree.files and tree.lines for tree in listed.fresh)


def test_every_record_counts():
    from tests.sight_records import records

    try:
        records(Place().records)
    except RecordError as err:
        pytest.fail(str(err))

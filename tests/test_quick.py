"""The quick way out of `fmcheck lint`: it says what the whole command would, or nothing at all."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import fmcheck
from fmcheck.cli import main
from fmcheck.lint.quick import quick, source_stamp
from fmcheck.lint.shipped import NEEDLES, STAMP
from fmcheck.lint.sieve import Sieve
from tests.shipped import shipped_rules

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CLEAN = b"import torch\n\n\ndef f(x):\n    return x + 1  # \xc3\xa4\n"
HEAVY = {"argparse", "ast", "dataclasses", "fmcheck.cli", "libcst", "msgspec", "pluggy", "typing"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "clean.py"
    file.write_bytes(CLEAN)
    return file


def test_needles_are_those_of_the_rules() -> None:
    expected = [[list(group) for group in rule.needles] for rule in shipped_rules()]
    kept = [[list(group) for group in groups] for groups in NEEDLES]
    assert kept == expected, "run `python -m tests.shipped`, then `ruff format`"
    assert source_stamp() == STAMP, "run `python -m tests.shipped`, then `ruff format`"


def test_a_copy_of_other_rules_counts_for_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fmcheck.lint.shipped.STAMP", "of another day")
    assert quick(["lint", str(file)]) is None


@pytest.mark.parametrize("name", ["rules/new.py", "contracts/new.toml", "lint/relays.py"])
def test_whatever_makes_needles_is_in_the_stamp(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source_stamp()
    changed = tmp_path / name
    changed.parent.mkdir()
    changed.write_text("# another one")
    monkeypatch.setattr("fmcheck.__path__", [*fmcheck.__path__, str(tmp_path)])
    assert source_stamp() != before


@pytest.mark.parametrize("options", [[], ["-q"], ["--no-cache", "--exit-zero"]])
def test_it_says_what_the_whole_command_says(
    file: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "other.py").write_bytes(CLEAN)
    for paths in ([str(file)], [str(file), "other.py"]):
        argv = ["lint", *options, *paths]
        assert quick(argv) == 0
        said = capsys.readouterr()
        assert main(argv) == 0
        assert capsys.readouterr() == said


def test_it_imports_next_to_nothing(file: Path, root: Path) -> None:
    code = "import sys; from fmcheck.__main__ import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", code, "lint", "--no-cache", str(file)]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert not HEAVY & {*done.stdout.split()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latin.py", "# \xe4\n".encode("latin-1")),
        ("null.py", b"x = 1\0\n"),
        ("suppressed.py", b"x = 1  # fmcheck: ignore[FM201] nothing\n"),
        ("concerned.py", b"event.record()\n"),
        ("twice.py ./twice.py", CLEAN),
        ("clean.py missing.py", CLEAN),
        ("-", CLEAN),
        (".", CLEAN),
        ("--format json clean.py", CLEAN),
        ("clean.py --select FM201", CLEAN),
    ],
)
def test_it_leaves_to_the_whole_command_what_is_not_plain(
    file: Path, name: str, text: bytes
) -> None:
    if name.split()[0].endswith(".py") and not name.startswith(("-", "clean")):
        (file.parent / name.split()[0]).write_bytes(text)
    assert quick(["lint", *name.split()]) is None


def test_it_leaves_settings_to_the_whole_command(file: Path) -> None:
    inner = file.parent / "inner"
    inner.mkdir()
    (inner / "x.py").write_bytes(CLEAN)
    assert quick(["lint", "inner/x.py"]) == 0
    for text, status in [
        ('[project]\nname = "engine"\n', 0),
        ('[tool.fmcheck]\nselect = ["FM201"]\n', None),
        ("[tool\n", None),
    ]:
        (file.parent / "pyproject.toml").write_text(text)
        assert quick(["lint", "inner/x.py"]) == status


def test_it_leaves_registered_rules_to_the_whole_command(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quick(["lint", "clean.py"]) == 0
    (file.parent / "mine.dist-info").mkdir()
    (file.parent / "mine.dist-info" / "entry_points.txt").write_text("[fmcheck]\nmine = mine\n")
    monkeypatch.syspath_prepend(file.parent)
    assert quick(["lint", "clean.py"]) is None


def test_a_sieve_holds_back_what_lacks_a_group() -> None:
    sieve = Sieve([[[b"a", b"b"], [b"c"]], [[b"c"]], []])
    assert list(sieve.held(b"b c")) == [0, 1, 2]
    assert list(sieve.held(b"c")) == [1, 2]
    assert list(sieve.held(b"b", lambda rule: rule < 2)) == []


def test_a_hint_of_a_needle_changes_nothing() -> None:
    sieve = Sieve([[[b"wait_stream"]], [[b"stream"]], [[b"upstream_of"]]])
    assert list(sieve.held(b"wait_stream")) == [0, 1]
    assert list(sieve.held(b"upstream_of")) == [1, 2]
    assert list(sieve.held(b"wait_event")) == []


@pytest.mark.parametrize("rare", [(), (0, 2), range(6)])
def test_gates_change_nothing(rare: Collection[int]) -> None:
    asked = [
        [[b"copy_", b"zero_"], [b"stream("]],
        [[b"zero_", b"rows"], [b"copy_to", b"lens"]],
        [[b"rows"]],
        [[b"cuda", b"Stream"], [b"rows"], [b"wait_event"]],
        [[]],
        [],
    ]
    words = (b"copy_", b"copy_to", b"zero_", b"stream(", b"Stream", b"rows", b"lens", b"cuda")
    sieve = Sieve(asked, rare)
    for some in itertools.product((b"", b" "), repeat=len(words)):
        text = b" ".join(word for word, one in zip(words, some, strict=True) if one)
        expected = [
            rule
            for rule, groups in enumerate(asked)
            if all(any(needle in text for needle in group) for group in groups)
        ]
        seen: dict[bytes, bool] = {}
        assert list(sieve.held(text, seen=seen)) == expected
        assert all((needle in text) is holds for needle, holds in seen.items())

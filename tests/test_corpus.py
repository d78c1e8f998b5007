"""The corpus: packages and commits are fetched once, and an error says what was needed."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.clones import commit_source, file_at
from tests.corpus import CorpusError, sdist_source, unpack_python, wheel_source

if TYPE_CHECKING:
    from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows one wheel in a folder and no index."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/code.py", "x = 1\n")
        wheel.writestr("tiny/weights.bin", "much")
        wheel.writestr("tiny-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("tiny-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("FMCHECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_wheel_is_unpacked_with_its_python_and_metadata_only(cache: Path) -> None:
    folder = wheel_source("tiny", "1.0")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert folder == cache / "wheels/tiny-1.0"
    assert files == {"tiny/code.py", "tiny-1.0.dist-info/METADATA"}


def test_wheel_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = wheel_source("tiny", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache / "nowhere"))
    assert wheel_source("tiny", "1.0") == folder


def test_nothing_is_left_beside_an_unpacked_wheel(cache: Path) -> None:
    wheel_source("tiny", "1.0")
    assert [path.name for path in (cache / "wheels").iterdir()] == ["tiny-1.0"]


def test_wheel_that_cannot_be_had_says_what_was_needed_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(CorpusError, match=r"needed the wheel of tiny==2\.0") as caught:
        wheel_source("tiny", "2.0")
    assert "FMCHECK_CACHE" in str(caught.value)
    assert list((cache / "wheels").iterdir()) == []


@pytest.fixture
def sdist(cache: Path) -> Path:
    """A source distribution in the folder that pip knows."""
    folder = cache.parent / "packed-1.0"
    (folder / "packed").mkdir(parents=True)
    (folder / "packed" / "code.py").write_text("x = 1\n")
    (folder / "packed" / "notes.txt").write_text("much")
    (folder / "packed" / "link.py").symlink_to("code.py")
    (folder / "setup.py").write_text("import setuptools; setuptools.setup()\n")
    (folder / "PKG-INFO").write_text(METADATA.replace("tiny", "packed"))
    (folder / "setup.cfg").write_text("[metadata]\nname = packed\nversion = 1.0\n")
    with tarfile.open(cache.parent / "index" / "packed-1.0.tar.gz", "w:gz") as archive:
        archive.add(folder, "packed-1.0")
    return cache


def test_source_distribution_is_unpacked_with_its_python_files_only(sdist: Path) -> None:
    folder = sdist_source("packed", "1.0")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert folder == sdist / "sdists/packed-1.0"
    assert files == {"packed-1.0/packed/code.py", "packed-1.0/setup.py"}


def test_links_of_an_archive_are_left_out_wherever_they_lead(tmp_path: Path) -> None:
    """pip refuses an absolute one by itself, where Python's own filter is what it unpacks with."""
    (tmp_path / "code.py").write_text("x = 1\n")
    for name, leads in (
        ("absolute.py", "/etc/passwd"),
        ("up.py", "../up.py"),
        ("in.py", "code.py"),
    ):
        (tmp_path / name).symlink_to(leads)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for path in sorted(tmp_path.glob("*.py")):
            archive.add(path, path.name)
    with tarfile.open(tmp_path / "a.tar") as archive:
        unpack_python(archive, tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["code.py"]


def test_source_distribution_that_cannot_be_had_says_what_was_needed(cache: Path) -> None:
    with pytest.raises(CorpusError, match=r"needed the sdist of tiny==1\.0"):
        sdist_source("tiny", "1.0")


@pytest.fixture
def commit(cache: Path) -> str:
    """A commit in a clone of someone/engine that lies in the cache."""
    clone = cache / "clones" / "someone+engine"
    (clone / "engine").mkdir(parents=True)
    (clone / "engine" / "code.py").write_text("x = 1\n")
    (clone / "engine" / "weights.bin").write_text("much")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *words.split()], cwd=clone, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_commit_is_unpacked_with_its_python_files_only(cache: Path, commit: str) -> None:
    folder = commit_source("someone/engine", commit)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert folder == cache / f"commits/someone+engine-{commit[:12]}"
    assert files == {"engine/code.py"}


def test_commit_is_read_once(cache: Path, commit: str) -> None:
    folder = commit_source("someone/engine", commit)
    (cache / "clones" / "someone+engine").rename(cache / "elsewhere")
    assert commit_source("someone/engine", commit) == folder


def test_file_of_a_commit_is_read_as_it_was(commit: str) -> None:
    assert file_at("someone/engine", commit, "engine/code.py") == b"x = 1\n"
    assert file_at("someone/engine", commit, "engine/gone.py") is None


def test_commit_that_no_clone_has_is_named(commit: str) -> None:
    with pytest.raises(CorpusError, match="of someone/engine: git archive failed"):
        commit_source("someone/engine", "0" * 40)

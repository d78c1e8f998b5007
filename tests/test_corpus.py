"""The corpus: wheels are fetched once, unpacked whole, and an error says what was needed."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.corpus import CorpusError, wheel_source

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

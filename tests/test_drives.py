"""Drives of releases: what one said is kept, and only as long as nothing has changed."""

from __future__ import annotations

import pytest

from tests import drives
from tests.drives import Drive

SAID = Drive(
    {"test_a": "bad"}, frozenset({"test_b"}), frozenset(), "text", {"test_b": {"k": "v"}}, 1, 2.5
)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Has a drive cost nothing; returns what was run."""
    found, status, digest = [], [1], ["one"]

    def under_pytest(arguments, environment):
        found.append(arguments)
        return SAID._replace(status=status[0])

    monkeypatch.setenv("FMCHECK_CACHE", str(tmp_path))
    monkeypatch.delenv("FMCHECK_DRIVES", raising=False)
    monkeypatch.setattr(drives, "under_pytest", under_pytest)
    monkeypatch.setattr(drives, "environment_of", lambda release, **more: {})
    monkeypatch.setattr(drives, "checkout_digest", lambda: digest[0])
    yield found, status, digest, drive_anew
    drives.drive.cache_clear()


def drive_anew(*arguments):
    """Drives as another process would, which remembers none."""
    drives.drive.cache_clear()
    return drives.drive(*arguments)


def test_a_drive_is_run_once_for_a_release_and_a_tree(runs):
    found, _, digest, drive = runs
    assert drive("1.0", "healthy") == SAID
    assert drive("1.0", "healthy") == SAID
    assert len(found) == 1
    for other in (("1.1", "healthy"), ("1.0", "planted"), ("1.0", "healthy", True)):
        drive(*other)
    drive("1.0", "healthy", False, "off")
    assert len(found) == 5
    digest[0] = "two"
    drive("1.0", "healthy")
    assert len(found) == 6


def test_a_drive_that_did_not_end_is_not_kept(runs):
    found, status, _, drive = runs
    status[0] = 4
    drive("1.0", "healthy")
    status[0] = -9
    drive("1.0", "healthy")
    drive("1.0", "healthy")
    assert len(found) == 3


def test_drives_can_be_run_again(runs, monkeypatch):
    found, _, _, drive = runs
    drive("1.0", "healthy")
    monkeypatch.setenv("FMCHECK_DRIVES", "again")
    drive("1.0", "healthy")
    assert len(found) == 2


def test_the_digest_is_of_the_code_and_the_drives(monkeypatch, tmp_path):
    for name in ("plugin.py", "constraints.txt", "fmcheck/a.py", "rules/b.py", "tests/data/c.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(drives, "REPOSITORY", tmp_path)
    digest = drives.checkout_digest.__wrapped__
    seen = {digest()}
    for name in ("plugin.py", "constraints.txt", "fmcheck/a.py", "rules/b.py", "tests/data/c.toml"):
        (tmp_path / name).write_text("y")
        seen.add(digest())
    assert len(seen) == 6
    (tmp_path / "tests" / "test_x.py").write_text("z")
    assert digest() in seen

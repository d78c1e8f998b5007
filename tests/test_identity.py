"""A file is what it is, however its path was typed: contracts find it, and so do its findings."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fmcheck.cli import main
from fmcheck.lint.source.identity import identity_of, is_module
from tests.corpus import wheel_source
from tests.test_rules import RULES

ROOT = Path(__file__).parent.parent
RELAY = "sglang/srt/managers/overlap_utils.py"
#: A finding of a rule that asks which module it is in, beside one of a rule that does not.
SOURCE = (
    next(rule for rule in RULES if rule.code == "FM302").bad[0].code
    + "\n\ndef wait(stream, done):\n    stream.wait_stream(torch.cuda.default_stream())\n"
)
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")


def _lint(folder: Path, path: str, source: str = "", *more: str) -> list[tuple[object, ...]]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fmcheck", "lint", "--no-cache", "--format=json"]
    command += ["--select=ALL", *more, path]
    done = subprocess.run(
        command, cwd=folder, env=environ, input=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr
    return [(one["line"], one["column"], one["code"]) for one in json.loads(done.stdout)]


def _spelled(top: Path, how: str, source: str) -> list[tuple[object, ...]]:
    """Lints the relay below `top`, its path spelled in one of eight ways."""
    file = top / RELAY
    folder, name = file.parent, file.name
    if how == "relative":
        return _lint(top, RELAY)
    if how == "absolute":
        return _lint(Path("/"), str(file))
    if how == "with a dot":
        return _lint(folder.parent, f"./managers/../managers/{name}")
    if how == "from inside the package":
        return _lint(folder, name)
    if how == "through a link":
        link = top.parent / "elsewhere"
        link.symlink_to(folder)
        return _lint(top.parent, f"elsewhere/{name}")
    if how == "by the standard input":
        return _lint(folder, "-", source, "--stdin-filename", name)
    into = top.parent / ("site-packages" if how == "installed" else "copy")
    shutil.copytree(top / "sglang", into / "sglang")
    return _lint(into / "sglang" / "srt", f"managers/{name}")


SPELLINGS = [
    "relative",
    "absolute",
    "with a dot",
    "from inside the package",
    pytest.param("through a link", marks=POSIX),
    "by the standard input",
    "installed",
    "copied",
]


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("packages", [True, False], ids=["packages", "namespace"])
def test_findings_do_not_depend_on_how_a_path_is_spelled(tmp_path, how, packages):
    file = tmp_path / "tree" / RELAY
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    for folder in (file.parent, file.parent.parent) if packages else ():
        (folder / "__init__.py").touch()

    found = _spelled(tmp_path / "tree", how, SOURCE)

    assert {code for *_, code in found} == {"FM301", "FM302", "FM406"}


def test_a_real_relay_has_the_same_findings_in_eight_spellings(tmp_path):
    source = (wheel_source("sglang", "0.5.12") / RELAY).read_text()
    found = []
    for number, how in enumerate(
        one if isinstance(one, str) else "through a link" for one in SPELLINGS
    ):
        file = tmp_path / str(number) / "tree" / RELAY
        file.parent.mkdir(parents=True)
        file.write_text(source)
        found.append(_spelled(tmp_path / str(number) / "tree", how, source))
    assert len(found[0]) == 12
    assert all(one == found[0] for one in found)


def test_a_folder_has_the_same_findings_from_inside(tmp_path):
    file = tmp_path / RELAY
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    from_above = _lint(tmp_path, "sglang")
    assert from_above == _lint(tmp_path / "sglang" / "srt", "managers") != []
    assert from_above == _lint(file.parent, ".")


def test_the_standard_input_without_a_name_is_reported_what_does_not_apply(tmp_path):
    command = [sys.executable, "-m", "fmcheck", "lint", "-"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, input="x = 1\n", capture_output=True, text=True
    )
    assert "pass its path as `--stdin-filename`" in done.stderr


def test_a_package_is_the_module_that_its_init_defines():
    assert is_module("/x/engine/relay/__init__.py", "engine.relay")
    assert not is_module("/x/myengine/relay.py", "engine.relay")


@POSIX
def test_a_link_into_a_store_keeps_the_name_that_it_has(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "4f2a").touch()
    (tmp_path / "relay.py").symlink_to(tmp_path / "store" / "4f2a")
    (tmp_path / "renamed.py").symlink_to(tmp_path / "other.py")
    assert identity_of(str(tmp_path / "relay.py")).endswith("/relay.py")
    assert identity_of(str(tmp_path / "renamed.py")).endswith("/other.py")


@pytest.mark.parametrize("name", ["overlap_utils.py", "ov.py"])
@pytest.mark.parametrize("how", ["named", "standard input"])
def test_a_copy_outside_of_its_package_is_said_not_to_be_checked_as_the_module(
    tmp_path, monkeypatch, capsys, name, how
):
    monkeypatch.chdir(tmp_path)
    source = "class FutureMap:\n    pass\n"
    Path(name).write_text(source)
    if how == "named":
        given = [name]
    else:
        given = ["-", "--stdin-filename", name]
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(source.encode())))

    assert main(["lint", "--no-cache", *given]) == 0

    assert capsys.readouterr().err == (
        f"fmcheck: {name}: it defines `FutureMap`, but is not "
        "`sglang.srt.managers.overlap_utils` by its path: what contract `sglang` says of that "
        "module was not applied; if it is a copy, lint it as "
        "`sglang/srt/managers/overlap_utils.py`\n"
    )


def test_nothing_is_said_of_the_module_itself_nor_of_what_is_found_by_walk(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for path in (Path(RELAY), Path("ov.py")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("class FutureMap:\n    pass\n")

    assert main(["lint", "--no-cache", RELAY]) == 0
    assert main(["lint", "--no-cache", "."]) == 0
    assert capsys.readouterr().err == ""

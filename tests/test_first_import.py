"""What waits for an import: once, before it or after it, and nothing is loaded meanwhile."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from fmcheck.first_import import FirstImport, after_import, keep_modules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes modules `waited_for` and `waited_too`; takes them and all finders away again."""
    for name in ("waited_for", "waited_too"):
        (tmp_path / f"{name}.py").write_text("HERE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in ("waited_for", "waited_too"):
        sys.modules.pop(name, None)


def test_it_calls_back_once_and_before_the_first_of_them(modules: Path) -> None:
    seen: list[bool] = []
    FirstImport(
        ("waited_for", "waited_too"), lambda: seen.append("waited_for" in sys.modules)
    ).wait()
    import fractions  # noqa: F401

    assert seen == []
    import waited_for
    import waited_too

    assert seen == [False]
    assert waited_for.HERE
    assert waited_too.HERE


def test_a_finder_that_the_call_adds_finds_that_very_module(modules: Path) -> None:
    asked: list[str] = []

    class Other:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            asked.append(name)
            return None

    FirstImport(("waited_for",), lambda: sys.meta_path.insert(0, Other())).wait()
    import waited_for  # noqa: F401

    assert "waited_for" in asked


def test_what_is_loaded_is_not_waited_for(modules: Path) -> None:
    seen: list[str] = []
    before = list(sys.meta_path)
    FirstImport(("waited_for", "sys"), lambda: seen.append("now")).wait()
    assert seen == ["now"]
    assert sys.meta_path == before


def test_a_module_that_came_another_way_is_seen_when_it_is_looked_for(modules: Path) -> None:
    seen: list[str] = []
    one = FirstImport(("waited_for",), lambda: seen.append("now"))
    one.wait()
    one.arrive_if_loaded()
    assert seen == []
    sys.modules["waited_for"] = sys
    one.arrive_if_loaded()
    one.arrive_if_loaded()
    assert seen == ["now"]


def test_one_that_ended_waits_no_longer(modules: Path) -> None:
    seen: list[str] = []
    one = FirstImport(("waited_for",), lambda: seen.append("now"))
    one.wait()
    one.end()
    import waited_for  # noqa: F401

    assert seen == []


def test_a_hook_gets_the_module_when_it_is_whole(modules: Path) -> None:
    seen: list[ModuleType] = []
    after_import("waited_for", seen.append)
    assert seen == []
    import waited_for

    assert seen == [waited_for]
    after_import("waited_for", seen.append)
    assert seen == [waited_for, waited_for]


def test_wrapt_is_imported_with_what_is_waited_for(modules: Path) -> None:
    program = """
        import sys
        from fmcheck.first_import import after_import

        seen = []
        after_import("waited_for", lambda module: seen.append(module.HERE))
        assert "wrapt" not in sys.modules
        import waited_for
        assert seen == [True] and "wrapt" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=modules, check=True)


def test_what_a_watch_patches_it_patches_in_the_order_of_its_parts(modules: Path) -> None:
    """A read by the host is told by the part that patched it last, and passes by the others."""
    program = """
        import sys
        from fmcheck.runtime.session.watch import Watch

        order, watch = [], Watch([], streams="tracked")
        names = ("_watch_launches", "_follow_streams")
        for name in names:
            setattr(watch, name, lambda _, name=name: iter(order.append(name) or ()))
        watch.start()
        assert "torch" not in sys.modules and "wrapt" not in sys.modules
        import torch
        assert order == list(names), order
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=modules, check=True)


def test_a_session_without_an_engine_imports_little(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
            import sys

            def test_it():
                heavy = {"torch", "numpy", "wrapt", "libcst", "fmcheck.runtime.session.all_patches"}
                assert not heavy & set(sys.modules)
        """)
    )
    plain = ("-p", "no:xdist", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "fmcheck", *plain, "-c", "/dev/null"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout
    assert "no contract applied" in done.stdout


@pytest.mark.parametrize("whole", [False, True])
def test_a_module_of_ours_that_is_taken_out_of_sys_modules_is_not_imported_twice(
    modules: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    keep_modules()
    from fmcheck.report.run import table

    spec = table.__spec__
    for name in ("fmcheck.report", "fmcheck.report.run.table"):
        if whole or name.count(".") == 2:
            monkeypatch.delitem(sys.modules, name)
    assert importlib.import_module("fmcheck.report.run.table") is table
    assert table.__spec__ is spec

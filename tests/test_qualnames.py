"""Qualified names of functions, which Python 3.10 does not know: read off the source."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from fmcheck.runtime.core.naming import name_in_source, qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import CodeType

SOURCE = """\
import functools

def plain(): pass

@functools.wraps(lambda: 0)
@functools.wraps(plain)
def decorated(key=lambda: 1):
    def inner(): pass
    class Local:
        def method(self): pass
    return lambda: (yield)

class Outer:
    class Inner:
        async def method(self):
            if self:
                def deep(): pass
    @property
    def value(self):
        return (x for x in self)

def same(): pass
if plain:
    def same(): pass
"""
NAMES = {
    (3, "plain"),
    (5, "<lambda>"),
    (5, "decorated"),
    (7, "<lambda>"),
    (8, "decorated.<locals>.inner"),
    (9, "decorated.<locals>.Local"),
    (10, "decorated.<locals>.Local.method"),
    (11, "decorated.<locals>.<lambda>"),
    (13, "Outer"),
    (14, "Outer.Inner"),
    (15, "Outer.Inner.method"),
    (17, "Outer.Inner.method.<locals>.deep"),
    (18, "Outer.value"),
    (20, "Outer.value.<locals>.<genexpr>"),
    (22, "same"),
    (24, "same"),
}


def codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if hasattr(one, "co_code"):
            yield one
            yield from codes(one)


def compiled(text: str, path: Path) -> CodeType:
    path.write_text(text)
    return compile(text, str(path), "exec")


def test_the_source_gives_each_function_the_name_that_newer_pythons_give(tmp_path: Path) -> None:
    found = list(codes(compiled(SOURCE, tmp_path / "engine.py")))
    assert {(one.co_firstlineno, name_in_source(one)) for one in found} == NAMES
    assert [qualified_name(one) for one in found] == [name_in_source(one) for one in found]


def test_a_function_whose_source_is_not_to_be_had_keeps_its_plain_name(tmp_path: Path) -> None:
    (one,) = codes(compile("def f(): pass", str(tmp_path / "nowhere.py"), "exec"))
    assert name_in_source(one) == "f"


@pytest.mark.parametrize("now", ["def g(): pass\n", "def f(:\n", "\n\ndef f(): pass\n"])
def test_a_source_that_has_changed_gives_no_wrong_name(tmp_path: Path, now: str) -> None:
    (one, *_) = codes(compiled("class A:\n    def f(self): pass\n", tmp_path / "a.py"))
    (tmp_path / "a.py").write_text(now)
    assert name_in_source(one) == one.co_name


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its own names are read off the source")
def test_where_python_knows_the_name_no_source_is_read(tmp_path: Path) -> None:
    (_, method) = codes(compiled("class A:\n    def f(self): pass\n", tmp_path / "a.py"))
    (tmp_path / "a.py").unlink()
    assert qualified_name(method) == "A.f"

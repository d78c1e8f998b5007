"""The rooms of the run time and of the linter: which may import which.

Type-only and local imports count as any other.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fmcheck
from fmcheck.lint.run.stored import STAMPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(fmcheck.__file__).parent

#: Each room of the run time, with those that it may import.
ROOMS = {
    "core": (),
    "relay": ("core", "steps"),
    "steps": ("core",),
    "order": ("core", "relay", "steps"),
    "graphs": ("core", "relay", "steps"),
    "device": ("core", "relay", "steps", "order"),
    "session": ("core", "relay", "steps", "order", "graphs", "device"),
}
#: The linter's. What is in none of them is its face: rule, engine, the binding of contracts.
LINT_ROOMS = {
    "source": (),
    "model": ("source",),
    "streams": ("source", "model"),
    "graph_inputs": ("source", "model"),
    "devices": ("source", "model", "streams"),
    "scope": ("source", ""),
    "run": ("source", "model", "scope", ""),
}
#: What a rule may import of the linter, and what the linter's face may.
FOR_RULES = ("", "devices", "graph_inputs", "model", "source", "streams")
#: What any room may know of the rest of fmcheck, and what the topmost one renders with.
WORDS = ("config", "contract", "errors", "finding")
ON_TOP = ("first_import", "registry", "report", "report_files", "scratch", "stream_options")
#: Elsewhere: packages, each with all that it may import.
PACKAGES = {
    "files": ("errors", "regex"),
    "record": ("errors", "files", "finding"),
    "contract": ("errors", "files", "regex"),
    "report": ("errors", "files", "finding", "record", "regex"),
    "processes": (
        *("config", "errors", "files", "finding", "first_import", "record", "report", "runtime"),
        "stream_options",
    ),
}
MOST_FILES = 15


def files() -> Mapping[str, Path]:
    """Returns the files of fmcheck, by the module that each is."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = files()


def imports(source: str, known: Mapping[str, object] = FILES) -> Iterator[str]:
    """Yields what a file imports, wherever in it: modules as far as they are known."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in known else module


def room_of(module: str) -> str:
    """Returns the room of a module of the run time, "" for any other."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["fmcheck", "runtime"] and len(parts) > 2 else ""


def lint_room_of(module: str) -> str:
    """Returns the room of a module of the linter, "" for one of its face."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in LINT_ROOMS else ""


def modules_of(package: str) -> list[str]:
    """Returns a package's modules, itself included."""
    return [one for one in FILES if f"{one}.".startswith(f"{package}.")]


@cache
def imported_by(module: str) -> frozenset[str]:
    """Returns what a module of fmcheck imports."""
    return frozenset(imports(FILES[module].read_text()))


def arrows(modules: list[str]) -> Iterator[tuple[str, str]]:
    """Yields each import of some modules: who imports what."""
    for module in modules:
        for name in sorted(imported_by(module)):
            yield module, name


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Returns the groups of modules of which each imports all others, by way of some."""
    reached = {start: _reached(start, graph) for start in graph}
    groups = {
        frozenset(other for other in reached[one] if one in reached.get(other, ()))
        for one in graph
        if one in reached[one]
    }
    return [set(group) for group in groups]


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [*graph[start]]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += graph.get(one, ())
    return found


# --- the laws ---


def test_every_file_of_the_run_time_is_in_a_room() -> None:
    rooms = {room_of(module) for module in modules_of("fmcheck.runtime")} - {""}
    assert rooms == {*ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_below_it(room: str) -> None:
    allowed = {room, *ROOMS[room]}
    wrong = [
        f"{module} imports {name}"
        for module, name in arrows(modules_of(f"fmcheck.runtime.{room}"))
        if name.startswith("fmcheck.runtime") and room_of(name) not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_of_the_rest_of_fmcheck_only_words(room: str) -> None:
    allowed = {"runtime", *WORDS, *(ON_TOP if room == "session" else ())}
    wrong = [
        f"{module} imports {name}"
        for module, name in arrows(modules_of(f"fmcheck.runtime.{room}"))
        if name.startswith("fmcheck.") and name.split(".")[1] not in allowed
    ]
    assert wrong == []


def astray(sources: Mapping[str, str], allowed: tuple[str, ...]) -> list[str]:
    """Returns what some sources import of the linter that is in none of the allowed rooms."""
    return [
        f"{one} imports {name}"
        for one, source in sources.items()
        for name in imports(source)
        if name.startswith("fmcheck.lint") and lint_room_of(name) not in allowed
    ]


@pytest.mark.parametrize("room", ["", *LINT_ROOMS])
def test_a_room_of_the_linter_imports_only_those_below_it(room: str) -> None:
    inner = [one for one in modules_of("fmcheck.lint") if lint_room_of(one) == room]
    sources = {one: FILES[one].read_text() for one in inner}
    assert sources
    assert astray(sources, (room, *LINT_ROOMS.get(room, FOR_RULES))) == []


def test_a_rule_imports_nothing_of_what_runs_it() -> None:
    sources = {path.name: path.read_text() for path in (ROOT.parent / "rules").glob("*.py")}
    assert sources
    assert astray(sources, FOR_RULES) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    allowed = {package, *PACKAGES[package]}
    wrong = [
        f"{module} imports {name}"
        for module, name in arrows(modules_of(f"fmcheck.{package}"))
        if name.startswith("fmcheck.") and name.split(".")[1] not in allowed
    ]
    assert wrong == []


def test_what_a_report_of_findings_needs_knows_nothing_of_runs() -> None:
    above = "fmcheck.report.run"
    inner = [one for one in modules_of("fmcheck.report") if one not in modules_of(above)]
    assert inner
    assert [pair for pair in arrows(inner) if pair[1].startswith(above)] == []


def test_the_core_imports_no_torch() -> None:
    core = arrows(modules_of("fmcheck.runtime.core"))
    assert [
        f"{one} imports {name}" for one, name in core if name.partition(".")[0] == "torch"
    ] == []


@pytest.mark.parametrize("package", ["runtime", "lint", *PACKAGES])
def test_no_files_import_each_other_in_a_circle(package: str) -> None:
    inner = modules_of(f"fmcheck.{package}")
    graph = {one: imported_by(one) & {*inner} - {one} for one in inner}
    assert circles(graph) == []


def test_every_room_can_be_overlooked() -> None:
    files = [path for path in ROOT.rglob("*.py") if not path.stem.startswith("_")]
    rooms = Counter(path.parent.relative_to(ROOT).as_posix() for path in files)
    assert {"runtime/core", "lint/run", "report", "."} <= {*rooms}
    assert {room: files for room, files in rooms.items() if files > MOST_FILES} == {}


def test_the_cache_knows_every_package_on_which_findings_hang() -> None:
    packages = {
        path.parent.relative_to(ROOT).as_posix().removeprefix(".") for path in ROOT.rglob("*.py")
    }
    wanted = {
        one for one in packages if one.partition("/")[0] in ("cli", "contract", "files", "lint")
    }
    assert wanted <= {*STAMPED}


# --- that the laws can fail ---


def test_type_only_and_local_imports_count() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from a.b import C\n"
        "def f():\n    import d\n    from a import b\n"
    )
    assert [*imports(source, {"a.b": None})] == ["typing", "a.b", "d", "a.b"]


def test_a_circle_is_found_and_a_chain_is_none() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []

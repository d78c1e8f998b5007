"""Markers: every test is of one kind, and every target runs what it says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from fmcheck.files.strict import read_toml
from tests import markers
from tests.prove_self import PARTS

TESTS = sorted(
    str(path.relative_to(Path(__file__).parent.parent))
    for path in Path(__file__).parent.rglob("test_*.py")
    if "data" not in path.parts
)


def test_every_test_of_this_run_has_one_kind(request):
    for item in request.session.items:
        kinds = [each.name for each in item.iter_markers() if each.name in markers.KINDS]
        assert len(kinds) == 1, item.nodeid


def test_every_name_in_the_tables_is_a_file_or_a_test(root):
    named = Counter(name for names in markers.FILES.values() for name in names)
    assert set(named.values()) == {1}
    files = {path.removeprefix("tests/").replace("test_", "", 1)[:-3] for path in TESTS}
    assert set(named) <= files
    for each in markers.STARTERS:
        file, _, name = each.partition("::")
        source = (root / "tests" / file).read_text()
        assert re.search(rf"^def {name.replace('*', '.*')}\(", source, re.M), each


def test_every_marker_is_registered(pytestconfig):
    registered = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert {*markers.KINDS, *markers.BESIDE} <= registered


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def test_it(): pass", "test_new.py::test_it is of no kind: expected one of pure, torch"),
        ("import pytest\n@pytest.mark.pure\n@pytest.mark.torch\ndef test_it(): pass", "torch and"),
        ("import pytest\n@pytest.mark.pure\ndef test_it(): pass", "1 passed"),
        ("import pytest\npytestmark = pytest.mark.torch\ndef test_it(): pass", "1 passed"),
        ("import pytest\n@pytest.mark.pure_\ndef test_it(): pass", "'pure_' not found"),
    ],
)
def test_a_test_of_no_kind_stops_the_run(pytester, monkeypatch, root, source, outcome):
    monkeypatch.setenv("PYTHONPATH", str(root))
    kinds = "\n".join(f"    {kind}" for kind in markers.KINDS)
    pytester.makeini(f"[pytest]\naddopts = --strict-markers\nmarkers =\n{kinds}")
    pytester.makeconftest(
        "from tests import markers\n\ndef pytest_collection_modifyitems(items):\n"
        "    markers.mark(items)\n"
    )
    pytester.makepyfile(test_new=source)
    result = pytester.runpytest_subprocess()
    assert outcome in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/test_rules.py::test_it[FM101]", "tests/test_rules.py"),
        ("tests/test_real_sglang.py::test_it[0.5.12]", "release 0.5.12"),
        ("tests/test_real_tails.py::test_it[0.5.12-test_draft]", "release 0.5.12"),
        ("tests/test_museum.py::test_it", "museum"),
        ("tests/test_museum_runs.py::test_it[a]", "museum"),
        ("tests/test_headlines.py::test_it[a]", "museum"),
        ("tests/test_real_races.py::test_it[a#1]", "tests/test_real_races.py"),
    ],
)
def test_tests_that_share_what_took_long_share_a_process(nodeid, scope):
    assert markers.scope(nodeid) == scope


def test_what_takes_longest_is_a_scope_and_is_begun_first(pytester, monkeypatch, root):
    assert all(each in TESTS for each in markers.LONGEST if each.startswith("tests/"))
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    kinds = "\n".join(f"    {kind}" for kind in markers.KINDS)
    pytester.makeini(f"[pytest]\nmarkers =\n{kinds}")
    pytester.makeconftest(
        "from tests import markers\n"
        "from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler\n"
    )
    many = "import pytest\npytestmark = pytest.mark.pure\n" + "".join(
        f"def test_{number}(): pass\n" for number in range(6)
    )
    for name, text in (("test_aaa", many), ("test_guard", many.split("def test_1")[0])):
        path = pytester.path / "tests" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    run = pytester.runpytest_subprocess("-n", "1", "-v", "--rootdir=.", "tests")
    run.assert_outcomes(passed=7)
    done = [line for line in run.outlines if "PASSED" in line]
    assert "test_guard" in done[0]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_self_mutation_is_a_module_and_its_tests(root, name):
    """`make prove-self` is not run here, and a module that is moved would end it."""
    part = PARTS[name]
    assert part.path.is_file()
    assert [f"tests/{file}.py" for file in part.tests if f"tests/{file}.py" not in TESTS] == []
    known = read_toml(root / "tests" / "data" / "self_survivors.toml")["survivor"]
    lines = {line.strip() for line in part.path.read_text().splitlines()}
    assert [one["line"] for one in known if one["part"] == name and one["line"] not in lines] == []

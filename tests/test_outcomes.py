"""What becomes of tests by what was found in them: marks, the fixture, JUnit, warnings."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from fmcheck.errors import UsageError, ViolationError
from fmcheck.finding import Counts
from fmcheck.testing.book import Book
from fmcheck.testing.mark import MarkRequest, asked
from fmcheck.testing.watched import Watched
from tests.made_up import made_up_run
from tests.test_plugin import HEALTHY, Project, project

__all__ = ["project"]

# --- the mark ---


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"expect": "FR102"}, MarkRequest(expect=("FR102",))),
        ({"expect": ["double-read", "FR1"]}, MarkRequest(expect=("FR102", "FR1"))),
        ({"allow": ("ALL",), "mode": "warn"}, MarkRequest(allow=("ALL",), mode="warn")),
    ],
)
def test_a_mark_names_checks_by_code_name_or_family(keywords, expected):
    assert asked([((), keywords)]) == expected


def test_marks_of_class_and_module_add_up_and_the_nearest_mode_counts():
    marks = [
        ((), {"expect": "FR101", "mode": "fail"}),
        ((), {"expect": "FR101", "allow": "FR103", "mode": "warn"}),
    ]
    assert asked(marks) == MarkRequest(expect=("FR101",), allow=("FR103",), mode="fail")


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (("FR102",), {}, "expected keywords (expect, allow, mode), got 'FR102' without one"),
        ((), {"expct": "FR102"}, "unknown key `expct`; did you mean `expect`?"),
        ((), {"expect": "FR1022"}, "key `expect`: expected a check, as FR102 or double-read, got"),
        ((), {"allow": "duble-read"}, "got `duble-read`; did you mean `double-read`?"),
        ((), {"allow": 102}, "key `allow`: expected a check or a list of checks, got 102"),
        ((), {"mode": "wran"}, "key `mode`: expected fail or warn, got `wran`; did you mean"),
        ((), {"mode": "off"}, '`halt` and `off` are for a whole run: allow="ALL" lets'),
    ],
)
def test_a_bad_mark_is_one_error_that_names_key_and_nearest(arguments, keywords, message):
    with pytest.raises(UsageError) as caught:
        asked([(arguments, keywords)])
    assert str(caught.value).startswith("mark `fmcheck`: ")
    assert message in str(caught.value)


# --- the book and the fixture, without an engine ---


@pytest.fixture
def found(tmp_path):
    return made_up_run(tmp_path).violations[0]


def test_what_is_not_asked_for_fails(found):
    book = Book(MarkRequest(expect=("FR101",), allow=("FR2",)), Counts())
    book.add([found])

    assert book.judge().failing == (found,)
    assert book.expected_but_absent() == ("FR101",)


@pytest.mark.parametrize("asked_for", [MarkRequest(expect=("FR102",)), MarkRequest(allow=("ALL",))])
def test_what_is_asked_for_is_accepted(found, asked_for):
    book = Book(asked_for, Counts())
    book.add([found, replace(found, count=4)])

    judged = book.judge()
    assert (judged.failing, book.expected_but_absent()) == ((), ())
    assert [one.count for one in judged.accepted] == [5]


def test_advice_may_be_expected_and_fails_nothing(found):
    book = Book(MarkRequest(expect=("FR602",)), Counts())
    book.add([], [replace(found, code="FR602")])

    assert book.expected_but_absent() == ()
    assert book.judge().failing == ()


class FailedError(Exception):
    """What a test's own failure stands for here."""


@pytest.fixture
def watched():
    """The fixture's object; the test puts what is found into `watched.engine`."""
    book, engine = Book(MarkRequest(), Counts()), []

    def take_in():
        book.add(engine)
        engine.clear()

    def fail(text):
        raise FailedError(text)

    one = Watched(book, take_in, lambda: Counts(gathers=7), fail)
    one.engine, one.book = engine, book
    return one


def test_a_block_takes_what_it_expects_and_leaves_the_rest(watched, found):
    other = replace(found, code="FR103")
    with watched.expect("FR102"):
        watched.engine += [found, other]

    assert (watched.expected, watched.violations) == ((found,), (other,))
    assert watched.book.judge().failing == (other,)


def test_a_block_does_not_take_what_was_found_before_it(watched, found):
    watched.engine.append(found)
    with pytest.raises(FailedError), watched.expect("FR102"):
        pass


def test_a_block_accepts_nothing_that_was_found_before_it(watched, found):
    watched.engine.append(found)
    with watched.expect("FR102"):
        watched.sync()
        watched.engine.append(replace(found, buffer="another"))

    assert watched.violations == (found,)
    assert watched.book.judge().failing == (found,)


def test_a_second_block_wants_it_again(watched, found):
    with watched.expect("double-read"):
        watched.engine.append(found)
    text = "expected FR102, and it was not found"
    with pytest.raises(FailedError, match=text), watched.expect("double-read"):
        pass


def test_a_block_wants_every_one_of_its_checks(watched, found):
    with pytest.raises(FailedError, match="expected FR103, and"), watched.expect("FR102", "FR103"):
        watched.engine.append(found)


def test_a_block_leaves_an_error_of_its_own_alone(watched, found):
    with pytest.raises(ZeroDivisionError), watched.expect("FR102"):
        raise ZeroDivisionError


def test_a_halt_ends_the_block_that_expects_it_and_no_other(watched, found):
    def halt():
        watched.engine.append(found)
        raise ViolationError("halted")

    with watched.expect("FR102"):
        halt()
    with pytest.raises(ViolationError), watched.expect("FR103"):
        halt()


@pytest.mark.parametrize("codes", [(), ("FR1O2",)])
def test_a_block_that_expects_nothing_known_is_an_error(watched, codes):
    with pytest.raises(UsageError, match=r"^fmcheck\.expect: expected"), watched.expect(*codes):
        pass


# --- in pytest ---

TESTS = """
    import fmcheck as module
    import pytest, toy_engine

    @pytest.mark.fmcheck(expect="FR102")
    def test_expected():
        toy_engine.stale()

    @pytest.mark.fmcheck(expect=["double-read", "FR101"])
    def test_missing_in_engine():
        toy_engine.stale()

    @pytest.mark.fmcheck(expect="FR103")
    def test_another():
        toy_engine.stale()

    @pytest.mark.fmcheck(allow="FR1")
    class TestAllowed:
        def test_found(self):
            toy_engine.stale()

        def test_not_found(self):
            toy_engine.healthy()

    @pytest.mark.fmcheck(mode="warn")
    def test_warned():
        toy_engine.stale()

    @pytest.mark.fmcheck(expct="FR102")
    def test_bad_mark():
        pass

    @pytest.mark.fmcheck(expect="FR102")
    def test_own_failure():
        toy_engine.stale()
        assert False

    @pytest.mark.fmcheck(expect="FR102")
    def test_skipped():
        pytest.skip("no device")

    def test_fixture(fmcheck):
        toy_engine.healthy()
        assert fmcheck.violations == ()
        assert (fmcheck.counts.writes, fmcheck.counts.gathers) == (1, 1)
        with fmcheck.expect("FR102"):
            toy_engine.stale()
        assert fmcheck.violations == ()
        assert [one.code for one in fmcheck.expected] == ["FR102"]

    def test_outside_of_block(fmcheck):
        with fmcheck.expect("FR102"):
            toy_engine.stale()
        toy_engine.stale()

    @pytest.mark.xfail(raises=module.Violation, strict=True)
    def test_xfail():
        toy_engine.stale()

    @pytest.fixture
    def engine():
        yield
        toy_engine.stale()

    @pytest.mark.fmcheck(allow="FR102")
    def test_tear_down(engine):
        pass
"""


def junit(project: Project) -> dict[str, ElementTree.Element]:
    cases = ElementTree.parse(project.pytester.path / "out.xml").iter("testcase")
    return {case.get("name", ""): case for case in cases}


def test_each_test_ends_as_it_asks(project):
    result = project.run(TESTS, "--strict-markers", "--junitxml=out.xml")

    cases = junit(project)
    ends = {
        name: next(
            (one.tag for one in case if one.tag in ("failure", "error", "skipped")), "passed"
        )
        for name, case in cases.items()
    }
    assert ends == {
        "test_expected": "passed",
        "test_missing_in_engine": "failure",
        "test_another": "failure",
        "test_found": "passed",
        "test_not_found": "passed",
        "test_warned": "passed",
        "test_bad_mark": "error",
        "test_own_failure": "failure",
        "test_skipped": "skipped",
        "test_fixture": "passed",
        "test_outside_of_block": "failure",
        "test_xfail": "skipped",
        "test_tear_down": "passed",
    }
    result.stdout.fnmatch_lines(
        [
            "*fmcheck: test_engine.py::test_bad_mark: mark `fmcheck`: unknown key `expct`; did *",
            "*expected FR101, and it was not found (1 write, 2 gathers, 0 peeks were checked)",
            "*test_engine.py:25: FmcheckWarning:*",
            "FR102 double-read  * 4 * 3  FutureMap.tokens_buf at toy_engine.py:14",
            "FR102 double-read (expected or allowed) *",
        ]
    )

    def reported(name: str, key: str) -> list[str | None]:
        return [one.get("value") for one in cases[name].iter("property") if one.get("name") == key]

    line = "FMCHECK: FR102 double-read in FutureMap.tokens_buf rows 1, 2"
    assert reported("test_expected", "fmcheck-accepted") == [line]
    assert reported("test_expected", "fmcheck") == []
    assert reported("test_another", "fmcheck") == [line]
    assert reported("test_tear_down", "fmcheck-accepted") == [line]


def test_a_run_whose_tests_expect_all_that_is_found_is_a_good_one(project):
    result = project.run(
        """
        import pytest, toy_engine

        @pytest.mark.fmcheck(expect="FR102")
        def test_it():
            toy_engine.stale()
        """,
        "--fmcheck=halt",  # which ends the test where it expects it
    )

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*; 1 violation, 1 of them expected or allowed"])
    assert result.ret == 0


def test_without_a_watch_the_mark_is_known_and_the_fixture_skips(project):
    result = project.run(
        """
        import pytest

        @pytest.mark.fmcheck(expect="FR102")
        def test_mark():
            pass

        def test_fixture(fmcheck):
            raise AssertionError
        """,
        "--fmcheck=off",
        "--strict-markers",
        "-rs",
    )
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        [
            "fmcheck: off (--fmcheck=off): nothing is watched",
            "fmcheck: off (--fmcheck=off): nothing is watched",
            "SKIPPED*expects FR102, and fmcheck is off: run with `-p fmcheck`",
            "SKIPPED*needs fmcheck, which is off: run with `-p fmcheck`",
        ]
    )


def test_off_by_the_environment_no_expecting_test_passes(project, monkeypatch):
    monkeypatch.setenv("FMCHECK_MODE", "off")
    result = project.run(
        """
        import pytest

        def test_other():
            pass

        @pytest.mark.fmcheck(expect=["FR102", "FR101"])
        def test_mark():
            pass
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "fmcheck: off (FMCHECK_MODE=off): nothing is watched",
            "expects FR102, FR101, and fmcheck is off: run with `-p fmcheck` (or *",
            "fmcheck: off (FMCHECK_MODE=off): nothing is watched",
        ]
    )
    assert result.ret == 1


@pytest.mark.parametrize(
    ("option", "status"), [((), 0), (("-W", "error::fmcheck.FmcheckWarning"), 1)]
)
def test_what_is_found_outside_of_tests_warns_and_the_warning_can_be_an_error(
    project, option, status
):
    project.write("conftest.py", "import toy_engine\ntoy_engine.stale()\n")
    result = project.run(HEALTHY, "--fmcheck=warn", *option)

    assert ("FmcheckWarning: " in result.stdout.str()) is not bool(status)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["found outside of any test:", "FMCHECK: FR102*"])
    assert result.ret == status

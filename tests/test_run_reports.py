"""A run's record: written, read, validated, shown, merged; and what `--fmcheck-report` refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
from msgspec.structs import replace

from fmcheck.cli import main
from fmcheck.finding import CHECKS, Severity
from fmcheck.processes.journal.collect import gather
from fmcheck.record.merging import merge
from fmcheck.record.record_file import encode, read_run, schema
from fmcheck.report.run import run_github
from fmcheck.report.run.by_check import by_check
from fmcheck.report.run.checks import MEANING, rule_info
from fmcheck.report.run.run_sarif import FINGERPRINT, violations_run
from fmcheck.report.run.run_sarif import render as render_sarif
from fmcheck.report.run.table import table
from fmcheck.report_files import write_run
from tests import run_schema
from tests.made_up import healthy_run, made_up_run
from tests.test_formats import sarif_schema
from tests.test_plugin import HEALTHY, STALE, Project, project, register

__all__ = ["project", "sarif_schema"]


@pytest.fixture
def run(tmp_path):
    return made_up_run(tmp_path)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command `fmcheck` in an empty folder; returns status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


# --- the record ---


def test_a_record_is_read_as_it_was_written(run, tmp_path):
    write_run(run, tmp_path / "new" / "run.json")

    assert read_run(tmp_path / "new" / "run.json") == run
    assert (tmp_path / "new" / "run.json").read_text().startswith('{\n  "schema": 1,')


def test_a_record_fits_the_schema_that_is_shipped(run):
    validator = jsonschema.Draft202012Validator(json.loads(schema()))
    validator.validate(json.loads(encode(run)))

    for spoil in (
        lambda reported: reported.pop("coverage"),
        lambda reported: reported.update(schema=2),
        lambda reported: reported["violations"][0].pop("history"),
        lambda reported: reported["violations"][0]["access"]["site"].update(line="6"),
    ):
        reported = json.loads(encode(run))
        spoil(reported)
        assert not validator.is_valid(reported)


def test_the_schema_that_is_shipped_is_that_of_the_classes():
    assert schema() == run_schema.made(), "run `python -m tests.run_schema`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty: the run that should have written it did not finish"),
        (b'{"schema": 1, "vers', "is not whole JSON; was it cut off?"),
        (b'{"schema": "\xff', "is not whole JSON"),
        (b"<!doctype html>", "expected the record of a run"),
        (b"[]", "expected the record of a run, as `pytest -p fmcheck --fmcheck-report FILE.json`"),
        (b'{"findings": []}', "expected the record of a run"),
        (b'{"schema": "1"}', "expected the record of a run"),
        (b'{"schema": 0}', "schema 0: expected a number from 1 to 1"),
        (
            b'{"schema": 2, "version": "9.1"}',
            "schema 2 was written by fmcheck 9.1, and this fmcheck reads schemas up to 1",
        ),
        (b'{"schema": 1, "version": 3}', "key `version`: expected `str`, got `int`"),
        (b'{"schema": 1}', "object missing required field `version`"),
    ],
)
def test_what_is_no_record_is_named(command, tmp_path, text, message):
    (tmp_path / "run.json").write_bytes(text)

    status, out, err = command("report", "show", "run.json")

    assert (status, out) == (2, "")
    assert err.startswith("fmcheck: run.json: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_missing_file_and_a_folder_are_named(command, tmp_path):
    assert command("report", "show", "none.json")[2] == "fmcheck: none.json: no such file\n"
    (tmp_path / "folder").mkdir()
    reported = "fmcheck: folder: holds neither a journal nor a record (*.json)\n"
    assert command("report", "show", "folder")[2] == reported


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.mkdir(), "cannot be read: expected a regular file, got a folder"),
        (lambda path: path.write_bytes(b"\xff\0 no line\n"), "expected the lines of a journal"),
        (lambda path: path.write_bytes(b""), "expected the lines of a journal"),
    ],
    ids=["a folder", "bytes", "nothing"],
)
def test_a_journal_that_cannot_be_read_is_an_error(command, tmp_path, spoil, why):
    (tmp_path / "journal").mkdir()
    spoil(tmp_path / "journal" / "host-1-2.jsonl")

    status, out, err = command("report", "show", "journal")

    assert (status, out) == (2, "")
    assert err.startswith("fmcheck: journal/host-1-2.jsonl: " + why)
    assert err.count("\n") == 1


def test_a_journal_that_cannot_be_read_beside_one_that_can_is_a_problem(project: Project):
    project.run(STALE, "--fmcheck-journal=journal")
    (project.pytester.path / "journal" / "host-1-2.jsonl").mkdir()

    run = gather([project.pytester.path / "journal"])

    assert len(run.violations) == 1
    reported = [one for one in run.problems if "host-1-2.jsonl: cannot be read" in one]
    assert len(reported) == 1


# --- by check ---


def test_the_table_has_the_worst_first(run, tmp_path):
    more = replace(run.violations[2], buffer="FutureMap.other")
    shown = replace(run, violations=(*run.violations, more))

    assert [(one.code, one.kind, one.sites, one.times, one.tests) for one in by_check(shown)] == [
        ("FR401", "fails", 2, 2, 0),
        ("FR102", "fails", 1, 5, 2),
        ("FR602", "advisory", 1, 1, 1),
        ("FR102", "accepted", 1, 1, 1),
    ]
    assert [text.rstrip() for text, _ in table(shown, tmp_path)][:2] == [
        "check                                    sites  times  tests",
        "FR401 stream-race                            2      2      0"
        "  FutureMap.lens_buf at engine.py:6 and 1 more",
    ]


def test_a_run_without_findings_has_no_table(tmp_path):
    assert table(healthy_run(tmp_path), tmp_path) == []


@pytest.mark.parametrize("code", sorted(CHECKS))
def test_every_check_has_a_meaning(code):
    assert MEANING[code].endswith(".")


# --- SARIF ---


def test_sarif_of_a_run_fits_the_schema(run, tmp_path, sarif_schema):
    for one in (run, healthy_run(tmp_path), replace(run, problems=("x",))):
        log = json.loads(render_sarif(one))
        jsonschema.Draft7Validator(sarif_schema).validate(log)
        assert log["runs"][0]["invocations"][0]["executionSuccessful"] is not bool(one.problems)


def test_sarif_has_a_result_a_site_at_its_line_in_the_repository(run, tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "test").mkdir()
    sarif = violations_run(replace(run, root=str(tmp_path / "test")))

    assert [(one["ruleId"], one["level"], one["occurrenceCount"]) for one in sarif["results"]] == [
        ("FR102", "error", 5),
        ("FR401", "error", 1),
        ("FR602", "note", 1),
    ]
    place = sarif["results"][0]["locations"][0]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "engine.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 6},
    }
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "FutureMap.gather"
    assert sarif["results"][0]["message"]["text"].splitlines() == [
        "FR102 double-read in FutureMap.tokens_buf rows 11, 12",
        "Missing: a write of these rows between the last read and this gather.",
        "Test: tests/test_it.py::test_<b>it</b> and 1 more.",
    ]


def test_sarif_tells_stack_story_and_other_places(run):
    twice, race, _ = violations_run(run)["results"]

    related = [
        (one["message"]["text"], one["physicalLocation"]["region"]["startLine"])
        for one in twice["relatedLocations"]
    ]
    assert related == [("last write", 2), ("last read", 6)]
    frames = [one["location"]["logicalLocations"][0] for one in twice["stacks"][0]["frames"]]
    assert [one["fullyQualifiedName"] for one in frames] == ["FutureMap.gather", "step"]
    flows = race["codeFlows"][0]["threadFlows"]
    reported = {
        flow["id"]: [(one["executionOrder"], one["importance"]) for one in flow["locations"]]
        for flow in flows
    }
    assert reported == {
        "forward": [(1, "important"), (2, "important"), (4, "essential")],
        "schedule": [(3, "important"), (5, "essential")],
    }


def test_a_sites_fingerprint_outlives_moved_lines(run, tmp_path):
    def prints(one):
        return [result["partialFingerprints"][FINGERPRINT] for result in one["results"]]

    before = prints(violations_run(run))
    engine = tmp_path / "engine.py"
    engine.write_text(f"# new\n{engine.read_text()}")
    access = run.violations[0].access
    site = replace(access.site, line=access.site.line + 1)
    moved = tuple(replace(one, access=replace(one.access, site=site)) for one in run.violations)

    assert prints(violations_run(replace(run, violations=moved)))[:2] == before[:2]
    assert len(set(before)) == 3


def test_the_rule_of_a_code_that_is_not_known_here_has_its_name():
    info = rule_info("FR999", "odd", Severity.ERROR)
    assert (info.name, info.summary) == ("odd", "odd.")


def test_github_annotates_each_site_once(run):
    lines = run_github.render(run).splitlines()

    assert [line.partition(" ")[0] for line in lines] == ["::error", "::error", "::notice"]
    assert lines[0] == (
        "::error title=FR102 double-read,file=engine.py,line=6::FR102 double-read in "
        "FutureMap.tokens_buf rows 11, 12%0Amissing: a write of these rows between the last read "
        "and this gather%0Atest: tests/test_it.py::test_<b>it</b>"
    )


# --- report show ---


def test_show_tells_all_and_exits_as_the_linter(command, run, tmp_path):
    write_run(run, tmp_path / "run.json")

    status, out, err = command("report", "show", "run.json")

    assert (status, err) == (1, "")
    assert out.count("\nfmcheck violation: ") == 5
    assert "expected or allowed by its test:" in out
    assert "\x1b" not in out
    assert out.splitlines()[-1] == (
        "fmcheck: 2 buffers, 120 writes, 240 gathers, 3 peeks checked; "
        "2 violations in 2 tests, 1 warning"
    )


def test_show_in_brief_and_in_colour(command, run, tmp_path):
    write_run(run, tmp_path / "run.json")

    out = command("report", "show", "--quiet", "--color", "always", "run.json")[1]

    assert "fmcheck violation:" not in out
    assert out.startswith("\x1b[1mcheck ")


@pytest.mark.parametrize(("problems", "status"), [((), 0), (("class `X` never appeared",), 1)])
def test_show_of_a_healthy_run(command, tmp_path, problems, status):
    write_run(replace(healthy_run(tmp_path), problems=problems), tmp_path / "run.json")

    reported = command("report", "show", "run.json")

    assert reported[0] == status
    assert ("not watched: class `X` never appeared" in reported[1]) is bool(problems)


# --- report merge ---


def test_the_same_site_and_test_is_one_with_the_counts_of_all(run):
    other = replace(
        run,
        violations=(*run.violations[:1], replace(run.violations[0], buffer="FutureMap.other")),
        processes=(replace(run.processes[0], host="node-2"),),
        started=50.0,
        problems=("a problem",),
    )

    both = merge([run, other, other])

    assert [(one.buffer, one.test, one.count) for one in both.violations] == [
        ("FutureMap.tokens_buf", "tests/test_it.py::test_<b>it</b>", 3),
        ("FutureMap.tokens_buf", "tests/test_it.py::test_two", 4),
        ("FutureMap.lens_buf", "", 1),
        ("FutureMap.other", "tests/test_it.py::test_<b>it</b>", 2),
    ]
    assert [one.host for one in both.processes] == ["node-1", "node-2"]
    assert both.coverage.counts.writes == 360
    assert (both.coverage.violations, both.coverage.warnings) == (3, 1)
    assert (both.started, both.problems) == (50.0, ("a problem",))


def test_merge_takes_files_and_folders_and_writes_each_form(command, run, tmp_path):
    write_run(run, tmp_path / "hosts" / "a" / "run.json")
    write_run(run, tmp_path / "hosts" / "b" / "run.json")
    write_run(healthy_run(tmp_path), tmp_path / "c.json")

    status, out, err = command(
        *("report", "merge", "hosts", "c.json", "hosts/a/run.json"),
        *("-o", "all.json", "-o", "new/all.html", "-o", "all.sarif"),
    )

    assert (status, err) == (1, "")
    assert out.splitlines()[-1] == "fmcheck: 3 merged into all.json, new/all.html, all.sarif"
    assert read_run(tmp_path / "all.json").violations[0].count == 2
    assert (tmp_path / "new" / "all.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "all.sarif").read_text())["version"] == "2.1.0"


def test_merge_of_a_link_in_a_circle_is_one_clear_error(command, tmp_path):
    (tmp_path / "loop.json").symlink_to("loop.json")
    status, _, err = command("report", "merge", "loop.json", "-o", "b.json")
    assert status == 2
    assert err.endswith("loop.json: cannot be read: Too many levels of symbolic links\n")


def test_merge_of_healthy_runs_is_clean(command, tmp_path):
    write_run(healthy_run(tmp_path), tmp_path / "a.json")

    assert command("report", "merge", "a.json", "-o", "b.json")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.json", "-o", "a.json"), "none.json: no such file"),
        (("empty", "-o", "a.json"), "empty: holds neither a journal nor a record (*.json)"),
        (("run.json", "-o", "a.hmtl"), "--output: expected a file that ends in .json, .sarif, "),
        (("run.json", "-o", "a.hmtl"), "got `a.hmtl`; did you mean `.html`?"),
        (
            ("run.json",),
            "report merge: expected -o/--output; `fmcheck report merge --help` shows the usage",
        ),
        (("run.json", "-o", "run.json/a.json"), "run.json` is no folder"),
        (("run.json", "-o", "a.json", "--ouput", "b"), "did you mean `--output`?"),
    ],
)
def test_merge_refuses_bad_input_before_it_writes(command, run, tmp_path, arguments, message):
    write_run(run, tmp_path / "run.json")
    (tmp_path / "empty").mkdir()

    status, out, err = command("report", "merge", *arguments)

    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_merge_shows_how_far_it_is_on_a_terminal_alone(
    command, run, tmp_path, monkeypatch, is_terminal
):
    for number in range(12):
        write_run(run, tmp_path / "runs" / f"{number}.json")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)

    _, out, err = command("report", "merge", "runs", "-o", "all.json")

    assert ("merging" in err) is is_terminal
    assert out.count("\n") == 2


def test_the_schema_is_printed(command):
    assert command("report", "schema") == (0, schema(), "")


# --- the plugin ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("-p", "fmcheck", "--fmcheck-report=out.jsn"),
            "*fmcheck: --fmcheck-report: expected a file that ends in .json, .sarif, .html, got "
            "`out.jsn`; did you mean `.json`[?]",
        ),
        (("-p", "fmcheck", "--fmcheck-report=json"), "*got `json`; did you mean `.json`[?]"),
        (("-p", "fmcheck", "--fmcheck-report=test_it.py/a.json"), "*test_it.py` is no folder"),
        (("-p", "fmcheck", "--fmcheck-report=folder.html"), "*`folder.html` is a folder"),
    ],
)
def test_a_report_that_cannot_be_written_stops_the_run_before_a_test(
    pytester, monkeypatch, arguments, message
):
    monkeypatch.delenv("FMCHECK_MODE", raising=False)
    pytester.mkdir("folder.html")
    pytester.makepyfile(test_it="def test_it(): open('ran', 'w')")
    result = pytester.runpytest_inprocess(*arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert not (pytester.path / "ran").exists()


def test_a_report_of_a_run_without_a_watch_is_an_error(project: Project):
    register(project)
    result = project.run(HEALTHY, "--fmcheck-report=a.json", load=False)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*fmcheck is off: add `-p fmcheck`"])


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_writes_what_it_was_asked_for(project: Project, tmp_path, workers):
    project.write("test_more.py", HEALTHY)
    reports = [f"--fmcheck-report=out/run.{one}" for one in ("json", "sarif", "html")]

    result = project.run(STALE, *workers, *reports, "--fmcheck-journal=journal")

    result.stdout.fnmatch_lines(
        [
            "check * sites  times  tests",
            "FR102 double-read * 1 * 1 * 1  FutureMap.tokens_buf at toy_engine.py:14",
            "fmcheck: 2 buffers, 2 writes, 3 gathers, 0 peeks checked*; 1 violation",
            "fmcheck: report out/run.json",
        ]
    )
    run = read_run(project.pytester.path / "out" / "run.json")
    assert [(one.code, one.test) for one in run.violations] == [
        ("FR102", "test_engine.py::test_it")
    ]
    assert run.coverage.counts.gathers == 3
    (own,) = (one for one in run.processes if one.role == "pytest")
    assert (own.ending, own.ended is not None) == ("exit 1", True)
    assert "gw0" in {one.role for one in run.processes} if workers else len(run.processes) == 1
    journal, merged = project.pytester.path / "journal", tmp_path / "merged.json"
    assert main(["report", "merge", str(journal), "-o", str(merged)]) == 1
    again = read_run(merged)
    assert (again.violations, again.coverage.counts) == (run.violations, run.coverage.counts)
    page = (project.pytester.path / "out" / "run.html").read_text()
    assert "return self.tokens_buf[rows]</mark>" in page
    assert result.ret == pytest.ExitCode.TESTS_FAILED


UNTRACKED = """
    import pytest, toy_engine
    from fmcheck.runtime.session import session
    from fmcheck.runtime.core.tally import BrokenCheck

    @pytest.mark.parametrize("number", [1, 2])
    def test_it(number):
        tally = session._active._watch.tally
        tally.untrack("tensors", "a reason of its own", number)
        tally.broken["FR201"] = BrokenCheck("KeyError: 1", "")
        assert toy_engine.healthy().tolist() == [5, 5]
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_is_not_followed_is_in_every_report(project: Project, workers):
    names = ("a.json", "a.html")
    result = project.run(UNTRACKED, *(f"--fmcheck-report={one}" for one in names), *workers)

    result.assert_outcomes(passed=2)
    followed = "not followed: 3 tensors: a reason of its own"
    failed = "FR201 is incomplete: fmcheck's own code failed there once, first with KeyError: 1"
    result.stdout.fnmatch_lines([f"fmcheck: {failed}*", f"fmcheck: {followed}"])
    page = (project.pytester.path / "a.html").read_text()
    assert followed in page
    assert failed.replace("'", "&#39;") in page
    coverage = json.loads((project.pytester.path / "a.json").read_text())["coverage"]
    assert coverage["untracked"] == [["tensors", "a reason of its own", 3]]
    (sentence,) = coverage["incomplete"]
    assert sentence.startswith(failed)
    (project.pytester.path / "copy.json").write_bytes(
        (project.pytester.path / "a.json").read_bytes()
    )
    merged = ("a.json", "copy.json", "-o", "b.json")
    fmcheck = (sys.executable, "-m", "fmcheck", "report")
    assert project.pytester.run(*fmcheck, "merge", *merged).ret == 0
    project.pytester.run(*fmcheck, "show", "b.json").stdout.fnmatch_lines(
        [f"fmcheck: {followed.replace('3', '6')}"]
    )


def test_a_report_that_cannot_be_written_in_the_end_fails_the_run(project: Project):
    result = project.run("def test_it():\n    open('out', 'w')\n", "--fmcheck-report=out/run.json")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["fmcheck error: report *run.json: cannot be written: *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_record_needs_neither_jinja2_nor_rich(run, tmp_path):
    write_run(run, tmp_path / "run.json")
    code = (
        "import sys; from fmcheck.cli import main; main(['report', 'show', 'run.json']);"
        "print({'jinja2', 'rich', 'torch', 'pytest'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(run_schema.SHIPPED.parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"

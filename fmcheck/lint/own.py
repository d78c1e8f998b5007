"""What the linter itself finds, in files, comments and baselines: no rule stands behind it."""

from __future__ import annotations

from msgspec import Struct

from fmcheck.finding import Severity

#: The code of a file that could not be read or parsed. No selection turns it off.
UNREADABLE = "FM001"
#: The code of a rule that failed on a file. No selection turns it off either.
RULE_FAILED = "FM002"
UNUSED_SUPPRESSION = "FM003"
MALFORMED_SUPPRESSION = "FM004"
GONE_ENTRY = "FM005"

#: Findings with these codes say that not everything was checked.
UNCHECKED = frozenset({UNREADABLE, RULE_FAILED})
#: Those that `--ignore` may name.
OPTIONAL = frozenset({UNUSED_SUPPRESSION, MALFORMED_SUPPRESSION})
#: Codes of removed rules, which no other rule gets: settings and comments may still name them.
REMOVED = frozenset({"FM103", "FM204", "FM305", "FM411", "FM508"})


def why_removed(code: str) -> str:
    """Returns what to tell who asks for a removed rule."""
    return f"rule `{code}` was removed: none of its findings was right on a released tree"


class OwnCode(Struct, frozen=True):
    """A code of the linter's own; `page` explains it, its first line alone says what it is."""

    code: str
    name: str
    severity: Severity
    page: str


OWN_CODES = {
    own.code: own
    for own in (
        OwnCode(
            UNREADABLE,
            "unreadable-file",
            Severity.ERROR,
            """A file, or a part of one, that could not be checked.

It cannot be read, is not in its own encoding, does not parse, nests too deeply, or is too long to
be parsed in one piece. Only what a rule looks at is parsed: the functions, classes and other
statements that hold the words of a rule. The run goes on with the other files and ends with exit
status 2. This cannot be turned off: a file that was not checked is not clean.
""",
        ),
        OwnCode(
            RULE_FAILED,
            "rule-failed",
            Severity.ERROR,
            """A rule that ended in an error of its own on a file.

The other rules and files are checked all the same, and the run ends with exit status 2. It is a
bug in the rule: please report it with the message, which names rule and file.
""",
        ),
        OwnCode(
            UNUSED_SUPPRESSION,
            "unused-suppression",
            Severity.WARNING,
            """A suppression comment that suppresses nothing.

The finding is gone, or the comment is on another line: it belongs on the finding's first line,
or on the first or last line of the statement that the finding is in. `--fix` removes the comment.
A rule that is not selected in a run makes no suppression of its findings unused.
""",
        ),
        OwnCode(
            MALFORMED_SUPPRESSION,
            "malformed-suppression",
            Severity.ERROR,
            """A suppression comment that names no code, an unknown code, or no reason.

Write `# fmcheck: ignore[FM201] why this is right`, with codes split by commas, or, above the first
statement of a file, `# fmcheck: ignore-file[FM201] why`. There is no comment that ignores
everything, and one without a reason, in words, or without the colon suppresses nothing.
""",
        ),
        OwnCode(
            GONE_ENTRY,
            "gone-baseline-entry",
            Severity.ERROR,
            """A baseline entry whose finding is gone.

A baseline only shrinks: a leftover entry would hide the same finding if it came back. Remove it
with `--update-baseline`, which never adds one.
""",
        ),
    )
}

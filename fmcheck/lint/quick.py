"""The quick way out: a few named files in which no needle of a default rule stands.

Such a run has nothing to say, and needs neither the rules nor the contracts to say so: their
needles are in `shipped.py`, which counts only while it has the stamp of their sources. Whatever is
not plain here is left to the whole command. Like `replay.py`, this comes before everything else
that the command imports.
"""

from __future__ import annotations

import os
import sys

from fmcheck.lint.stored import content_of, entry_points

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Options that change nothing about a run that finds nothing.
_FLAGS = frozenset(("--exit-zero", "--no-cache", "--quiet", "-q"))
#: More files than this are not looked at in vain before the whole command does.
MOST_FILES = 32
#: What makes needles, beside rules and contracts.
_NEEDLE_SOURCES = (
    *("contract/schema.py", "stream_options.py", "lint/declared.py", "lint/relay_rule.py"),
    *("lint/relays.py", "lint/rule.py"),
)
#: The entry points by which other packages register rules and contracts.
GROUP = "fmcheck"


def quick(argv: Sequence[str]) -> int | None:
    """Says that nothing was found and returns 0; None where that is not certain."""
    if argv[:1] != ["lint"]:
        return None
    paths = [one for one in argv[1:] if one not in _FLAGS]
    if not 0 < len(paths) <= MOST_FILES or any(one.startswith("-") for one in paths):
        return None
    texts = [_text(path) for path in paths]
    if any(text is None for text in texts) or not _has_defaults(paths):
        return None
    from fmcheck.lint.shipped import NEEDLES, STAMP
    from fmcheck.lint.sieve import Sieve

    if source_stamp() != STAMP:
        return None  # the copy is of other rules than these

    sieve = Sieve(NEEDLES)
    if any(text and next(sieve.held(text), None) is not None for text in texts):
        return None
    if not {"--quiet", "-q"} & {*argv}:
        files = f"{len(paths)} file{'s' * (len(paths) > 1)}"
        print(f"{files} checked with {len(NEEDLES)} rules: no findings")
    return 0


def source_stamp() -> str:
    """Returns what tells the sources that needles are made of from others, by their content."""
    import binascii

    import fmcheck

    stamp = 0
    # Part by part, for a wheel has in one folder what a checkout has in two.
    for part, suffix in (("rules", ".py"), ("contracts", ".toml")):
        for folder in (os.path.join(package, part) for package in fmcheck.__path__):
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
                if name.endswith(suffix):
                    text = content_of(os.path.join(folder, name)) or b""
                    stamp = binascii.crc32(name.encode() + b"\0" + text, stamp)
    for name in _NEEDLE_SOURCES:
        for package in fmcheck.__path__:
            stamp = binascii.crc32(content_of(os.path.join(package, name)) or b"", stamp)
    return f"{stamp:08x}"


def _text(path: str) -> bytes | None:
    """Returns the bytes of a regular file of UTF-8 that suppresses nothing, None for another."""
    text = content_of(path)
    if text is None or b"\0" in text or b"fmcheck:" in text:
        return None
    try:
        text.decode()
    except ValueError:
        return None
    return text


def _has_defaults(paths: Sequence[str]) -> bool:
    """Tells whether the files are linted with what is shipped, as it is shipped."""
    files = {os.path.realpath(path) for path in paths}
    if len(files) < len(paths):
        return False
    folders = set()
    for file in files:
        folder = os.path.dirname(file)
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    if not all(_has_no_settings(os.path.join(folder, "pyproject.toml")) for folder in folders):
        return False
    return not may_be_registered()


def _has_no_settings(path: str) -> bool:
    """Tells whether a file is not there, or is TOML that says nothing of us."""
    if not os.path.lexists(path):
        return True
    text = _text(path)
    if text is None or b"fmcheck" in text:
        return False
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib

        tomllib.loads(text.decode())
    except (ImportError, ValueError):
        return False  # the whole command says what is wrong with it
    return True


def may_be_registered() -> bool:
    """Tells whether an installed package may name our group; reads only what names entry points."""
    for folder in dict.fromkeys(sys.path):
        if os.path.isfile(folder):
            return True  # a zip file: for `importlib.metadata` to look into
        if any(text and f"[{GROUP}]".encode() in text for _, text in entry_points(folder)):
            return True
    return False

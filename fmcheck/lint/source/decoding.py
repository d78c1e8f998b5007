"""A source file's text: read from disk, decoded as Python would, and encoded back."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import tokenize
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.files.reading import MOST_SOURCE, read_regular, read_with_stat

if TYPE_CHECKING:
    from pathlib import Path

#: Codecs for the names of hosts, which take a minute for a megabyte, and one that always fails.
_NOT_FOR_SOURCE = frozenset(("idna", "punycode", "undefined"))


class Text(Struct, frozen=True):
    """Decoded source: as the file has it, with its own line ends, and its encoding."""

    raw: str
    encoding: str

    @property
    def source(self) -> str:
        """The source with every line ended by `\\n`, as the parsers see it."""
        if "\r" not in self.raw:
            return self.raw
        return self.raw.replace("\r\n", "\n").replace("\r", "\n")

    def encode(self, raw: str) -> bytes:
        """Returns the bytes of a file like this one that holds `raw`."""
        return raw.encode(self.encoding)


def read(path: str | Path) -> bytes:
    """Returns the bytes of a regular file of limited size; OSError for anything else."""
    return read_regular(path, MOST_SOURCE)


def read_with_state(path: str | Path) -> tuple[bytes, tuple[int, ...]]:
    """Returns the bytes of a regular file and its state before they were read.

    Raises:
        OSError: if it is anything else, is too large, or cannot be read.
    """
    try:
        text, at = read_with_stat(path, MOST_SOURCE)
    except OSError:
        if os.path.isdir(path):
            os.scandir(path).close()  # which says why its files are not known
        raise
    return text, (at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino)


def source_in(path: str | Path) -> tuple[str, str]:
    """Returns the source in a file and "", or "" and why it cannot be had."""
    try:
        return decode(read(path)).source, ""
    except OSError as err:
        return "", f"cannot be read: {err.strerror or err}"
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        return "", f"cannot be decoded: {err}"


def decode(raw: bytes) -> Text:
    """Decodes source by its byte-order mark or coding comment (PEP 263).

    Raises:
        SyntaxError, UnicodeDecodeError, LookupError: if the text is not in its own encoding.
    """
    head = _head(raw)
    if b"coding" not in head and not head.startswith(codecs.BOM_UTF8):
        with contextlib.suppress(UnicodeDecodeError):
            return Text(raw.decode(), "utf-8")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    if codecs.lookup(encoding).name in _NOT_FOR_SOURCE:
        raise SyntaxError(f"`{encoding}` is no encoding of source")
    try:
        return Text(raw.decode(encoding), encoding)
    except (UnicodeDecodeError, LookupError):
        raise
    except Exception as err:  # a codec may raise anything
        raise SyntaxError(f"{encoding}: {err}") from err


def source_of(raw: bytes) -> str:
    """Returns the source that a file's bytes are, as the parsers see it.

    Raises:
        SyntaxError, UnicodeDecodeError, LookupError: if they are no text, or not in its encoding.
    """
    source = decode(raw).source
    if b"\0" in raw:
        raise SyntaxError("it holds null bytes")
    return source


def _head(raw: bytes) -> bytes:
    """Returns the first two lines, in which an encoding may be declared."""
    return raw[: raw.find(b"\n", raw.find(b"\n") + 1) + 1 or len(raw)]


def line_starts(text: str) -> list[int]:
    """Returns the offsets at which the lines of a text start, whose lines end in `\\n`."""
    starts = list(accumulate(map(len, io.StringIO(text, newline="\n")), initial=0))
    if text and not text.endswith("\n"):
        starts.pop()
    return starts


def split_lines(text: str) -> list[str]:
    """Splits at the line ends of Python, which are fewer than those of `str.splitlines`."""
    return list(io.StringIO(text, newline=""))

"""Odd files, each with what the linter is to say of it: nothing, or one diagnostic."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Words of several rules, so that a file is parsed and looked at.
BAIT = b"import torch\nmodule = torch.get_device_module(device)\n"
EVENT = b"ready = torch.cuda.Event()\n"


@dataclass(frozen=True)
class Odd:
    """A file's content, and the codes that are to be found in it."""

    name: str
    content: bytes
    codes: tuple[str, ...]


def odd_files(*, big: bool = False) -> list[Odd]:
    """Returns the odd files; `big` ones take seconds."""
    nested = b"(" * 5000 + b")" * 5000
    found = [
        Odd("empty.py", b"", ()),
        Odd("no_final_newline.py", BAIT + EVENT.rstrip(), ("FM301",)),
        Odd(
            "bom_and_crlf.py", b"\xef\xbb\xbf" + (BAIT + EVENT).replace(b"\n", b"\r\n"), ("FM301",)
        ),
        Odd("old_mac.py", (BAIT + EVENT).replace(b"\n", b"\r"), ("FM301",)),
        Odd("form_feed.py", BAIT + b"\x0c\n" + EVENT, ("FM301",)),
        Odd("declared_latin_1.py", b"# coding: latin-1\n# \xe9\n" + BAIT + EVENT, ("FM301",)),
        Odd("undeclared_latin_1.py", b"# \xe9\n", ("FM001",)),
        Odd("unknown_encoding.py", b"# coding: klingon\n" + BAIT + EVENT, ("FM001",)),
        Odd("no_ascii_as_declared.py", "# coding: ascii\n# \xe9\n".encode(), ("FM001",)),
        Odd("null_byte.py", b"x = 1\0\n", ("FM001",)),
        Odd("utf_16.py", "x = 1\n".encode("utf-16"), ("FM001",)),
        Odd("bad_syntax.py", BAIT + EVENT + b"torch.cuda.Event(\n", ("FM001",)),
        Odd("open_string.py", BAIT + EVENT + b'"""\n', ("FM001",)),
        Odd("tabs_and_spaces.py", BAIT + EVENT + b"if x:\n\ty = 1\n        z = 2\n", ("FM001",)),
        Odd("python_2.py", BAIT + EVENT + b"print 'x'\n", ("FM001",)),
        Odd("nested_brackets.py", BAIT + EVENT + b"x = " + nested + b"\n", ("FM001",)),
        Odd("nested_lists.py", BAIT + EVENT + b"[" * 5000 + b"\n", ("FM001",)),
        Odd("long_sum.py", BAIT + b"torch.cuda.Event(" + b"1 + " * 20_000 + b"1)\n", ("FM001",)),
        Odd("deep_sum.py", BAIT + b"torch.cuda.Event(" + b"1 + " * 2_000 + b"1)\n", ("FM001",)),
        Odd("many_nots.py", BAIT + EVENT + b"x = " + b"not " * 20_000 + b"y\n", ("FM001",)),
        Odd("deep_blocks.py", BAIT + EVENT + deep_blocks(150), ("FM001",)),
        Odd("bad_escape.py", BAIT + EVENT + b'x = "\\d"\n', ("FM301",)),
        Odd("newer_type.py", BAIT + EVENT + b"type X[T] = list[T]\n", ("FM301",)),
        Odd("newer_f_string.py", BAIT + EVENT + b"""x = f"{y["z"]}"\n""", ("FM301",)),
        Odd("of_no_concern.py", b"def f(:\n", ()),
    ]
    if big:
        line = b"value = call(argument, 'text', [1, 2, 3])\n"
        found += [
            Odd("big.py", BAIT + line * 430_000 + EVENT, ("FM301",)),
            Odd("big_of_no_concern.py", line * 430_000, ()),
            Odd(
                "one_long_line.py",
                BAIT + b"x = [" + b"1, " * 1_000_000 + b"]\n" + EVENT,
                ("FM301",),
            ),
        ]
    return found


def deep_blocks(depth: int) -> bytes:
    """Returns `if` within `if`, deeper than Python takes."""
    return b"".join(b" " * level + b"if x:\n" for level in range(depth)) + b" " * depth + b"x\n"


def plant(folder: Path, *, big: bool = False) -> dict[str, tuple[str, ...]]:
    """Writes the odd files and what is no file; returns the codes to find in each, by name."""
    expected = {odd.name: odd.codes for odd in odd_files(big=big)}
    for odd in odd_files(big=big):
        (folder / odd.name).write_bytes(odd.content)
    (folder / "folder.py").mkdir()
    (folder / "folder.py" / "inner.py").write_bytes(BAIT + EVENT)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "here.py").symlink_to(folder / "there.py")
    (folder / "there.py").symlink_to(folder / "here.py")
    (folder / "broken.py").symlink_to(folder / "nowhere.py")
    os.mkfifo(folder / "pipe.py")
    more = dict.fromkeys(("here.py", "there.py", "broken.py", "pipe.py"), ("FM001",))
    return {**expected, **more, "folder.py/inner.py": ("FM301",)}

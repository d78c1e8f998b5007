"""The tree: what libcst makes of one slice.

Places are worked out for a tree when somebody first asks for one: most trees have no finding.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider

from fmcheck.lint.source.cuts import TooDeepError
from fmcheck.lint.source.walking import children, walk

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from libcst.metadata import CodeSpan

#: Deeper than this an expression may end libcst, and its process with it.
MOST_DEPTH = 1000
#: More text than this is not parsed in one piece: libcst takes 2 s and 300 MB for it.
MOST_SIGNS = 1_000_000
#: What makes a tree deeper, by a sign or a word for each level.
_DEEPENING = ("+", "-", "*", "/", ".", "(", "[", "{", "%", "&", "|", "^", "<", ">", "=")
_DEEPENING_WORDS = (" if ", "lambda", "not ", " and ", " or ", "await ", "elif", "~")
_TOKEN = re.compile(
    r"""(?P<text>\"{3}(?:[^"\\]|\\.|"(?!""))*\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}
      |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\#[^\n]*)
      |(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<end>[,\n:;]|\b(?:elif)\b)
      |(?P<deeper>[-+*/.%&|^<>=~@]|\b(?:if|lambda|not|and|or|await|in|is)\b)""",
    re.VERBOSE | re.DOTALL,
)


#: At the start of a line of code.
_FORM_FEED = re.compile(r"^\f(?=[^\f\n#])", re.MULTILINE)


class Tree:
    """The nodes of one slice of source, `before` which a line of ours may stand.

    Raises:
        libcst.ParserSyntaxError: if it does not parse.
        TooDeepError: if it nests too deeply for that.
    """

    def __init__(self, text: str, before: str = "") -> None:
        if len(text) > MOST_SIGNS:
            raise TooDeepError(
                f"its {len(text):,} characters are more than {MOST_SIGNS:,} to parse"
            )
        at = too_deep_at(text)
        if at is not None:
            raise TooDeepError("it nests too deeply", at)
        self._before = len(before)
        # libcst drops a form feed that is followed by code.
        self._fed = [match.start() for match in _FORM_FEED.finditer(text)] if "\f" in text else []
        source = before + (_FORM_FEED.sub("", text) if self._fed else text)
        #: The source, if it has characters that are no single byte.
        self._wide = "" if source.isascii() else source
        with _unvalidated():
            self.root = cst.parse_module(source)

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """What each node stands in."""
        return {child: node for node in walk(self.root) for child in children(node)}

    @cached_property
    def _spans(self) -> Mapping[cst.CSTNode, CodeSpan]:
        """Where each node starts, and how long it is, in bytes."""
        provider = ByteSpanPositionProvider()
        try:
            # Not by a `MetadataWrapper`, which visits each node once more.
            provider._gen_impl(self.root)
        except KeyError as err:  # the recursion ended before a node's last one was written
            raise RecursionError("it nests too deeply") from err
        return cast("Mapping[cst.CSTNode, CodeSpan]", provider._computed)

    @cached_property
    def _ends(self) -> Sequence[int]:
        """The byte at which each character ends."""
        return [*accumulate(len(one.encode()) for one in self._wide)]

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns where a node starts and ends, as offsets in the slice."""
        span = self._spans[node]
        return self._offset(span.start), self._offset(span.start + span.length)

    def _offset(self, at: int) -> int:
        at = (bisect_right(self._ends, at) if self._wide else at) - self._before
        for number in self._fed:
            at += number <= at
        return at


#: What asks a node whether it is valid; kept here, for two threads may parse at once.
_ASKS = cst.CSTNode.__post_init__


@contextmanager
def _unvalidated() -> Iterator[None]:
    """Has libcst's parser not ask each node that it makes whether it is valid: a fifth of its time.

    What parses is valid. Nodes that a fix makes are asked as ever.
    """
    setattr(cst.CSTNode, "__post_init__", lambda node: None)  # noqa: B010, mypy knows better
    try:
        yield
    finally:
        setattr(cst.CSTNode, "__post_init__", _ASKS)  # noqa: B010


class Kept:
    """Trees of slices that were parsed before, for whoever checks a file again and again.

    Two slices of one text in one module are two trees; `used` counts those that it has.
    """

    def __init__(self, most: int = 4000) -> None:
        self._most = most
        self._trees: dict[tuple[str, str, int], Tree] = {}

    def tree(self, text: str, before: str, used: Counter[tuple[str, str]]) -> Tree:
        """Returns the tree of a slice, parsed now if it must be."""
        key = text, before, used[text, before]
        found = self._trees.pop(key, None) or Tree(text, before)
        self._trees[key] = found
        used[text, before] += 1
        while len(self._trees) > self._most:
            del self._trees[next(iter(self._trees))]
        return found


#: Where trees are kept, if anybody wants them again: a language server does.
KEPT: ContextVar[Kept | None] = ContextVar("KEPT", default=None)


def too_deep_at(text: str) -> int | None:
    """Returns where source may nest deeper than libcst bears, by its signs alone; None: nowhere."""
    if sum(map(text.count, (*_DEEPENING, *_DEEPENING_WORDS))) <= MOST_DEPTH:
        return None
    depths, choices = [0], 0
    heads = [0]  # how many lambdas lack their colon, bracket by bracket
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            depths.append(0)
            heads.append(0)
        elif kind == "close":
            if len(depths) > 1:
                depths.pop()
                heads.pop()
            depths[-1] += 1
        elif kind == "end" and heads[-1] and match[0] in ",:":
            heads[-1] -= match[0] == ":"
        elif kind == "end":
            choices += match[0] == "elif"
            depths[-1] = depths[-1] if match[0] == "\n" and len(depths) > 1 else 0
            if match[0] == ":" and len(depths) == 1:
                continue
        elif kind == "deeper":
            depths[-1] += 1
            heads[-1] += match[0] == "lambda"
        if len(depths) + choices > MOST_DEPTH or sum(depths) > MOST_DEPTH:
            return match.start()
    return None

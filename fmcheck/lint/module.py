"""A module under the linter: its text, and as much of its syntax tree as somebody asks for."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint.rule import Scope
from fmcheck.lint.slices import Cuts, Slice
from fmcheck.lint.source import line_starts, split_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence


#: A shorter class is not cut into methods: it is parsed as soon, and for all rules at once.
LONG = 1000
#: So many lines are counted from the start of the text, before all of them are looked for.
FEW = 64
#: Further down than this, a slice is parsed by itself and its tree moved.
MOST_BLANK = 5000
#: The start of a line of code that is not indented, unless it only closes a bracket.
_AT_MARGIN = re.compile(r"\n(?=[^ \t\n#)\]}])")
_NO_MARGIN = " \t\n#)]}"
_DEFINITION = re.compile(r"^[ \t]*(?:class|def|async)\b", re.MULTILINE)
_DEFINES = re.compile(r"(?:class|def|async)\b|@")


def _any_text(text: str) -> bool:
    return True


class Module:
    """A module's source, cut and parsed on demand. SyntaxError comes from whatever parses.

    `absent` are words that are known not to stand in it. `whole` keeps it from being cut. `newer`
    tells that the interpreter's own grammar lacks
    something that libcst knows: slices that `ast` rejects are then handed out unparsed.
    """

    def __init__(
        self,
        text: str,
        absent: Collection[str] = (),
        *,
        whole: bool = False,
        newer: bool = False,
    ) -> None:
        self.text = text
        self.newer = newer
        self._whole = whole
        self._parsed: dict[tuple[int, int], list[ast.stmt]] = {}
        self._parsed_methods: dict[tuple[int, int], tuple[list[ast.stmt], list[ast.stmt]]] = {}
        self._heads: dict[Slice, ast.ClassDef] = {}
        #: Something was asked of statements that `ast` cannot parse, since this was last set.
        self.missed = False
        self._lines_asked = 0
        self._hits: dict[str, list[int]] = {word: [] for word in absent}
        self._texts: dict[tuple[int, int], str] = {}
        self._cut_methods: dict[Slice, tuple[str, Sequence[Slice]] | None] = {}

    @cached_property
    def lines(self) -> Sequence[str]:
        """The source by lines, ends included."""
        return split_lines(self.text)

    @cached_property
    def cuts(self) -> Cuts:
        """Where the text may be cut."""
        return Cuts(self.text)

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """Stretches of whole statements; the whole module where a cut is not certain."""
        if self._whole or not self.cuts.certain:
            return [Slice(0, len(self.text))]
        return self.cuts.top_level()

    @cached_property
    def tree(self) -> ast.Module:
        """The whole syntax tree; without what `ast` cannot parse, in a `newer` module."""
        if not self.newer:
            # What some rule has had parsed is not parsed again.
            parsed = [node for one in self.slices for node in self._parse(one)]
            return ast.Module(parsed, [])
        parts = [self._try_parse(one) for one in self.slices]
        return ast.Module([node for part in parts if part for node in part], [])

    @cached_property
    def unparsed(self) -> Sequence[str]:
        """The texts of a `newer` module that only libcst can parse."""
        slices = self.slices if self.newer else ()
        return [self.text[one.start : one.end] for one in slices if self._try_parse(one) is None]

    def line_of(self, offset: int) -> int:
        """Returns the line of an offset, from 1."""
        self._lines_asked += 1
        if "_line_starts" in vars(self) or self._lines_asked > FEW:
            return bisect_right(self._line_starts, offset)
        # Asked for a few slices only, this is less than to look for every line.
        return self.text.count("\n", 0, offset) + 1

    def text_of_lines(self, first: int, last: int) -> str:
        """Returns the text from a first to a last line, both of them in it."""
        return self.text[self._line_start(first) : self._line_start(last + 1)]

    def nodes(
        self,
        scope: Scope,
        words: Collection[str],
        may_hold: Callable[[str], bool] = _any_text,
        is_clear: Callable[[Slice], bool] | None = None,
    ) -> Iterator[ast.AST | Slice]:
        """Yields what a rule of this scope is to look at: blocks that hold one of `words`.

        With no words, every block. A block that only libcst can parse is a slice. What `may_hold`
        refuses by its text is left out, and long classes that are clear.
        """
        if scope is Scope.MODULE:
            yield Slice(0, len(self.text)) if self.newer else self.tree
            return
        for one in self._slices_with(words):
            if not may_hold(self._text_of(one)):
                continue
            if is_clear is not None and one.is_class and self._is_long(one) and is_clear(one):
                continue
            statements = self._try_parse(one, scope, words, may_hold) if self.newer else None
            if self.newer and statements is None:
                yield one
            elif statements is None:
                statements = self._statements(one, scope, words, may_hold)
            found = statements or []
            near: dict[tuple[int, int], bool] = {}
            for node in found:
                lines = extent(node)
                if len(found) > 1 and lines not in near:  # a line may hold thousands of statements
                    near[lines] = self._near(node, words)
                if near.get(lines, True):
                    yield node

    def statements_with(
        self, words: Collection[str], may_hold: Callable[[str], bool] = _any_text
    ) -> Iterator[ast.stmt]:
        """Yields top-level statements, those near one of `words` among them.

        Slices that `may_hold` refuses by their text are left out. So is what only libcst can parse:
        `missed` tells that it defines something.
        """
        for one in self._slices_with(words):
            if may_hold(self._text_of(one)):
                found = self._try_parse(one) if self.newer else self._parse(one)
                if found is None and defines(self._text_of(one)):
                    self.missed = True
                yield from found or ()

    def statements_at(self, first: int, last: int) -> Iterator[ast.stmt]:
        """Yields the top-level statements that these lines are in.

        Raises:
            NewerGrammarError: if only libcst can parse them.
        """
        start, end = self._line_start(first), self._line_start(last + 1)
        for number in range(max(bisect_right(self._slice_starts, start) - 1, 0), len(self.slices)):
            one = self.slices[number]
            if one.start >= end:
                break
            if one.end > start:
                found = self._try_parse(one) if self.newer else self._parse(one)
                if found is None:
                    raise NewerGrammarError
                for node in found:
                    if node.lineno <= last and first <= (node.end_lineno or node.lineno):
                        yield node

    def methods_with(self, one: Slice, may_hold: Callable[[str], bool]) -> list[ast.stmt] | None:
        """Returns the methods of a class by their texts; None if the class cannot be cut."""
        return self._methods(one, (), may_hold)

    def _statements(
        self,
        one: Slice,
        scope: Scope,
        words: Collection[str],
        may_hold: Callable[[str], bool] = _any_text,
    ) -> list[ast.stmt]:
        if scope is not Scope.FUNCTION:
            return self._parse(one)
        is_cut = one.is_class and self._is_long(one)
        methods = self._methods(one, words, may_hold) if is_cut else None
        if methods is not None:
            return methods
        found: list[ast.stmt] = []
        for node in self._parse(one):
            found += node.body if isinstance(node, ast.ClassDef) else [node]
        return found

    def _methods(
        self, one: Slice, words: Collection[str], may_hold: Callable[[str], bool]
    ) -> list[ast.stmt] | None:
        """Returns the statements of a class's body near `words`; None if it cannot be cut."""
        cut = self._cut_class(one)
        if cut is None or (one.start, one.end) in self._parsed:
            return None
        indent, (head, *methods) = cut
        try:
            found = [*self._head(head, indent)]
            for method in methods:
                held = self._holds(method, words)
                if held and may_hold(self._text_of(method)):
                    for part in self._parse_method(method):
                        found += part
        except SyntaxError:
            return None
        return found

    def _cut_class(self, one: Slice) -> tuple[str, Sequence[Slice]] | None:
        """Returns how the body of a class is indented, and its slices; None if nothing is."""
        if one not in self._cut_methods:
            indent = self.cuts.first_indent(one)
            cut = None if indent is None else (indent, self.cuts.methods(one, indent))
            self._cut_methods[one] = cut
        return self._cut_methods[one]

    def _head(self, head: Slice, indent: str) -> list[ast.stmt]:
        """Returns the statements before the first method, which are indented by `indent`."""
        if head not in self._heads:
            head_text = f"{self.text[head.start : head.end]}{indent}pass\n"
            tree = parse_at(self.line_of(head.start), head_text)
            node = tree.body[0]
            if len(tree.body) > 1 or not isinstance(node, ast.ClassDef):
                raise SyntaxError("what is defined here is not of the class")
            if node.body[0].col_offset != len(indent):
                raise SyntaxError("the methods are not at the depth of the class's body")
            self._heads[head] = node
        return self._heads[head].body[:-1]

    def _parse(self, one: Slice) -> list[ast.stmt]:
        key = one.start, one.end
        if key not in self._parsed:
            self._parsed[key] = (
                self._put_together(one)
                or parse_at(self.line_of(one.start), self.text[one.start : one.end]).body
            )
        return self._parsed[key]

    def _parse_method(self, one: Slice) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Returns the statements of a class's body in a slice, and what follows the class."""
        key = one.start, one.end
        if key not in self._parsed_methods:
            inside = f"class _:\n{self.text[one.start : one.end]}"
            head, *after = parse_at(self.line_of(one.start) - 1, inside).body
            assert isinstance(head, ast.ClassDef)
            self._parsed_methods[key] = head.body, after
        return self._parsed_methods[key]

    def _put_together(self, one: Slice) -> list[ast.stmt] | None:
        """Returns a class that is parsed in part already; None where that is not certain."""
        cut = self._cut_class(one) if one.is_class and self._heads else None
        if cut is None or cut[1][0] not in self._heads:
            return None
        head, *methods = cut[1]
        try:
            parts = [self._parse_method(one) for one in self._runs(methods)]
        except SyntaxError:
            return None
        if any(after for _, after in parts[:-1]):
            return None
        found = self._heads[head]
        body = [*found.body[:-1], *(node for part, _ in parts for node in part)]
        whole = ast.ClassDef(
            **{name: getattr(found, name) for name in found._fields if name != "body"}, body=body
        )
        whole.lineno, whole.col_offset = found.lineno, found.col_offset
        whole.end_lineno, whole.end_col_offset = body[-1].end_lineno, body[-1].end_col_offset
        return [whole, *parts[-1][1]]

    def _runs(self, methods: Sequence[Slice]) -> Iterator[Slice]:
        """Yields methods that are parsed already, and runs of those between them."""
        start = None
        for one in methods:
            if (one.start, one.end) not in self._parsed_methods:
                start = one.start if start is None else start
            else:
                if start is not None:
                    yield Slice(start, one.start)
                yield one
                start = None
        if start is not None:
            yield Slice(start, methods[-1].end)

    def _try_parse(
        self,
        one: Slice,
        scope: Scope = Scope.CLASS,
        words: Collection[str] = (),
        may_hold: Callable[[str], bool] = _any_text,
    ) -> list[ast.stmt] | None:
        try:
            return self._statements(one, scope, words, may_hold)
        except SyntaxError:
            return None

    def _is_long(self, one: Slice) -> bool:
        return one.end - one.start > LONG

    def _holds(self, one: Slice, words: Collection[str]) -> bool:
        if not words:
            return True
        text, start, end = self.text, one.start, one.end
        # A word counts where it starts.
        return any(text.find(word, start, end + len(word) - 1) >= 0 for word in words)

    def _near(self, node: ast.stmt, words: Collection[str]) -> bool:
        """Tells whether one of `words` stands on the lines of a node."""
        if not words:
            return True
        first, last = extent(node)
        start, end = self._line_start(first), self._line_start(last + 1)
        return self._holds(Slice(start, end), words)

    def _line_start(self, line: int) -> int:
        starts = self._line_starts
        return starts[line - 1] if line <= len(starts) else len(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def _text_of(self, one: Slice) -> str:
        """Returns the text of a slice, cut out once for all rules."""
        key = one.start, one.end
        found = self._texts.get(key)
        if found is None:
            found = self._texts[key] = self.text[one.start : one.end]
        return found

    def _slices_with(self, words: Collection[str]) -> Iterator[Slice]:
        """Yields the slices that hold one of `words`, in order; all of them if there are none."""
        slices = self.slices
        if not words:
            yield from slices
            return
        for number in sorted({number for word in words for number in self._numbers(word)}):
            yield slices[number]

    def _numbers(self, word: str) -> list[int]:
        """Returns the numbers of the slices in which a word starts; "" does in all."""
        if not word:
            return list(range(len(self.slices)))
        if word not in self._hits:
            found, text, at = [], self.text, self.text.find(word)
            while at >= 0:
                number = bisect_right(self._slice_starts, at) - 1
                found.append(number)
                at = text.find(word, max(at + 1, self.slices[number].end))
            self._hits[word] = found
        return self._hits[word]

    @cached_property
    def _slice_starts(self) -> Sequence[int]:
        return [one.start for one in self.slices]


def plain_part(text: str) -> str:
    """Returns a slice from its first statement on that defines nothing; "" for part of a class."""
    if text[:1] not in _NO_MARGIN and not _DEFINES.match(text):
        return text
    for match in _AT_MARGIN.finditer(text):
        if not _DEFINES.match(text, match.end()):
            return text[match.end() :]
    return ""


def defines(text: str) -> bool:
    """Tells whether source text may define a function or a class."""
    return _DEFINITION.search(text) is not None


def extent(node: ast.stmt) -> tuple[int, int]:
    """Returns the first and last line of a statement, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or node.lineno


class NewerGrammarError(Exception):
    """What `ast` is asked for can only be parsed by a newer interpreter's."""


class TooMuchError(SyntaxError):
    """Source that is more than the parser bears, whatever its grammar."""


def parse_at(line: int, source: str) -> ast.Module:
    """Parses source that starts on this line of a file, whose lines its nodes have then.

    Raises:
        SyntaxError: if it does not parse.
    """
    if line <= MOST_BLANK:  # to read past empty lines is less than to move every node
        return parse("\n" * (line - 1) + source)
    found = parse(source)
    ast.increment_lineno(found, line - 1)
    return found


def parse(source: str) -> ast.Module:
    """Parses source as the interpreter would, in silence.

    Raises:
        SyntaxError: if it does not parse; TooMuchError if it nests too deeply for that.
    """
    with warnings.catch_warnings():
        # A linted file's own SyntaxWarnings are not our user's business.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (ValueError, RecursionError, MemoryError) as err:
            raise TooMuchError(str(err) or type(err).__name__) from err

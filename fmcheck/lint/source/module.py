"""The module: one file's text, cut into slices, each parsed once and only when a rule asks."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections import Counter
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from fmcheck.finding import Finding, Span
from fmcheck.lint.source.cuts import Cuts, Slice, TooDeepError
from fmcheck.lint.source.decoding import line_starts, split_lines
from fmcheck.lint.source.imports import imports
from fmcheck.lint.source.lazy import cst
from fmcheck.lint.source.walking import walk
from fmcheck.lint.source.words import renamable, renamed, stand
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fmcheck.finding import Edit, Severity
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.imports import Import
    from fmcheck.lint.source.tree import Tree
    from fmcheck.lint.source.words import Words

#: What a method is parsed inside of, so that its columns stay those of the file.
_CLASS = "class _:\n"
_CLASS_LINE = regex(r"^\f*class[\s\\]+(\w+)", re.MULTILINE)
_WORD = regex(r"[^\W\d]\w*")
_DEFINED = regex(r"\bdef[\s\\]+(\w+)")
#: What may end a field of an f-string, or may not stand in one, before Python 3.12.
_ENDING = regex(r"""["'\\#\n{}!:]""")
#: What a class may define, or give a value, beside others too.
_BOUND = regex(
    r"\bdef[\s\\]+(\w+)|(?:\b(?:self|cls)[\s\\]*\.|^)[\s\\]*(\w+)"
    r"(?=[\s\\]*(?:=(?!=)|:|[,)\]](?:[^\n]*=|(?<=,)\n)))",
    re.MULTILINE,
)


class Reporting(Protocol):
    """A rule, as far as its findings are made of it."""

    @property
    def code(self) -> str:
        """Its code."""

    @property
    def usual_severity(self) -> Severity:
        """How much a finding weighs that does not say otherwise."""


class CutError(Exception):
    """A slice does not parse by itself: the module is to be parsed whole."""

    def where(self, text: str) -> tuple[str, int, int]:
        """Returns why a text does not parse, and at which line and column, by Python if it can."""
        import ast  # for what does not parse alone

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ast.parse(text, "source")
            except SyntaxError as err:
                if err.lineno and err.filename == "source":  # within an f-string it may be another
                    return err.msg, err.lineno, err.offset or 1
            except (ValueError, RecursionError, MemoryError):
                pass
        found = self.__cause__
        if not isinstance(found, cst.ParserSyntaxError):
            return str(found), 1, 1
        return found.message.splitlines()[-1], found.editor_line, found.editor_column


class Module:
    """A module's text. `whole` keeps it from being cut.

    A neighbour is read for another's sake: what of it does not parse is unknown.
    """

    def __init__(self, file: File, *, whole: bool = False, is_neighbour: bool = False) -> None:
        self.file = file
        self.path = file.path
        self.text = file.text
        self._whole = whole
        self.is_neighbour = is_neighbour
        #: The neighbours that were read for its sake.
        self.neighbours: list[Module] = []
        #: What the model has worked out about the module, by whoever asked.
        self.memo: dict[Any, Any] = {}
        #: Where slices nest too deeply to be parsed, and why it is too deep.
        self.too_deep: dict[int, str] = {}

    def forget(self) -> None:
        """Takes apart what refers to itself, so that it goes without the garbage collector."""
        for family in vars(self).get("families", ()):
            for stretch in family.stretches:
                vars(stretch).clear()
            vars(family).clear()
        self.memo.clear()
        vars(self).pop("families", None)
        while self.neighbours:
            self.neighbours.pop().forget()

    @property
    def identity(self) -> str:
        """Which file of an engine this is."""
        return self.file.identity

    @cached_property
    def cuts(self) -> Cuts:
        """Where the text may be cut."""
        return Cuts(self.text)

    @cached_property
    def lines(self) -> Sequence[str]:
        """The source by lines, ends included."""
        return split_lines(self.text)

    @cached_property
    def line_starts(self) -> Sequence[int]:
        """The offsets at which lines start."""
        return line_starts(self.text)

    first_line = 1

    def line_of(self, offset: int) -> int:
        """Returns the line of an offset, from 1."""
        return self.text.count("\n", 0, offset) + 1

    # Imports.

    @cached_property
    def imports(self) -> Sequence[Import]:
        """Every name that an import makes, wherever it stands."""
        return list(imports(self.text, self.cuts)) if "import" in self.text else ()

    @cached_property
    def imported(self) -> dict[str, str]:
        """Local names of imports, to the dotted name each stands for; the innermost one holds."""
        absolute = (one for one in self.imports if not one.is_relative)
        return {one.name: one.target for one in sorted(absolute, key=lambda one: one.indent)}

    def imports_of(self, name: str) -> Sequence[Import]:
        """Returns the imports that make a name, relative ones too."""
        return [one for one in self.imports if one.name == name]

    def resolve(self, dotted: str) -> str:
        """Returns what `dotted` stands for after imports: `Event` may be `torch.cuda.Event`."""
        head, dot, rest = dotted.partition(".")
        return self.imported.get(head, head) + dot + rest

    # Slices, by the words in them.

    @cached_property
    def families(self) -> Sequence[Family]:
        """The top-level slices: a class with all that is in it, or a stretch of statements."""
        if self.is_whole:
            return list(self._split())
        return [Family(self, one, list(self._cut(one))) for one in self.cuts.top_level()]

    def _cut(self, one: Slice) -> Iterator[Stretch]:
        indent = self.cuts.first_indent(one) if one.is_class else None
        if indent is None:
            yield Stretch(self, one)
            return
        head, *methods = self.cuts.methods(one, indent)
        yield Stretch(self, head, after=f"{indent}pass\n", is_head=True)
        for method in methods:
            yield Stretch(self, method, before=_CLASS)

    def _split(self) -> Iterator[Family]:
        """Yields the top-level statements of a module that is parsed in one go."""
        whole = Slice(0, len(self.text))
        stretch = Stretch(self, whole)
        try:
            end = stretch.tree.place(stretch.tree.root)[0]
        except TooDeepError as err:
            self.too_deep[err.at] = str(err)
            return
        for statement in stretch.tree.root.body:
            # From where the one before ends: decorators are part of it.
            start, end = end, stretch.tree.place(statement)[1]
            place = Slice(start, end, isinstance(statement, cst.ClassDef))
            part = Stretch(self, place, tree=stretch.tree, statement=statement)
            yield Family(self, place, [part])

    @cached_property
    def is_whole(self) -> bool:
        """Tells whether the module is parsed in one piece: it was asked for, or no cut is sure."""
        return self._whole or not self.cuts.certain

    def families_with(self, words: Words) -> Iterator[Family]:
        """Yields the top-level slices in whose text the words stand."""
        return self._families_with(self._sought(words))

    def _families_with(self, sought: Words) -> Iterator[Family]:
        if not all(sought) or (self.is_whole and not stand(sought, self.text, 0, len(self.text))):
            return
        for family in self.families:
            if stand(sought, self.text, family.place.start, family.place.end):
                yield family

    def parts_with(self, words: Words, judges: re.Pattern[str] | None = None) -> Iterator[Part]:
        """Yields the functions, methods and other statements in whose slices the words stand.

        With `judges`, only those of slices that define a function whose name it matches.
        """
        for stretch in self.slices_with(words, judges):
            yield from stretch.parts

    def slices_with(self, words: Words, judges: re.Pattern[str] | None = None) -> Iterator[Stretch]:
        """Yields the slices that hold those parts; nothing of them is parsed yet."""
        sought = self._sought(words)
        for family in self._families_with(sought):
            yield from family.slices_holding(sought, judges)

    def _sought(self, words: Words) -> Words:
        """Returns what to look for in slices: the words by all their names, as far as any stand."""
        known = self.memo.setdefault("sought", {})
        if words not in known:
            known[words] = self.left_of(self.renamed(words))
        found: Words = known[words]
        return found

    def left_of(self, words: Words) -> Words:
        """Returns the words less those that were looked for in the file and are not there."""
        lacked = self.file.is_known_to_lack
        return tuple(tuple(word for word in group if not lacked(word)) for group in words)

    def renamed(self, words: Words) -> Words:
        """Returns the words with the names that imports give to what they are about."""
        return tuple(self._other_names(group) for group in words)

    def _other_names(self, group: Iterable[str]) -> tuple[str, ...]:
        found = dict.fromkeys(group)
        targets = self._targets
        for word in group:
            plain = renamable(word)
            for one in self._renaming(plain) if plain in targets else ():
                other = renamed(word, one.name, one.target)
                if other is not None and not any(known in one.name for known in group):
                    found[other] = None
        return tuple(found)

    def _renaming(self, plain: str) -> Sequence[Import]:
        """Returns the imports that give another name to what this is a part of."""
        known: dict[str, Sequence[Import]] = self.memo.setdefault("renaming", {})
        if plain not in known:
            known[plain] = [
                one for one in self.imports if plain in one.target and plain not in one.name
            ]
        return known[plain]

    @cached_property
    def _targets(self) -> str:
        """All that the imports stand for, in one text."""
        return "\n".join(one.target for one in self.imports)

    # Functions by name.

    @cached_property
    def _definitions(self) -> dict[str, list[Stretch]]:
        """The slices that define functions of a name, by a look at the text."""
        found: dict[str, list[Stretch]] = {}
        for family in self.families:
            for stretch in family.stretches:
                for name in dict.fromkeys(stretch.defined):
                    found.setdefault(name, []).append(stretch)
        return found

    def defining(self, name: str) -> Iterator[Part]:
        """Yields the parts that define a function of this name, somewhere in them."""
        for stretch in self._definitions.get(name, ()):
            yield from stretch.parts

    def naming(self, name: str) -> Iterator[Part]:
        """Yields the parts of the slices that hold this identifier."""
        for family in self._by_word.get(name, ()):
            yield from family.naming(name)

    @cached_property
    def _by_word(self) -> dict[str, list[Family]]:
        """The families by the identifiers in them."""
        found: dict[str, list[Family]] = {}
        for family in self.families:
            for word in family.by_word:
                found.setdefault(word, []).append(family)
        return found

    def span(self, start: int, end: int) -> Span:
        """Returns the lines and columns of two offsets."""
        starts = self.line_starts
        line, last = bisect_right(starts, start), bisect_right(starts, end)
        if not starts:
            return Span(1, 1, 1, 1)
        return Span(line, start - starts[line - 1] + 1, last, end - starts[last - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """Returns the offset of a line and a column; below the last line it is the end."""
        starts = self.line_starts
        return starts[line - 1] + column - 1 if line <= len(starts) else len(self.text)


class Family:
    """What belongs together at the top of a module: a class, or some statements beside it."""

    def __init__(self, module: Module, place: Slice, stretches: list[Stretch]) -> None:
        self.module = module
        self.place = place
        self.stretches = stretches
        for stretch in stretches:
            stretch.family = self

    @property
    def is_class(self) -> bool:
        """Tells whether a class starts it."""
        return self.place.is_class

    @property
    def name(self) -> str:
        """The name of the class that it is, "" if it is none."""
        found = _CLASS_LINE.search(self.text) if self.is_class else None
        return found[1] if found is not None else ""

    @property
    def text(self) -> str:
        """Its text."""
        return self.module.text[self.place.start : self.place.end]

    @property
    def names_defined(self) -> Sequence[str]:
        """The words before its first function, and the names of the functions, by the text."""
        head, _, rest = self.text.partition("def ")
        return [*_WORD.findall(head), *_DEFINED.findall(f"def {rest}")]

    @cached_property
    def derived_from(self) -> Sequence[str]:
        """The classes that it is derived from, as they are written."""
        try:
            nodes = [one.statement or one.tree.root.body[0] for one in self.stretches[:1]]
        except CutError:
            if not self.module.is_neighbour:
                raise
            return ()
        bases = [one.bases for one in nodes if isinstance(one, cst.ClassDef)]
        return [cst.Module(()).code_for_node(one.value) for one in (bases[0] if bases else ())]

    @property
    def bases(self) -> Sequence[str]:
        """The last names of the classes that it is derived from."""
        return [text.rpartition(".")[2] for text in self.derived_from]

    @property
    def identity(self) -> str:
        """Which file of an engine it is in, for the contracts."""
        return self.module.identity

    def near(self, words: Words, judges: re.Pattern[str] | None = None) -> Iterator[Part]:
        """Yields the parts of the slices in which the words stand; all of them without words.

        With `judges`, only those of slices that define a function whose name it matches.
        """
        for stretch in self.slices_with(words, judges):
            yield from stretch.parts

    def slices_with(self, words: Words, judges: re.Pattern[str] | None = None) -> Iterator[Stretch]:
        """Yields the slices that hold those parts."""
        return self.slices_holding(self.module.left_of(words), judges)

    def slices_holding(
        self, words: Words, judges: re.Pattern[str] | None = None
    ) -> Iterator[Stretch]:
        """Yields the same, of words that were looked for in the whole file before."""
        for stretch in self.stretches:
            if stretch.holds(words) and (judges is None or any(map(judges.match, stretch.defined))):
                yield stretch

    @property
    def first_line(self) -> int:
        """The line on which it starts, blank lines left out."""
        text, start = self.module.text, self.place.start
        blank = len(text) - start - len(text[start:].lstrip())
        return self.module.line_of(start + blank)

    @cached_property
    def by_word(self) -> dict[str, list[Stretch]]:
        """The slices by the identifiers in them."""
        found: dict[str, list[Stretch]] = {}
        for stretch in self.stretches:
            for word in set(_WORD.findall(stretch.text)):
                found.setdefault(word, []).append(stretch)
        return found

    def naming(self, *names: str) -> Iterator[Part]:
        """Yields the parts of the slices that hold one of these identifiers."""
        for stretch in self.slices_naming(*names):
            yield from stretch.parts

    def slices_naming(self, *names: str) -> Iterable[Stretch]:
        """Returns the slices that hold one of these identifiers."""
        return dict.fromkeys(one for name in names for one in self.by_word.get(name, ()))

    def binding(self, name: str) -> Iterator[Part]:
        """Yields the parts of the slices that may define `name`, or give it a value."""
        for stretch in self.by_word.get(name, ()):
            if name in stretch.bound:
                yield from stretch.parts

    @property
    def parts(self) -> Iterator[Part]:
        """All parts of it."""
        return self.near(())


class Stretch:
    """One slice of a module that is parsed by itself."""

    def __init__(
        self,
        module: Module,
        place: Slice,
        *,
        before: str = "",
        after: str = "",
        is_head: bool = False,
        tree: Tree | None = None,
        statement: cst.CSTNode | None = None,
    ) -> None:
        self.module = module
        self.place = place
        self._before = before
        self._after = after
        self._is_head = is_head
        self.statement = statement
        self.family: Family | None = None
        if tree is not None:
            self.tree = tree

    @property
    def text(self) -> str:
        """The text of the slice."""
        return self.module.text[self.place.start : self.place.end]

    def holds(self, words: Words) -> bool:
        """Tells whether the words stand in the slice."""
        return stand(words, self.module.text, self.place.start, self.place.end)

    @cached_property
    def defined(self) -> Sequence[str]:
        """The names of the functions in it, by a look at the text."""
        return _DEFINED.findall(self.text)

    @cached_property
    def bound(self) -> Collection[str]:
        """The names that it may define, or give a value, by a look at the text."""
        return {*chain.from_iterable(_BOUND.findall(self.text))}

    @cached_property
    def tree(self) -> Tree:
        """The slice as libcst sees it.

        Raises:
            CutError: if it does not parse by itself.
            TooDeepError: if it nests too deeply to be parsed.
        """
        from fmcheck.lint.source.tree import KEPT, Tree

        text, kept = self.text + self._after, KEPT.get()
        try:
            if kept is not None:
                return kept.tree(
                    text, self._before, self.module.memo.setdefault("trees", Counter())
                )
            return Tree(text, self._before)
        except cst.ParserSyntaxError as err:
            raise CutError from err

    @cached_property
    def parts(self) -> Sequence[Part]:
        """The statements of the slice; of a class, those of its body. None if it is too deep."""
        try:
            return list(self._parts())
        except TooDeepError as err:
            self.module.too_deep[self.place.start + err.at] = str(err)
            return ()
        except CutError:
            if not self.module.is_neighbour:
                raise
            return ()

    def _parts(self) -> Iterator[Part]:
        body = [self.statement] if self.statement is not None else list(self.tree.root.body)
        if self._is_head and not isinstance(body[-1], cst.ClassDef):
            raise CutError  # what is defined here is not of the class
        for statement in body:
            if isinstance(statement, cst.ClassDef):
                inside: Sequence[cst.CSTNode] = statement.body.body
                if self._is_head:
                    inside = inside[:-1]
                owner = None if self._before else statement
                yield from (Part(self, one, owner, is_nested=True) for one in inside)
            else:
                yield Part(self, statement, None, is_nested=False)


class Part:
    """One statement as rules see it: a function, a method, or what stands beside them."""

    def __init__(
        self, stretch: Stretch, node: cst.CSTNode, owner: cst.ClassDef | None, *, is_nested: bool
    ) -> None:
        self.stretch = stretch
        self.module = stretch.module
        self.node = node
        #: Whether it stands in the body of a class.
        self.is_nested = is_nested
        self._owner = owner

    @property
    def path(self) -> str:
        """The file's path, as findings name it."""
        return self.module.path

    @property
    def first_line(self) -> int:
        """The line on which it starts."""
        return self.span(self.node).line

    @property
    def identity(self) -> str:
        """Which file of an engine the part is in, for the contracts."""
        return self.module.identity

    @cached_property
    def _nodes(self) -> Sequence[cst.CSTNode]:
        return walk(self.node)

    def nodes(self, root: cst.CSTNode | None = None) -> Sequence[cst.CSTNode]:
        """Returns every node of the part, or at and below `root`, in the order of the source."""
        return self._nodes if root is None else walk(root)

    @property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """What each node of the slice stands in."""
        return self.stretch.tree.parents

    def code(self, node: cst.CSTNode) -> str:
        """Returns the source of a node, whatever part it is of."""
        if isinstance(node, cst.Name) and not node.lpar:
            return node.value
        known: dict[cst.CSTNode, str] = self.module.memo.setdefault("codes", {})
        if node not in known:
            # libcst refuses to make an empty tuple that has none.
            has_own = getattr(node, "lpar", ()) and not (
                isinstance(node, cst.Tuple) and not node.elements
            )
            bare = node.with_changes(lpar=(), rpar=()) if has_own else node
            known[node] = cst.Module(()).code_for_node(bare)
        return known[node]

    def span(self, node: cst.CSTNode) -> Span:
        """Returns where a node of this part stands in the file."""
        return self.module.span(*self.place(node))

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns where a node of this part starts and ends, as offsets in the file."""
        start, end = self.stretch.tree.place(node)
        first = 0 if self.stretch.statement is not None else self.stretch.place.start
        return first + start, first + end

    def finding(
        self,
        rule: Reporting,
        node: cst.CSTNode,
        message: str,
        *,
        note: str = "",
        help: str = "",
        severity: Severity | None = None,
        related: Sequence[tuple[cst.CSTNode | Span, str]] = (),
        edits: Sequence[Edit] = (),
        safe: bool = True,
    ) -> Finding:
        """Makes a finding of `rule` at `node`: `message` is its headline, `note` says the rest."""
        return Finding(
            path=self.path,
            span=self.span(node),
            code=rule.code,
            severity=severity or rule.usual_severity,
            message=message,
            note=note,
            help=help,
            related=tuple(
                (other if isinstance(other, Span) else self.span(other), text)
                for other, text in related
            ),
            edits=() if any(map(self._harms, edits)) else tuple(edits),
            safe=safe,
        )

    def _harms(self, edit: Edit) -> bool:
        """Tells whether an edit takes a comment out, or puts into an f-string what may end it."""
        span, offset = edit.span, self.module.offset
        start, end = offset(span.line, span.column), offset(span.end_line, span.end_column)
        if self.module.text.count("#", start, end) > edit.text.count("#"):
            return True
        return bool(_ENDING.search(edit.text)) and any(
            first < start and end < last for first, last in self._f_strings
        )

    @cached_property
    def _f_strings(self) -> Sequence[tuple[int, int]]:
        """Where the f-strings of the part stand."""
        return [self.place(one) for one in self._nodes if isinstance(one, cst.FormattedString)]

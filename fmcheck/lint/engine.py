"""Runs rules over files: needles, texts of slices, their `ast`, trees; each for what was left."""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from fmcheck.finding import Finding, Severity, Span
from fmcheck.lint.block import Block
from fmcheck.lint.facts import ModuleFacts
from fmcheck.lint.identity import identity_of
from fmcheck.lint.module import Module, NewerGrammarError, TooMuchError, extent, parse
from fmcheck.lint.nodes import MOST_DEPTH, depth
from fmcheck.lint.rule import Rule, Scope
from fmcheck.lint.sieve import Sieve
from fmcheck.lint.source import decode, is_text, read
from fmcheck.lint.time_limit import OutOfTimeError, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fmcheck.lint.slices import Slice

#: The code of a file that could not be read or parsed. No selection turns it off.
UNREADABLE = "FM001"
#: The code of a rule that failed on a file. No selection turns it off either.
FAILED = "FM002"
#: What a rule may end with: one that calls `sys.exit` would end the run with a status of its own.
FAILURES = (Exception, SystemExit)
#: Brackets nested deeper than CPython's own limit may end libcst, and its process with it.
MOST_BRACKETS = 200
#: Seconds of processor time for the rules of one file, and more for each of its characters: a file
#: that is all findings takes 6 s for a million, on a slow machine twice that.
MOST_SECONDS, MORE_SECONDS = 4.0, 20e-6
#: Encodings in which a word's bytes are those of its letters, and nothing else's.
_PLAIN = ("utf-8", "utf-8-sig")
_BRACKETS = re.compile(r"[()\[\]{}]")


def lint_file(path: Path, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the findings of one file, sorted; a file that cannot be read is one finding."""
    try:
        text = read(path)
    except OSError as err:
        return [unreadable(str(path), f"cannot be read: {err.strerror or err}")]
    return lint_text(text, str(path), rules)


def lint_text(
    text: bytes, path: str, rules: Sequence[Rule], *, whole: bool = False
) -> list[Finding]:
    """Returns the findings of a file's bytes, as `path` would be linted.

    A file that concerns no rule is not parsed. `whole` switches the cheap stages off: every block
    of the whole tree is given to every rule.
    """
    if not is_text(text):
        return [unreadable(path, f"cannot be decoded: {_why_not_text(text)}")]
    found: list[Finding] = []
    seen: dict[bytes, bool] = {}
    concerned = list(rules) if whole else list(_concerned(text, rules, path, found, seen))
    if concerned:
        try:
            decoded = decode(text)
            is_plain = decoded.encoding in _PLAIN
            absent = [one.decode() for one, holds in seen.items() if is_plain and not holds]
            found += _lint_source(decoded.source, path, concerned, whole, absent)
        except (SyntaxError, UnicodeDecodeError, LookupError) as err:
            found.append(unreadable(path, f"cannot be decoded: {err}"))
    return sorted(found, key=lambda finding: finding.sort_key)


def _why_not_text(text: bytes) -> str:
    try:
        decode(text)
    except (SyntaxError, UnicodeDecodeError, LookupError) as err:
        return str(err)
    return "it holds null bytes"


def _concerned(
    text: bytes,
    rules: Sequence[Rule],
    path: str,
    failed: list[Finding],
    seen: dict[bytes, bool],
) -> Iterator[Rule]:
    """Yields the rules whose needles stand in a text, and that are concerned by it.

    `seen` takes in which needles do, of those that were looked for.
    """

    known: list[str] = []

    def wants(number: int) -> bool:
        if number not in rare:
            return True
        if not known:
            known.append(identity_of(path))
        return rules[number].concerns_path(known[0])

    sieve, rare = _sieve(tuple(rules))
    for number in sieve.held(text, wants, seen):
        rule = rules[number]
        try:
            if type(rule).concerns is Rule.concerns or rule.concerns(text):
                yield rule
        except FAILURES as err:
            failed.append(_failed(rule, path, err))


@lru_cache(maxsize=8)
def _sieve(rules: tuple[Rule, ...]) -> tuple[Sieve, frozenset[int]]:
    """Returns the sieve of some rules, and the numbers of those that ask for a file's path."""
    rare = frozenset(
        number
        for number, rule in enumerate(rules)
        if type(rule).concerns_path is not Rule.concerns_path
    )
    return Sieve([rule.needles for rule in rules], rare), rare


def _lint_source(
    source: str, path: str, rules: Sequence[Rule], whole: bool, absent: Sequence[str]
) -> Sequence[Finding]:
    """Lints decoded source; one finding tells of source that cannot be parsed."""
    try:
        return _lint_module(Module(source, absent, whole=whole), path, rules, whole)
    except SyntaxError:
        pass  # It may be a slice that was cut wrongly: the whole file decides.
    try:
        parse(source)
    except SyntaxError as err:
        if isinstance(err, TooMuchError) or not _is_newer_grammar(source):
            why = f"does not parse: {err.msg}"
            return [unreadable(path, why, err.lineno or 1, err.offset or 1)]
        return _lint_module(Module(source, newer=True), path, rules, whole)
    return _lint_module(Module(source, whole=True), path, rules, whole)


def _lint_module(module: Module, path: str, rules: Sequence[Rule], whole: bool) -> list[Finding]:
    facts = ModuleFacts(module, path)
    found: list[Finding] = []
    done = 0
    most = MOST_SECONDS + MORE_SECONDS * len(module.text)
    try:
        with within(most):
            for rule in rules:
                module.missed = False
                by_rule = _by_rule(rule, facts, whole)
                if module.missed and not by_rule:
                    by_rule.append(_too_new(rule, facts, 1))
                found += by_rule
                done += 1
    except OutOfTimeError:
        left = [one.code for one in rules[done:]]
        why = f"could not be checked for {', '.join(left)}: rules took over {most:.1f} s"
        found.append(unreadable(path, f"{why} of processor time", left_out="the rest"))
    facts.forget()
    return found


def _by_rule(rule: Rule, facts: ModuleFacts, whole: bool) -> list[Finding]:
    """Returns what one rule finds in a module, with one finding more for each time that it fails.

    Raises:
        SyntaxError: if the file, or what was taken for a part of it, does not parse.
    """
    found: list[Finding] = []
    try:
        if not rule.concerns_module(facts):
            return found
        if not (whole or rule.may_stand_in(facts.module.text, facts)):
            return found
        words = () if whole else (*rule.words(), *_aliases(rule, facts))
        for node in _nodes(rule, facts, words, whole):
            found += _check(rule, node, facts, whole)
    except SyntaxError:
        raise
    except NewerGrammarError:
        found.append(_too_new(rule, facts, 1))
    except FAILURES as err:
        found.append(_failed(rule, facts.path, err))
    return found


def _nodes(
    rule: Rule, facts: ModuleFacts, words: Sequence[str], whole: bool
) -> Iterator[ast.AST | Slice]:
    """Yields the blocks that a rule is to look at, less those that their text clears."""
    module = facts.module
    if whole:
        return module.nodes(rule.scope, words)

    def is_clear(one: Slice) -> bool:
        parts = module.methods_with(one, rule.looks_into)
        return parts is not None and not rule.suspects(ast.Module(parts, []), facts)

    is_partial = rule.scope is Scope.CLASS and type(rule).looks_into is not Rule.looks_into
    return module.nodes(
        rule.scope,
        words,
        lambda text: rule.may_stand_in(text, facts),
        is_clear if is_partial else None,
    )


def _aliases(rule: Rule, facts: ModuleFacts) -> Iterator[str]:
    """Yields the names that imports give to what a rule's words are about."""
    if rule.scope is Scope.MODULE:
        return
    for word in rule.words():
        if word.isidentifier() and facts.may_rename(word):
            for name, target in facts.imported.items():
                if word in target.rpartition(".")[2] != name:
                    yield name


def _check(rule: Rule, node: ast.AST | Slice, facts: ModuleFacts, whole: bool) -> Sequence[Finding]:
    """Returns a rule's findings in one block; a rule that fails is one finding more."""
    first = 1
    found: list[Finding] = []
    try:
        if isinstance(node, ast.AST):
            if not whole and not rule.suspects(node, facts):
                return ()
            first = _line(node)
            if depth(node) > MOST_DEPTH:
                why = f"could not be checked for {rule.code}: it nests too deeply"
                return [unreadable(facts.path, why, first, left_out="this part of the file")]
        first, last = _lines(node, facts.module)
        parsed = node if isinstance(node, ast.stmt) else None
        # What it finds before an error is kept.
        found.extend(rule.check(Block.at(facts, first, last, parsed)))
    except NewerGrammarError:
        found.append(_too_new(rule, facts, first))
    except SyntaxError:
        if not facts.module.newer:
            raise  # of the file, from whatever part of it the rule asked for
        found.append(_too_new(rule, facts, first))
    except (RecursionError, MemoryError) as err:
        why = f"could not be checked for {rule.code}: {str(err) or type(err).__name__}"
        found.append(unreadable(facts.path, why, first, left_out="the rest of this part"))
    except FAILURES as err:
        found.append(_failed(rule, facts.path, err, first))
    return found


def _too_new(rule: Rule, facts: ModuleFacts, line: int) -> Finding:
    """Tells of a part that a rule looks at by `ast`, which does not know its grammar."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    why = f"could not be checked for {rule.code}: its grammar is newer than Python {version}"
    return unreadable(facts.path, why, line, left_out="run fmcheck on the Python of the file: this")


def _lines(node: ast.AST | Slice, module: Module) -> tuple[int, int]:
    """Returns the first and last line of a block."""
    if isinstance(node, ast.Module):
        return 1, len(module.lines)
    if isinstance(node, ast.stmt):
        return extent(node)
    assert not isinstance(node, ast.AST)
    return module.line_of(node.start), module.line_of(max(node.end - 1, node.start))


def _line(node: ast.AST) -> int:
    return extent(node)[0] if isinstance(node, ast.stmt) else 1


def _is_newer_grammar(source: str) -> bool:
    """Tells whether libcst, which knows newer grammar than the interpreter, parses a source."""
    depth = 0
    for match in _BRACKETS.finditer(source):
        depth += 1 if match[0] in "([{" else -1
        if depth > MOST_BRACKETS:
            return False
    if not hasattr(os, "fork"):
        return _libcst_parses(source)
    # Nobody has looked at this text yet, and some texts end libcst's process: not this one.
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if _libcst_parses(source) else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _libcst_parses(source: str) -> bool:
    import libcst

    try:
        libcst.parse_module(source)
    except Exception:
        return False
    return True


def _failed(rule: Rule, path: str, err: BaseException, line: int = 1) -> Finding:
    """Tells of an error in a rule: which, where in the rule, and on which file."""
    import traceback

    last = traceback.extract_tb(err.__traceback__)[-1]
    return Finding(
        path=path,
        span=Span(line, 1, line, 2),
        code=FAILED,
        severity=Severity.ERROR,
        message=f"rule {rule.code} failed here: {type(err).__name__}: {err}",
        help=f"a fault of the rule, in `{last.name}`, line {last.lineno}; its other findings in "
        "this file may be missing",
    )


def unreadable(
    path: str, why: str, line: int = 1, column: int = 1, left_out: str = "this file"
) -> Finding:
    """Tells of a file that could not be checked."""
    column = max(column, 1)
    return Finding(
        path=path,
        span=Span(line, column, line, column + 1),
        code=UNREADABLE,
        severity=Severity.ERROR,
        message=f"file {why}",
        help=f"{left_out} was not checked",
    )

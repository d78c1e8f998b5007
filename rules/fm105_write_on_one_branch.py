"""FM105: a relay buffer that is written on one branch, and read on all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.model.accesses import Accesses, RelayAccess
from fmcheck.lint.model.function import classes
from fmcheck.lint.relay_rule import RelayClassRule
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.flow import Flow
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family, Part

RELAY = "sglang/srt/managers/overlap_utils.py"
#: A test of what kind something is, its spaces taken out.
_KIND = regex(r"\.is_\w+\(\)|isinstance\(")


class Method(Struct, frozen=True):
    """A method of a relay class, its paths, and what it does to the buffers."""

    flow: Flow
    accesses: Accesses
    node: Function


class WriteOnOneBranch(RelayClassRule):
    """A relay buffer that is written on one branch, and read on all.

    ## What it does
    Looks, in a relay class of the contract, for a buffer that one branch of an `if` with `else`
    writes, while another writes other buffers by rows and not this one; and for a buffer of which
    every write in the class is under a test of a kind (`if algorithm.is_eagle():`). Both only
    if a method gathers the buffer without having made the same test.

    ## Why is this bad
    The step that takes the other branch leaves the row as it was: the next one gathers what an
    older step or another request left there, or what nobody ever wrote.

    ## Example
    ```python
    def stash(self, rows, payload):
        if payload.is_draft:
            self.output_tokens_buf[rows] = payload.bonus_tokens
            self.new_seq_lens_buf[rows] = payload.lengths
        else:
            self.output_tokens_buf[rows] = payload.tokens
    ```

    ## Use instead
    ```python
    def stash(self, rows, payload):
        self.output_tokens_buf[rows] = payload.bonus_tokens if payload.is_draft else payload.tokens
        self.new_seq_lens_buf[rows] = payload.lengths
    ```
    """

    code = "FM105"
    name = "write-on-one-branch"
    severity = Severity.WARNING
    in_own_module = True
    seen_in = ("https://github.com/sgl-project/sglang/pull/31513",)

    bad = (
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if payload.is_draft:
            self.output_tokens_buf[rows] = payload.bonus_tokens
            self.new_seq_lens_buf[rows] = payload.lengths
        else:
            self.output_tokens_buf[rows] = payload.tokens

    def resolve(self, batch):
        return self.output_tokens_buf[batch.rows], self.new_seq_lens_buf[batch.rows]
""",
            at=((5, 13),),
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def seed(self, rows, payload):
        if self.algorithm.is_eagle():
            self.topk_p_buf[rows] = payload.topk_p

    def resolve(self, batch):
        if self.algorithm.is_eagle() or self.algorithm.is_standalone():
            batch.topk_p = self.topk_p_buf[batch.rows]
""",
            at=((4, 13),),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if self.algorithm.is_none():
            self.token_ids_buf[rows] = payload.tokens
        else:
            self.topk_p_buf[rows] = payload.topk_p

    def resolve(self, batch):
        if self.algorithm.is_none():
            batch.tokens = self.token_ids_buf[batch.rows]
            return
        batch.topk_p = self.topk_p_buf[batch.rows]
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if payload is self.published:
            self.published = None
        else:
            self.output_tokens_buf[rows] = payload.tokens
        if payload.is_draft:
            self.topk_p_buf[rows] = payload.topk_p
        elif payload.is_mixed:
            self.topk_p_buf[rows] = 0.0
            self.output_tokens_buf[rows] = payload.tokens
        else:
            raise TypeError

    def resolve(self, batch):
        return self.output_tokens_buf[batch.rows], self.topk_p_buf[batch.rows]
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def seed(self, rows, payload):
        if self.algorithm.is_eagle():
            self.topk_p_buf[rows] = payload.topk_p

    def stash(self, rows, payload):
        if payload.topk_p is not None:
            self.topk_p_buf[rows] = payload.topk_p

    def resolve(self, batch):
        batch.topk_p = self.topk_p_buf[batch.rows]
""",
            path=RELAY,
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding at each write that a gather needs and a branch lacks."""
        for owner, methods in classes(family):
            if self.is_relay(owner, family.module.identity):
                yield from self._in_class(
                    [Method(one.flow, Accesses(one, self.relays), one) for one in methods]
                )

    def _in_class(self, methods: Sequence[Method]) -> Iterator[Finding]:
        for method in methods:
            part = method.node.part
            for write, test in _missing_beside(method):
                if _is_gathered_without(write.buffer, part.code(test), methods):
                    yield self._finding(write, test, "the other branch leaves it stale", part)
        for method, write, test in _by_kind_only(methods):
            yield self._finding(write, test, "nothing else writes it", method.node.part)

    def _finding(self, write: RelayAccess, test: CSTNode, what: str, part: Part) -> Finding:
        return part.finding(
            self,
            write.node,
            f"relay buffer `{write.buffer}` is written under a test, and gathered without it",
            note=f"it is written only if `{part.code(test)}`: {what}",
            help=f"write `{write.buffer}` on every branch, or gather it under the same test",
        )


def _missing_beside(method: Method) -> Iterator[tuple[RelayAccess, CSTNode]]:
    """Yields the writes of a branch that a sibling, which writes other buffers, lacks."""
    writes = [one for one in _writes(method) if method.flow.contains(one.node)]
    for node in method.node.nodes:
        if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
            sides = (_within(node.body, writes), _within(node.orelse, writes))
            elsewhere = [one for one in writes if one not in sides[0] and one not in sides[1]]
            for here, there in (sides, sides[::-1]):
                written = {one.buffer for one in (*there, *elsewhere)}
                for write in here if there else ():
                    if write.buffer not in written:
                        yield write, node.test


def _writes(method: Method) -> Sequence[RelayAccess]:
    return [one for one in method.accesses.writes if one.is_declared]


def _within(suite: CSTNode, writes: Sequence[RelayAccess]) -> list[RelayAccess]:
    inside = {id(node) for node in walk(suite)}
    return [one for one in writes if id(one.node) in inside]


def _is_gathered_without(buffer: str, test: str, methods: Sequence[Method]) -> bool:
    """Tells whether a method gathers a buffer where the outcome of a test is not known."""
    text = "".join(test.split())
    return any(
        text not in (known.text for known in method.flow.known(gather.node))
        for method in methods
        for gather in method.accesses.gathers
        if gather.buffer == buffer and method.flow.contains(gather.node)
    )


def _by_kind_only(methods: Sequence[Method]) -> Iterator[tuple[Method, RelayAccess, CSTNode]]:
    """Yields the first write of each buffer that is written for some kinds only."""
    writes: dict[str, list[Mapping[str, CSTNode]]] = {}
    first: dict[str, tuple[Method, RelayAccess]] = {}
    for method in methods:
        for write in _writes(method):
            if not write.is_constant and method.flow.contains(write.node):
                known = method.flow.known(write.node)
                kinds = {
                    one.text: one.test for one in known if one.holds and _KIND.search(one.text)
                }
                writes.setdefault(write.buffer, []).append(kinds)
                first.setdefault(write.buffer, (method, write))
    for buffer, tests in writes.items():
        shared = set(tests[0]).intersection(*tests[1:])
        for text in sorted(shared):
            if _is_gathered_without(buffer, text, methods):
                yield *first[buffer], tests[0][text]

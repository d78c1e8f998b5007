"""FM105: a relay buffer that is written on one branch, and read on all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.lint import Example, Judged, Severity, cst, dotted
from fmcheck.lint.model.accesses import Accesses, RelayAccess, accesses_of
from fmcheck.lint.model.expressions import squeezed
from fmcheck.lint.model.flow import leaves
from fmcheck.lint.model.function import classes
from fmcheck.lint.relay_rule import RelayClassRule
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Family, Part

RELAY = "sglang/srt/managers/overlap_utils.py"
#: A test of what kind something is, its spaces taken out.
_KIND = regex(r"\.is_\w+\(\)|isinstance\(")
#: What holds a name: the payload of a step and its batch are asked for the same mode.
_HOLDER = regex(r"\w+\.(?=[^\W\d])")


class WriteOnOneBranch(RelayClassRule):
    """A relay buffer that is written on one branch, and read on all.

    ## What it does
    Looks, in a relay class of the contract, for a buffer that one branch of an `if` with `else`
    writes, while another writes other buffers by rows and not this one; and for a buffer of which
    every write in the class is under a test of a kind (`if algorithm.is_eagle():`). Both only
    if a method gathers the buffer without having made the same test. What a method of the class
    writes counts where another one calls it. An `elif` and a `case` are
    branches, and so is what comes after an `if` that returns or raises.

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
            self._stash_tokens(rows, payload)
            self.new_seq_lens_buf[rows] = payload.lengths
        else:
            self._stash_tokens(rows, payload)

    def _stash_tokens(self, rows, payload):
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
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if payload.is_extend:
            self.output_tokens_buf[rows] = payload.tokens
            self.new_seq_lens_buf[rows] = payload.lengths
        elif payload.is_decode:
            self.output_tokens_buf[rows] = payload.tokens
            self.new_seq_lens_buf[rows] = payload.lengths + 1
        else:
            self.output_tokens_buf[rows] = payload.bonus_tokens

    def seed(self, rows, payload):
        if payload.is_draft:
            self.topk_p_buf[rows] = payload.topk_p
            return
        self.topk_p_buf[rows] = 0.0
        self.topk_index_buf[rows] = payload.index

    def resolve(self, batch):
        batch.lengths = self.new_seq_lens_buf[batch.rows]
        return self.output_tokens_buf[batch.rows], self.topk_index_buf[batch.rows]
""",
            at=((5, 13), (17, 9)),
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        match payload.mode:
            case "extend":
                self.output_tokens_buf[rows] = payload.tokens
                self.new_seq_lens_buf[rows] = payload.lengths
            case _:
                self.output_tokens_buf[rows] = payload.tokens

    def resolve(self, batch):
        return self.output_tokens_buf[batch.rows], self.new_seq_lens_buf[batch.rows]
""",
            at=((6, 17),),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if payload.is_draft:
            self._stash_tokens(rows, payload)
            self.new_seq_lens_buf[rows] = payload.lengths
        else:
            self.output_tokens_buf[rows] = payload.tokens
            self.new_seq_lens_buf[rows] = payload.lengths

    def _stash_tokens(self, rows, payload):
        self.output_tokens_buf[rows] = payload.bonus_tokens

    def resolve(self, batch):
        return self.output_tokens_buf[batch.rows], self.new_seq_lens_buf[batch.rows]
""",
            path=RELAY,
        ),
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
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        self.new_seq_lens_buf[rows] = payload.lengths
        if payload.is_draft:
            self.output_tokens_buf[rows] = payload.bonus_tokens
            return
        self.output_tokens_buf[rows] = payload.tokens

    def seed(self, rows, payload):
        match payload.mode:
            case "verify":
                self.topk_p_buf[rows] = payload.topk_p
            case "idle":
                return
            case _:
                self.topk_index_buf[rows] = payload.index

    def resolve(self, batch):
        match batch.payload.mode:
            case "verify":
                batch.topk_p = self.topk_p_buf[batch.rows]
            case _:
                batch.index = self.topk_index_buf[batch.rows]
        return self.output_tokens_buf[batch.rows], self.new_seq_lens_buf[batch.rows]
""",
            path=RELAY,
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding at each write that a gather needs and a branch lacks."""
        for owner, methods in classes(family):
            if self.is_relay(owner, family.module.identity):
                yield from self._in_class([accesses_of(one, self.relays) for one in methods])

    def _in_class(self, methods: Sequence[Accesses]) -> Iterator[Finding]:
        by_call = {f"self.{one.function.name}": one for one in methods}
        for method in methods:
            part = method.function.part
            for write, beside, tests in _missing_beside(method, by_call):
                if _is_gathered_without(write.buffer, tests, methods):
                    line = part.span(beside.node).line
                    note = (
                        f"the branch that writes `{beside.buffer}` on line {line} leaves it stale"
                    )
                    yield self._finding(write, note, part)
        for method, write, test in _by_kind_only(methods):
            part = method.function.part
            note = f"it is written only if `{part.code(test)}`: nothing else writes it"
            yield self._finding(write, note, part)

    def _finding(self, write: RelayAccess, note: str, part: Part) -> Finding:
        return part.finding(
            self,
            write.node,
            f"relay buffer `{write.buffer}` is written under a test, and gathered without it",
            note=note,
            help=f"write `{write.buffer}` on every branch, or gather it under the same test",
        )


def _missing_beside(
    method: Accesses, by_call: Mapping[str, Accesses]
) -> Iterator[tuple[RelayAccess, RelayAccess, AbstractSet[str]]]:
    """Yields a write that another branch, which writes other buffers, lacks.

    With it come what that branch writes first, and the texts of the tests that choose a branch.
    """
    function = method.function
    own = [one for one in _writes(method) if function.flow.contains(one.node)]
    writes = [*own, *(_by_calls(method, by_call) if own else ())]
    is_own = set(own)
    for tests, suites in _choices(function) if own else ():
        texts = {_asked(squeezed(function.part.code(test))) for test in tests}
        sides = [_within(suite, writes, function) for suite in suites]
        inside = [one for side in sides for one in side]
        nodes = {one.node for one in inside}
        elsewhere = {one.buffer for one in writes if one.node not in nodes}
        for there in sides:
            written = elsewhere | {one.buffer for one in there}
            for write in inside if there else ():
                if write.buffer not in written and write in is_own:
                    written.add(write.buffer)
                    yield write, there[0], texts


def _choices(
    function: Function,
) -> Iterator[tuple[Sequence[CSTNode], Sequence[Sequence[CSTNode]]]]:
    """Yields the tests of each choice between branches, and the branches: one of them is taken.

    What comes after an `if` that leaves is a branch as an `else` is.
    """
    for node in function.nodes:
        if isinstance(node, cst.Match):
            yield [node.subject], [[case.body] for case in node.cases]
        outer = function.parents.get(node)
        if not isinstance(node, cst.If) or (isinstance(outer, cst.If) and outer.orelse is node):
            continue
        tests, suites = [node.test], [[node.body]]
        last = node.orelse
        while isinstance(last, cst.If):
            tests.append(last.test)
            suites.append([last.body])
            last = last.orelse
        if last is not None:
            yield tests, [*suites, [last]]
        elif all(leaves(suite) for (suite,) in suites):
            beside = getattr(outer, "body", ())
            yield tests, [*suites, beside[beside.index(node) + 1 :]]


def _writes(method: Accesses) -> Sequence[RelayAccess]:
    return [one for one in method.writes if one.is_declared]


def _by_calls(method: Accesses, by_call: Mapping[str, Accesses]) -> Iterator[RelayAccess]:
    """Yields what a method writes by calls of the class's other methods, at these calls."""
    for call in method.function.calls:
        other = by_call.get(dotted(call.func) or "")
        if other is not None and method.function.flow.contains(call):
            yield from (replace(one, node=call) for one in _writes(other))


def _within(
    suite: Sequence[CSTNode], writes: Sequence[RelayAccess], function: Function
) -> Sequence[RelayAccess]:
    if not suite:
        return ()
    first, end = function.order[suite[0]], function.end(suite[-1])
    return [one for one in writes if first <= function.order[one.node] < end]


def _is_gathered_without(buffer: str, tests: AbstractSet[str], methods: Sequence[Accesses]) -> bool:
    """Tells whether a method gathers a buffer where the outcome of none of some tests is known."""
    return any(
        tests.isdisjoint(
            text
            for known in method.function.flow.known(gather.node)
            for text in (_asked(known.text), _asked(known.text.partition(":")[0]))
        )
        for method in methods
        for gather in method.gathers
        if gather.buffer == buffer and method.function.flow.contains(gather.node)
    )


def _asked(text: str) -> str:
    """Returns what a test asks, whichever object it asks."""
    return _HOLDER.sub("", text)


def _by_kind_only(methods: Sequence[Accesses]) -> Iterator[tuple[Accesses, RelayAccess, CSTNode]]:
    """Yields the first write of each buffer that is written for some kinds only."""
    writes: dict[str, list[Mapping[str, CSTNode]]] = {}
    first: dict[str, tuple[Accesses, RelayAccess]] = {}
    for method in methods:
        flow = method.function.flow
        for write in _writes(method):
            if not write.is_constant and flow.contains(write.node):
                known = flow.known(write.node)
                kinds = {
                    one.text: one.test for one in known if one.holds and _KIND.search(one.text)
                }
                writes.setdefault(write.buffer, []).append(kinds)
                first.setdefault(write.buffer, (method, write))
    for buffer, tests in writes.items():
        shared = set(tests[0]).intersection(*tests[1:])
        for text in sorted(shared):
            if _is_gathered_without(buffer, {_asked(text)}, methods):
                yield *first[buffer], tests[0][text]

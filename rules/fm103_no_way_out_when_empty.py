"""FM103: a relay method that goes on when the batch has no rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.model.accesses import Accesses
from fmcheck.lint.model.function import functions
from fmcheck.lint.relay_rule import RelayRule
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.lint.model.flow import KnownTest
    from fmcheck.lint.source.module import Part

RELAY = "sglang/srt/managers/overlap_utils.py"
#: What a test for "no rows" looks like, its spaces taken out.
_ASKS = regex(r"empty|idle|numel\(\)|\.shape\[0\]|\.size\(0\)|len\(|(==|!=|>|<=|<)0\b|^not\w+$")


class NoWayOutWhenEmpty(RelayRule):
    """A relay method without an early return for an empty batch.

    ## What it does
    Looks at the methods of a relay class that write rows of its buffers, and asks for a test of
    the number of rows before the first write, whose other outcome leaves or goes around it.

    ## Why is this bad
    An idle rank of data-parallel attention runs with an empty batch. A method that makes its
    buffers from the first payload peeks at row 0 of it and fails; one that goes on to record an
    event tells its waiters of a step that never was.

    ## Example
    ```python
    def stash(self, rows, payload):
        self.output_tokens_buf[rows] = payload.bonus_tokens
    ```

    ## Use instead
    ```python
    def stash(self, rows, payload):
        if rows.shape[0] == 0:
            return  # an idle rank
        self.output_tokens_buf[rows] = payload.bonus_tokens
    ```
    """

    code = "FM103"
    name = "no-way-out-when-empty"
    severity = Severity.NOTE
    in_own_module = True
    seen_in = ("https://github.com/sgl-project/sglang/pull/25862",)
    on_by_default = False

    bad = (
        Example(
            """\
class FutureMap:
    def publish(self, rows, lengths):
        if self.event is None:
            return
        self.new_seq_lens_buf[rows] = lengths
        self.event.record()
""",
            at=((5, 9),),
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        self._make_bufs(payload)
        self.output_tokens_buf.index_copy_(0, rows, payload.tokens)
        if rows.shape[0] == 0:
            return
        self.topk_p_buf[rows] = payload.topk_p
""",
            at=((4, 9),),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
class FutureMap:
    def publish(self, rows, lengths):
        if rows.shape[0] == 0:
            return
        self.new_seq_lens_buf[rows] = lengths
""",
            path=RELAY,
        ),
        Example(
            """\
class FutureMap:
    def stash(self, rows, payload):
        if payload.tokens.numel() > 0:
            self.output_tokens_buf[rows] = payload.tokens

    def reset(self, rows):
        self.output_tokens_buf[rows] = -1

    def resolve(self, rows):
        return self.output_tokens_buf[rows]
""",
            path=RELAY,
        ),
        Example(
            """\
def seed(future_map, rows, tokens):
    future_map.output_tokens_buf[rows] = tokens
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 1, 0), Judged("vllm 0.20.2", 0, 0))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding at the first write of each method that never asks for rows."""
        if not self.relays.of_file(part.identity):
            return
        for function in functions(part):
            if not _is_method(function.node):
                continue
            accesses = Accesses(function, self.relays)
            writes = [one for one in accesses.writes if not one.is_constant]
            if not writes:
                continue
            flow = function.flow
            first = writes[0]
            if flow.contains(first.node) and not _is_asked(flow.known(first.node)):
                yield part.finding(
                    self,
                    first.node,
                    f"`{function.name}` writes relay rows without checking for an empty batch",
                    note=f"the rows are `{first.index}`",
                    help=f"return early if `{first.index}` has no rows: an idle rank has none",
                )


def _is_method(function: cst.FunctionDef) -> bool:
    parameters = function.params.params
    return bool(parameters) and parameters[0].name.value == "self"


def _is_asked(known: Sequence[KnownTest]) -> bool:
    return any(_ASKS.search(one.text) for one in known)

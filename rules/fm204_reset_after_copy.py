"""FM204: a buffer is reset after it was filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.graph_inputs import Filling, Kind
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted
from fmcheck.lint.outline import outlines_at, outlines_of
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.sites import Holders, Sites, is_bounded
from fmcheck.lint.write_words import may_reset_and_fill

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
    from fmcheck.lint.graph_inputs import Write
    from fmcheck.lint.outline import Outline

#: Calls that leave a buffer to those after them; any other may be where the batch was used.
HARMLESS = frozenset({"copy_", "zero_", "fill_", "len", "min", "max"})


class ResetAfterCopy(Rule):
    """A buffer is reset after it was filled.

    ## What it does
    Looks for a function that copies into the head of a buffer, `buf[:raw].copy_(...)`, and then
    sets all of the same buffer to one value, on a path that has passed the copy.

    ## Why is this bad
    The reset is there for the padded tail, and takes the batch with it: each row now points at the
    sink row, at any batch size that is padded. Nothing fails; the model attends to nothing.

    ## Example
    ```python
    self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    if bs != raw_bs:
        self.req_pool_indices.zero_()
    ```

    ## Use instead
    ```python
    if bs != raw_bs:
        self.req_pool_indices.zero_()
    self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    ```
    """

    code = "FM204"
    name = "reset-after-copy"
    severity = Severity.ERROR
    scope = Scope.FUNCTION
    needles = ((b"copy_", b"copy"), (b"zero_", b"fill_"))
    seen_in = ("https://github.com/sgl-project/sglang/pull/26292",)
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
        if bs != raw_bs:
            self.req_pool_indices.zero_()
""",
            at=((5, 13),),
        ),
    )
    good = (
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.req_pool_indices.zero_()
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
        self.req_pool_indices[raw_bs:].zero_()
        if batch.seq_lens is not None:
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        else:
            self.seq_lens.zero_()
"""
        ),
        Example(
            """\
def stage(pool, rows, batch, out):
    pool.rows[: len(rows)].copy_(rows)
    out.copy_(pool.rows)
    pool.rows.zero_()

def counted(lengths, counts):
    lengths = torch.zeros(8)
    lengths[: len(counts)] = counts
    accepted = torch.zeros_like(lengths)
    use(lengths, accepted)
    lengths.zero_()
"""
        ),
    )

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for what may reset a buffer and for what may fill one."""
        return may_reset_and_fill(text)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears functions that reset nothing of what they fill."""
        return any(_may_undo(one) for one in outlines_of(node, facts))

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each reset that undoes a copy."""
        for outline in outlines_at(block):
            if _may_undo(outline):
                part = outline.block(block.facts)
                writes = Filling(part, lambda name: False).writes
                whole = (one for one in writes if one.kind is Kind.CONSTANT and one.region.is_whole)
                for reset in whole:
                    filled = next((one for one in writes if _undoes(reset, one, part)), None)
                    if filled is not None:
                        yield self._finding(reset, filled, part)

    def _finding(self, reset: Write, filled: Write, part: Block) -> Finding:
        # A tensor that a call returned has no name of its own.
        leaf = reset.region.leaf or part.code(reset.site)
        return part.finding(
            self,
            reset.site,
            f"`{leaf}` is set to one value here, after the batch was copied into it",
            help="reset it before the copy, or its tail only",
            related=[(filled.site, f"`{leaf}` is filled here")],
        )


def _may_undo(outline: Outline) -> bool:
    """Tells whether a buffer may be reset on the line of a fill of it or below."""
    resets = outline.resets
    return any(
        name in resets and max(resets[name]) >= min(lines) for name, lines in outline.fills.items()
    ) and _is_wiped_after(Sites(outline))


def _is_wiped_after(sites: Sites) -> bool:
    """Tells whether all of a buffer may be reset after its front was filled."""
    whole = [site for site in sites.wiped if not is_bounded(site)]
    return any(
        Holders(sites, [one]).may_hold(front) and not sites.is_before(one, front)
        for one in whole
        for front in sites.heads
    )


def _undoes(reset: Write, fill: Write, block: Block) -> bool:
    """Tells whether `reset` takes back what `fill` copied, before anybody can have used it."""
    return (
        fill.kind is Kind.COPY
        and fill.region.is_head
        and fill.order < reset.order
        and fill.region.path == reset.region.path
        and fill.region.leaf == reset.region.leaf
        and not _exclude(fill, reset)
        and not _is_used(fill, reset, block)
    )


def _exclude(one: Write, other: Write) -> bool:
    """Tells whether the writes stand in two branches of one test."""
    held = {id(test): outcome for test, outcome in one.tests}
    return any(held.get(id(test), outcome) is not outcome for test, outcome in other.tests)


def _is_used(fill: Write, reset: Write, block: Block) -> bool:
    nodes = list(block.nodes())
    first = next(i for i, one in enumerate(nodes) if one is fill.site)
    last = next(i for i, one in enumerate(nodes) if one is reset.site)
    between = nodes[first:last]
    calls = [node for node in between if isinstance(node, cst.Call)]
    words = {(dotted(call.func) or "?").rpartition(".")[2] for call in calls}
    buffer = block.code(reset.site)
    # Once is the copy itself.
    is_read = (
        sum(
            isinstance(node, (cst.Name, cst.Attribute, cst.Subscript))
            and block.code(node) == buffer
            for node in between
        )
        > 1
    )
    is_left = any(isinstance(node, cst.Return) for node in between)
    return is_read or is_left or not words <= HARMLESS

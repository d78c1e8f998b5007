"""FM204: a buffer is reset after it was filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.model.fills import WriteKind, fillings
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.positions import may_cover
from fmcheck.lint.model.resets import FRONT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.fills import RegionWrite
    from fmcheck.lint.source.module import Part

#: Calls that leave a buffer to those after them; any other may be where the batch was used.
HARMLESS = frozenset({"copy_", "zero_", "fill_", "len", "min", "max"})


class ResetAfterCopy(FunctionRule):
    """A buffer is reset after it was filled.

    ## What it does
    Looks for a function that copies into the head of a buffer, `buf[:raw].copy_(...)`, and then
    sets all of the same buffer to one value, on a path that has passed the copy. Where both name a
    part of a buffer by index, a part that the copy did not reach, or one row of what it did, is
    left alone: `buf[:, 3, 3] = 1` after `buf[:, :3, 3] = moved`.

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
    on_by_default = False
    words = (("copy",), ("zero_", "fill_("), *FRONT)
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
        Example(
            """\
def poses(moved):
    out = torch.zeros_like(moved)
    out[:, :3, 3].copy_(moved)
    out[:, 3, 3] = 1  # by no fill_
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each reset that undoes a copy."""
        for filling in fillings(functions(part)):
            writes = filling.writes
            for reset in writes:
                if reset.kind is WriteKind.CONSTANT and reset.region.is_whole:
                    filled = next((one for one in writes if _undoes(reset, one, part)), None)
                    if filled is not None:
                        yield self._finding(reset, filled, part)

    def _finding(self, reset: RegionWrite, filled: RegionWrite, part: Part) -> Finding:
        # A tensor that a call returned has no name of its own.
        leaf = reset.region.leaf or part.code(reset.site)
        return part.finding(
            self,
            reset.site,
            f"`{leaf}` is overwritten with one value here: the batch in it is lost",
            help="reset it before the copy, or reset only its tail",
            related=[(filled.site, f"`{leaf}` is filled here")],
        )


def _undoes(reset: RegionWrite, fill: RegionWrite, part: Part) -> bool:
    """Tells whether `reset` takes back what `fill` copied, before anybody can have used it."""
    return (
        fill.kind is WriteKind.COPY
        and fill.region.is_head
        and fill.order < reset.order
        and fill.region.path == reset.region.path
        and fill.region.leaf == reset.region.leaf
        and may_cover(reset.region, fill.region)
        and not _exclude(fill, reset)
        and not _is_used(fill, reset, part)
    )


def _exclude(one: RegionWrite, other: RegionWrite) -> bool:
    """Tells whether the writes stand in two branches of one test."""
    held = {id(test): outcome for test, outcome in one.tests}
    return any(held.get(id(test), outcome) is not outcome for test, outcome in other.tests)


def _is_used(fill: RegionWrite, reset: RegionWrite, part: Part) -> bool:
    order = fill.function.order
    between = fill.function.nodes[order[fill.site] : order[reset.site]]
    calls = [node for node in between if isinstance(node, cst.Call)]
    words = {(dotted(call.func) or "?").rpartition(".")[2] for call in calls}
    buffer = part.code(reset.site)
    # Once is the copy itself.
    is_read = (
        sum(
            isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)) and part.code(node) == buffer
            for node in between
        )
        > 1
    )
    is_left = any(isinstance(node, cst.Return) for node in between)
    return is_read or is_left or not words <= HARMLESS

"""FM201: a graph input's padded tail keeps what the last replay left there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fmcheck.lint import ClassRule, Edit, Example, Judged, Severity, cst
from fmcheck.lint.graph_inputs.resets import (
    FRONT,
    GRAPHS,
    RESETTING,
    Resets,
    groups,
    is_made_here,
    reads_head,
    writes_in_place,
)
from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.model.names import ANY
from fmcheck.lint.model.vocabulary import OVERWRITES
from fmcheck.lint.source.changes import added_below
from fmcheck.lint.source.globs import fits, literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.graph_inputs.fills import Filling, RegionWrite
    from fmcheck.lint.graph_inputs.resets import Sibling
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Family, Part

#: How many of the buffers that are reset a finding shows.
SHOWN = 3


class TailNotReset(ClassRule):
    """A graph input's padded tail keeps stale values from an earlier replay.

    ## What it does
    Looks for a static buffer that is filled up to the raw size, `buf[:raw_bs].copy_(...)`, and
    never reset, in a function that resets buffers beside it because the batch is padded. It follows
    local names, lists of slices that one grouped copy fills, dict keys, and resets in other
    methods, those of base classes too, and in functions that are handed the buffer, three calls
    deep. Left alone is a buffer that may be reset by an unknown function: one that gets it where
    the batch is padded, gets its tail, is a kernel and gets the raw size too, gets both sizes, or
    is named as one that pads. What only looks at the buffer by its name (`log`, `check`,
    `record`), or is a function of torch or NumPy that returns what it computes, resets nothing.
    Left alone as well is a buffer that the function itself makes, for no graph can read it, and one
    that it passes on up to the raw size only. A reset that marks padded rows as empty
    (a negative number, a length of zero) shows that they are never read: it counts for the
    contract's `graph_inputs.row_indices` alone.

    ## Why is this bad
    A captured graph runs at its captured size. When the batch is smaller, the rows from the raw
    size on are read as well, and hold what an earlier, larger batch left there. A stale
    `req_pool_indices` reads and writes another request's cache rows: wrong tokens, with no error,
    at some batch sizes only. Padded rows are to point at the sink row.

    ## Example
    ```python
    if bs != raw_bs:
        self.seq_lens.fill_(1)
    self.seq_lens[:raw_bs].copy_(batch.seq_lens)
    self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    ```

    ## Use instead
    ```python
    if bs != raw_bs:
        self.seq_lens.fill_(1)
        self.req_pool_indices.zero_()
    self.seq_lens[:raw_bs].copy_(batch.seq_lens)
    self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
    ```

    ## Severity
    An error for the contract's `graph_inputs.row_indices`, a note for its `tail_is_discarded`,
    a warning for any other buffer; nothing for those in `tail_may_stay`. Without a
    contract it is not known whether a graph reads padded rows.
    """

    code = "FM201"
    name = "tail-not-reset"
    severity = Severity.WARNING
    warns_undeclared = False
    words = (*FRONT, RESETTING, GRAPHS)
    # What shows that a module has tensors may stand in another part.
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26292",
        "https://github.com/sgl-project/sglang/pull/24401",
        "https://github.com/sgl-project/sglang/pull/23037",
        "https://github.com/sgl-project/sglang/pull/24743",
    )
    judged = (
        Judged("sglang 0.5.23", 12, 12),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        buffers = self.buffers
        if bs != raw_bs:
            buffers.seq_lens.fill_(1)
        buffers.seq_lens[:raw_bs].copy_(batch.seq_lens)
        buffers.input_ids[:raw_bs].copy_(batch.input_ids)
        buffers.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
""",
            at=((8, 9),),
            fixed="""\
class Runner:
    def replay(self, batch, bs, raw_bs):
        buffers = self.buffers
        if bs != raw_bs:
            buffers.seq_lens.fill_(1)
            buffers.req_pool_indices.zero_()
        buffers.seq_lens[:raw_bs].copy_(batch.seq_lens)
        buffers.input_ids[:raw_bs].copy_(batch.input_ids)
        buffers.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
""",
        ),
        Example(
            """\
class Inputs:
    def populate(self, batch, raw_bs, raw_tokens, bs):
        if raw_bs < bs:
            self.out_cache_loc.zero_()
        targets = [self.out_cache_loc[:raw_tokens], self.req_pool_indices[:raw_bs]]
        sources = [batch.out_cache_loc, batch.req_pool_indices]
        if batch.mrope_positions is not None:
            targets.append(self.mrope_positions[:, :raw_tokens])
            sources.append(batch.mrope_positions)
        grouped_copy(targets, sources)
""",
            at=(
                (5, 53),
                (8, 28),
            ),
        ),
        Example(
            """\
def run(graph, graph_vars, context):
    rows = context.slots.shape[0]
    graph_vars["slots"].fill_(-1)
    graph_vars["slots"][:rows].copy_(context.slots)
    graph_vars["req_pool_indices"][:rows] = context.req_pool_indices
    graph.replay()
""",
            at=((5, 5),),
        ),
        Example(
            """\
class Runner:
    def replay(self, batch):
        tokens = batch.input_ids.shape[0]
        bs = self.capture_bs[self.bucket(tokens)]
        is_padded = bs * self.width != tokens
        if is_padded:
            self.positions[tokens:] = 0
        self.positions[:tokens].copy_(batch.positions)
        self.out_cache_loc[:tokens].copy_(batch.out_cache_loc)
""",
            at=((9, 9),),
        ),
        Example(
            """\
class Runner:
    def fill(self, batch, bs, raw_bs):
        self.seq_lens[:bs].fill_(1)
        self.req_pool_indices[: raw_bs // 2].zero_()
        if bs > raw_bs:
            self.seq_lens_cpu[raw_bs:bs].fill_(1)
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.seq_lens_cpu[:raw_bs].copy_(batch.seq_lens_cpu)
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
""",
            at=((9, 9),),
        ),
        Example(
            """\
class Runner:
    def fill(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.reset_inputs()
        self.buffers["seq_lens"][:raw_bs].copy_(batch.seq_lens)
        self.buffers["req_pool_indices"][:raw_bs].copy_(batch.req_pool_indices)

    def reset_inputs(self):
        self.buffers["seq_lens"].fill_(1)
""",
            at=((6, 9),),
        ),
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.seq_lens.fill_(1)
            logger.info("padded to %s: %s", bs, self.req_pool_indices)
            self.last_rows.copy_(self.req_pool_indices)
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
""",
            at=((8, 9),),
        ),
    )
    good = (
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.seq_lens.fill_(1)
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
        pad_kernel[(1,)](self.req_pool_indices, raw_bs, bs)
"""
        ),
        Example(
            """\
class Runner:
    def replay(self, batch, bs, raw_bs):
        buffers = self.buffers
        if bs != raw_bs:
            buffers.seq_lens.fill_(1)
            buffers.req_pool_indices.zero_()
        buffers.seq_lens[:raw_bs].copy_(batch.seq_lens)
        buffers.input_ids[:raw_bs].copy_(batch.input_ids)
        buffers.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
"""
        ),
        Example(
            """\
class Inputs:
    def populate(self, batch, raw_bs, raw_tokens, bs):
        if raw_bs < bs:
            self.out_cache_loc[raw_tokens:].zero_()
            self.req_pool_indices[raw_bs:bs] = 0
        targets = [self.out_cache_loc[:raw_tokens], self.req_pool_indices[:raw_bs]]
        sources = [batch.out_cache_loc, batch.req_pool_indices]
        grouped_copy(targets, sources)
"""
        ),
        Example(
            """\
def run(graph, graph_vars, context):
    rows = context.slots.shape[0]
    for name in ("slots", "req_pool_indices"):
        graph_vars[name].zero_()
    graph_vars["slots"][:rows].copy_(context.slots)
    graph_vars["req_pool_indices"][:rows] = context.req_pool_indices
    graph.replay()
"""
        ),
        Example(
            """\
class Runner:
    def fill(self, batch, bs, raw_bs):
        self.seq_lens[:bs].fill_(1)
        self.req_pool_indices[:bs].zero_()
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.req_pool_indices[:raw_bs].copy_(batch.req_pool_indices)
"""
        ),
        Example(
            """\
class Runner:
    def fill(self, batch, bs, raw_bs):
        if bs != raw_bs:
            self.seq_lens_cpu.fill_(1)
        self.seq_lens_cpu[:raw_bs].copy_(batch.seq_lens_cpu)
        self.buffers["req_pool_indices"][:raw_bs].copy_(batch.req_pool_indices)

class Worker:
    def reset_inputs(self):
        self.buffers["req_pool_indices"].zero_()
"""
        ),
        Example(
            """\
class Pool:
    def write(self, rows, values):
        self.req_pool_indices[:rows].copy_(values)
        self.seq_lens[:rows].copy_(values)
"""
        ),
        Example(
            """\
def stage(x, expert_ids, tokens, hidden, ids):
    x[:tokens].copy_(hidden)
    expert_ids[:tokens].copy_(ids)
    if tokens < x.shape[0]:
        expert_ids[tokens:].fill_(-1)

class Decoder:
    def replay(self, batch, n):
        self.output_lengths.fill_(0)
        self.outputs[:n].copy_(batch.outputs)
        self.output_lengths[:n].copy_(batch.lengths)

def with_unconditional(buffers, b, mu, t):
    buffers.mu[:b].copy_(mu)
    if buffers.zeroed != b:
        buffers.mu[b : 2 * b].zero_()
    buffers.t[: 2 * b].copy_(t)
    buffers.x[:b].copy_(buffers.noise)
"""
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        inputs = [one.graph_inputs for one in contracts]
        self._row_indices = [glob for one in inputs for glob in one.row_indices]
        self._rows = tuple(map(literal, self._row_indices))
        self._discarded = [glob for one in inputs for glob in one.tail_is_discarded]
        self._may_stay = [glob for one in inputs for glob in one.tail_may_stay]

    def applies(self, file: File) -> bool:
        """Leaves out files that write to no tensor in place, and name no index of rows."""
        # First what most files lack: each word is a search through all of a file.
        return (
            file.holds((*OVERWRITES, *self._rows))
            and file.holds_all(self.words)
            and (writes_in_place(file) or file.holds(self._rows))
        )

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each buffer whose padded tail nothing resets."""
        for group in groups(family):
            for filling in group.candidates():
                yield from self._stale_tails(filling, Resets(filling, group))

    def _stale_tails(self, filling: Filling, resets: Resets) -> Iterator[Finding]:
        reported: set[str] = set()
        for fill, siblings in self._left(filling, resets):
            leaf = fill.region.leaf
            if leaf in reported:
                continue
            if not (fits(leaf, self._row_indices) or resets.group.has_tensors):
                continue
            if not resets.group.is_list(fill) and not resets.reach_from_elsewhere(fill):
                reported.add(leaf)
                beside = resets.last_before(fill)
                edits = _zeroed(filling.part, fill, beside) if beside is not None else ()
                yield self._stale_tail(filling.part, fill, siblings, edits)

    def _left(
        self, filling: Filling, resets: Resets
    ) -> Iterator[tuple[RegionWrite, Sequence[Sibling]]]:
        """Yields the fills that the part leaves stale, with what is reset beside each."""
        for fill in filling.fills:
            leaf = fill.region.leaf
            if not fits(leaf, self._may_stay):
                if resets.reach(fill) or is_made_here(fill, filling) or reads_head(fill, filling):
                    continue
                is_index = fits(leaf.partition(ANY)[0], self._row_indices)
                siblings = resets.siblings_of(fill, voided=is_index)
                if siblings:
                    yield fill, siblings

    def _stale_tail(
        self, part: Part, fill: RegionWrite, siblings: Sequence[Sibling], edits: Sequence[Edit]
    ) -> Finding:
        leaf, stop = fill.region.leaf, fill.region.stop
        assert stop is not None
        size = part.code(stop)
        buffer = part.code(getattr(fill.region.node, "value", fill.region.node))
        reset = f"{buffer}.zero_()" if fill.in_place else f"{buffer}[{size}:] = ..."
        severity = self._severity(leaf)
        unless = (
            "; if its padded rows are never read, list it in the contract's `tail_may_stay`"
            if severity is Severity.NOTE
            else ""
        )
        leaves = [one.leaf for one in siblings]
        finding = part.finding(
            self,
            fill.region.node,
            f"`{leaf}[{size}:]` is not reset: padded rows are stale",
            note=f"they keep what an earlier replay left; {_listed(leaves)} reset",
            help=f"reset it beside `{siblings[0].leaf}` (line {siblings[0].span.line}): `{reset}`"
            + unless,
            severity=severity,
            edits=edits,
            # Row 0 is the sink row; what another buffer is to hold there, nobody said.
            safe=fits(leaf, self._row_indices),
        )
        related = tuple((one.span, f"`{one.leaf}` is reset here") for one in siblings[:SHOWN])
        return replace(finding, related=related)

    def _severity(self, leaf: str) -> Severity:
        if fits(leaf, self._row_indices):
            return Severity.ERROR
        return Severity.NOTE if fits(leaf, self._discarded) else self.usual_severity


def _zeroed(part: Part, fill: RegionWrite, reset: RegionWrite) -> Sequence[Edit]:
    """Returns the edit that resets a buffer on a line below another's reset; none if unsure."""
    buffer = getattr(fill.region.node, "value", fill.region.node)
    path, beside = dotted(buffer) or "", dotted(reset.site) or ""
    statement = _statement_of(reset, part)
    is_own = "." in path and path.partition(".")[0] == beside.partition(".")[0]
    if not fill.in_place or not is_own or statement is None:
        return ()
    call = cst.parse_expression(f"{path}.zero_()")
    return [added_below(part, statement, cst.Expr(call))]


def _statement_of(reset: RegionWrite, part: Part) -> cst.SimpleStatementLine | None:
    """Returns the line of a reset, if the reset is all that stands on it."""
    line: cst.CSTNode = reset.site
    for kind in (cst.Attribute, cst.Call, cst.Expr, cst.SimpleStatementLine):
        line = part.parents[line]
        if not isinstance(line, kind):
            return None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        return None
    return line if part.span(line).line == part.span(line).end_line else None


def _listed(names: Sequence[str]) -> str:
    """Returns "`a`, `b` and 2 more are", or "`a` is"."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) > SHOWN:
        quoted = [*quoted[:SHOWN], f"{len(names) - SHOWN} more"]
    if len(quoted) == 1:
        return f"{quoted[0]} is"
    return f"{', '.join(quoted[:-1])} and {quoted[-1]} are"

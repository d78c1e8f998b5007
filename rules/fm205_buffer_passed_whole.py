"""FM205: a static buffer is filled at its front and handed on whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.graph_inputs.fills import Filling, WriteKind, fillings
from fmcheck.lint.model.expressions import literal_elements
from fmcheck.lint.model.function import functions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.graph_inputs.fills import RegionWrite
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part


class BufferPassedWhole(FunctionRule):
    """Only the front of a static buffer is filled, but all of it is passed on.

    ## What it does
    Looks for a local name of an attribute, `buf = self.track_buf`, that is filled up to a length,
    `buf[:n].copy_(...)`, never reset, and then assigned to something or returned without a slice;
    and for a slice that is padded with a value, `padded[n:] = -1`, and never read. Off by default:
    whether the one who gets the buffer slices it again, the function does not say.

    ## Why is this bad
    The buffer is as long as the largest batch. A consumer that counts from its end, or takes its
    length for the batch's, reads rows that were not refreshed.

    ## Example
    ```python
    buf = self.track_buf
    buf[:bs].copy_(batch.track_rows)
    metadata.track_rows = buf
    ```

    ## Use instead
    ```python
    buf = self.track_buf[:bs]
    buf.copy_(batch.track_rows)
    metadata.track_rows = buf
    ```
    """

    code = "FM205"
    name = "buffer-passed-whole"
    severity = Severity.WARNING
    words = (
        ("[:?*] =", "[:?*].copy_(", ":] =", ":].fill_(", ":].zero_("),
        ("self",),
    )
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/32555",
        "https://github.com/vllm-project/vllm/pull/23035",
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    on_by_default = False
    bad = (
        Example(
            """\
class Backend:
    def replay(self, batch, bs):
        buf = self.track_buf
        buf[:bs].copy_(batch.rows)
        return Metadata(track=1), buf

    def build(self, rows, n, n_pad):
        padded = self.state_rows[:n_pad]
        padded[n:] = -1
        return Metadata(rows)
""",
            at=((5, 35), (9, 9)),
        ),
    )
    good = (
        Example(
            """\
class Backend:
    def replay(self, batch, bs):
        buf = self.track_buf[:bs]
        buf.copy_(batch.rows)
        rows = self.rows
        rows[:bs].copy_(batch.rows)
        self.metadata.rows = rows[:bs]
        return buf

    def build(self, rows, n, n_pad):
        padded = self.state_rows[:n_pad]
        padded[n:] = -1
        return Metadata(padded)
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each name that is handed on whole, or padded for nobody."""
        for filling in fillings(functions(part)):
            yield from self._function(filling, part)

    def _function(self, filling: Filling, part: Part) -> Iterator[Finding]:
        names = filling.function.names
        by_name: dict[str, list[RegionWrite]] = {}
        for one in filling.writes:
            by_name.setdefault(_written(one.site), []).append(one)
        for name, writes in by_name.items():
            values = names.values(name)
            if len(values) != 1:
                continue
            (value,) = values
            heads = [one for one in writes if one.kind is WriteKind.COPY and one.region.is_head]
            if isinstance(value, cst.Attribute) and heads and len(heads) == len(writes):
                for place in _handed_on(filling.function, name, heads[0].site):
                    yield part.finding(
                        self,
                        place,
                        f"only the front of `{name}` is filled, but all of it is passed on",
                        help=f"slice it to the batch: `{name}[:...]`",
                        related=[(heads[0].site, "filled here")],
                    )
            pads = [one for one in writes if one.kind is WriteKind.CONSTANT and one.region.is_tail]
            is_view = isinstance(value, cst.Subscript) and any(
                isinstance(one.slice, cst.Slice) for one in value.slice
            )
            # Once where it is bound, once for each write.
            if is_view and pads and len(filling.function.named.get(name, ())) == len(writes) + 1:
                yield part.finding(
                    self,
                    pads[0].site,
                    f"`{name}` is padded here but never used: what is passed on is not padded",
                    help=f"pass `{name}` on, or remove it",
                )


def _written(site: CSTNode) -> str:
    """Returns the local name that a write goes through."""
    while isinstance(site, cst.Subscript):
        site = site.value
    return site.value if isinstance(site, cst.Name) else ""


def _handed_on(function: Function, name: str, first: CSTNode) -> Iterator[CSTNode]:
    """Yields where `name` itself is returned, or assigned to an attribute, after a node."""
    parents, order = function.parents, function.order
    for node in function.named.get(name, ()):
        held = parents[node]
        if isinstance(held, cst.Element) and literal_elements(parents[held]) is not None:
            held = parents[parents[held]]
            is_passed = isinstance(held, cst.Return)
        else:
            is_passed = isinstance(held, cst.Return) or (
                isinstance(held, cst.Assign)
                and isinstance(held.targets[0].target, cst.Attribute)
                and node is held.value
            )
        if is_passed and order[held] >= order[first]:
            yield node

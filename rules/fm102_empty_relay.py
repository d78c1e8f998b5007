"""FM102: a relay buffer that is made by torch.empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.model.expressions import is_name, last_name, targets
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.vocabulary import OVERWRITES
from fmcheck.lint.relay_rule import RelayRule
from fmcheck.lint.source.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Module, Part

RELAY = "sglang/srt/managers/overlap_utils.py"
EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})


class EmptyRelay(RelayRule):
    """A relay buffer that is created by `torch.empty`.

    ## What it does
    Looks for a relay buffer, of which the contract says what values are valid, to which its class
    assigns the result of `torch.empty`, `empty_like` or `new_empty`, and which nothing in the
    module fills, or makes by `torch.full` or the like on another branch.

    ## Why is this bad
    A row that is gathered before it was written holds what the memory held before: often a token
    or a length that looks real. Only a buffer that starts with a value that no request can have
    lets a check after the gather tell the difference.

    ## Example
    ```python
    self.output_tokens_buf = torch.empty((rows,), dtype=torch.int64, device=device)
    ```

    ## Use instead
    ```python
    self.output_tokens_buf = torch.full((rows,), -1, dtype=torch.int64, device=device)
    ```
    """

    code = "FM102"
    name = "empty-relay"
    severity = Severity.WARNING
    in_own_module = True
    seen_in = ("https://github.com/sgl-project/sglang/pull/26108",)

    bad = (
        Example(
            """\
import torch

class FutureMap:
    def __init__(self, rows, device):
        self.output_tokens_buf = torch.empty((rows,), dtype=torch.int64, device=device)
        self.pinned = torch.empty((rows,), dtype=torch.int64, pin_memory=True)
""",
            at=((5, 34),),
            path=RELAY,
        ),
        Example(
            """\
from torch import empty

class FutureMap:
    def _make_extras(self, payload):
        self.bonus_tokens_buf = payload.tokens.new_empty((self.rows, 4))
        self.topk_index_buf: object = empty((self.rows, 4)) if payload.topk else None
        self.topk_p_buf = empty((self.rows, 4))
""",
            at=((5, 33), (6, 39)),
            path=RELAY,
        ),
    )
    good = (
        Example(
            """\
import torch

class FutureMap:
    def __init__(self, rows, debug):
        self.output_tokens_buf = torch.full((rows,), -1) if debug else torch.empty((rows,))
        if debug:
            self.new_seq_lens_buf = torch.full((rows,), -1)
        else:
            self.new_seq_lens_buf = torch.empty((rows,))
""",
            path=RELAY,
        ),
        Example(
            """\
import torch

class FutureRelayBuffers:
    def __init__(self, rows):
        self.new_seq_lens = torch.empty((rows,))

class FutureMap:
    def _adopt(self, relay):
        relay.new_seq_lens.fill_(-1)
        self.new_seq_lens_buf = relay.new_seq_lens
""",
            path=RELAY,
        ),
        Example(
            """\
import torch

class Planner:
    def __init__(self, rows):
        self.new_seq_lens_buf = torch.empty((rows,))
        self.future_map = FutureMap(rows)
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 1, 1),
        Judged("vllm 0.20.2", 0, 0),
        Judged("sglang 0.5.12", 4, 4),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each empty buffer that nothing in the module fills."""
        if not self.relays.of_file(part.identity):
            return
        made = [one for function in functions(part) for one in _made(function.node)]
        empty = [(name, call) for name, call in made if _is_empty(call)]
        empty = [(name, call) for name, call in empty if self.relays.tells_valid(name)]
        if not empty:
            return
        filled = {name for name, call in made if not _is_empty(call)} | _filled(part.module)
        for name, call in empty:
            if name not in filled:
                yield part.finding(
                    self,
                    call,
                    f"relay buffer `{name}` is created uninitialized (`torch.empty`)",
                    note="unwritten rows contain garbage",
                    help=(
                        "initialize it with `torch.full` and a value no request can produce "
                        "(e.g. -1)"
                    ),
                )


def _made(function: cst.FunctionDef) -> Iterator[tuple[str, cst.Call]]:
    """Yields the attributes of `self` that are assigned a call, with each call that may be."""
    for node in walk(function):
        if isinstance(node, (cst.Assign, cst.AnnAssign)):
            for target in targets(node):
                for one, value in _paired(target, node.value):
                    if isinstance(one, cst.Attribute) and is_name(one.value, "self"):
                        for call in _calls(value):
                            yield one.attr.value, call


def _paired(target: CSTNode, value: CSTNode | None) -> Iterator[tuple[CSTNode, CSTNode | None]]:
    """Yields what is assigned to what: `a, b = x, y` makes two pairs."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        for left, right in zip(target.elements, value.elements, strict=False):
            yield left.value, right.value
    else:
        yield target, value


def _calls(value: CSTNode | None) -> Iterator[cst.Call]:
    if isinstance(value, cst.IfExp):
        yield from _calls(value.body)
        yield from _calls(value.orelse)
    elif isinstance(value, cst.Call):
        yield value


def _is_empty(call: cst.Call) -> bool:
    return last_name(call.func) in EMPTY


def _filled(module: Module) -> set[str]:
    """Returns the attributes that a module fills whole, in any function."""
    known: dict[str, set[str]] = module.memo
    if "filled" not in known:
        words = (*sorted(OVERWRITES), "[:] =", "[...] =")
        known["filled"] = {
            region.leaf
            for part in module.parts_with((words,))
            for function in functions(part)
            for node in function.nodes
            for target in _written_whole(node)
            for region in function.names.regions(target)
            if region.is_whole
        }
    return known["filled"]


def _written_whole(node: CSTNode) -> Iterator[CSTNode]:
    """Yields what a statement fills: `buf.fill_(x)`, `buf[:] = x`."""
    if isinstance(node, cst.Call) and last_name(node.func) in OVERWRITES:
        yield node.func.value if isinstance(node.func, cst.Attribute) else node.func
    for target in targets(node):
        if isinstance(target, cst.Subscript) and len(target.slice) == 1:
            cut = target.slice[0].slice
            is_all = isinstance(cut, cst.Slice) and cut.lower is None and cut.upper is None
            if is_all or (isinstance(cut, cst.Index) and isinstance(cut.value, cst.Ellipsis)):
                yield target.value

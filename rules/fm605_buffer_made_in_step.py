"""FM605: a buffer that a captured step makes again, in memory that graphs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted
from fmcheck.lint.model.function import functions
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

MAKERS = frozenset({"torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like"})
BUFFERS = ("buf", "scratch", "staging", "workspace")
_BUFFER = regex(r"(^|_)(buf|buffer|buffers|scratch|staging|workspace)($|_\d|\d)")
_RUNS = regex(r"_?forward(_|$)|\w*(_forward|_indexer|_exchange|_all_to_all|_a2a)$")


class BufferMadeInStep(FunctionRule):
    """A buffer that a captured step creates in memory that graphs share.

    ## What it does
    Looks in `forward` and its parts (`*_forward`, `*_indexer`, `*_exchange`, `*_all_to_all`) for a
    local name like `send_buffer` or `scratch` that is bound to `torch.empty` or `torch.zeros` and
    handed to a call. Off by default: most such memory is used up inside of the step, and the
    function does not say whether it is captured.

    ## Why is this bad
    Under capture the allocation comes from a pool that all graphs of it share. Its address is baked
    in, and another graph, or a library that captures later, may be given the same memory: a
    collective or a kernel that still uses it reads somebody else's values.

    ## Example
    ```python
    def forward(self, scores):
        out_buffer = torch.empty((len(scores), self.width))
        select(scores, out_buffer)
    ```

    ## Use instead
    ```python
    def forward(self, scores):
        out_buffer = self.out_buffer[: len(scores)]
        select(scores, out_buffer)
    ```
    """

    code = "FM605"
    name = "buffer-made-in-step"
    severity = Severity.WARNING
    words = (
        BUFFERS,
        ("forward", "_indexer", "_exchange", "_all_to_all", "_a2a"),
        tuple(f"{one}*= *{made}" for one in BUFFERS for made in ("empty", "zeros")),
    )
    seen_in = (
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16290",
        "https://github.com/local-inference-lab/vllm/pull/117",
    )
    judged = (
        Judged("sglang 0.5.23", 3, 0),
        Judged("vllm 0.20.2", 2, 0),
    )
    on_by_default = False
    judges = _RUNS
    bad = (
        Example(
            """\
import torch

class Attention:
    def forward(self, scores):
        out_buffer = torch.empty((len(scores), self.width))
        select(scores, out_buffer)
        return out_buffer
""",
            at=((5, 22),),
        ),
    )
    good = (
        Example(
            """\
import torch

class Attention:
    def __init__(self, size):
        out_buffer = torch.empty((size, 8))
        self.out_buffer = share(out_buffer)

    def forward(self, scores):
        out_buffer = self.out_buffer[: len(scores)]
        select(scores, out_buffer)
        rows = torch.empty(len(scores))
        select(scores, rows)
        scratch = torch.empty(4)
        return scratch
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each such buffer."""
        for function in functions(part):
            if _RUNS.match(function.name):
                yield from self._function(function, part)

    def _function(self, function: Function, part: Part) -> Iterator[Finding]:
        nodes = function.nodes
        handed = {
            arg.value.value
            for node in nodes
            if isinstance(node, cst.Call)
            for arg in node.args
            if isinstance(arg.value, cst.Name)
        }
        for node in nodes:
            if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
                target = node.targets[0].target
                name = target.value if isinstance(target, cst.Name) else ""
                maker = part.module.resolve(dotted(node.value.func) or "")
                if maker in MAKERS and name in handed and _BUFFER.search(name):
                    yield part.finding(
                        self,
                        node.value,
                        f"`{name}` is created in every step",
                        note="under capture, it is in memory that other graphs share",
                        help="create it once, before the capture, and take a slice of it here",
                    )

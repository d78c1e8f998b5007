"""FM605: a buffer that a captured step makes anew, in memory that graphs share."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.declared import functions
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted
from fmcheck.lint.nodes import FUNCTIONS
from fmcheck.lint.rule import Example, Judged, Rule, Scope
from fmcheck.lint.words import defined, words_around

if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst

    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

MAKERS = frozenset({"torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like"})
BUFFERS = ("buf", "scratch", "staging", "workspace")
_BUFFER = re.compile(r"(^|_)(buf|buffer|buffers|scratch|staging|workspace)($|_\d|\d)")
_RUNS = re.compile(r"_?forward(_|$)|\w*(_forward|_indexer|_exchange|_all_to_all|_a2a)$")


class BufferMadeInStep(Rule):
    """A buffer that a captured step makes anew, in memory that graphs share.

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
    scope = Scope.FUNCTION
    needles = (
        (b"empty", b"zeros"),
        tuple(part.encode() for part in BUFFERS),
        (b"forward", b"_indexer", b"_exchange", b"_all_to_all", b"_a2a"),
    )
    anchors = needles[0]
    seen_in = (
        "https://github.com/NVIDIA/TensorRT-LLM/pull/16290",
        "https://github.com/local-inference-lab/vllm/pull/117",
    )
    judged = (
        Judged("sglang 0.5.23", 3, 0),
        Judged("vllm 0.20.2", 2, 0),
    )
    on_by_default = False
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

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for a function of such a name, and for the name of a buffer."""
        return any(map(_RUNS.match, defined(text))) and any(
            _BUFFER.search(word) for part in BUFFERS for word in words_around(part, text)
        )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears functions of other names, and those that make no buffer."""
        return any(
            isinstance(inner, ast.Assign)
            and isinstance(inner.targets[0], ast.Name)
            and _BUFFER.search(inner.targets[0].id)
            and isinstance(inner.value, ast.Call)
            and not MAKERS.isdisjoint(facts.mentioned(inner.value.func))
            for function in ast.walk(node)
            if isinstance(function, FUNCTIONS) and _RUNS.match(function.name)
            for inner in ast.walk(function)
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each such buffer."""
        for function in functions(block):
            if _RUNS.match(function.name.value):
                yield from self._function(function, block)

    def _function(self, function: libcst.FunctionDef, block: Block) -> Iterator[Finding]:
        nodes = list(block.nodes(function.body))
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
                maker = block.facts.resolve(dotted(node.value.func) or "")
                if maker in MAKERS and name in handed and _BUFFER.search(name):
                    yield block.finding(
                        self,
                        node.value,
                        f"`{name}` is made anew in every step: under capture, in memory that "
                        "other graphs are given too",
                        help="make it once, before the capture, and take a slice of it here",
                    )

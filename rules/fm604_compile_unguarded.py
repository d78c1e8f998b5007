"""FM604: torch.compile without the platform guard that its siblings have."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import dotted, lies_in
from fmcheck.lint.nodes import walk
from fmcheck.lint.rule import Example, Judged, Rule, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts
_COMPILE = re.compile(rb"torch(?:\s*\.\s*compile|[ \t\\]+(?:as|import)\b)")
_GUARD = re.compile(r"\bdisable\s*=")


class CompileUnguarded(Rule):
    """`torch.compile` without the platform guard that its siblings have.

    ## What it does
    Looks for a function that is decorated by `torch.compile` without `disable=`, where either
    another function of the module is compiled with one, or the contract calls the module
    device-agnostic and names the platforms that cannot compile (`device.no_compile`). A decorator
    with `**options` is left alone.

    ## Why is this bad
    On the platform that the siblings are guarded for, the one that is not fails at its first call,
    or compiles for minutes to run slower than before. Helpers of a relay run in every step, and
    the people who add one test on CUDA.

    ## Example
    ```python
    @torch.compile(dynamic=True)
    def gather(buf, rows): ...
    ```

    ## Use instead
    ```python
    @torch.compile(dynamic=True, disable=is_npu())
    def gather(buf, rows): ...
    ```
    """

    code = "FM604"
    name = "compile-unguarded"
    severity = Severity.WARNING
    scope = Scope.FUNCTION
    needles = ((b"compile",), (b"torch",))
    anchors = (b"compile",)
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26403",
        "https://github.com/sgl-project/sglang/pull/26573",
    )
    judged = (
        Judged("sglang 0.5.12", 2, 2),
        Judged("sglang 0.5.23", 3, 3),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
import torch

@torch.compile(dynamic=True, disable=_is_npu)
def gather(buf, rows):
    return buf[rows]

@torch.compile(dynamic=True)
def stash(buf, rows, values):
    buf[rows] = values
""",
            at=((7, 2),),
        ),
        Example(
            """\
from torch import compile as compiled

class FutureMap:
    @staticmethod
    @compiled
    def gather(buf, rows):
        return buf[rows]
""",
            at=((5, 6),),
            path="sglang/srt/managers/overlap_utils.py",
        ),
    )
    good = (
        Example(
            """\
import torch

@torch.compile(dynamic=True)
def gather(buf, rows):
    return buf[rows]
"""
        ),
        Example(
            """\
import torch

@torch.compile(**options)
def gather(buf, rows):
    return buf[rows]

@torch.compile(disable=is_npu())
def stash(buf, rows, values):
    buf[rows] = values

@torch.compiler.disable
def peek(buf, rows):
    return buf[rows]
""",
            path="sglang/srt/managers/overlap_utils.py",
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        devices = [one.device for one in contracts if one.device.no_compile]
        self._agnostic = [glob for one in devices for glob in one.agnostic]
        self._platforms = [name for one in devices for name in one.no_compile]

    def concerns(self, text: bytes) -> bool:
        """Asks for the function itself, or for what `torch` or it may be called here."""
        return _COMPILE.search(text) is not None

    def concerns_module(self, facts: ModuleFacts) -> bool:
        """Clears modules that guard nothing and are not device-agnostic."""
        return lies_in(facts.path, self._agnostic) or _guards(facts)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that decorate no function by `torch.compile`."""
        return any(
            "torch.compile" in facts.mentioned(decorator)
            for inner in walk(node)
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
            for decorator in inner.decorator_list
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each such decorator."""
        is_agnostic = lies_in(block.path, self._agnostic)
        why = "its siblings are guarded by `disable=`"
        if is_agnostic:
            platforms = " or ".join(f"`{name}`" for name in self._platforms)
            why = f"this module also runs where {platforms} holds"
        for node in block.nodes():
            if isinstance(node, cst.FunctionDef):
                for decorator in node.decorators:
                    if _is_unguarded(decorator.decorator, block):
                        yield block.finding(
                            self,
                            decorator.decorator,
                            f"`{node.name.value}` is compiled on every platform, and {why}",
                            help="say `disable=` for the platforms that cannot compile it",
                        )


def _guards(facts: ModuleFacts) -> bool:
    """Tells whether a function of the module is compiled with `disable=`."""
    return _GUARD.search(facts.module.text) is not None and any(
        isinstance(inner, ast.keyword)
        and inner.arg == "disable"
        and not isinstance(inner.value, ast.Constant)
        for node in facts.module.statements_with(["disable"])
        for outer in walk(node)
        if isinstance(outer, ast.Call) and "torch.compile" in facts.mentioned(outer.func)
        for inner in outer.keywords
    )


def _is_unguarded(node: CSTNode, block: Block) -> bool:
    called = node.func if isinstance(node, cst.Call) else node
    if block.facts.resolve(dotted(called) or "") != "torch.compile":
        return False
    args = node.args if isinstance(node, cst.Call) else ()
    names = {arg.keyword.value for arg in args if arg.keyword}
    return "disable" not in names and not any(arg.star for arg in args)

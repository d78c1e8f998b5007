"""FM604: torch.compile without the platform guard that its siblings have."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.block import Block
from fmcheck.lint.lazy import cst
from fmcheck.lint.module import extent
from fmcheck.lint.names import dotted, lies_in
from fmcheck.lint.nodes import FUNCTIONS, walk
from fmcheck.lint.platform import Platform
from fmcheck.lint.rule import Example, Judged, Rule, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.facts import ModuleFacts
_COMPILE = re.compile(rb"torch(?:\s*\.\s*compile|[ \t\\]+(?:as|import)\b)")
_GUARD = re.compile(r"disable\s*=")


class CompileUnguarded(Rule):
    """`torch.compile` without the platform guard that its siblings have.

    ## What it does
    Looks for a function that is decorated by `torch.compile` without `disable=`, where either
    another function of the module is compiled with one, or the contract calls the module
    device-agnostic and names the platforms that cannot compile (`device.no_compile`). A decorator
    with `**options` is left alone, and so is a private function of which every use in the module
    stands behind a test for CUDA, and a module that the contract calls CUDA's own.

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
        Judged("sglang 0.5.12", 1, 1),
        Judged("sglang 0.5.23", 0, 0),
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
        Example(
            """\
import torch

@torch.compile(disable=is_npu())
def stash(buf, rows, values):
    buf[rows] = values

@torch.compile
def _gather(buf, rows):
    return buf[rows]

def gather(buf, rows):
    if is_cuda():
        return _gather(buf, rows)
    return _gather(buf, rows.long())
""",
            at=((7, 2),),
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
        Example(
            """\
import torch

@torch.compile(disable=is_npu())
def stash(buf, rows, values):
    buf[rows] = values

@torch.compile
def _gather(buf, rows):
    return buf[rows]

def gather(buf, rows):
    if is_cuda():
        return _gather(buf, rows)
    return buf[rows]
"""
        ),
        Example(
            """\
import torch

@torch.compile(dynamic=True)
def gather(buf, rows):
    return buf[rows]
""",
            path="sglang/srt/speculative/uno_utils.py",
        ),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        devices = [one.device for one in contracts if one.device.no_compile]
        self._agnostic = [glob for one in devices for glob in one.agnostic]
        self._platforms = [name for one in devices for name in one.no_compile]
        self._cuda_only = [glob for one in contracts for glob in one.device.cuda_only]
        self._platform = Platform({name for one in contracts for name in one.device.guards})

    def concerns(self, text: bytes) -> bool:
        """Asks for the function itself, or for what `torch` or it may be called here."""
        return _COMPILE.search(text) is not None

    def concerns_path(self, identity: str) -> bool:
        """Clears modules for CUDA alone."""
        return not lies_in(identity, self._cuda_only)

    def concerns_module(self, facts: ModuleFacts) -> bool:
        """Clears those too that guard nothing and are not agnostic."""
        if not self.concerns_path(facts.identity):
            return False
        return lies_in(facts.identity, self._agnostic) or _guards(facts)

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that decorate no function by `torch.compile`."""
        return any(
            "torch.compile" in facts.mentioned(decorator)
            for inner in walk(node)
            if isinstance(inner, FUNCTIONS)
            for decorator in inner.decorator_list
        )

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each such decorator."""
        is_agnostic = lies_in(block.identity, self._agnostic)
        why = "its siblings are guarded by `disable=`"
        if is_agnostic:
            platforms = " or ".join(f"`{name}`" for name in self._platforms)
            why = f"this module also runs where {platforms} holds"
        for node in block.nodes():
            if isinstance(node, cst.FunctionDef):
                for decorator in node.decorators:
                    if _is_unguarded(decorator.decorator, block) and not self._runs_on_cuda_alone(
                        node.name.value, block
                    ):
                        yield block.finding(
                            self,
                            decorator.decorator,
                            f"`{node.name.value}` is compiled on every platform, and {why}",
                            help="say `disable=` for the platforms that cannot compile it",
                        )

    def _runs_on_cuda_alone(self, name: str, block: Block) -> bool:
        """Tells whether a module's private function is used, and behind tests for CUDA only."""
        if block.is_nested or not name.startswith("_"):
            return False
        known = block.facts.on_cuda_alone
        if name not in known:
            uses = [use for one in _users(name, block) for use in self._uses(name, one)]
            known[name] = bool(uses) and all(uses)
        return known[name]

    def _uses(self, name: str, user: Block) -> Iterator[bool]:
        """Yields of each use of a name whether a test for CUDA stands before it."""
        guarded = self._platform.guarded(user)
        definitions = {one.name for one in user.nodes() if isinstance(one, cst.FunctionDef)}
        for node in user.nodes():
            if isinstance(node, cst.Name) and node.value == name and node not in definitions:
                yield node in guarded


def _users(name: str, block: Block) -> Iterator[Block]:
    """Yields the top-level statements of a block's module that read a name."""
    module = block.facts.module
    for node in module.statements_with([name]):
        if any(isinstance(inner, ast.Name) and inner.id == name for inner in walk(node)):
            first, last = extent(node)
            yield Block.at(block.facts, first, last, node)


def _guards(facts: ModuleFacts) -> bool:
    """Tells whether a function of the module is compiled with `disable=`."""
    if "disable" not in facts.module.text or not _GUARD.search(facts.module.text):
        return False

    def may_hold(text: str) -> bool:
        start = -1 if is_renamed else text.find("compile")
        return (is_renamed or start >= 0) and _GUARD.search(text, max(start, 0)) is not None

    is_renamed = facts.may_rename("compile")
    return may_hold(facts.module.text) and any(
        isinstance(inner, ast.keyword)
        and inner.arg == "disable"
        and not isinstance(inner.value, ast.Constant)
        for node in facts.module.statements_with(["disable"], may_hold)
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

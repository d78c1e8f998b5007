"""FM604: torch.compile without the platform guard that its siblings have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.platform import Platform
from fmcheck.lint.model.expressions import dotted, is_name, keywords
from fmcheck.lint.source.globs import lies_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Module, Part


class CompileUnguarded(FunctionRule):
    """`torch.compile` without the platform guard that its siblings have.

    ## What it does
    Looks for a function that is decorated by `torch.compile` without `disable=`, where either
    another function of the module is compiled with one, or the contract calls the module
    device-agnostic and names the platforms that cannot compile (`device.no_compile`). A decorator
    with `**options` is left alone, and so is a private function of which every use in the module
    is behind a test for CUDA, and a module that the contract calls CUDA's own.

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
    on_by_default = False
    words = (("@*compile",), ("torch",))
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

    def applies(self, file: File) -> bool:
        """Leaves out modules for CUDA alone, and those that guard nothing and are not agnostic."""
        if lies_in(file.identity, self._cuda_only):
            return False
        return lies_in(file.identity, self._agnostic) or file.holds(("disable",))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each such decorator."""
        is_agnostic = lies_in(part.identity, self._agnostic)
        if not is_agnostic and not _guards(part.module):
            return
        why = "its siblings are guarded by `disable=`"
        if is_agnostic:
            platforms = " or ".join(f"`{name}`" for name in self._platforms)
            why = f"this module also runs where {platforms} holds"
        for node in part.nodes():
            if isinstance(node, cst.FunctionDef):
                for decorator in node.decorators:
                    if _is_unguarded(decorator.decorator, part) and not self._runs_on_cuda_alone(
                        node.name.value, part
                    ):
                        yield part.finding(
                            self,
                            decorator.decorator,
                            f"`{node.name.value}` is compiled on every platform",
                            note=why,
                            help="pass `disable=` on platforms that cannot compile it",
                        )

    def _runs_on_cuda_alone(self, name: str, part: Part) -> bool:
        """Tells whether a module's private function is used, and behind tests for CUDA only."""
        if part.is_nested or not name.startswith("_"):
            return False
        known: dict[str, bool] = part.module.memo.setdefault("on CUDA alone", {})
        if name not in known:
            users = part.module.parts_with(((name,),))
            uses = [use for one in users for use in self._uses(name, one)]
            known[name] = bool(uses) and all(uses)
        return known[name]

    def _uses(self, name: str, user: Part) -> Iterator[bool]:
        """Yields of each use of a name whether a test for CUDA stands before it."""
        guarded = self._platform.guarded(user)
        definitions = {one.name for one in user.nodes() if isinstance(one, cst.FunctionDef)}
        for node in user.nodes():
            if isinstance(node, cst.Name) and node.value == name and node not in definitions:
                yield node in guarded


def _guards(module: Module) -> bool:
    """Tells whether a function of the module is compiled with `disable=`."""
    if "guards" not in module.memo:
        module.memo["guards"] = any(
            isinstance(node, cst.Call)
            and module.resolve(dotted(node.func) or "") == "torch.compile"
            and _is_computed(keywords(node).get("disable"))
            for part in module.parts_with((("disable",), ("compile",)))
            for node in part.nodes()
        )
    found: bool = module.memo["guards"]
    return found


def _is_computed(value: cst.BaseExpression | None) -> bool:
    return (
        value is not None
        and not isinstance(value, cst.BaseNumber | cst.BaseString)
        and not (is_name(value, "True") or is_name(value, "False") or is_name(value, "None"))
    )


def _is_unguarded(node: CSTNode, part: Part) -> bool:
    called = node.func if isinstance(node, cst.Call) else node
    if part.module.resolve(dotted(called) or "") != "torch.compile":
        return False
    args = node.args if isinstance(node, cst.Call) else ()
    names = {arg.keyword.value for arg in args if arg.keyword}
    return "disable" not in names and not any(arg.star for arg in args)

"""FM602: a batch-shaped function is compiled for one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part


class CompileWithoutDynamic(FunctionRule):
    """A batch-shaped function is compiled for one shape.

    ## What it does
    Looks for a function that takes arguments and is decorated by `torch.compile` without
    `dynamic=`. A function compiled with `disable=True` is left alone. Off by default: whether the
    shapes of a function change from step to step, its source does not say, nor whether a caller
    marks them as dynamic.

    ## Why is this bad
    The first call compiles for the sizes that it sees, the second batch size compiles again, in the
    middle of serving: a step of a millisecond takes seconds, on some ranks before others.

    ## Example
    ```python
    @torch.compile
    def gather(buf, rows):
        return buf[rows]
    ```

    ## Use instead
    ```python
    @torch.compile(dynamic=True)
    def gather(buf, rows):
        return buf[rows]
    ```
    """

    code = "FM602"
    name = "compile-without-dynamic"
    severity = Severity.WARNING
    words = (("@*compile",), ("torch",))
    seen_in = ("https://github.com/vllm-project/vllm/pull/10406",)
    judged = (
        Judged("sglang 0.5.23", 23, 13),
        Judged("vllm 0.20.2", 5, 2),
    )
    on_by_default = False
    bad = (
        Example(
            """\
import torch

@torch.compile
def gather(buf, rows):
    return buf[rows]

@torch.compile(fullgraph=True)
def stash(buf, rows, values):
    buf[rows] = values
""",
            at=((3, 2), (7, 2)),
        ),
    )
    good = (
        Example(
            """\
import torch

@torch.compile(dynamic=True)
def gather(buf, rows):
    return buf[rows]

@torch.compile(**options)
def stash(buf, rows, values):
    buf[rows] = values

@torch.compile
def nothing():
    pass
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each such decorator."""
        for node in part.nodes():
            if isinstance(node, cst.FunctionDef) and _takes_arguments(node):
                for decorator in node.decorators:
                    if _fixes_shapes(decorator.decorator, part):
                        yield part.finding(
                            self,
                            decorator.decorator,
                            f"`{node.name.value}` is compiled without `dynamic=`",
                            note="the next batch size recompiles it",
                            help="pass `dynamic=True`, or `dynamic=False` if its shapes are fixed",
                        )


def _takes_arguments(function: cst.FunctionDef) -> bool:
    params = function.params
    names = [one.name.value for one in (*params.posonly_params, *params.params)]
    return bool([name for name in names if name not in ("self", "cls")] or params.kwonly_params)


def _fixes_shapes(node: CSTNode, part: Part) -> bool:
    if not isinstance(node, cst.Call):
        return part.module.resolve(dotted(node) or "") == "torch.compile"
    if part.module.resolve(dotted(node.func) or "") != "torch.compile":
        return False
    given = {arg.keyword.value: part.code(arg.value) for arg in node.args if arg.keyword}
    stars = any(arg.star for arg in node.args)
    return not stars and "dynamic" not in given and given.get("disable") != "True"

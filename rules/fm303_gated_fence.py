"""FM303: a fence that only one platform gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import ClassRule, Example, Judged, Severity, cst
from fmcheck.lint.devices.platform import Platform
from fmcheck.lint.model.expressions import dotted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Family, Part


FENCES = ("wait_stream", "wait_event")
#: Predicates of the whole process. `tensor.is_cuda` asks about one tensor, and is no gate.
PREDICATES = ("is_cuda", "is_hip", "is_cuda_alike")


class GatedFence(ClassRule):
    """A fence that runs on one platform only.

    ## What it does
    Looks for `wait_stream` and `wait_event` behind a test of the platform (`if is_cuda():`, or an
    attribute that is nothing but `is_cuda()`), with no fence in the other branch. A test that also
    has a switch (`is_cuda() or settings.barrier`) is left alone. Off by default: often all the
    work that the fence is for is behind the same gate, elsewhere.

    ## Why is this bad
    The race that the fence closes is one of streams, and the other platforms have streams too. A
    gate that was put there because the fence hung or cost too much on one of them takes it from
    all of them, and what is left is wrong tokens under load, with no error.

    ## Example
    ```python
    self.barrier = is_cuda()
    if self.barrier:
        self.schedule_stream.wait_stream(self.forward_stream)
    ```

    ## Use instead
    ```python
    self.barrier = self.forward_stream is not None
    if self.barrier:
        self.schedule_stream.wait_stream(self.forward_stream)
    ```
    """

    code = "FM303"
    name = "gated-fence"
    severity = Severity.WARNING
    words = (FENCES, PREDICATES)
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/26646",
        "https://github.com/sgl-project/sglang/pull/36054",
    )
    judged = (
        Judged("sglang 0.5.13", 3, 1),
        Judged("sglang 0.5.23", 1, 0),
        Judged("vllm 0.20.2", 0, 0),
    )
    on_by_default = False
    bad = (
        Example(
            """\
class Scheduler:
    def __init__(self):
        self._barrier = is_cuda()

    def run(self):
        if self._barrier:
            self.schedule_stream.wait_stream(self.forward_stream)
""",
            at=((7, 13),),
        ),
        Example(
            """\
def barrier(stream, done):
    if not is_cuda():
        return
    stream.wait_event(done)
""",
            at=((4, 5),),
        ),
    )
    good = (
        Example(
            """\
class Scheduler:
    def __init__(self):
        self._barrier = is_cuda() or settings.barrier

    def run(self, tensor):
        if self._barrier:
            self.schedule_stream.wait_stream(self.forward_stream)
        if is_cuda():
            torch.cuda.Stream().wait_stream(self.forward_stream)
        if tensor.is_cuda:
            self.schedule_stream.wait_stream(self.forward_stream)
"""
        ),
        Example(
            """\
def barrier(stream, done):
    if is_cuda():
        stream.wait_event(done)
    else:
        done.synchronize()
        stream.wait_event(done)
    assert is_cuda()
    stream.wait_event(done)
"""
        ),
    )

    def check(self, family: Family) -> Iterator[Finding]:
        """Yields a finding for each fence that a platform's test decides on alone."""
        near = family.near((tuple(f"{one}(" for one in PREDICATES),))
        asked = (name for part in near for name in _attributes(part))
        platform = _ByProcess({*PREDICATES, *asked})
        for part in family.near((FENCES,)):
            guarded = platform.guarded(part)
            for node in part.nodes():
                if node in guarded and _is_fence(node):
                    yield self._finding(node, part)

    def _finding(self, node: cst.CSTNode, part: Part) -> Finding:
        return part.finding(
            self,
            node,
            "this fence runs on one platform only",
            note="streams on other platforms are not ordered",
            help="test for what the fence needs (a second stream, a switch), not for the platform",
        )


class _ByProcess(Platform):
    """Tests of the process: a call, a plain name, or an attribute that holds one."""

    def asks_for_cuda(self, test: CSTNode) -> bool | None:
        """Leaves out `tensor.is_cuda` and comparisons of devices."""
        if isinstance(test, cst.Comparison):
            return None
        if isinstance(test, cst.Attribute) and test.attr.value.lstrip("_") in PREDICATES:
            return None
        return super().asks_for_cuda(test)

    def _branch(self, node: cst.If | cst.IfExp, part: Part) -> Iterator[CSTNode]:
        others = part.nodes(node.orelse) if node.orelse is not None else ()
        # A branch that speaks CUDA's own API makes its streams there, and fences those.
        speaks_cuda = any(getattr(one, "value", "") == "cuda" for one in part.nodes(node))
        if not speaks_cuda and not any(_is_fence(one) for one in others):
            yield from super()._branch(node, part)

    def _leaves_unless_cuda(self, statement: CSTNode) -> bool:
        return isinstance(statement, cst.If) and super()._leaves_unless_cuda(statement)


def _attributes(part: Part) -> set[str]:
    """Returns the attributes that are assigned nothing but a predicate's answer."""
    found: set[str] = set()
    for node in part.nodes():
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            asked = (dotted(node.value.func) or "").rpartition(".")[2]
            if asked in PREDICATES:
                names = [dotted(target.target) or "" for target in node.targets]
                found |= {name.rpartition(".")[2].lstrip("_") for name in names if name}
    return found


def _is_fence(node: CSTNode) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in FENCES
    )

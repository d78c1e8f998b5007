"""FM302: a tensor is put on "cuda" by name in code that is meant for every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import arguments, keywords
from fmcheck.lint.model.platform import Platform
from fmcheck.lint.source.globs import lies_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part


class DeviceLiteral(FunctionRule):
    """A hard-coded `"cuda"` in device-agnostic code.

    ## What it does
    Looks for `.cuda()`, `.to("cuda")` and `device="cuda"` in folders which the contract calls
    device-agnostic (`device.agnostic`, `device.no_literal`). Code behind a test for CUDA is left
    alone. Silent for paths that no contract names.

    ## Why is this bad
    The literal ignores the device that the engine was configured for: on another accelerator the
    start fails ("Torch not compiled with CUDA enabled"); with several GPUs it means the current
    one, which need not be that of the tensors beside it.

    ## Example
    ```python
    rows = torch.zeros(size, device="cuda")
    ```

    ## Use instead
    ```python
    rows = torch.zeros(size, device=self.device)
    ```
    """

    code = "FM302"
    name = "device-literal"
    severity = Severity.WARNING
    words = (('"cuda"', "'cuda'", ".cuda("),)
    seen_in = ("https://github.com/sgl-project/sglang/pull/34576",)
    judged = (
        Judged("sglang 0.5.23", 2, 2),
        Judged("vllm 0.20.2", 0, 0),
    )
    bad = (
        Example(
            """\
import torch

class Relay:
    def __init__(self, size, tower):
        self.buf = torch.zeros(size, device="cuda")
        self.rows = torch.arange(size).to("cuda", non_blocking=True)
        self.tower = tower.cuda()
        self.ids = tower.ids.cuda(non_blocking=True)
""",
            at=((5, 45), (6, 43), (7, 22), (8, 20)),
            path="sglang/srt/managers/overlap_utils.py",
        ),
        Example(
            """\
import torch

def make(rows):
    return torch.zeros(
        4,
        device=(  # the one that there is
            "cuda"
        ),
    )

def move(rows):
    return rows.to \\
        (r"cuda")
""",
            at=((7, 13), (13, 10)),
            path="sglang/srt/managers/overlap_utils.py",
        ),
    )
    good = (
        Example(
            """\
import torch

class Relay:
    def __init__(self, size, device):
        self.buf = torch.zeros(size, device=device)
        if device.type == "cuda":
            self.rows = torch.arange(size).cuda()
        if any(one.ndim and one.is_cuda for one in size):
            self.rows = torch.concat(size).cuda()
""",
            path="sglang/srt/managers/overlap_utils.py",
        ),
        Example("import torch\n\nrows = torch.zeros(4, device='cuda')\n"),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        devices = [one.device for one in contracts]
        self._agnostic = [glob for one in devices for glob in (*one.agnostic, *one.no_literal)]
        self._cuda_only = [glob for one in devices for glob in one.cuda_only]
        self._platform = Platform({name for one in devices for name in one.guards})

    def applies(self, file: File) -> bool:
        """Leaves out modules that are for CUDA, and those that nothing says are for all devices."""
        is_agnostic = lies_in(file.identity, self._agnostic)
        return is_agnostic and not lies_in(file.identity, self._cuda_only)

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each literal that no test for CUDA guards."""
        places = [place for node in part.nodes() for place in _literals(node)]
        guarded = self._platform.guarded(part) if places else set()
        for place in places:
            if place not in guarded:
                yield part.finding(
                    self,
                    place,
                    "hard-coded device in device-agnostic code",
                    help="use the device of a nearby tensor or of the config",
                )


def _literals(node: CSTNode) -> Iterator[CSTNode]:
    """Yields where a call names CUDA as the device."""
    if not isinstance(node, cst.Call):
        return
    word = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    if word == "cuda" and not (arguments(node) and "non_blocking" not in keywords(node)):
        yield node
    for position, arg in enumerate(node.args):
        is_device = arg.keyword.value == "device" if arg.keyword else word == "to" and not position
        text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
        if is_device and text == "cuda":
            yield arg.value

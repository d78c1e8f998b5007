"""FM302: a tensor is put on "cuda" by name in code that is meant for every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.devices.platform import Platform
from fmcheck.lint.model.expressions import arguments, dotted, non_blocking
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
    Looks for `.cuda()`, `.to("cuda")`, `device="cuda"` and `torch.device("cuda", rank)` in folders
    which the contract calls device-agnostic (`device.agnostic`, `device.no_literal`); a numbered
    device, `"cuda:0"` or `f"cuda:{rank}"`, counts as well. Code behind a test for CUDA is left
    alone, and so is a device that is compared with another one. Silent for paths that no contract
    names.

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
    words = (('"cuda', "'cuda", ".cuda("),)
    seen_in = ("https://github.com/sgl-project/sglang/pull/34576",)
    judged = (
        Judged("sglang 0.5.23", 3, 3),
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
        Example(
            """\
import torch

def place(rows, rank):
    torch.zeros(4, device=torch.device("cuda"))
    torch.zeros(4, device="cuda:%d" % rank)
    rows.to("cuda:{}".format(rank))
    rows.to("cuda:" + str(rank))
    return torch.device(f"cuda:{rank}"), torch.device(type="cuda", index=rank)
""",
            at=((4, 40), (5, 27), (6, 13), (7, 13), (8, 25), (8, 60)),
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
        Example(
            """\
import torch

def place(rows, rank, mode):
    if torch.cuda.is_available():
        return torch.device("cuda", rank)
    if mode == "cuda_ipc":
        return torch.device(f"cuda:{rank}")
    torch.device("cuda:0" if rows.is_cuda else "cpu")
    return torch.device(rows.device, rank), rows.device == torch.device("cuda:0")
""",
            path="sglang/srt/managers/overlap_utils.py",
        ),
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
        places = [place for node in part.nodes() for place in _literals(node, part)]
        guarded = self._platform.guarded(part) if places else set()
        for place in places:
            if place not in guarded:
                yield part.finding(
                    self,
                    place,
                    "hard-coded device in device-agnostic code",
                    help="use the device of a nearby tensor or of the config",
                )


def _literals(node: CSTNode, part: Part) -> Iterator[CSTNode]:
    """Yields where a call names CUDA as the device."""
    if not isinstance(node, cst.Call):
        return
    word = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    if word == "cuda" and not (arguments(node) and non_blocking(node) is None):
        yield node
    makes = part.module.resolve(dotted(node.func) or "") == "torch.device"
    if makes and isinstance(part.parents.get(node), (cst.Comparison, cst.ComparisonTarget)):
        return
    keyword = "type" if makes else "device"
    for position, arg in enumerate(node.args):
        is_first = not position and (makes or word == "to")
        is_device = arg.keyword.value == keyword if arg.keyword else is_first
        if is_device and _beginning(arg.value).partition(":")[0] == "cuda":
            yield arg.value


def _beginning(value: CSTNode) -> str:
    """Returns the text with which a string begins, whatever is put into it or added to it."""
    if isinstance(value, cst.BinaryOperation):
        return _beginning(value.left)
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        return _beginning(value.func.value) if value.func.attr.value == "format" else ""
    if isinstance(value, cst.FormattedString) and value.parts:
        first = value.parts[0]
        return first.value if isinstance(first, cst.FormattedStringText) else ""
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""

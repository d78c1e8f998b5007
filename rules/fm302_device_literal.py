"""FM302: a tensor is put on "cuda" by name in code that is meant for every device."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fmcheck.finding import Severity
from fmcheck.lint.lazy import cst
from fmcheck.lint.names import lies_in
from fmcheck.lint.nodes import walk as all_below
from fmcheck.lint.platform import Platform
from fmcheck.lint.rule import Example, Judged, Rule, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libcst import CSTNode

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.block import Block
    from fmcheck.lint.facts import ModuleFacts

_CALLED = re.compile(r"cuda[\s\\)]*\(")
_LITERAL = re.compile(r"[\"']cuda[\"']")
#: What stands before a literal that is a device: brackets, a prefix, more quotes may follow.
_GIVEN = re.compile(r"(?:device[\s\\]*=|to[\s\\)]*\()[\s\\(]*[A-Za-z]{0,2}[\"']{0,2}\Z")
_AFTER_COMMENT = re.compile(r"#[^\n]*\n[\s\\(]*[A-Za-z]{0,2}[\"']{0,2}\Z")
#: No more signs than this are between the two.
_FAR = 1000


class DeviceLiteral(Rule):
    """A tensor is put on `"cuda"` by name in code that is meant for every device.

    ## What it does
    Looks for `.cuda()`, `.to("cuda")` and `device="cuda"` in folders which the contract calls
    device-agnostic (`device.agnostic`, `device.no_literal`). Code behind a test for CUDA is left
    alone. Silent for paths that no contract names.

    ## Why is this bad
    The literal ignores the device that the engine was told to run on: on another accelerator the
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
    scope = Scope.FUNCTION
    needles = ((b'"cuda"', b"'cuda'", b".cuda("),)
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
""",
            at=((5, 45), (6, 43), (7, 22)),
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

    def concerns_path(self, identity: str) -> bool:
        """Clears modules that are for CUDA."""
        return self._is_agnostic(identity)

    def concerns_module(self, facts: ModuleFacts) -> bool:
        """Clears the same."""
        return self._is_agnostic(facts.identity)

    def may_stand_in(self, text: str, facts: ModuleFacts) -> bool:
        """Asks for `cuda()`, or for the literal as a `device` or as the first argument of `to`."""
        return _CALLED.search(text) is not None or any(
            _GIVEN.search(text, max(match.start() - _FAR, 0), match.start())
            or _AFTER_COMMENT.search(text, max(match.start() - _FAR, 0), match.start())
            for match in _LITERAL.finditer(text)
        )

    def suspects(self, node: ast.AST, facts: ModuleFacts) -> bool:
        """Clears blocks that put nothing on CUDA by name."""
        return any(
            (isinstance(inner, ast.Attribute) and inner.attr == "cuda")
            or (isinstance(inner, ast.Constant) and inner.value == "cuda")
            for inner in all_below(node)
        )

    def _is_agnostic(self, identity: str) -> bool:
        return lies_in(identity, self._agnostic) and not lies_in(identity, self._cuda_only)

    def check(self, block: Block) -> Iterator[Finding]:
        """Yields a finding for each literal that no test for CUDA guards."""
        places = [place for node in block.nodes() for place in _literals(node)]
        guarded = self._platform.guarded(block) if places else set()
        for place in places:
            if place not in guarded:
                yield block.finding(
                    self,
                    place,
                    "the device is named by a literal, in device-agnostic code",
                    help="take the device from the tensors beside it, or from the settings",
                )


def _literals(node: CSTNode) -> Iterator[CSTNode]:
    """Yields where a call names CUDA as the device."""
    if not isinstance(node, cst.Call):
        return
    word = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    if word == "cuda" and not node.args:
        yield node
    for position, arg in enumerate(node.args):
        is_device = arg.keyword.value == "device" if arg.keyword else word == "to" and not position
        text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
        if is_device and text == "cuda":
            yield arg.value

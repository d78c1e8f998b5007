"""FM304: a device named "cuda" in a function that takes its device from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.model.device_literals import beside_device, is_autocast, is_of_vendor
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import is_beside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part


class LiteralBesideDevice(FunctionRule):
    """A hard-coded `"cuda"` beside tensors that take the device of their input.

    ## What it does
    Looks for `.cuda()`, `.to("cuda")` and `device="cuda"` in a function that elsewhere takes the
    device from a tensor or an object (`device=x.device`, `.to(self.device)`). A function that asks
    for CUDA (`is_available`, `is_cuda`, a comparison with `"cuda"`), names it as a default or talks
    to other ranks is left alone, and so is one whose device comes of the literal itself, and code
    that trains, prepares data, is an example or is for one vendor's devices, by its path, and
    `autocast("cuda")`, which changes nothing on another device.

    ## Why is this bad
    The function was written for the device of its input. On another accelerator this line fails;
    with several GPUs it means the current one, which need not be that of the tensors beside it.

    ## Example
    ```python
    rows = torch.arange(n, device=hidden.device)
    mask = torch.zeros(n, device="cuda")
    ```

    ## Use instead
    ```python
    rows = torch.arange(n, device=hidden.device)
    mask = torch.zeros(n, device=hidden.device)
    ```
    """

    code = "FM304"
    name = "literal-beside-device"
    severity = Severity.WARNING
    judged = (Judged("sglang 0.5.23", 2, 0), Judged("vllm 0.20.2", 0, 0))
    on_by_default = False
    words = (
        (".device",),
        (
            *(".cuda()", '="cuda"', "='cuda'", '(*device = "cuda"', "(*device = 'cuda'"),
            *('to(*"cuda"', "to(*'cuda'"),
        ),
        ('"cuda"', "'cuda'", ".cuda()"),
    )
    seen_in = (
        "https://github.com/huggingface/diffusers/pull/13336",
        "https://github.com/huggingface/diffusers/pull/12814",
    )
    bad = (
        Example(
            """\
import torch

def mask(hidden, n):
    rows = torch.arange(n, device=hidden.device)
    kept = torch.zeros(n).cuda()
    return torch.zeros(n, device="cuda"), rows, kept
""",
            at=((5, 12), (6, 34)),
        ),
    )
    good = (
        Example(
            """\
import torch

def mask(hidden, n):
    if hidden.device.type == "cuda":
        return torch.zeros(n, device="cuda")
    return torch.zeros(n, device=hidden.device)

def kept(hidden, n):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.zeros(n).to("cuda"), hidden.to(hidden.device)

def made(n):
    device = torch.device("cuda", 0)
    return torch.zeros(n, device=device), torch.zeros(n, device="cuda")
"""
        ),
    )

    def applies(self, file: File) -> bool:
        """Leaves out what trains, prepares data, is an example or a vendor's, by its path."""
        return not (is_beside(file.identity) or is_of_vendor(file.identity))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each literal beside a device that was taken from elsewhere."""
        for function in functions(part):
            places, taken = beside_device(function)
            for place in places:
                if taken is None or is_autocast(place, function):
                    continue  # autocast puts nothing on a device
                yield part.finding(
                    self,
                    place,
                    f'hard-coded device "cuda" beside `{part.code(taken)}`',
                    help=f"use `{part.code(taken)}` here too",
                    related=[(taken, "taken from elsewhere here")],
                )

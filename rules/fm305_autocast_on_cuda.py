"""FM305: autocast is switched for CUDA by name, in code that takes its device from a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.model.device_literals import beside_device, is_autocast, is_of_vendor
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import is_beside
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part

#: What a file that runs on CUDA alone asks of it.
_ON_CUDA = regex(r"torch\.cuda\.(?!amp|empty_cache|is_available)")


class AutocastOnCuda(FunctionRule):
    """Autocast is switched on or off for CUDA by name, whatever the device is.

    ## What it does
    Looks for `torch.autocast("cuda", ...)` and `torch.amp.autocast(device_type="cuda", ...)`, as a
    context or a decorator, of a function that elsewhere takes the device from a tensor or an object
    (`device=x.device`, `.to(self.device)`). Left alone is a function that asks for CUDA or talks to
    other ranks, a file that uses `torch.cuda` otherwise, and code that trains, prepares data, is an
    example or is for one vendor's devices, by its path.

    ## Why is this bad
    Autocast is set for each type of device apart. On another accelerator (NPU, XPU, MPS) this line
    changes nothing and raises nothing: what it was to compute in float32 stays in half precision,
    or the other way round, and the numbers are silently others.

    ## Example
    ```python
    with torch.autocast("cuda", enabled=False):
        angles = torch.outer(time, self.freqs.to(time.device))
    ```

    ## Use instead
    ```python
    with torch.autocast(time.device.type, enabled=False):
        angles = torch.outer(time, self.freqs.to(time.device))
    ```
    """

    code = "FM305"
    name = "autocast-on-cuda"
    severity = Severity.WARNING
    on_by_default = False
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))
    words = ((".device",), ("autocast(",), ('"cuda"', "'cuda'"))
    seen_in = ("https://github.com/huggingface/diffusers/pull/12814",)
    bad = (
        Example(
            """\
import torch

def angles(time, freqs):
    with torch.autocast("cuda", enabled=False):
        return torch.outer(time, freqs.to(time.device))
""",
            at=((4, 25),),
        ),
        Example(
            """\
import torch

class Embedding:
    @torch.amp.autocast(device_type="cuda", dtype=torch.float32)
    def forward(self, time):
        return torch.outer(time, self.freqs.to(device=time.device))
""",
            at=((4, 37),),
        ),
    )
    good = (
        Example(
            """\
import torch

def angles(time, freqs):
    with torch.autocast(time.device.type, enabled=False):
        return torch.outer(time, freqs.to(time.device))

def on_cuda(time, freqs):
    if time.is_cuda:
        with torch.autocast("cuda", enabled=False):
            return torch.outer(time, freqs.to(time.device))
    return torch.outer(time, freqs)

def alone(time, freqs):
    with torch.autocast("cuda", enabled=False):
        return torch.outer(time, freqs)
"""
        ),
        Example(
            """\
import torch

def angles(time, freqs):
    with torch.autocast("cuda", enabled=False):
        return torch.outer(time, freqs.to(time.device))
""",
            path="attention/flash_attn_backend.py",
        ),
    )

    def applies(self, file: File) -> bool:
        """Leaves out what trains, prepares data, is an example or a vendor's, by its path."""
        return not (is_beside(file.identity) or is_of_vendor(file.identity))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each autocast beside a device that was taken from elsewhere."""
        if _ON_CUDA.search(part.module.text):
            return
        for function in functions(part):
            places, taken = beside_device(function)
            for place in places:
                if taken is not None and is_autocast(place, function):
                    yield part.finding(
                        self,
                        place,
                        f'autocast for "cuda" by name, beside `{part.code(taken)}`',
                        help=f"pass `{part.code(taken)}.type`",
                        related=[(taken, "the device is taken from here elsewhere")],
                    )

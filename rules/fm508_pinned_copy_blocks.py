"""FM508: memory is pinned for a copy that blocks all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Edit, Example, Judged, Severity, cst, functions
from fmcheck.lint.model.expressions import receiver
from fmcheck.lint.model.pinned import makes_pinned
from fmcheck.lint.model.places import moves_and_waits
from fmcheck.lint.model.steps import REPEATED, is_for_debugging, runs_again
from fmcheck.lint.source.changes import replaced
from fmcheck.lint.step_rule import StepRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part


class PinnedCopyBlocks(StepRule):
    """A tensor is pinned for its copy to the device, and the copy blocks.

    ## What it does
    Looks for `.to(device)` and `.cuda()` without `non_blocking` on what `pin_memory()` returns or
    `pin_memory=True` creates, in the same expression or under a local name that is bound to nothing
    else. Functions that by their name or file run once, train, test or measure are left alone.

    ## Why is this bad
    Pinned memory is what lets a copy run beside the host; it costs time to allocate. Without
    `non_blocking=True` the host waits for the copy, and so for everything that was enqueued on the
    stream before: pinning was in vain, and the host cannot prepare the next step meanwhile.

    ## Example
    ```python
    mask = mask_cpu.pin_memory().to(self.device)
    ```

    ## Use instead
    torch keeps the pinned memory until the copy is done, so that a tensor nobody else writes
    needs no more than
    ```python
    mask = mask_cpu.pin_memory().to(self.device, non_blocking=True)
    ```
    """

    code = "FM508"
    name = "pinned-copy-blocks"
    severity = Severity.WARNING
    on_by_default = False
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))
    judges = REPEATED
    words = (("pin_memory",), (".to(", ".cuda("))
    seen_in = ()
    bad = (
        Example(
            """\
import torch

def prepare(mask, lens, device):
    mask = mask.pin_memory().to(device)
    lens = torch.tensor(lens, pin_memory=True).cuda()
    return mask, lens
""",
            at=((4, 12), (5, 12)),
            fixed="""\
import torch

def prepare(mask, lens, device):
    mask = mask.pin_memory().to(device, non_blocking=True)
    lens = torch.tensor(lens, pin_memory=True).cuda(non_blocking=True)
    return mask, lens
""",
        ),
        Example(
            """\
import torch

def prepare(self, rows):
    host = torch.tensor(rows, dtype=torch.int32, pin_memory=self.pin)
    return host.view(2, -1).to(self.device, torch.int64)
""",
            at=((5, 12),),
        ),
    )
    good = (
        Example(
            """\
import torch

def prepare(self, mask, rows, lens, device):
    mask = mask.pin_memory().to(device, non_blocking=True)
    rows = torch.tensor(rows, pin_memory=True).to(torch.int64)
    host = torch.tensor(lens, pin_memory=True) if self.pin else torch.tensor(lens)
    lens = torch.tensor(lens, pin_memory=False).to(device)
    kept = self.staging.to(device)
    return mask, rows, host.to(device), lens, kept.pin_memory().to("cpu")

def load_weights(weights, device):
    return weights.pin_memory().to(device)
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each copy of pinned memory that blocks."""
        for function in functions(part):
            if not runs_again(function):
                continue
            for call in function.calls:
                source = receiver(call)
                if source is None or not moves_and_waits(call, function):
                    continue
                if _is_pinned(source, function) and not is_for_debugging(call, function):
                    yield part.finding(
                        self,
                        call,
                        "the source is pinned, and the host waits for the copy all the same",
                        help="pass `non_blocking=True`",
                        edits=(_unblocked(call, part),) if makes_pinned(source, part) else (),
                    )


def _is_pinned(source: cst.BaseExpression, function: Function) -> bool:
    """Tells whether an expression, or a view of a local name, is newly pinned memory."""
    while isinstance(source, (cst.Call, cst.Subscript)) and not makes_pinned(source, function.part):
        held = source.value if isinstance(source, cst.Subscript) else receiver(source)
        if held is None:
            return False
        source = held
    if not isinstance(source, cst.Name):
        return makes_pinned(source, function.part)
    values = function.names.values(source.value)
    return (
        bool(values)
        and source.value not in function.parameters
        and all(isinstance(one, cst.Call) and makes_pinned(one, function.part) for one in values)
    )


def _unblocked(call: cst.Call, part: Part) -> Edit:
    """Returns the edit that lets a copy run beside the host."""
    flag = cst.Arg(
        cst.Name("True"),
        keyword=cst.Name("non_blocking"),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return replaced(part, call, call.with_changes(args=(*call.args, flag)))

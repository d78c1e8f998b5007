"""FM506: a step reads back a number of a tensor that is shown to be on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity
from fmcheck.lint.devices.read_backs import read_backs, waits_anyway
from fmcheck.lint.model.function import functions
from fmcheck.lint.step_rule import ServingRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.devices.read_backs import ReadBack
    from fmcheck.lint.source.module import Part


class ReadBackInStep(ServingRule):
    """A step reads back from the device what the host had, or what it computes for each step.

    ## What it does
    Looks, in functions that by their name run for each step or layer of a model (`forward`,
    `decode`, `*_metadata` and others), for two things. First, a number that is read back from a
    tensor which the same function made of the host's numbers and put on the device:
    `torch.tensor(lens, pin_memory=True).to(...)` and `.max().item()`, or `repeat_interleave` by it
    without `output_size`, for which torch reads the sum. Second, the maximum, minimum, sum or
    truth of any tensor that is read back. Either way something has to show that the tensor is
    on the device: it is made or moved there by the function or its class, handed to a layer
    with weights or, annotated as a tensor, to `forward`, or others are made on its device. What
    inputs are prepared with, by its name (`grid`, `sizes`, `image`), is on the host as likely
    as not: FM505 reports it. Left alone are functions that ask where their tensors are, or that
    may wait for another reason too, checks that end in an error or a message, what only runs where
    a value is missing, what other ranks have sent, code that trains, prepares data or talks to
    environments, by its path, and files without a word of caches, batches of requests or graphs.

    ## Why is this bad
    The host waits until the device has done all that was enqueued, and only then prepares what
    comes next: the device runs dry in each step, and nothing overlaps. A graph cannot be captured.

    ## Example
    ```python
    counts = torch.tensor(seq_lens, pin_memory=True).to(device, non_blocking=True)
    starts = offsets.repeat_interleave(counts)
    longest = int(counts.max())
    ```

    ## Use instead
    ```python
    counts = torch.tensor(seq_lens, pin_memory=True).to(device, non_blocking=True)
    starts = offsets.repeat_interleave(counts, output_size=sum(seq_lens))
    longest = max(seq_lens)
    ```
    """

    code = "FM506"
    name = "read-back-in-step"
    severity = Severity.WARNING
    on_by_default = False
    judged = (Judged("sglang 0.5.23", 5, 4), Judged("vllm 0.20.2", 2, 2))
    words = (
        (
            *(".item()", "repeat_interleave(", ".any(", ".all("),
            *(f"{kind}(*.{word}(" for kind in ("int", "float", "bool") for word in ("max", "sum")),
            *(f"int(*.{word}(" for word in ("min", "amax", "amin", "argmax", "count_nonzero")),
        ),
        ("device", ".to(", ".cuda(", "self."),
    )
    seen_in = (
        "https://github.com/lightseekorg/tokenspeed/pull/1115",
        "https://github.com/pytorch/torchrec/pull/3318",
    )
    bad = (
        Example(
            """\
import torch

def decode_slots(offsets, seq_lens, device):
    counts = torch.tensor(seq_lens, pin_memory=True).to(device, non_blocking=True)
    longest = int(counts.max())
    return offsets.repeat_interleave(counts), longest
""",
            at=((5, 15), (6, 12)),
        ),
        Example(
            """\
import torch
from torch import nn

class Router(nn.Module):
    def __init__(self):
        self.gate = nn.Linear(8, 8)

    def forward(self, hidden, kv_cache):
        chosen = torch.argmax(self.gate(hidden), dim=-1)
        most = chosen.max().item()
        if (hidden > 3).any():
            hidden = hidden.clamp(max=3)
        return hidden, most
""",
            at=((10, 16), (11, 12)),
        ),
    )
    good = (
        Example(
            """\
import torch
from torch import nn

def decode_slots(offsets, seq_lens, device):
    counts = torch.tensor(seq_lens, pin_memory=True).to(device, non_blocking=True)
    longest = max(seq_lens)
    return offsets.repeat_interleave(counts, output_size=sum(seq_lens)), longest

class Router(nn.Module):
    def __init__(self):
        self.gate = nn.Linear(8, 8)

    def forward(self, hidden, grid: torch.Tensor):
        rows = grid.sum().item()
        scores = self.gate(hidden)
        if torch.isnan(scores).any():
            raise ValueError("not a number")
        return scores, rows, torch.zeros(rows, device=grid.device)

def decode_rows(seq_lens, hidden, mask):
    counts = torch.tensor(seq_lens, device=hidden.device)
    return hidden[mask], int(counts.max())

def forward(lens, hidden):
    if lens.is_cuda:
        return hidden
    lens = lens.to(hidden.device)
    return lens.max().item()
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each number that is read back."""
        for function in functions(part):
            read = read_backs(function)
            # What is gained where the host waits once less, and then all the same?
            if not read or waits_anyway(function, read):
                continue
            for one in read.values():
                yield part.finding(
                    self,
                    one.node,
                    _message(one, function.name),
                    help=_help(one),
                )


def _message(one: ReadBack, name: str) -> str:
    what = "`repeat_interleave`" if one.is_length else "this read"
    if one.was_host:
        return f"{what} waits for the device, and what it reads was the host's before"
    return f"{what} waits for the device in each call of `{name}`"


def _help(one: ReadBack) -> str:
    if one.is_length:
        return "pass `output_size=`"
    if one.was_host:
        return "compute it from the host's own numbers"
    return "keep the number on the device, or use an upper bound that the host has"

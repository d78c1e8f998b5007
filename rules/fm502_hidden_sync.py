"""FM502: the host waits for the device in a function that runs every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.devices.syncs import Syncs
from fmcheck.lint.model.declared import DeclaredFunctions
from fmcheck.lint.model.function import functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.finding import Finding
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part

CONTRACT = """\
[engine]
name = "example"

[launches]
per_step = ["example:Runner.step"]
host_values = ["lora_ids"]
mirrored = ["seq_lens"]
"""


class HiddenSync(FunctionRule):
    """The host waits for the device in a function that runs every step.

    ## What it does
    Looks, in the functions that the contract says run every step, for what makes the host wait
    and does not look like it: `.item()`, `.tolist()`, `.cpu()`, `.to("cpu")` into pageable
    memory (of one with `non_blocking=True` PyTorch pins the target, and FM404 asks whether it is
    read too soon); `torch.tensor(list, device=...)`; `nonzero` and masks as an index, whose
    result is as long as the data say; `bool(mask.any())` and tests like it; single
    elements of a tensor of which the host has a copy. An upload with `non_blocking=True` from
    memory that is not pinned is a note: CUDA's driver stages such a copy, and waits for the stream
    at some sizes only. Values that are named or made as host values are left alone, and so are
    masks that are assigned to, and the branch that runs where a switch called `overlap` is off.

    ## Why is this bad
    With overlap the host prepares a step while the device runs the one before. A sync in it makes
    the host wait for the whole of that step, each time: the overlap is gone, silently.

    ## Example
    ```python
    tokens = torch.tensor([req.last for req in self.reqs], device=self.device)
    ```

    ## Use instead
    ```python
    tokens = torch.tensor([req.last for req in self.reqs], pin_memory=True)
    tokens = tokens.to(self.device, non_blocking=True)
    ```
    """

    code = "FM502"
    name = "hidden-sync"
    severity = Severity.WARNING
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/28491",
        "https://github.com/sgl-project/sglang/pull/29075",
        "https://github.com/vllm-project/vllm/pull/31336",
    )

    bad = (
        Example(
            """\
import torch

class Runner:
    def step(self, batch):
        last = batch.starts[0].item()
        ids = batch.ids.tolist()
        lens = batch.lens.to("cpu")
        new = torch.tensor(batch.new, device=self.device)
        old = torch.tensor(batch.old).to(self.device, non_blocking=True)
        return last, ids, lens, new, old
""",
            at=((5, 16), (6, 15), (7, 16), (8, 15), (9, 15)),
            contract=CONTRACT,
        ),
        Example(
            """\
import torch

class Runner:
    def step(self, batch):
        mask = batch.tokens >= 0
        kept = batch.tokens[mask]
        where = mask.nonzero()
        if not bool(mask.any()) or kept.numel() == 0:
            return torch.where(mask)
        if mask.all():
            return where
        return [int(batch.seq_lens[i]) for i in range(batch.size)]
""",
            at=((6, 16), (7, 17), (8, 21), (9, 20), (10, 12), (12, 21)),
            contract=CONTRACT,
        ),
        Example(
            """\
class Runner:
    def step(self, batch):
        if self.enable_overlap:
            return batch.tokens.tolist()
        if not self.use_overlap:
            return None
        else:
            return batch.tokens.cpu()
""",
            at=((4, 20), (8, 20)),
            contract=CONTRACT,
        ),
    )
    good = (
        Example(
            """\
import torch
import numpy as np

class Runner:
    def step(self, batch):
        ids = (batch.ids_cpu == 1).tolist() + self.lora_ids.tolist()
        lens = torch.tensor([1, 2]).sum().item()
        pinned = torch.tensor(batch.new, pin_memory=True).to(self.device, non_blocking=True)
        batch.tokens[batch.tokens < 0] = 0
        rows = np.array(batch.rows)
        if any(batch.flags) or (rows > 0).any():
            ids = rows[rows > 0].tolist()
        first = [batch.seq_lens_cpu[i] for i in range(batch.size)]
        zero = torch.tensor(0, device=self.device)
        return ids, lens, pinned, first, zero, batch.tokens.to(self.device)

    def report(self, batch):
        return batch.tokens.tolist()
""",
            contract=CONTRACT,
        ),
        Example(
            """\
class Runner:
    def step(self, batch):
        if self.enable_overlap:
            return self.launch(batch)
        elif batch.is_prefill:
            return batch.tokens.tolist()
        else:
            if not self.use_overlap:
                return batch.tokens.cpu()
""",
            contract=CONTRACT,
        ),
        Example(
            """\
class Runner:
    def step(self, batch):
        return batch.tokens.tolist()
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 3, 3),
        Judged("vllm 0.20.2", 0, 0),
    )

    def __init__(self, contracts: Sequence[Contract]) -> None:
        super().__init__(contracts)
        declared = [one.launches for one in contracts]
        self._declared = DeclaredFunctions(name for one in declared for name in one.per_step)
        self._host_values = [glob for one in declared for glob in one.host_values]
        self._mirrored = [glob for one in declared for glob in one.mirrored]
        self.words = (self._declared.words(),)

    def applies(self, file: File) -> bool:
        """Leaves out modules of which no function runs every step."""
        return bool(self._declared.of_file(file.identity))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each sync of a function that runs every step."""
        names = self._declared.of_file(part.identity)
        for function in functions(part):
            if function.name in names:
                syncs = Syncs(function, self._host_values, self._mirrored)
                for sync in syncs.all():
                    yield part.finding(
                        self,
                        sync.node,
                        sync.what,
                        note=f"`{function.name}` runs every step",
                        help=sync.instead,
                        severity=Severity.WARNING if sync.certain else Severity.NOTE,
                    )

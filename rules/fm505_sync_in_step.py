"""FM505: a step of the model reads a number from the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.devices.places import Places
from fmcheck.lint.devices.read_backs import read_backs
from fmcheck.lint.model.expressions import dotted, is_name, keywords, last_name, non_blocking
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import is_for_cpu, is_for_debugging
from fmcheck.lint.model.vocabulary import REDUCTIONS
from fmcheck.lint.source.words import either
from fmcheck.lint.step_rule import StepRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

#: Methods and functions of torch whose result is a number on the device.
_NUMBERS = frozenset({"float", "int"})
#: The last names of calls that may wait.
_WAITING = _NUMBERS | {"item", "repeat_interleave", "synchronize", "to"}


class _Wait(NamedTuple):
    """What is said of a call that waits."""

    message: str
    help: str
    severity: Severity = Severity.WARNING


_NUMBER = _Wait(
    "the host waits for the device to read this number",
    "use the lengths that the host already has, or keep the number on the device",
)
_LENGTH = _Wait(
    "the host waits for the length of the result of `repeat_interleave`", "pass `output_size=`"
)
_COPY = _Wait(
    "this copies from pageable memory, and the host waits for the device",
    "create it on the device, or with `pin_memory=True` and move it with `non_blocking=True`",
)
_STREAM = _Wait(
    "the host waits for all work on the current stream",
    "record an event, and wait for it where the values are read",
    Severity.NOTE,  # the wait may be needed just here
)


class SyncInStep(StepRule):
    """The host waits for the device in each step of a model.

    ## What it does
    Looks, in functions that by their name run for each step or layer of a model (`forward`,
    `decode`, `*_metadata`, `dispatch` and others), for: the maximum, minimum, sum or count of a
    device tensor that is read back (`lens.max().item()`, `int(lens.sum())`);
    `repeat_interleave` by a device tensor without `output_size`, for which torch reads the sum;
    `torch.tensor(...)` of host values that `.to(x.device)` then moves from pageable memory; and
    a wait for all that the current stream was given, by `current_stream().synchronize()` or an
    event that is recorded and waited for at once. What only runs where a value is `None`, or is
    kept in an attribute, is left alone, and so are events that measure time, waits in a
    `finally`, and what a switch for logs asks for. Whether a value is on the device is decided
    as by FM504; where that is unknown, the rule is silent, and where it is certain FM506
    reports it. The waits for the stream are notes: one may be needed.

    ## Why is this bad
    The host waits until the device has done all that was enqueued, and only then prepares what
    comes next: the device runs dry in each step, and nothing overlaps. A graph cannot be captured.

    ## Example
    ```python
    max_len = int(seq_lens.max().item())
    ```

    ## Use instead
    The lengths that the host has already, for it made the batch: `max(batch.seq_lens_list)`; an
    upper bound; `output_size=` for `repeat_interleave`.
    """

    code = "FM505"
    name = "sync-in-step"
    severity = Severity.WARNING
    judged = (
        Judged("sglang 0.5.23", 33, 11),
        Judged("vllm 0.20.2", 12, 9),
    )
    on_by_default = False
    words = either(
        (
            (".item()", "^int(", "^float("),
            tuple(
                spelling
                for one in sorted(REDUCTIONS)
                for spelling in (f".{one}()", f"torch.{one}(")
            ),
        ),
        (("repeat_interleave(",),),
        ((".to(",), ("^tensor(", ".tensor("), (".device",)),
        (("synchronize()",), ("record()", "current_stream")),
    )
    seen_in = (
        "https://github.com/lightseekorg/tokenspeed/pull/1115",
        "https://github.com/pytorch/torchtitan/pull/3274",
        "https://github.com/InternLM/lmdeploy/pull/4164",
        "https://github.com/NVIDIA/Megatron-LM/pull/6432",
        "https://github.com/pytorch/torchrec/pull/3318",
    )
    bad = (
        Example(
            """\
import torch

class Backend:
    def init_forward_metadata(self, grid_sizes: torch.Tensor):
        rows = torch.arange(8, device=grid_sizes.device)
        longest = int(grid_sizes.max())
        total = torch.sum(grid_sizes - 1).item()
        return rows.repeat_interleave(grid_sizes), longest, total
""",
            at=((6, 19), (7, 17), (8, 16)),
        ),
        Example(
            """\
import torch

def forward(self, hidden, lens):
    scale = torch.tensor(self.scales)
    hidden = hidden * scale.to(hidden.device)
    self.copied.record()
    self.copied.synchronize()
    torch.cuda.current_stream().synchronize()
    return hidden
""",
            at=((5, 23), (7, 5), (8, 5)),
        ),
    )
    good = (
        Example(
            """\
import torch

class Backend:
    def init_forward_metadata(self, seq_lens: torch.Tensor, lens_cpu, total):
        rows = torch.arange(8, device=seq_lens.device)
        longest = int(lens_cpu.max())
        rows = torch.repeat_interleave(rows, seq_lens, output_size=total)
        return rows.repeat_interleave(2), longest, lens_cpu.sum().item()

    def load_metadata(self, seq_lens: torch.Tensor):
        rows = torch.arange(8, device=seq_lens.device)
        return int(seq_lens.max()), rows

def report(values: torch.Tensor):
    return values.to("cuda").max().item()

def embed(self, sizes: torch.Tensor, most=None):
    rows = torch.zeros(8, device=sizes.device)
    if most is None:
        most = int(sizes.max())
    self.longest = int(sizes.max())
    return rows[:most]

def dispatch(sizes, hidden):
    self.copied.record()
    launch(hidden)
    self.copied.synchronize()
    kept = torch.tensor(self.kept, pin_memory=True)
    return sizes.max().item(), kept.to(hidden.device, non_blocking=True)
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each number that a step reads."""
        for function in functions(part):
            if self.judges.match(function.name):
                yield from self._waits(function)

    def _waits(self, function: Function) -> Iterator[Finding]:
        calls = [call for call in function.calls if last_name(call.func) in _WAITING]
        if not calls or is_for_cpu(function):
            return
        places = Places(function)
        for call in calls:
            wait = _wait(call, function, places)
            if wait is None or _is_fallback(call, function) or is_for_debugging(call, function):
                continue
            if call not in read_backs(function):  # FM506 reports what is on the device for certain
                yield function.part.finding(
                    self,
                    call,
                    wait.message,
                    note=f"in each call of `{function.name}`",
                    help=wait.help,
                    severity=wait.severity,
                )


def _wait(call: cst.Call, function: Function, places: Places) -> _Wait | None:
    """Returns what a call waits for."""
    reduced = _read_back(call, function)
    if reduced is not None and places.on_device(reduced):
        return _NUMBER
    if _repeats(call, function, places):
        return _LENGTH
    if _moves(call, function):
        return _COPY
    return _STREAM if _waits_at_once(call, function) else None


def _is_fallback(call: cst.Call, function: Function) -> bool:
    """Tells whether a call runs only where something is missing, or its result is kept."""
    node: cst.CSTNode = call
    while node in function.parents and node is not function.node:
        node = function.parents[node]
        if isinstance(node, (cst.If, cst.IfExp)) and _asks_for_none(node.test):
            return True
        if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute):
            return True
        if isinstance(node, cst.Finally):
            return True
    return False


def _asks_for_none(test: cst.CSTNode) -> bool:
    """Tells whether a test is `x is None` or `x is not None`, and nothing else."""
    return isinstance(test, cst.Comparison) and any(
        is_name(one.comparator, "None") for one in test.comparisons
    )


def _read_back(call: cst.Call, function: Function) -> cst.CSTNode | None:
    """Returns the tensor of which a number is read: what is reduced, all at once."""
    value: cst.CSTNode | None = None
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "item" and not call.args:
        value = call.func.value
    elif any(is_name(call.func, one) for one in _NUMBERS) and len(call.args) == 1:
        value = call.args[0].value
    if isinstance(value, cst.Name):
        bound = function.names.bound(value)
        value = bound[0] if len(bound) == 1 else None
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return None
    if value.func.attr.value not in REDUCTIONS:
        return None
    if is_name(value.func.value, "torch"):
        return value.args[0].value if len(value.args) == 1 else None
    return value.func.value if not value.args else None


def _moves(call: cst.Call, function: Function) -> bool:
    """Tells whether a tensor that was just made of host values is moved, and the host waits."""
    if last_name(call.func) != "to" or not isinstance(call.func, cst.Attribute):
        return False
    if non_blocking(call) or not any(
        isinstance(one.value, cst.Attribute) and one.value.attr.value == "device"
        for one in call.args
    ):
        return False
    held = call.func.value
    if isinstance(held, cst.Name) and held.value in function.parameters:
        return False
    made = function.names.bound(held) if isinstance(held, cst.Name) else [held]
    return bool(made) and all(_is_of_host(one, function) for one in made)


def _is_of_host(value: cst.CSTNode, function: Function) -> bool:
    if not isinstance(value, cst.Call):
        return False
    name = function.module.resolve(dotted(value.func) or "")
    return name == "torch.tensor" and not {"device", "pin_memory"} & set(keywords(value))


def _waits_at_once(call: cst.Call, function: Function) -> bool:
    """Tells whether a call waits for the current stream, or an event just recorded on it."""
    if last_name(call.func) != "synchronize" or not isinstance(call.func, cst.Attribute):
        return False
    held = call.func.value
    if isinstance(held, cst.Call):
        return last_name(held.func) == "current_stream"
    name, flow = dotted(held), function.flow
    is_timed = any(last_name(one.func) == "elapsed_time" for one in function.calls)
    if name is None or is_timed or not flow.contains(call):
        return False
    at = flow.position(call)
    step = flow.steps[at - 1] if at else None
    before = step.value if isinstance(step, cst.Expr) else None
    return (
        isinstance(before, cst.Call)
        and isinstance(before.func, cst.Attribute)
        and before.func.attr.value == "record"
        and not before.args
        and dotted(before.func.value) == name
    )


def _repeats(call: cst.Call, function: Function, places: Places) -> bool:
    """Tells whether a call repeats rows by a tensor of the device, and nobody says how many."""
    if last_name(call.func) != "repeat_interleave" or "output_size" in keywords(call):
        return False
    assert isinstance(call.func, (cst.Attribute, cst.Name))
    args = [one.value for one in call.args if one.keyword is None]
    is_torch = isinstance(call.func, cst.Name) or is_name(call.func.value, "torch")
    repeats = keywords(call).get("repeats") or next(iter(args[int(is_torch) :]), None)
    return repeats is not None and places.on_device(repeats)

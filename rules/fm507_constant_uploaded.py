"""FM507: each call copies a constant from the host to the device, and the host waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Edit, Example, Judged, Severity, cst, dotted, functions
from fmcheck.lint.devices.places import is_accelerator, may_be_host
from fmcheck.lint.devices.read_backs import is_aside, waits_anyway
from fmcheck.lint.model.expressions import (
    is_name,
    keywords,
    last_name,
    literal_elements,
    non_blocking,
)
from fmcheck.lint.model.steps import REPEATED, is_step, runs_again
from fmcheck.lint.source.changes import replaced
from fmcheck.lint.source.words import either
from fmcheck.lint.step_rule import ServingRule
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

_MAKES = ("torch.tensor", "torch.as_tensor")
#: What a literal begins with.
_LITERALS = ("True", "False", "float(", *"-0123456789")
#: Decorators of functions that run once, or whose constants become part of a graph.
_KEPT = regex(r"cache|compile|jit|memo|singleton")
#: Files for a CPU.
_CPU_PATH = regex(r"(^|[/_])cpu([/_.]|$)")


class ConstantUploaded(ServingRule):
    """Each call copies a constant to the device from pageable memory, and the host waits for it.

    ## What it does
    Looks for `torch.tensor(0, device=...)`, `torch.tensor([0, 1]).to(x.device)` and
    `torch.tensor(1.0).cuda()`, whose values are literals, in functions that by their name run for
    each step or layer of a model (`forward`, `decode`, `*_metadata` and others), and in those that
    such a function of the same file calls. Left alone is what only runs where a value is missing
    or is kept in an attribute, functions that a decorator caches or compiles, or that may wait for
    another reason too, and files without a word of caches, batches of requests or graphs. Whether
    a device is a CPU at run time is not known to the rule: one that is called so is left alone.

    ## Why is this bad
    torch creates the tensor in pageable host memory, copies it, and waits until the copy has run:
    until the device has done everything that was enqueued on the stream before. One number costs as
    much as the step before takes, each time, and the function cannot be captured into a graph.

    ## Example
    ```python
    last = torch.tensor([-1], device=self.device)
    ```

    ## Use instead
    `torch.full` fills on the device; nothing is copied, and nobody waits. A constant of several
    values belongs into an attribute that is made once.
    ```python
    last = torch.full((1,), -1, device=self.device)
    ```
    """

    code = "FM507"
    name = "constant-uploaded"
    severity = Severity.WARNING
    judged = (Judged("sglang 0.5.23", 1, 1), Judged("vllm 0.20.2", 0, 0))
    judges = REPEATED
    words = (
        ("tensor(",),
        (
            *(f"tensor({one}{value}" for one in ("", "[", "[[") for value in _LITERALS),
            *("tensor((", "tensor(data="),
        ),
        *either((("device=",),), ((".to(", ".cuda("),)),
    )
    seen_in = (
        "https://github.com/sgl-project/sglang/pull/32575",
        "https://github.com/pytorch/ao/pull/3253",
    )
    bad = (
        Example(
            """\
import torch

def alloc_extend(self, seq_lens):
    return [x[-1:] if len(x) else torch.tensor([-1], device=self.device) for x in seq_lens]
""",
            at=((4, 35),),
            fixed="""\
import torch

def alloc_extend(self, seq_lens):
    return [x[-1:] if len(x) else torch.full((1,), -1, device=self.device) for x in seq_lens]
""",
        ),
        Example(
            """\
import torch

class Layer:
    def forward(self, x, kv_cache):
        shifts = torch.tensor([0, 4], dtype=torch.uint8, device=x.device)
        one = torch.tensor(1.0).to(x.device)
        low = torch.as_tensor([float("-inf")] * 8).cuda()
        pair = torch.tensor((0, 1), device=x.device)
        zero = torch.tensor(data=0, device=x.device)
        return x >> shifts, one, low, pair, zero
""",
            at=((5, 18), (6, 15), (7, 15), (8, 16), (9, 16)),
        ),
        Example(
            """\
from torch import tensor

def decode(kv_cache, scores, dev):
    return scores.min(tensor(True, device=dev))
""",
            at=((4, 23),),
        ),
    )
    good = (
        Example(
            """\
import functools
import torch

class Layer:
    def __init__(self, device):
        self.one = torch.tensor(1.0, device=device)

    def forward(self, x, lens, kv_cache):
        if self.zero is None:
            self.zero = torch.tensor(0, device=x.device)
        host = torch.tensor([0, 1], device="cpu")
        counts = torch.tensor(lens, device=x.device)
        late = torch.tensor([0], pin_memory=True).to(x.device, non_blocking=True)
        half = torch.tensor(0.5).to(torch.float16)
        return x, host, counts, late, half, torch.full((1,), -1, device=x.device)

    def load_weights(self, device):
        return torch.tensor([0, 1], device=device)

def decode(x, kv_cache):
    return torch.tensor(0, device=x.device), x.nonzero()

@functools.lru_cache
def shifts(device):
    return torch.tensor([0, 4], device=device)

@torch.compile(dynamic=True)
def clamp(x):
    return torch.maximum(x, torch.tensor(0.0, device=x.device))
"""
        ),
        Example(
            "import torch\n\ndef decode(kv_cache, dev):\n    return torch.tensor(0, device=dev)\n",
            path="kernels/cpu/ops.py",
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each constant that is copied to a device."""
        if _CPU_PATH.search(part.identity):
            return
        for function in functions(part):
            if not _runs_each_step(function) or _is_kept(function):
                continue
            made = [(call, _moved(call, function)) for call in function.calls_of(*_MAKES)]
            copied = {
                moved: call
                for call, moved in made
                if moved and _is_constant(call) and not is_aside(moved, function)
            }
            if not copied or waits_anyway(function, copied):
                continue
            for moved, call in copied.items():
                yield part.finding(
                    self,
                    moved,
                    "this constant is copied to the device, and the host waits for the copy",
                    note=f"in each call of `{function.name}`",
                    help="fill it on the device with `torch.full`, or create it once and keep it",
                    edits=_filled(call, function) if moved is call else (),
                )


def _runs_each_step(function: Function) -> bool:
    """Tells whether a function is a step's, or is called by one of the same file that is."""
    if is_step(function):
        return True
    return runs_again(function) and any(is_step(caller) for caller, _ in function.callers())


def _moved(call: cst.Call, function: Function) -> cst.Call | None:
    """Returns the call that puts a new tensor on a device and waits: this one, or a move of it."""
    given = keywords(call)
    if "pin_memory" in given or "requires_grad" in given:
        return None
    if "device" in given:
        return None if any(map(may_be_host, _texts(given["device"], function))) else call
    attribute = function.parents.get(call)
    move = function.parents.get(attribute) if isinstance(attribute, cst.Attribute) else None
    if isinstance(move, cst.Call) and move.func is attribute and _moves(move, function):
        return move
    return None


def _moves(call: cst.Call, function: Function) -> bool:
    """Tells whether a call is `.cuda()` or `.to(device)` for which the host waits."""
    word = last_name(call.func)
    if non_blocking(call) or word not in ("cuda", "to"):
        return False
    given = (list(_texts(one.value, function)) for one in call.args)
    return word == "cuda" or any(
        is_accelerator(own) and not any(map(may_be_host, bound)) for own, *bound in given
    )


def _texts(device: cst.BaseExpression, function: Function) -> Iterator[str]:
    """Yields the text of a device, and of what a name of it is bound to."""
    bound = function.names.bound(device) if isinstance(device, cst.Name) else ()
    yield from map(function.part.code, (device, *bound))


def _is_kept(function: Function) -> bool:
    """Tells whether a decorator keeps what the function returns, or compiles it."""
    code = function.part.code
    return any(_KEPT.search(code(one.decorator)) for one in function.node.decorators)


def _is_constant(call: cst.Call) -> bool:
    """Tells whether a tensor is made of numbers that the source gives."""
    data = [one for one in call.args[:1] if one.keyword is None or one.keyword.value == "data"]
    return any(_is_literal(one.value) for one in data)


def _is_literal(node: cst.BaseExpression) -> bool:
    """Tells whether an expression is a number, or a list of numbers, that the source gives."""
    if (
        isinstance(node, (cst.Integer, cst.Float))
        or is_name(node, "True")
        or is_name(node, "False")
    ):
        return True
    if isinstance(node, cst.UnaryOperation):
        return _is_literal(node.expression)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        return literal_elements(node.left) is not None and _is_literal(node.left)
    if isinstance(node, cst.Call):
        return is_name(node.func, "float") and all(
            isinstance(one.value, cst.SimpleString) for one in node.args
        )
    if isinstance(node, cst.Attribute):
        return dotted(node) in ("math.inf", "math.nan", "torch.inf", "np.inf", "float.inf")
    elements = literal_elements(node)
    return bool(elements) and all(_is_literal(one) for one in elements or ())


def _filled(call: cst.Call, function: Function) -> tuple[Edit, ...]:
    """Returns the edit that fills the tensor on the device, for one number or a list of one."""
    first = call.args[0]
    elements = literal_elements(first.value)
    values = [first.value] if elements is None else elements
    if dotted(call.func) != "torch.tensor" or len(values) != 1 or literal_elements(values[0]):
        return ()
    if isinstance(first.value, cst.BinaryOperation) or first.keyword is not None:
        return ()
    shape = cst.Arg(
        cst.parse_expression("(1,)" if elements is not None else "()"), comma=first.comma
    )
    filled = call.with_changes(
        func=call.func.with_changes(attr=cst.Name("full"))
        if isinstance(call.func, cst.Attribute)
        else call.func,
        args=[shape, first.with_changes(value=values[0]), *call.args[1:]],
    )
    return (replaced(function.part, call, filled),)

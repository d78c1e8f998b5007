"""FM304: a device named "cuda" in a function that takes its device from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, is_name, last_name, targets
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import is_beside
from fmcheck.lint.source.walking import walk
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.file import File
    from fmcheck.lint.source.module import Part

#: Names whose mention says that the function knows that it is on CUDA, or asks.
_ASKS = frozenset(
    {"device_count", "get_device_capability", "is_available", "is_cuda", "is_cuda_alike"}
)
#: Functions that talk to other ranks, which NCCL does for CUDA alone.
_TALKS = frozenset({"all_gather", "all_reduce", "allGather", "allReduce", "broadcast", "send"})
#: Parts of a path of code that one vendor's devices run.
_OF_VENDOR = regex(
    r"(^|[/_])(aiter|cuda|cudnn|cutlass|deep_?gemm|flash\w*|hip|hopper|nvidia|rocm|sage\w*|"
    r"tensorrt|triton|trt)(?=[/_.])"
)


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
        return not (is_beside(file.identity) or _OF_VENDOR.search(file.identity.lower()))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each literal beside a device that was taken from elsewhere."""
        for function in functions(part):
            places = [place for node in _all(function) for place in _literals(node)]
            taken = _taken(function, places) if places else None
            if taken is None or _knows_cuda(function, places):
                continue
            for place in places:
                if not _is_autocast(place, function):  # which puts nothing on a device
                    yield part.finding(
                        self,
                        place,
                        f'hard-coded device "cuda" beside `{part.code(taken)}`',
                        help=f"use `{part.code(taken)}` here too",
                        related=[(taken, "taken from elsewhere here")],
                    )


def _is_autocast(place: cst.CSTNode, function: Function) -> bool:
    """Tells whether a literal is what `autocast` is handed."""
    arg = function.parents.get(place)
    call = function.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and last_name(call.func) == "autocast"


def _all(function: Function) -> Iterator[cst.CSTNode]:
    for decorator in function.node.decorators:
        yield from function.part.nodes(decorator)
    yield from function.nodes


def _literals(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields where a call puts something on CUDA by its name."""
    if not isinstance(node, cst.Call):
        return
    word = last_name(node.func)
    if word == "cuda" and not node.args and isinstance(node.func, cst.Attribute):
        yield node
    for position, arg in enumerate(node.args):
        keyword = arg.keyword.value if arg.keyword else ""
        is_device = keyword in ("device", "device_type") or (
            not keyword and not position and word in ("to", "autocast")
        )
        text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
        if is_device and text == "cuda":
            yield arg.value


def _taken(function: Function, places: Sequence[cst.CSTNode]) -> cst.CSTNode | None:
    """Returns the first device that the function takes from a value and puts a tensor on.

    Not that of a tensor which one of the literals has put there.
    """
    moved = _moved(function, places)
    for call in function.calls:
        for position, arg in enumerate(call.args):
            keyword = arg.keyword.value if arg.keyword else ""
            is_device = keyword == "device" or (
                not keyword and not position and last_name(call.func) == "to"
            )
            value = arg.value
            if (
                is_device
                and isinstance(value, cst.Attribute)
                and value.attr.value == "device"
                and dotted(value)
                and not is_name(value.value, "torch")
                and _names(value.value).isdisjoint(moved)
            ):
                return value
    return None


def _moved(function: Function, places: Sequence[cst.CSTNode]) -> set[str]:
    """Returns the names of what is made with one of the literals, or of what was."""
    literals = set(places)
    bindings = [
        (_names(target), walk(value)) for node in function.nodes for target, value in _bound(node)
    ]
    found: set[str] = set()
    before = -1
    while len(found) != before:
        before = len(found)
        for names, value in bindings:
            if any(
                one in literals or (isinstance(one, cst.Name) and one.value in found)
                for one in value
            ):
                found |= names
    return found


def _bound(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yields what a statement, a loop or a comprehension binds, and to what."""
    if isinstance(node, (cst.For, cst.CompFor)):
        yield node.target, node.iter
    elif isinstance(node, (cst.Assign, cst.AnnAssign, cst.NamedExpr)) and node.value is not None:
        for target in targets(node):
            yield target, node.value


def _names(target: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(target) if isinstance(one, cst.Name)} - {"self"}


def _knows_cuda(function: Function, places: Sequence[cst.CSTNode]) -> bool:
    """Tells whether the function asks for CUDA, or names it in any other way than these."""
    literals = set(places)
    for node in function.nodes:
        if isinstance(node, cst.SimpleString) and node not in literals:
            if "cuda" in str(node.evaluated_value):
                return True
        elif isinstance(node, (cst.Attribute, cst.Name)) and last_name(node) in _ASKS | _TALKS:
            return True
    return False

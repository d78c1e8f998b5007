"""FM504: the elements of a device tensor are read one by one."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity, cst
from fmcheck.lint.devices.places import Places
from fmcheck.lint.model.expressions import is_name, last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.steps import REPEATED, is_for_debugging, is_step
from fmcheck.lint.model.vocabulary import NUMBERS
from fmcheck.lint.source.walking import walk
from fmcheck.lint.step_rule import StepRule
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Module, Part

#: How what they read starts: `x)`, `x[`, `self.x[`.
_DRAWN = ("~)", "~[", "~.*[")
_WORD = regex(r"[^\W\d]\w*")
#: What a loop draws; nobody writes more than this.
_TARGETS = regex(r"\bfor\b((?:(?!\bfor\b).){1,500}?)\bin\b", re.DOTALL)
#: An index, two brackets deep.
_INDEX = r"\[([^][]*(?:\[[^][]*(?:\[[^][]*\][^][]*)*\][^][]*)*)\]"
#: A name of which a number is read, or the index of what it is read of.
_READ = regex(
    rf"\b(?:{'|'.join(sorted(NUMBERS))})\((?:\s*(\w+)|[\w.\s(\\]*{_INDEX})[\s,]*\)"
    rf"|(?:\b(\w+)|{_INDEX})\s*\.item\("
)


class ReadPerElement(StepRule):
    """A loop reads the elements of a device tensor one by one, and waits for each.

    ## What it does
    Looks for loops that read `x[i].item()` or `int(x[i])` with `i` of the loop, or that run over
    the tensor itself, where `x` lives on the device: it was made with a `device`, or
    moved there, or made of what was; others are made on its device; or it is a parameter annotated
    as a tensor in a function that asks for devices. Names that say that the host holds the value
    (`_cpu`, `host`) are left alone, and so are functions that run once by their name (`load`,
    `test`). Where the place is unknown, the rule is silent.

    ## Why is this bad
    Each read waits until the device has done all that was enqueued, and copies one number: as many
    round trips as there are elements, where one copy of the whole tensor gives the same numbers.

    ## Example
    ```python
    for i in range(len(lens)):
        rows[start : start + lens[i].item()] = i
    ```

    ## Use instead
    ```python
    for i, length in enumerate(lens.tolist()):
        rows[start : start + length] = i
    ```
    """

    code = "FM504"
    name = "read-per-element"
    severity = Severity.WARNING
    judged = (
        Judged("sglang 0.5.23", 18, 4),
        Judged("vllm 0.20.2", 11, 6),
    )
    on_by_default = False
    words = (
        # An element, or what a loop draws.
        (".item()", *(f"^{one}({what}" for one in sorted(NUMBERS) for what in _DRAWN)),
        ("for ",),
        # What shows where a tensor is.
        ("device", "cuda", "npu", "xpu", "self.", "Tensor"),
    )
    judges = REPEATED
    seen_in = (
        "https://github.com/lightseekorg/tokenspeed/pull/1116",
        "https://github.com/pytorch/torchtitan/pull/4261",
    )
    bad = (
        Example(
            """\
import torch

def fill(hidden, device):
    lens = torch.tensor([1, 2], device=device)
    for i in range(2):
        hidden[lens[i].item()] = 0
""",
            at=((6, 16),),
        ),
        Example(
            """\
def offsets(starts: torch.Tensor, ends: torch.Tensor):
    lens = torch.zeros(8, device=starts.device)
    found = [int(one) for one in ends - starts]
    for row, start in enumerate(starts):
        lens[row] = start.item()
    return found, lens
""",
            at=((3, 14), (5, 21)),
        ),
    )
    good = (
        Example(
            """\
import torch

def fill(hidden, lens_cpu, device):
    lens = torch.tensor([1, 2], device=device)
    for i, one in enumerate(lens.tolist()):
        hidden[int(one)] = int(lens_cpu[i])
    first = lens[0].item()
    return [first for _ in hidden]

def parse(fields, starts: torch.Tensor):
    return [int(one) for one in fields], [int(starts[i]) for i in fields]

def load_lengths(lens: torch.Tensor):
    rows = torch.zeros(8, device=lens.device)
    return rows, [lens[i].item() for i in range(8)]
"""
        ),
    )

    def pieces(self, module: Module) -> Iterator[Part]:
        """Yields the parts of slices in which a number is read by a name that a loop draws.

        That is a third of the lines that have the words.
        """
        for one in module.slices_with(self.words, self.judges):
            drawn = _names(_TARGETS.findall(one.text))
            if not drawn.isdisjoint(_names(chain.from_iterable(_READ.findall(one.text)))):
                yield from one.parts

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each read of a loop, one for each tensor and loop."""
        for function in functions(part):
            if self.judges.match(function.name):
                yield from self._read(function)

    def _read(self, function: Function) -> Iterator[Finding]:
        values = [value for value in map(_value, function.calls) if value is not None]
        named = {one.value for value in values for one in walk(value) if type(one) is cst.Name}
        places = Places(function)
        seen: set[tuple[int, str]] = set()
        for loop, body in _loops(function) if values else ():
            drawn = _drawn(loop)
            for node in () if named.isdisjoint(drawn) else walk(body):
                value = _value(node) if type(node) is cst.Call else None
                if value is None:
                    continue
                tensor = _element_of(value, drawn)
                if tensor is None or not (
                    places.on_device(tensor)
                    or (_is_item(node) and is_step(function) and _may_be(tensor, places))
                ):
                    continue
                code = function.part.code(tensor)
                if (
                    is_for_debugging(node, function)
                    or (id(node), "") in seen
                    or (id(loop), code) in seen
                ):
                    continue
                seen |= {(id(node), ""), (id(loop), code)}
                yield function.part.finding(
                    self,
                    node,
                    f"`{code}` is read element by element",
                    note="the host waits for the device at each",
                    help=f"`{code}.tolist()` once, before the loop, or use a copy on the host",
                )


def _names(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in _WORD.findall(text)}


def _may_be(tensor: cst.CSTNode, places: Places) -> bool:
    """Tells whether a buffer that an object holds may be the device's: nothing says otherwise."""
    is_buffer = isinstance(tensor, cst.Attribute) and "buf" in tensor.attr.value
    return is_buffer and not places.on_host(tensor)


def _is_item(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and last_name(node.func) == "item"


def _loops(function: Function) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yields the loops of a function, each with what is run for every round."""
    for node in function.nodes:
        # By class: it is asked of every node.
        if type(node) is cst.For:
            yield node, node.body
        elif (
            type(node) is cst.GeneratorExp
            or type(node) is cst.ListComp
            or type(node) is cst.SetComp
        ):
            yield node.for_in, node.elt


def _drawn(loop: cst.CSTNode) -> dict[str, cst.CSTNode | None]:
    """Returns the names of a loop, each with what it is an element of; None for a counter."""
    assert isinstance(loop, (cst.For, cst.CompFor))
    found: dict[str, cst.CSTNode | None] = {}
    over = loop.iter
    word = last_name(over.func) if isinstance(over, cst.Call) else ""
    args = [one.value for one in over.args] if isinstance(over, cst.Call) else []
    target = loop.target
    parts = [one.value for one in target.elements] if isinstance(target, cst.Tuple) else []
    if word == "range" and isinstance(loop.target, cst.Name):
        found[loop.target.value] = None
    elif word == "enumerate" and len(parts) == 2 and args:
        pairs = [(parts[0], None), (parts[1], args[0])]
        found.update((one.value, held) for one, held in pairs if isinstance(one, cst.Name))
    elif word == "zip":
        pairs = list(zip(parts, args, strict=False))
        found.update((one.value, held) for one, held in pairs if isinstance(one, cst.Name))
    elif isinstance(loop.target, cst.Name):
        found[loop.target.value] = None if isinstance(over, cst.Call) else over
    return found


def _value(call: cst.Call) -> cst.CSTNode | None:
    """Returns what a call reads a number of."""
    if isinstance(call.func, cst.Attribute):
        is_read = call.func.attr.value == "item" and not call.args
        return call.func.value if is_read else None
    if any(is_name(call.func, one) for one in NUMBERS) and len(call.args) == 1:
        return call.args[0].value
    return None


def _element_of(value: cst.CSTNode, drawn: dict[str, cst.CSTNode | None]) -> cst.CSTNode | None:
    """Returns the tensor of which a value is the element that a loop is at."""
    if isinstance(value, cst.Name):
        return drawn.get(value.value)
    if not isinstance(value, cst.Subscript) or len(value.slice) != 1:
        return None
    index = value.slice[0].slice
    if not isinstance(index, cst.Index) or not isinstance(value.value, (cst.Attribute, cst.Name)):
        return None
    names = {one.value for one in walk(index.value) if isinstance(one, cst.Name)}
    return value.value if not names.isdisjoint(drawn) else None

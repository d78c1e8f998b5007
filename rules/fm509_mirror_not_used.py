"""FM509: a step reads values from the device of which the host has a copy."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from fmcheck.lint import Example, Judged, Severity, cst, dotted, functions, last_name
from fmcheck.lint.devices.places import Places
from fmcheck.lint.devices.read_backs import is_aside
from fmcheck.lint.model.expressions import is_name, receiver, targets
from fmcheck.lint.model.steps import REPEATED, runs_again
from fmcheck.lint.model.vocabulary import NUMBERS, READS, TO_HOST
from fmcheck.lint.source.walking import walk
from fmcheck.lint.source.words import either
from fmcheck.lint.step_rule import ServingRule
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.source.words import Words

#: Methods that bring values to the host.
_READS = READS & TO_HOST
#: Methods that leave a value where it is.
_STAY = frozenset({"amax", "amin", "detach", "flatten", "int", "long", "max", "min", "sum", "view"})
#: What a context is called in which the host may wait.
_ALLOWS = regex(r"allow|permit")
#: What the name of the host's copy ends with.
_ENDINGS = ("_cpu", "_host", "_cpu_list", "_cpu_tensor")


def _read_and_mirrored(noun: str) -> Words:
    """Returns the words of a read of numbers whose names end so, beside the host's copy."""
    ways = (".item()", ".tolist()", ".cpu()")
    reads = [f"{noun}{part}{way}" for part in ("", ".*", "[*") for way in ways]
    return (f"{noun}_cpu", f"{noun}_host"), (*reads, f"int(*{noun}[")


class MirrorNotUsed(ServingRule):
    """A step reads values from the device of which the host has a copy.

    ## What it does
    Looks for `seq_lens.max().item()`, `.tolist()`, `.cpu()` or `int(seq_lens[0])` of a tensor where
    the same function has `seq_lens_cpu` (or `_host`) at hand: as a name of its own, or as an
    attribute that the file reads of the same object (`batch.seq_lens`, `batch.seq_lens_cpu`). Left
    alone is what makes the copy, what is kept in an attribute, what runs where the copy is missing
    or where a context allows the wait, a function that asks whether the copy is there, and one that
    by its name or file runs once, captures, tests or measures.

    ## Why is this bad
    The host waits until the device has done everything that was enqueued, in each step, for
    numbers that it has. With overlap the whole step before is waited for.

    ## Example
    ```python
    longest = batch.seq_lens.max().item()
    ```

    ## Use instead
    ```python
    longest = batch.seq_lens_cpu.max().item()
    ```
    """

    code = "FM509"
    name = "mirror-not-used"
    severity = Severity.WARNING
    judged = (Judged("sglang 0.5.23", 2, 2), Judged("vllm 0.20.2", 0, 0))
    judges = REPEATED
    words = either(*map(_read_and_mirrored, ("lens", "loc", "tokens", "indices")))
    seen_in = (
        "https://github.com/lightseekorg/tokenspeed/pull/45",
        "https://github.com/lightseekorg/tokenspeed/pull/1115",
    )
    bad = (
        Example(
            """\
class Backend:
    def init_forward_metadata(self, batch, encoder_lens, encoder_lens_cpu):
        longest = batch.seq_lens.max().item()
        first = int(batch.seq_lens[0])
        total = encoder_lens.sum().item()
        return longest, first, total, batch.seq_lens_cpu.sum(), encoder_lens_cpu
""",
            at=((3, 19), (4, 17), (5, 17)),
        ),
    )
    good = (
        Example(
            """\
import numpy as np

class Backend:
    def init_forward_metadata(self, batch, lens: np.ndarray, lens_cpu):
        seq_lens = batch.seq_lens_cpu
        batch.lens_cpu = batch.lens.cpu()
        return seq_lens.max().item(), batch.seq_lens.sum(), lens.max().item()

    def longest_decode(self, batch):
        if batch.seq_lens_cpu is not None:
            return batch.seq_lens_cpu.max()
        return batch.seq_lens.max().item()

    def capture(self, seq_lens, seq_lens_cpu):
        return self.rows_of(seq_lens, seq_lens_cpu)

    def rows_of(self, seq_lens, seq_lens_cpu):
        return seq_lens.max().item()
"""
        ),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each read of a value that the host has."""
        for function in functions(part):
            if not runs_again(function):
                continue
            mirrors = _Mirrors(function)
            for call in function.calls:
                value = _read(call)
                name = None if value is None else dotted(value)
                if value is None or name is None:
                    continue
                mirror = mirrors.of(name)
                if mirror and not mirrors.is_left_alone(call, value, name):
                    yield part.finding(
                        self,
                        call,
                        f"the host waits for `{name}`, of which it has a copy",
                        note=f"in each call of `{function.name}`",
                        help=f"read `{mirror}`",
                    )


def _read(call: cst.Call) -> cst.BaseExpression | None:
    """Returns what a call brings to the host values of, all or some, None if it is no such call."""
    value: cst.BaseExpression | None = None
    if isinstance(call.func, cst.Attribute):
        if call.func.attr.value in _READS and not call.args:
            value = call.func.value
    elif len(call.args) == 1 and any(is_name(call.func, one) for one in NUMBERS):
        value = call.args[0].value
        if not isinstance(value, (cst.Call, cst.Subscript)):
            return None
    while value is not None:
        if isinstance(value, cst.Subscript):
            value = value.value
        elif isinstance(value, cst.Call) and last_name(value.func) in _STAY:
            value = receiver(value)
        else:
            break
    return value


class _Mirrors:
    """The host's copies that one function has at hand, looked for once for all its reads."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._places = Places(function)
        self._found: dict[str, str] = {}
        self._makers: dict[str, list[cst.CSTNode]] = {}

    def of(self, name: str) -> str:
        """Returns the name of the host's copy of a tensor, "" if the function has none at hand."""
        if name not in self._found:
            at_hand = (
                mirror
                for mirror in (name + ending for ending in _ENDINGS)
                if mirror in self._named or ("." in name and mirror in self._function.module.text)
            )
            self._found[name] = next(at_hand, "")
        return self._found[name]

    def is_left_alone(self, call: cst.Call, value: cst.BaseExpression, name: str) -> bool:
        """Tells whether a read makes the copy, may have to do without, or is one of the host's."""
        function = self._function
        return (
            _makes_copy(call, function)
            or any(not function.flow.may_follow(one, call) for one in self._made_of(name))
            or is_aside(call, function)
            or self._places.on_host(value)
            or name in self._arrays
            or any(self.of(name).rpartition(".")[2] in one for one in self._asked_for)
        )

    def _made_of(self, name: str) -> list[cst.CSTNode]:
        """Returns what makes the copy of a tensor from the tensor."""
        if name not in self._makers:
            self._makers[name] = [
                made
                for made in self._function.names.values(self.of(name))
                if any(dotted(one) == name for one in walk(made))
            ]
        return self._makers[name]

    @cached_property
    def _named(self) -> set[str | None]:
        """The names that the function reads or binds, parameters too."""
        function = self._function
        return {
            dotted(one)
            for one in function.nodes
            if isinstance(one, (cst.Name, cst.Attribute)) and not _is_keyword(one, function)
        }.union(function.parameters)

    @cached_property
    def _arrays(self) -> set[str]:
        """The parameters that are annotated as something else than tensors."""
        params, code = self._function.node.params, self._function.part.code
        return {
            one.name.value
            for one in (*params.posonly_params, *params.params, *params.kwonly_params)
            if one.annotation and "Tensor" not in code(one.annotation.annotation)
        }

    @cached_property
    def _asked_for(self) -> set[str]:
        """What the function compares with None, as texts."""
        return {
            self._function.part.code(one.left)
            for one in self._function.of(cst.Comparison)
            if any(is_name(part.comparator, "None") for part in one.comparisons)
        }


def _is_keyword(node: cst.CSTNode, function: Function) -> bool:
    parent = function.parents.get(node)
    return isinstance(parent, cst.Arg) and parent.keyword is node


def _makes_copy(call: cst.Call, function: Function) -> bool:
    """Tells whether what a read brings becomes the copy, or a context allows the wait."""
    code = function.part.code
    node: cst.CSTNode = call
    while node in function.parents and node is not function.node:
        node = function.parents[node]
        made = [code(one) for one in targets(node)]
        if isinstance(node, cst.Arg) and node.keyword is not None:
            made.append(node.keyword.value)
        if any(ending in one for one in made for ending in _ENDINGS):
            return True
        if isinstance(node, cst.With) and any(_ALLOWS.search(code(one.item)) for one in node.items):
            return True
    return False

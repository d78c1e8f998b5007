"""FM410: work is launched on a stream that is not the current one when it runs."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import dotted, is_name, last_name, targets
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.vocabulary import CLASS
from fmcheck.lint.source.walking import walk
from fmcheck.lint.streams.stream_kinds import StreamKind, kinds_of
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.model.function import Function
    from fmcheck.lint.source.module import Part

#: What a kernel's argument is called that takes a stream.
_STREAMS = frozenset({"cuda_stream", "current_stream", "stream"})
#: Functions that take a stream and launch nothing on it.
_NO_LAUNCHES = frozenset(
    (
        *("StreamContext", "benchmark", "compile", "current_stream", "isinstance", "record"),
        *("record_event", "record_stream", "set_stream", "stream", "synchronize", "wait"),
        *("wait_event", "wait_stream"),
    )
)
#: How functions are named that do something else with a stream than to launch on it.
_SETS = regex(r"^_?(set|is|get|register)_|graph|capture|sync|wait|barrier")
#: How functions are named that keep what they are handed for later.
_KEEPS = regex(r"^(put|append|appendleft|submit|push|enqueue|defer|schedule|register|add)(_|$)")


class LaunchedOffCurrentStream(FunctionRule):
    """A kernel is launched on the default stream, or on the stream that was current earlier.

    ## What it does
    Looks for `default_stream()`, of whatever module, that is passed to a call as its `stream`, by
    itself, by its raw handle, by a local name or by an attribute that a method binds to it; for
    `current_stream()` that is bound into a `partial(...)` which is put off (stored, returned, put
    into a queue); and for `current_stream()` as the default of a parameter, of a function or of a
    `lambda` beside functions, which is evaluated when that is defined. Waits and records on the
    default stream are FM406's. Scripts (with `__main__`) are left alone.

    ## Why is this bad
    The inputs are produced on the stream that is current, and the results are read there. A kernel
    on another stream is ordered with neither: it reads unfinished inputs, or its results are read
    before they are written. It works as long as everything runs on the default stream, and fails
    under a stream context, in a CUDA graph capture and with overlapped scheduling.

    ## Example
    ```python
    stream = cutlass_torch.default_stream()
    self.kernel(a, b, out, stream)
    ```

    ## Use instead
    ```python
    stream = cutlass_torch.current_stream()
    self.kernel(a, b, out, stream)
    ```
    """

    code = "FM410"
    name = "launched-off-current-stream"
    severity = Severity.WARNING
    words = (
        ("_stream(",),
        ("default_stream(", "partial(", "=torch.cuda.current_stream()", ": *= *current_stream()"),
    )
    seen_in = (
        "https://github.com/flashinfer-ai/flashinfer/pull/1509",
        "https://github.com/NVIDIA/TransformerEngine/pull/3089",
    )
    bad = (
        Example(
            """\
import helpers

def matmul(kernel, a, b, out):
    stream = helpers.default_stream()
    kernel(a, b, out, stream)
""",
            at=((5, 23),),
        ),
        Example(
            """\
class Grouped:
    def __init__(self, helpers):
        self.stream = helpers.default_stream()

    def run(self, a, b, out):
        self.kernel(a, b, out, stream=self.stream)
""",
            at=((3, 23),),
        ),
        Example(
            """\
import functools
import torch

def backward(self, grad, rows):
    product = functools.partial(matmul, stream=torch.cuda.current_stream().cuda_stream)
    self.later.put([rows, grad], product)
""",
            at=((5, 41),),
        ),
    )
    good = (
        Example(
            """\
import functools
import helpers
import torch

def matmul(kernel, a, b, out, side):
    stream = helpers.current_stream()
    kernel(a, b, out, stream)
    side.wait_stream(torch.cuda.default_stream())
    out.record_stream(torch.cuda.default_stream())
    return functools.partial(kernel, a, b, out)
"""
        ),
        Example(
            """\
import helpers

def main(kernel, a, b, out):
    kernel(a, b, out, stream=helpers.default_stream())

if __name__ == "__main__":
    main()
"""
        ),
    )
    judged = (Judged("sglang 0.5.23", 0, 0), Judged("vllm 0.20.2", 0, 0))

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each launch that names another stream than the current one."""
        if "__main__" in part.module.text:
            return
        if not functions(part):
            for one in part.nodes():
                yield from self._defaults(one.params, part) if isinstance(one, cst.Lambda) else ()
        for function in functions(part):
            put_off: dict[str, bool] = {}
            for call in function.calls:
                for arg in call.args:
                    if last_name(call.func) == "partial":
                        if _is_current(arg.value) and _is_put_off(call, function, put_off):
                            yield self._finding(part, arg, "bound here and used when it is called")
                    elif not isinstance(
                        _stream_of(arg.value), cst.Attribute
                    ) and _is_launched_on_default(arg, call, function):
                        yield part.finding(
                            self,
                            arg.value,
                            "this is launched on the default stream",
                            note="it is not ordered with work on the current stream",
                            help="pass `current_stream()`",
                        )
            yield from self._kept(function, part)
            yield from self._defaults(function.node.params, part)

    def _defaults(self, params: cst.Parameters, part: Part) -> Iterator[Finding]:
        """Yields a finding for each parameter whose default is the current stream."""
        for param in walk(params):
            if isinstance(param, cst.Param) and _is_current(param.default):
                yield self._finding(part, param, "evaluated once, when this is defined")

    def _kept(self, function: Function, part: Part) -> Iterator[Finding]:
        """Yields a finding for each attribute that keeps the default stream for launches."""
        family = part.stretch.family
        for node in function.of(cst.Assign):
            value = node.value
            if (
                not isinstance(value, cst.Call)
                or last_name(value.func) != "default_stream"
                or family is None
            ):
                continue
            for name in map(dotted, targets(node)):
                if name is None or not name.startswith("self."):
                    continue
                launches = (
                    arg.value
                    for other in family.naming(name.removeprefix("self."))
                    for one in functions(other)
                    for call in one.calls
                    for arg in call.args
                    if dotted(_stream_of(arg.value)) == name
                    and _is_launched_on_default(arg, call, one)
                )
                if any(True for _ in launches):
                    yield part.finding(
                        self,
                        value,
                        f"`{name}` is the default stream, and kernels are launched on it",
                        note="they are not ordered with work on the current stream",
                        help="ask for `current_stream()` where the kernel is launched",
                    )
                    break

    def _finding(self, part: Part, node: cst.CSTNode, when: str) -> Finding:
        return part.finding(
            self,
            node,
            f"the current stream is {when}",
            note="by then another one may be current",
            help="ask for `current_stream()` in the function that launches",
        )


def _is_put_off(call: cst.Call, function: Function, put_off: dict[str, bool]) -> bool:
    """Tells whether a call's result is kept for later: returned, stored, or put into something.

    `put_off` is what is known of the names that hold results.
    """
    if _is_kept(call, function):
        return True
    held = function.parents.get(call)
    names = [one.value for one in targets(held) if isinstance(one, cst.Name)] if held else []
    for name in names:
        if name not in put_off:
            put_off[name] = any(_is_kept(one, function) for one in function.named.get(name, ()))
    return any(put_off[name] for name in names)


def _is_kept(node: cst.CSTNode, function: Function) -> bool:
    above = function.parents.get(node)
    while isinstance(above, (cst.Element, cst.Tuple, cst.List, cst.DictElement, cst.Dict)):
        above = function.parents.get(above)
    if isinstance(above, (cst.Return, cst.Yield)):
        return True
    if isinstance(above, cst.Assign):
        return not isinstance(above.targets[0].target, cst.Name)
    taker = function.parents.get(above) if isinstance(above, cst.Arg) else None
    return isinstance(taker, cst.Call) and _KEEPS.search(last_name(taker.func)) is not None


def _is_current(value: cst.CSTNode | None) -> bool:
    """Tells whether this is the current stream, or its raw handle."""
    while isinstance(value, cst.Attribute):
        value = value.value
    return isinstance(value, cst.Call) and last_name(value.func) == "current_stream"


def _is_launched_on_default(arg: cst.Arg, call: cst.Call, function: Function) -> bool:
    word = last_name(call.func)
    if word in _NO_LAUNCHES or CLASS.match(word) or _SETS.search(word):
        return False
    # `str(stream)` launches nothing, and what `with` enters is no kernel.
    is_built_in = isinstance(call.func, cst.Name) and hasattr(builtins, word)
    if is_built_in or isinstance(function.parents.get(call), cst.WithItem):
        return False
    stream = _stream_of(arg.value)
    name = arg.keyword.value if arg.keyword is not None else last_name(arg.value)
    is_named = (
        stream is not arg.value
        or name in _STREAMS
        or last_name(getattr(stream, "func", arg)) == "default_stream"
    )
    return is_named and kinds_of(stream, function) == {StreamKind.DEFAULT}


def _stream_of(value: cst.BaseExpression) -> cst.BaseExpression:
    """Returns the stream of which a value is the raw handle, or the value itself."""
    if not isinstance(value, cst.Attribute) or is_name(value.value, "self"):
        return value
    return value.value if value.attr.value.endswith("_stream") else value

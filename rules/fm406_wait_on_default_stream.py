"""FM406: a wait on the default stream, where the producer runs on another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity, cst
from fmcheck.lint.model.expressions import last_name
from fmcheck.lint.model.function import functions
from fmcheck.lint.streams.function_streams import HOST, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libcst import CSTNode

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import FunctionStreams


class WaitOnDefaultStream(FunctionRule):
    """A wait for the default stream, which may not be the one that computes.

    ## What it does
    Looks for `side.wait_stream(default_stream(...))`, for a wait on an event that is recorded on
    the default stream, and for the same through a local name, whatever module `default_stream` is
    reached through. A local name of that spelling that holds `current_stream()` is left alone.

    ## Why is this bad
    Overlap-scheduled engines run the scheduler and the forward on streams of their own. The default
    stream is idle there, so a wait for it is over at once and orders nothing: the copy starts while
    the values are still being computed. It works in a script, where everything runs on the default
    stream, and fails in the engine.

    ## Example
    ```python
    gather_stream.wait_stream(torch.cuda.default_stream(device))
    with torch.cuda.stream(gather_stream):
        staging.copy_(kv_buffer[slots])
    ```

    ## Use instead
    ```python
    gather_stream.wait_stream(torch.cuda.current_stream(device))  # or the producer's, by name
    with torch.cuda.stream(gather_stream):
        staging.copy_(kv_buffer[slots])
    ```
    """

    code = "FM406"
    name = "wait-on-default-stream"
    severity = Severity.WARNING
    on_by_default = False
    words = (("default_stream",), ("wait",))
    seen_in = (
        "https://github.com/sgl-project/sglang/blob/v0.5.22/python/sglang/srt/disaggregation/"
        "common/staging_buffer.py",
        "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/cache_utils.py",
    )
    bad = (
        Example(
            """\
import torch

def gather(buffers, device):
    side = buffers.gather_stream
    side.wait_stream(torch.cuda.default_stream(torch.device(device)))
""",
            at=((5, 22),),
        ),
        Example(
            """\
def gather(self, module):
    main = module.default_stream()
    self.side.wait_stream(main)
    self.side.wait_event(main.record_event())
""",
            at=((3, 27), (4, 26)),
        ),
        Example(
            """\
from torch.cuda import default_stream

def gather(self):
    ready = default_stream().record_event()
    self.side.wait_event(ready)
    ready.wait(self.side)
""",
            at=((5, 26), (6, 5)),
        ),
    )
    good = (
        Example(
            """\
import torch

def gather(side):
    default_stream = torch.cuda.current_stream()
    side.wait_stream(default_stream)
"""
        ),
        Example(
            """\
import torch

def is_default():
    return torch.cuda.current_stream() == torch.cuda.default_stream()
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("sglang 0.5.19", 3, 3),
        Judged("vllm 0.20.2", 0, 0),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each wait that is for the default stream."""
        for function in functions(part):
            streams = streams_of(function)
            for wait in streams.waits:
                on = wait.named
                if on is not None and wait.waiter != HOST and _is_default(on, streams):
                    yield part.finding(
                        self,
                        on,
                        "this only waits for the default stream",
                        note="work on other streams is not synchronized",
                        help="wait for the stream that the producer runs on, such as "
                        "`current_stream()` where it was launched",
                    )


def _is_default(
    node: CSTNode, streams: FunctionStreams, seen: frozenset[str] = frozenset()
) -> bool:
    """Tells whether this is the default stream, or an event recorded on it."""
    if isinstance(node, cst.Name):
        values = () if node.value in seen else streams.names.bound(node)
        return len(values) == 1 and _is_default(values[0], streams, seen | {node.value})
    if not isinstance(node, cst.Call):
        return False
    if last_name(node.func) == "record_event" and isinstance(node.func, cst.Attribute):
        return _is_default(node.func.value, streams, seen)
    return last_name(node.func) == "default_stream"

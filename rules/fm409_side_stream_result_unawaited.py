"""FM409: a result of a side stream is used before it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint import Example, FunctionRule, Judged, Severity
from fmcheck.lint.model.function import functions
from fmcheck.lint.model.vocabulary import ENTERED
from fmcheck.lint.streams.function_streams import streams_of
from fmcheck.lint.streams.handovers import (
    callers_order,
    is_within_side_stream,
    results_used_early,
)
from fmcheck.lint.streams.misplaced_waits import (
    gradients_used_early,
    lost_streams,
    waits_for_another,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Finding
    from fmcheck.lint.source.module import Part
    from fmcheck.lint.streams.function_streams import FunctionStreams


class SideStreamResultUnawaited(FunctionRule):
    """A result of a side stream is used by a stream that has not waited for it.

    ## What it does
    Looks at `with stream(side):` bodies, where `side` is plainly no current stream: made by
    `Stream()`, in the function, the class or the module, named as one for copies, loads or
    communication, or one that waits for the current stream in this function. It reports what such a
    body computes or copies and the function then uses outside of it, or on another side stream,
    with no wait between; a wait right after the body that is for another side stream; gradients
    that an optimizer uses on another stream than `backward()` ran on; and a body on a stream that
    is created for it alone, inline or as a private attribute of which the file makes no other use,
    so that nothing waits for it. Any wait between, of whatever kind, and a helper of the package
    that waits make it silent, and so does a caller in the file that orders this stream. A stream
    that waits for itself, or for an event of its own, waits for nothing, in a helper too.

    ## Why is this bad
    When the `with` ends, the current stream goes on at once. What it then reads is still being
    written: zeros, or the values of the step before. It shows under load only, and never under
    `CUDA_LAUNCH_BLOCKING=1`.

    ## Example
    ```python
    with torch.cuda.stream(self.copy_stream):
        batch = batch.to(self.device, non_blocking=True)
    loss = self.model(batch) + 1
    ```

    ## Use instead
    ```python
    with torch.cuda.stream(self.copy_stream):
        batch = batch.to(self.device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(self.copy_stream)
    loss = self.model(batch) + 1
    ```
    """

    code = "FM409"
    name = "side-stream-result-unawaited"
    severity = Severity.WARNING
    warns_undeclared = False
    words = (("tream",), ENTERED, ("with ", "with("))
    seen_in = (
        "https://github.com/NVIDIA/Megatron-LM/pull/3140",
        "https://github.com/NVIDIA/Megatron-LM/pull/2652",
        "https://github.com/pytorch/torchrec/pull/2071",
    )
    bad = (
        Example(
            """\
import torch

class Loader:
    def __init__(self):
        self.uploads = torch.cuda.Stream()

    def step(self, rows, bias):
        with torch.cuda.stream(self.uploads):
            rows = rows.to("cuda", non_blocking=True)
        return self.model(rows)
""",
            at=((10, 27),),
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self):
        self.side = torch.npu.Stream() if torch.npu.is_available() else None

    def forward(self, hidden):
        main = torch.npu.current_stream()
        self.side.wait_stream(main)
        with torch.npu.stream(self.side):
            shared = self.shared(hidden)
        routed = self.routed(hidden)
        return routed + shared
""",
            at=((13, 25),),
        ),
        Example(
            """\
import torch

class Offload:
    def __init__(self):
        self.loads = torch.cuda.Stream()
        self.saves = torch.cuda.Stream()

    def load(self, weights):
        with torch.cuda.stream(self.loads):
            self.weights.copy_(weights, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.saves)
""",
            at=((11, 9),),
        ),
        Example(
            """\
import torch

class Trainer:
    def __init__(self):
        self.backward_stream = torch.cuda.Stream()
        self.update_stream = torch.cuda.Stream()

    def progress(self, loss):
        with torch.cuda.stream(self.backward_stream):
            loss.sum().backward()
        with torch.cuda.stream(self.update_stream):
            self.update()

    def update(self):
        self.optimizer.step()
""",
            at=((12, 13),),
        ),
        Example(
            """\
import torch

def wrap(model):
    with torch.cuda.stream(torch.cuda.Stream()):
        return parallel(model)
""",
            at=((4, 10),),
        ),
        Example(
            """\
import torch

def encode(frames, model, scale):
    side = torch.cuda.Stream() if torch.cuda.is_available() else None
    if side is not None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            latents = model(frames)
    else:
        latents = model(frames)
    latents = latents * scale
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
    return latents
""",
            at=((11, 15),),
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self, alt_stream):
        self.alt_stream = alt_stream
        self._sends = torch.cuda.Stream()

    def forward(self, hidden):
        if self.alt_stream is not None and hidden.is_cuda:
            main = torch.cuda.current_stream()
            self.alt_stream.wait_stream(main)
            with torch.cuda.stream(self.alt_stream):
                routed = self.experts(hidden)
            shared = self.shared(hidden)
        else:
            routed, shared = self.experts(hidden), self.shared(hidden)
        return self.combine(shared, routed)

    def step(self):
        self.optimizer.step()
        with torch.cuda.stream(self._sends):
            self.broadcast_parameters()

    def broadcast_parameters(self):
        self.group.broadcast(self.parameters).wait()
""",
            at=((17, 37), (21, 14)),
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self):
        self.side = torch.cuda.Stream()

    def forward(self, hidden):
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            shared = torch.matmul(hidden, hidden)
        self.side.wait_stream(self.side)
        return self.routed(hidden) + shared

    def backward(self, hidden):
        done = torch.cuda.Event()
        with torch.cuda.stream(self.side):
            shared = torch.matmul(hidden, hidden)
            done.record()
        self.side.wait_event(done)
        return self.routed(hidden) + shared
""",
            at=((12, 38), (20, 38)),
        ),
    )
    good = (
        Example(
            """\
import torch

def noise_for(frames, model):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        latents = frames.clone()
    noise = torch.randn_like(latents), torch.zeros_like(latents)
    torch.cuda.current_stream().wait_stream(side)
    return latents, noise
"""
        ),
        Example(
            """\
import torch

def compare(ours, theirs):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ours_ms = do_bench_cudagraph(lambda: ours())
    return 1 - ours_ms / theirs
"""
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self, side):
        self.side = side
        self.copies = torch.cuda.Stream()

    def forward(self, hidden):
        with torch.cuda.stream(self.side):
            shared = self.shared(hidden)
        return self.routed(hidden) + shared

    def step(self, rows):
        with torch.cuda.stream(self.copies):
            rows = rows.to("cuda", non_blocking=True)
            done = self.copies.record_event()
        torch.cuda.current_stream().wait_event(done)
        return self.model(rows)

    def load(self, rows):
        with torch.cuda.stream(self.copies):
            rows = rows.to("cuda", non_blocking=True)
        self.join()
        return self.model(rows)

    def join(self):
        torch.cuda.current_stream().wait_stream(self.copies)
"""
        ),
        Example(
            """\
import torch

class Trainer:
    def __init__(self):
        self.backward_stream = torch.cuda.Stream()

    def progress(self, loss):
        with torch.cuda.stream(self.backward_stream):
            loss.sum().backward()
            self.optimizer.step()

    def load(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            rows = self.rows.to("cuda", non_blocking=True)
            torch.cuda.current_stream().synchronize()
        return rows
"""
        ),
        Example(
            """\
import torch

class Mixture:
    def __init__(self, alt_stream):
        self.alt_stream = alt_stream
        self._sends = torch.cuda.Stream()
        self._copies = torch.cuda.Stream()

    def forward(self, hidden):
        self.alt_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.alt_stream):
            handle = self.experts(hidden)
        return self.combine(handle)

    def step(self):
        with torch.cuda.stream(self._sends):
            self.reduce()
        with torch.cuda.stream(self._sends):
            self.send()

    def copies(self):
        with torch.cuda.stream(self._copies):
            self.reduce()

    def finish(self):
        self._copies.synchronize()
"""
        ),
    )
    judged = (
        Judged("sglang 0.5.23", 0, 0),
        Judged("vllm 0.20.2", 0, 0),
        Judged("vllm 0.33.0", 0, 0),
    )

    def check(self, part: Part) -> Iterator[Finding]:
        """Yields a finding for each use that may come too early."""
        for function in functions(part):
            streams = streams_of(function)
            if not streams.contexts:
                continue
            yield from self._used(streams, part)
            for context, wait, other in waits_for_another(streams):
                yield part.finding(
                    self,
                    wait.node,
                    f"this waits for `{other}`, but the work above runs on `{context.stream}`",
                    help=f"wait for `{context.stream}`, or for an event recorded on it",
                    related=[(context.node.items[0], "nothing waits for this stream")],
                )
            for context in lost_streams(streams):
                yield part.finding(
                    self,
                    context.node.items[0],
                    "nothing waits for this stream",
                    note="it is only created and entered, so its work races with what is launched "
                    "before and after it",
                    help="keep the stream; `wait_stream(current_stream())` before the body, and "
                    "`current_stream().wait_stream(...)` after it",
                )

    def _used(self, streams: FunctionStreams, part: Part) -> Iterator[Finding]:
        function = streams.function
        for one in results_used_early(streams):
            if is_within_side_stream(function) or callers_order(function, one.stream):
                continue
            yield part.finding(
                self,
                one.consumer,
                f"`{one.name}` is used here on a stream that has not waited for it",
                note=f"`{one.name}` is produced on `{one.stream}`",
                help=f"`current_stream().wait_stream({one.stream})` before this use",
                related=[(one.producer, "produced here")],
            )
        for backward, step in gradients_used_early(streams):
            yield part.finding(
                self,
                step,
                "the gradients are used here on a stream that has not waited for them",
                note="`backward()` runs on another stream",
                help="run both on one stream, or wait for the stream of `backward()`",
                related=[(backward, "fills the gradients")],
            )

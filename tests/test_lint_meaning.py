"""What rules learn from the model: code is told apart by what it means, not by its looks."""

from __future__ import annotations

import textwrap

import pytest

from fmcheck.contract import parse_contract
from fmcheck.lint.engine import lint_text
from fmcheck.registry import rules

CONTRACT = parse_contract(
    '[engine]\nname = "any"\n[launches]\nper_step = ["x:step"]\n[graph_inputs.holds]\nslots = -1\n',
    "x",
)
#: What is wrong, by the rule that says so.
WRONG = {
    "an assert that a test of something else leaves out": (
        "FM601",
        """
        import torch

        @torch.compile
        def check(values, debug):
            if debug or not torch.compiler.is_compiling():
                torch._assert_async((values >= 0).all())
            if torch.compiler.is_compiling():
                return values
        """,
    ),
    "a read beside the host's copy, of which a number is kept": (
        "FM509",
        """
        def init_forward_metadata(self, batch):
            longest = batch.seq_lens.max().item()
            self.rows_cpu = torch.arange(longest)
            return longest, batch.seq_lens_cpu
        """,
    ),
    "a constant for values that a tuple does not list": (
        "FM507",
        """
        def forward(self, x, kv_cache, mode):
            if mode not in ("draft", "idle"):
                return x * torch.tensor(1.0, device=x.device)
        """,
    ),
    "a tail that is multiplied by no mask": (
        "FM201",
        """
        def replay(self, batch, bs, raw_bs):
            if bs > raw_bs:
                self.seq_lens.fill_(1)
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.rows[:raw_bs].copy_(batch.rows)
            self.rows.mul_(self.scale)
        """,
    ),
    "a copy of what was made on a device": (
        "FM404",
        """
        def longest(reqs, device):
            lens = torch.tensor(reqs, device=device)
            host = lens.to("cpu", non_blocking=True)
            return int(host.max())
        """,
    ),
    "a method of a parameter's class that does not wait": (
        "FM404",
        """
        class Copier:
            def finish(self):
                self.left = 0

        def fetch(x, copier: Copier):
            host = x.to("cpu", non_blocking=True)
            copier.finish()
            return host.tolist()
        """,
    ),
    "a context whose class waits too early": (
        "FM404",
        """
        class Copies:
            def __enter__(self):
                torch.cuda.synchronize()

            def __exit__(self, *args):
                pass

        def fetch(x):
            with Copies():
                host = x.to("cpu", non_blocking=True)
            return host.tolist()
        """,
    ),
    "another name for what does not wait": (
        "FM404",
        """
        trim = torch.cuda.empty_cache

        def fetch(x):
            host = x.to("cpu", non_blocking=True)
            trim()
            return host.tolist()
        """,
    ),
    "a text that is joined": (
        "FM404",
        """
        def fetch(x, names):
            host = x.to("cpu", non_blocking=True)
            print(", ".join(names))
            return host.tolist()
        """,
    ),
    "a comparison of what is on the host": (
        "FM404",
        """
        def fetch(x, y):
            host = x.to("cpu", non_blocking=True)
            return torch.equal(host, y)
        """,
    ),
    "a part of a copy that has a name of its own": (
        "FM404",
        """
        def first(lens):
            host = lens.to("cpu", non_blocking=True)
            part = host[:2]
            return part.tolist()
        """,
    ),
    "a view of a view of a copy": (
        "FM404",
        """
        def first(lens):
            host = lens.to("cpu", non_blocking=True)
            flat = host.view(-1)
            part = flat[:2]
            return part.tolist()
        """,
    ),
    "a number that is computed of a copy": (
        "FM404",
        """
        def total(lens):
            host = lens.to("cpu", non_blocking=True)
            return host.sum().item()
        """,
    ),
    "a comprehension reads each of a list of copies": (
        "FM404",
        """
        def lengths(tensors):
            host = [one.to("cpu", non_blocking=True) for one in tensors]
            return [one.tolist() for one in host]
        """,
    ),
    "a loop reads each of two copies": (
        "FM404",
        """
        def longest(lens, ends):
            host = (lens.to("cpu", non_blocking=True), ends.to("cpu", non_blocking=True))
            for one in host:
                if one > 3:
                    return True
        """,
    ),
    "a context that is left before the copy": (
        "FM409",
        """
        import torch
        from contextlib import contextmanager

        class Loader:
            def __init__(self):
                self.copies = torch.cuda.Stream()

            @contextmanager
            def joined(self):
                yield
                torch.cuda.current_stream().wait_stream(self.copies)

            def step(self, rows):
                with self.joined():
                    self.prepare()
                with torch.cuda.stream(self.copies):
                    rows = rows.to("cuda", non_blocking=True)
                return self.model(rows)
        """,
    ),
    "a function within that does not wait": (
        "FM404",
        """
        def lengths(lens, done):
            def settle():
                done.record()

            host = lens.to("cpu", non_blocking=True)
            settle()
            return host.tolist()
        """,
    ),
    "one side of an `and` that waits": (
        "FM502",
        """
        def step(batch):
            if batch.has_stops and batch.stop_mask.any():
                return batch
        """,
    ),
    "a walrus that waits": (
        "FM502",
        """
        def step(batch):
            if (stops := batch.stop_mask.any()):
                return stops
        """,
    ),
    "a default of a lambda": (
        "FM410",
        """
        import torch

        run = lambda x, s=torch.cuda.current_stream(): kernel(x, s)
        """,
    ),
    "a copy to the one device of the host": (
        "FM404",
        """
        def total(lens):
            host = lens.to(device="cpu:0", non_blocking=True)
            return int(host.sum())
        """,
    ),
    "the raw handle of the default stream": (
        "FM410",
        """
        import torch

        def launch(kernel, a, out):
            main = torch.cuda.default_stream()
            kernel(a, out, main.cuda_stream)
        """,
    ),
    "the raw handle of the default stream that an attribute keeps": (
        "FM410",
        """
        import torch

        class Grouped:
            def __init__(self):
                self.main = torch.cuda.default_stream()

            def run(self, a, out):
                self.kernel(a, out, stream=self.main.cuda_stream)
        """,
    ),
    "a decorator that compiles under a name of the file's own": (
        "FM601",
        """
        from functools import partial
        import torch

        compiled = partial(torch.compile, dynamic=True)

        @compiled
        def check(values):
            torch._assert_async(values.all())
        """,
    ),
    "a compiler that is made beside functions": (
        "FM601",
        """
        import torch

        compiled = torch.compile(dynamic=True)

        def check(values):
            torch._assert_async(values.all())

        fast = compiled(check)
        """,
    ),
    "a helper that orders streams before the tensor is there": (
        "FM401",
        """
        import torch

        class Mover:
            def begin(self):
                self.side.wait_stream(torch.cuda.current_stream())

            def move(self, parts):
                self.begin()
                rows = torch.cat(parts)
                with torch.cuda.stream(self.side):
                    self.out.copy_(rows)
        """,
    ),
    "a helper that orders streams after the read": (
        "FM401",
        """
        import torch

        class Mover:
            def end(self):
                torch.cuda.current_stream().wait_stream(self.side)

            def move(self, parts):
                rows = torch.cat(parts)
                with torch.cuda.stream(self.side):
                    self.out.copy_(rows)
                self.end()
        """,
    ),
    "what a branch for the CPU alone leaves": (
        "FM301",
        """
        import torch

        def timer(device):
            stream = torch.get_device_module(device).Stream()
            if device == "cpu":
                return torch.cpu.Event(), stream
            else:
                return torch.cuda.Event(), stream
        """,
    ),
    "a read of what the class made in pinned memory": (
        "FM404",
        """
        import torch

        class Worker:
            def __init__(self, n):
                self.held = torch.empty(n, pin_memory=True)

            def lengths(self, lens):
                self.held.copy_(lens, non_blocking=True)
                return self.held.tolist()
        """,
    ),
    "a loop over a copy reads it": (
        "FM404",
        """
        def lengths(lens):
            host = lens.to("cpu", non_blocking=True)
            for one in host:
                use(one)
        """,
    ),
    "so does a comprehension": (
        "FM404",
        """
        def lengths(lens):
            host = lens.to("cpu", non_blocking=True)
            return [one + 1 for one in host]
        """,
    ),
    "a copy that a helper returns": (
        "FM404",
        """
        def fetch(lens):
            return lens.to("cpu", non_blocking=True)

        def lengths(lens):
            host = fetch(lens)
            return host.tolist()
        """,
    ),
    "a copy that a method returns, by a name": (
        "FM404",
        """
        class Worker:
            def fetch(self, lens):
                host = lens.to("cpu", non_blocking=True)
                return host

            def lengths(self, lens):
                return int(self.fetch(lens).sum())
        """,
    ),
    "a size that is compared in a walrus": (
        "FM201",
        """
        class GraphRunner:
            def replay(self, batch, bs, raw_bs):
                if pad := bs != raw_bs:
                    self.seq_lens.fill_(1)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.rows[:raw_bs].copy_(batch.rows)
                self.graph.replay()
        """,
    ),
    "a stream that is made where it is entered": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            with torch.cuda.stream(torch.cuda.Stream()):
                self.out.copy_(rows)
        """,
    ),
    "a pinned buffer that is written through its array": (
        "FM403",
        """
        import torch

        class Sender:
            def __init__(self, n):
                self.host = torch.empty(n, pin_memory=True)

            def send(self, values, more):
                self.device.copy_(self.host, non_blocking=True)
                self.host.numpy()[:] = more
        """,
    ),
    "an accelerator's own module beside CUDA's": (
        "FM301",
        """
        import torch
        from deepspeed.accelerator import get_accelerator

        def publish(device):
            stream = get_accelerator().Stream()
            return torch.cuda.Event()
        """,
    ),
    "an argument is read on a stream that is only waited for": (
        "FM401",
        """
        import torch
        from engine.device import side_stream

        def noise(weights: torch.Tensor, rows: int):
            with torch.xpu.stream(side_stream()):
                drawn = weights.cpu()
                drawn.exponential_()
            torch.xpu.current_stream().wait_stream(side_stream())
            return drawn
        """,
    ),
    "another stream waits than the one that works": (
        "FM401",
        """
        import torch

        class Saver:
            def __init__(self):
                self.saves = torch.Stream()
                self.loads = torch.Stream()

            def save(self, page):
                main = torch.accelerator.current_stream()
                self.loads.wait_stream(main)
                with torch.cuda.stream(self.saves):
                    self.store(page)
        """,
    ),
    "what a module has just computed is read on a stream of the class": (
        "FM401",
        """
        import torch

        class Mixture:
            def __init__(self):
                self.second = torch.cuda.Stream()

            def forward(self, hidden):
                scaled = self.norm(hidden)
                with torch.cuda.stream(self.second):
                    shared = torch.nn.functional.linear(scaled, self.weight)
                return shared
        """,
    ),
    "copies that a list gathers": (
        "FM404",
        """
        import torch

        def predict(model, loader):
            parts = []
            for batch in loader:
                out = model(batch)
                host = out[: len(batch)].to(device="cpu", non_blocking=True)
                parts.append(host)
            return torch.cat(parts, dim=0)
        """,
    ),
    "arithmetic with a copy": (
        "FM404",
        """
        def mean(sums, count):
            host = sums.to("cpu", non_blocking=True)
            return host / count
        """,
    ),
    "memory of a side stream that the current one uses last": (
        "FM405",
        """
        import torch

        NOISE = torch.cuda.Stream()

        def sample(probs):
            with torch.cuda.stream(NOISE):
                noise = torch.empty_like(probs)
                noise.exponential_()
            torch.cuda.current_stream().wait_stream(NOISE)
            return probs.div_(noise).argmax(dim=-1)
        """,
    ),
    "one event for the outputs of all steps": (
        "FM407",
        """
        import torch

        class Runner:
            def __init__(self):
                self.sent_event = torch.Event()

            def step(self, tokens):
                return PendingOutput(tokens, ready=self.sent_event)
        """,
    ),
    "a result of a stream that a helper makes": (
        "FM409",
        """
        import torch

        _uploads = None

        def uploads():
            global _uploads
            if _uploads is None:
                _uploads = torch.cuda.Stream()
            return _uploads

        def step(model, rows):
            with torch.cuda.stream(uploads()):
                rows = rows.to("cuda", non_blocking=True)
            return torch.nn.functional.relu(rows)
        """,
    ),
    "a result of a stream that a context manager of the class enters": (
        "FM409",
        """
        import contextlib
        import torch

        class Loader:
            def __init__(self):
                self.copies = torch.npu.Stream()

            @contextlib.contextmanager
            def on_copy_stream(self):
                with torch.npu.stream(self.copies):
                    yield

            def step(self, rows):
                with self.on_copy_stream():
                    self.rows.copy_(rows, non_blocking=True)
                return torch.cumsum(self.rows, 0)
        """,
    ),
    "a result of a stream whose context has a name": (
        "FM409",
        """
        import contextlib
        import torch

        class Group:
            def __init__(self, overlap):
                self.side = torch.Stream() if overlap else None

            def load(self, rows):
                context = torch.cuda.stream(self.side) if self.side else contextlib.nullcontext()
                with context:
                    rows = rows.to("cuda", non_blocking=True)
                return rows + 1
        """,
    ),
    "a result of a stream out of a list": (
        "FM409",
        """
        import torch

        class Ring:
            def __init__(self):
                self.turns = [torch.cuda.Stream() for _ in range(2)]

            def step(self, i, q, k):
                with torch.cuda.stream(self.turns[i]):
                    scores = torch.matmul(q, k)
                return scores * self.scale
        """,
    ),
    "a wait for the other of two streams": (
        "FM409",
        """
        import torch

        class Optimizer:
            def __init__(self, overlap):
                self.down = self.up = torch.cuda.current_stream()
                if overlap:
                    self.down = torch.cuda.Stream()
                    self.up = torch.cuda.Stream()

            def hook(self):
                with torch.cuda.stream(self.up):
                    for one in self.params:
                        one.data.copy_(one.host, non_blocking=True)
                torch.cuda.current_stream().wait_event(self.down.record_event())
        """,
    ),
    "a stream as the default of a parameter": (
        "FM410",
        """
        import torch

        def launch(kernel, out, stream=torch.cuda.current_stream()):
            kernel[(8,)](out, stream)
        """,
    ),
    "elements of what a class keeps on the device": (
        "FM504",
        """
        import torch

        class Cache:
            def __init__(self, device):
                self.lens = torch.zeros(8, device=device)

            def rows(self):
                return [int(one) for one in self.lens]
        """,
    ),
    "elements of what an object's tensors are beside": (
        "FM504",
        """
        import torch

        def rows(batch):
            first = torch.zeros(1, device=batch.slots.device)
            for i in range(batch.slots.numel()):
                use(batch.lens.int()[i], first) if batch.slots[i].item() else None
        """,
    ),
    "elements of an attribute, in a step": (
        "FM504",
        """
        class Drafter:
            def seed_windows(self, count):
                for row in range(count):
                    self.seed(self.buffers.lengths_buf[row].item())
        """,
    ),
    "a parameter of a class that has a device": (
        "FM505",
        """
        import torch

        class Backend:
            def fill_prefill_metadata(self, lens: torch.Tensor, more: torch.Tensor | None):
                rows = torch.zeros(8, device=self.device)
                if more is not None and rows.numel():
                    return int((lens - more).max().item())
        """,
    ),
    "a number by a name": (
        "FM505",
        """
        import torch

        def dispatch(sizes: torch.Tensor):
            rows = torch.zeros(8, device=sizes.device)
            total = torch.sum(sizes)
            return rows, int(total)
        """,
    ),
    "an object that is made of a list of copies": (
        "FM404",
        """
        def pool(self, hidden):
            pooled = [one.to("cpu", non_blocking=True) for one in hidden]
            return RunnerOutput(pooled=pooled)
        """,
    ),
    "an array that takes the values of a copy": (
        "FM404",
        """
        import numpy as np

        def write(self, values, rows):
            self.rows[np.ix_(rows, rows)] = values.to("cpu", non_blocking=True).numpy()
        """,
    ),
    "a part of an array that does": (
        "FM404",
        """
        def write(self, values):
            host = values.to("cpu", non_blocking=True)
            self.rows[:4] = host.numpy()
        """,
    ),
    "a stream that waits for itself after its work": (
        "FM401",
        """
        import torch

        def save(self, rows):
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.out.copy_(rows)
                torch.cuda.current_stream().wait_stream(self.side)
        """,
    ),
    "waits of another stream before and after a body": (
        "FM401",
        """
        def show(self, rows):
            device_module.synchronize()
            self.shown.stream.wait_stream(device_module.current_stream())
            with device_module.stream(self.side):
                self.shown.copy_(rows, non_blocking=True)
            self.shown.stream.synchronize()
        """,
    ),
    "a write after the record that follows another": (
        "FM402",
        """
        class Runner:
            def publish(self, n, counts):
                self.lens_cpu[:n].copy_(self.lens[:n], non_blocking=True)
                self.positions[:n] = counts
                self.ready_event.record()
                self.positions[:n] += counts
        """,
    ),
    "a tensor that a walrus names": (
        "FM401",
        """
        import torch

        def save(self, parts):
            if (rows := torch.cat(parts)) is not None:
                with torch.cuda.stream(self.side):
                    self.host.copy_(rows, non_blocking=True)
        """,
    ),
    "an event that is known by what it is bound to": (
        "FM402",
        """
        import torch

        def publish(self, lens):
            mark = torch.cuda.Event()
            self.lens.copy_(lens)
            mark.record()
            self.lens.add_(1)
            return mark
        """,
    ),
    "a copy that a walrus names": (
        "FM404",
        """
        def is_any(lens):
            return (host := lens.to("cpu", non_blocking=True)).any(), host.shape
        """,
    ),
    "an event in a dict that is put into a queue": (
        "FM407",
        """
        def request(self, rows):
            self.ready_event.record()
            self.queue.put({"rows": rows, "ready": self.ready_event})
        """,
    ),
    "an annotated default": (
        "FM410",
        """
        import torch

        def run(kernel, rows, *, stream: object = torch.cuda.current_stream()):
            kernel(rows, stream=stream)
        """,
    ),
    "a copy that is asked not to block by position": (
        "FM404",
        """
        def lengths(self, lens):
            return lens.to("cpu", torch.int64, True).tolist()
        """,
    ),
    "so is one into a buffer": (
        "FM404",
        """
        def lengths(self, lens):
            self.pinned_lens.copy_(lens, True)
            return self.pinned_lens.tolist()
        """,
    ),
    "one of two copies that are unpacked": (
        "FM404",
        """
        def lengths(self, ids, lens):
            ids, lens = ids.to("cpu", non_blocking=True), lens.to("cpu", non_blocking=True)
            return ids, lens.tolist()
        """,
    ),
    "one of the copies that a generator makes": (
        "FM404",
        """
        def lengths(self, batch):
            ids, lens = (one.to("cpu", non_blocking=True) for one in (batch.ids, batch.lens))
            return ids, lens.tolist()
        """,
    ),
    "a context of which nobody says that it waits": (
        "FM404",
        """
        def lengths(self, lens):
            with self.tracer.scope("copy"):
                lens = lens.to("cpu", non_blocking=True)
            return lens.tolist()
        """,
    ),
    "a wait the wrong way round, called by its class": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            torch.cuda.Stream.wait_stream(torch.cuda.current_stream(), self.side)
            with torch.cuda.stream(self.side):
                self.out.copy_(rows, non_blocking=True)
        """,
    ),
    "a wait for the default stream, called by its class": (
        "FM406",
        """
        import torch

        def load(self, layer):
            torch.cuda.Stream.wait_stream(self.side, torch.cuda.default_stream())
        """,
    ),
    "a copy from pinned memory that does not block, by position": (
        "FM403",
        """
        import torch

        class Inputs:
            def __init__(self, n):
                self.host = torch.zeros(n, pin_memory=True)

            def push(self, first, second):
                self.host.copy_(first)
                self.out.copy_(self.host, True)
                self.host.copy_(second)
        """,
    ),
    "a size that is named where a buffer is cut": (
        "FM201",
        """
        class Runner:
            def replay(self, batch):
                self.seq_lens[: (raw := len(batch.reqs))].copy_(batch.seq_lens)
                self.rows[:raw].copy_(batch.rows)
                if (bs := self.pad(raw)) != raw:
                    self.seq_lens.fill_(1)
                self.graphs[bs].replay()
        """,
    ),
    "sizes that are named where they are compared": (
        "FM201",
        """
        class Runner:
            def replay(self, batch):
                if (bs := self.pad(batch.size)) != (raw := batch.size):
                    self.seq_lens.fill_(1)
                self.seq_lens[:raw].copy_(batch.seq_lens)
                self.rows.narrow(0, 0, raw).copy_(batch.rows)
                self.graphs[bs].replay()
        """,
    ),
}
#: What is right, and looks like what the rule is about.
RIGHT = {
    "an assert that only Python runs": (
        "FM601",
        """
        import torch

        def _check(values):
            torch._assert_async((values >= 0).all())

        @torch.compile
        def check(values, debug):
            if debug and not torch.compiler.is_compiling():
                torch._assert_async((values >= 0).all())
            if torch.compiler.is_compiling():
                pass
            else:
                _check(values)
            if torch._dynamo.is_compiling() or not debug:
                return values
            torch._assert_async((values >= 0).all())
        """,
    ),
    "a constant for a device that has none yet": (
        "FM507",
        """
        def forward(self, x, kv_cache):
            if x.device not in self._ones:
                one = torch.tensor(1.0, device=x.device)
                self._ones[x.device] = one
            if not hasattr(self, "two"):
                setattr(self, "two", torch.tensor(2.0, device=x.device))
            return x * self._ones[x.device] * self.two
        """,
    ),
    "a tail that is multiplied by a mask": (
        "FM201",
        """
        def replay(self, batch, bs, raw_bs):
            if bs > raw_bs:
                self.seq_lens.fill_(1)
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.rows[:raw_bs].copy_(batch.rows)
            self.rows.mul_(self.arange < raw_bs)
            self.slots[:raw_bs].copy_(batch.slots)
            is_real = self.arange < raw_bs
            self.slots.mul_(is_real.to(torch.int32))
        """,
    ),
    "a copy of what is on the host": (
        "FM404",
        """
        def longest(reqs):
            lens = torch.tensor(reqs, device="cpu")
            host = lens.to("cpu", non_blocking=True)
            ends = torch.tensor(reqs, device=torch.device("cpu")).to("cpu", non_blocking=True)
            return int(host.max()), int(ends.max()), reqs.cpu().to("cpu", non_blocking=True).item()
        """,
    ),
    "a pinned buffer that is written behind a helper's wait": (
        "FM403",
        """
        import torch

        class Lengths:
            def __init__(self, n):
                self.host = torch.empty(n, pin_memory=True)

            def settle(self):
                torch.cuda.synchronize()

            def stage(self, values):
                self.host[: len(values)].copy_(values)
                self.lens.copy_(self.host, non_blocking=True)
                self.settle()
                self.host.fill_(1)
        """,
    ),
    "a wait that an import gives another name": (
        "FM404",
        """
        from torch.cuda import synchronize as flush_all

        def fetch(x):
            host = x.to("cpu", non_blocking=True)
            flush_all()
            return host.tolist()
        """,
    ),
    "a method that waits, of a class for which there may be no object": (
        "FM404",
        """
        class Copier:
            def settle_all(self):
                torch.cuda.synchronize()

        class Runner:
            def __init__(self, copier: "Copier | None" = None):
                self.copier = copier
                self.done = torch.cuda.synchronize

            def fetch(self, x):
                host = x.to("cpu", non_blocking=True)
                self.copier.settle_all()
                return host.tolist()

            def again(self, x):
                host = x.to("cpu", non_blocking=True)
                self.done()
                return host.tolist()
        """,
    ),
    "a copy to an array that blocks": (
        "FM404",
        """
        def fetch(x, y):
            host = x.to("cpu", non_blocking=True)
            rows = y.numpy(force=True)
            return host.tolist(), rows
        """,
    ),
    "a method that waits, of a parameter's class": (
        "FM404",
        """
        class Copier:
            def finish(self):
                torch.cuda.synchronize()

        def fetch(x, copier: Copier):
            host = x.to("cpu", non_blocking=True)
            copier.finish()
            return host.tolist()
        """,
    ),
    "a method that waits, of an object that was just made": (
        "FM404",
        """
        class Copier:
            def settle_all(self):
                torch.cuda.current_stream().synchronize()

        def fetch(x):
            copier = Copier()
            host = x.to("cpu", non_blocking=True)
            copier.settle_all()
            return host.tolist()
        """,
    ),
    "a method that waits, of an object that an attribute holds": (
        "FM404",
        """
        class Copier:
            def settle_all(self):
                torch.cuda.synchronize()

        class Runner:
            def __init__(self):
                self.copier = Copier()

            def fetch(self, x):
                host = x.to("cpu", non_blocking=True)
                self.copier.settle_all()
                return host.tolist()
        """,
    ),
    "a context whose class waits as it is entered": (
        "FM404",
        """
        class Done:
            def __enter__(self):
                torch.cuda.synchronize()

            def __exit__(self, *args):
                pass

        def fetch(x):
            host = x.to("cpu", non_blocking=True)
            with Done():
                return host.tolist()
        """,
    ),
    "a context whose class waits as it is left": (
        "FM404",
        """
        class Copies:
            def __enter__(self):
                pass

            def __exit__(self, *args):
                torch.cuda.synchronize()

        def fetch(x):
            with Copies():
                host = x.to("cpu", non_blocking=True)
            return host.tolist()
        """,
    ),
    "another name for a wait": (
        "FM404",
        """
        flush = torch.cuda.synchronize

        def fetch(x):
            host = x.to("cpu", non_blocking=True)
            flush()
            return host.tolist()
        """,
    ),
    "a method of an event by another name": (
        "FM404",
        """
        def fetch(x, event):
            done = event.synchronize
            host = x.to("cpu", non_blocking=True)
            event.record()
            done()
            return host.tolist()
        """,
    ),
    "a wait of the driver's own interface": (
        "FM404",
        """
        def fetch(x):
            host = x.to("cpu", non_blocking=True)
            torch.cuda.cudart().cudaStreamSynchronize(torch.cuda.current_stream().cuda_stream)
            return host.tolist()
        """,
    ),
    "a comparison of all values waits": (
        "FM404",
        """
        def fetch(x, y):
            host = x.to("cpu", non_blocking=True)
            if torch.equal(x, y):
                return host.tolist()
        """,
    ),
    "a test of a tensor waits": (
        "FM404",
        """
        def fetch(x, mask):
            host = x.to("cpu", non_blocking=True)
            if mask.any():
                return host.tolist()
        """,
    ),
    "a function whose name says that it ends something, and that nothing else tells of": (
        "FM404",
        """
        def fetch(x, transfers):
            host = x.to("cpu", non_blocking=True)
            transfers.finish()
            return host.tolist()
        """,
    ),
    "a part of a copy that is read behind a wait": (
        "FM404",
        """
        def first(lens, done):
            host = lens.to("cpu", non_blocking=True)
            done.record()
            part = host[:2]
            done.synchronize()
            return part.tolist()
        """,
    ),
    "a name that is a copy or another tensor": (
        "FM404",
        """
        def first(lens, lens_cpu, is_known):
            host = lens.to("cpu", non_blocking=True)
            part = lens_cpu if is_known else host
            return part.tolist()
        """,
    ),
    "a name that was a part of a copy": (
        "FM404",
        """
        def first(lens, lens_cpu):
            host = lens.to("cpu", non_blocking=True)
            part = host[:2]
            send(part)
            part = lens_cpu[:2]
            return part.tolist()
        """,
    ),
    "a number that is computed of the device before": (
        "FM404",
        """
        def total(self, lens):
            host = lens.to("cpu", non_blocking=True)
            count = self.flags.sum().item()
            return host.sum().item() + count
        """,
    ),
    "a loop over copies that waits for each": (
        "FM404",
        """
        def lengths(self, tensors):
            host = [one.to("cpu", non_blocking=True) for one in tensors]
            for one in host:
                self.done.synchronize()
                self.use(one.item())
        """,
    ),
    "a loop that hands copies on": (
        "FM404",
        """
        def lengths(self, tensors):
            host = [one.to("cpu", non_blocking=True) for one in tensors]
            for one in host:
                if one is not None:
                    self.queue.put(one[:3])
            for one in self.lists:
                one.tolist()
        """,
    ),
    "a context that waits as it is left": (
        "FM409",
        """
        import torch
        from contextlib import contextmanager

        class Loader:
            def __init__(self):
                self.copies = torch.cuda.Stream()

            @contextmanager
            def joined(self):
                yield
                torch.cuda.current_stream().wait_stream(self.copies)

            def step(self, rows):
                with self.joined(), torch.cuda.stream(self.copies):
                    rows = rows.to("cuda", non_blocking=True)
                return self.model(rows)
        """,
    ),
    "a function within that has streams wait": (
        "FM409",
        """
        import torch

        class Loader:
            def __init__(self):
                self.copies = torch.cuda.Stream()

            def step(self, rows):
                def join():
                    torch.cuda.current_stream().wait_stream(self.copies)

                with torch.cuda.stream(self.copies):
                    rows = rows.to("cuda", non_blocking=True)
                join()
                return self.model(rows)
        """,
    ),
    "a function within that waits": (
        "FM404",
        """
        def lengths(lens, done):
            def settle():
                done.synchronize()

            host = lens.to("cpu", non_blocking=True)
            settle()
            return host.tolist()
        """,
    ),
    "a name for a tensor over an array": (
        "FM404",
        """
        import torch

        def lengths(array):
            lens = torch.from_numpy(array)
            return lens.to("cpu", non_blocking=True).tolist()
        """,
    ),
    "a helper that orders streams": (
        "FM401",
        """
        import torch

        class Mover:
            def begin(self):
                self.side.wait_stream(torch.cuda.current_stream())

            def move(self, parts):
                rows = torch.cat(parts)
                self.begin()
                with torch.cuda.stream(self.side):
                    self.out.copy_(rows)
        """,
    ),
    "a helper that orders streams in the body": (
        "FM401",
        """
        import torch

        def begin(ready):
            torch.cuda.current_stream().wait_event(ready)

        class Mover:
            def move(self, parts):
                rows = torch.cat(parts)
                with torch.cuda.stream(self.side):
                    begin(self.ready)
                    self.out.copy_(rows)
        """,
    ),
    "a helper beside a wait for the previous job": (
        "FM401",
        """
        import torch

        def begin(stream):
            stream.wait_stream(torch.cuda.current_stream())

        def offload(self, blocks):
            stream = self.streams.pop() if self.streams else torch.cuda.Stream()
            done = torch.cuda.Event()
            begin(stream)
            if self.jobs:
                previous = self.jobs[-1].done
                stream.wait_event(previous)
            with torch.cuda.stream(stream):
                swap_blocks(self.cache, self.host, blocks)
                done.record(stream)
        """,
    ),
    "a number that is read of what was launched": (
        "FM401",
        """
        import torch

        class Mover:
            def move(self, parts):
                rows = torch.cat(parts)
                count = int(rows.sum())
                with torch.cuda.stream(self.side):
                    self.out[:count].copy_(rows)
        """,
    ),
    "an `and` of what the host has": (
        "FM502",
        """
        def step(batch, flags: list):
            if batch.has_stops and any(flags) and batch.mask_cpu.any():
                return batch
        """,
    ),
    "the raw handle of the current stream": (
        "FM410",
        """
        import torch

        def launch(kernel, a, out):
            kernel(a, out, torch.cuda.current_stream().cuda_stream)
        """,
    ),
    "a compiler under a name that keeps asserts": (
        "FM601",
        """
        from functools import partial
        import torch

        compiled = partial(torch.compile, backend="eager")

        @compiled
        def check(values):
            torch._assert_async(values.all())
        """,
    ),
    "what was compiled is no compiler": (
        "FM601",
        """
        import torch

        def traced(function):
            return function

        fast = torch.compile(traced)

        @fast
        def check(values):
            torch._assert_async(values.all())
        """,
    ),
    "pinned memory that a store is handed, which may keep it": (
        "FM405",
        """
        import torch

        def save(self, rows):
            host = torch.empty(rows.shape, pin_memory=True)
            with torch.cuda.stream(self.side):
                host.copy_(rows, non_blocking=True)
                self.store.put_async(host)
        """,
    ),
    "a copy to the host of what comes from NumPy": (
        "FM404",
        """
        import torch

        def frame(pixels):
            return torch.from_numpy(pixels).float().to("cpu", non_blocking=True).float() / 255.0
        """,
    ),
    "what branches for other accelerators leave": (
        "FM301",
        """
        import torch

        def timer(device):
            stream = torch.get_device_module(device).Stream()
            if device == "xpu":
                return torch.xpu.Event(), stream
            elif device == "cpu":
                return torch.cpu.Event(), stream
            else:
                return torch.cuda.Event(), stream
        """,
    ),
    "a plain function that is named like a method which uploads": (
        "FM403",
        """
        import torch

        class Embedding:
            def __init__(self, n):
                self.held = torch.empty(n, pin_memory=True)

            def forward(self, rows):
                self.held[:] = 0
                rows = copy_to_gpu(rows, non_blocking=True)
                return copy_to_gpu(rows)
        """,
    ),
    "a read of what is in host memory that is not pinned": (
        "FM404",
        """
        import torch

        def lengths(lens, n):
            host_lens = torch.empty(n, dtype=torch.int32)
            host_lens.copy_(lens, non_blocking=True)
            return host_lens.tolist()
        """,
    ),
    "a read whose other argument waits for the stream first": (
        "FM404",
        """
        import torch

        def joined(parts):
            out = parts[0].to("cpu", non_blocking=True)
            for part in parts[1:]:
                out = torch.cat((out, part.cpu()))
            return out
        """,
    ),
    "a buffer that each call makes for itself": (
        "FM201",
        """
        class Solver:
            def replay(self, batch, bs, raw_bs):
                rows = Rows(slots=batch.slots.clone())
                if bs != raw_bs:
                    self.lens.fill_(1)
                self.lens[:raw_bs].copy_(batch.lens)
                rows.slots[:raw_bs] = batch.slots
        """,
    ),
    "a buffer of which the raw rows alone are handed on": (
        "FM201",
        """
        class Drafter:
            def propose(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.lens.fill_(1)
                self.lens[:raw_bs].copy_(batch.lens)
                self.embeds[:raw_bs].copy_(batch.embeds)
                return self.model(self.lens[:bs], self.embeds[:raw_bs])

            def capture(self):
                self.graph = self.model(self.lens)
        """,
    ),
    "the default stream in a text": (
        "FM410",
        """
        import torch

        def key(device):
            return str(torch.cuda.default_stream(device))
        """,
    ),
    "a body on the default stream": (
        "FM410",
        """
        import torch

        def made(device):
            with use_stream(default_stream(device)):
                return torch.empty(1, device=device)
        """,
    ),
    "a stream whose copies return when they are done": (
        "FM409",
        """
        import torch

        def work(queue):
            copies = torch.cuda.Stream()
            with torch.cuda.stream(copies):
                target, source = queue.get()
                target.copy_(source.contiguous())
        """,
    ),
    "a copy whose helper waits": (
        "FM404",
        """
        import torch

        def settle():
            torch.cuda.synchronize()

        def lengths(lens):
            host = lens.to("cpu", non_blocking=True)
            settle()
            return host.tolist()
        """,
    ),
    "a helper that waits by another one": (
        "FM404",
        """
        class Worker:
            def settle(self):
                self.done()

            def done(self):
                self.event.synchronize()

            def lengths(self, lens):
                host = lens.to("cpu", non_blocking=True)
                self.settle()
                return host.tolist()
        """,
    ),
    "a helper that waits for its own copy": (
        "FM404",
        """
        class Worker:
            def fetch(self, lens):
                host = lens.to("cpu", non_blocking=True)
                self.event.synchronize()
                return host

            def lengths(self, lens):
                return self.fetch(lens).tolist()
        """,
    ),
    "helpers that call one another for ever": (
        "FM404",
        """
        def one():
            other()

        def other():
            one()

        def lengths(lens):
            host = lens.to("cpu", non_blocking=True)
            one()
            return host
        """,
    ),
    "a name that is bound again is another buffer": (
        "FM403",
        """
        import torch

        def plan(n, dev, seq):
            cu = torch.zeros(n, pin_memory=True)
            x = cu.to(dev, non_blocking=True)
            cu = torch.zeros(n, device=dev)
            torch.cumsum(seq, 0, out=cu[1:])
            return x, cu
        """,
    ),
    "an entry that is bound is not written": (
        "FM403",
        """
        class Buffers:
            def __init__(self, n):
                self.held = torch.empty(n, pin_memory=True)

            def fill(self, name):
                self.device.copy_(self.held, non_blocking=True)
                self.held[f"{name}x"] = Buffer(name)
        """,
    ),
    "what is made from a tensor is not the tensor": (
        "FM403",
        """
        class Offload:
            def save(self):
                self.host = self.weight.float().cpu().pin_memory()
                self.device.copy_(self.host, non_blocking=True)
                self.weight.fill_(0)
        """,
    ),
    "a copy to the host that is asked not to block": (
        "FM502",
        """
        def step(batch):
            return batch.ids.to("cpu", non_blocking=True)
        """,
    ),
    "an array by its annotation": (
        "FM502",
        """
        import numpy as np

        def step(rows: np.ndarray):
            return rows.tolist(), np.unique(rows), rows[rows > 0]
        """,
    ),
    "a graph is captured on the stream that is entered": (
        "FM401",
        """
        import torch

        def capture(self, parts, side):
            rows = torch.cat(parts)
            with torch.cuda.stream(self.side), torch.cuda.graph(self.graph, stream=self.side):
                self.out.copy_(rows)
        """,
    ),
    "the default stream is no side stream": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            main = torch.cuda.default_stream()
            with torch.cuda.stream(main):
                self.out.copy_(rows)
        """,
    ),
    "a column that is reset is the reset": (
        "FM201",
        """
        class GraphRunner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens[raw_bs:].fill_(1)
                self.seq_lens[:raw_bs] = batch.seq_lens
                self.table[:raw_bs] = batch.table
                self.table[raw_bs:bs, 0] = 0
                self.graph.replay()
        """,
    ),
    "the reset of some object": (
        "FM201",
        """
        class GraphRunner:
            def replay(self, batch, bs, raw_bs, context):
                if bs != raw_bs:
                    context.reset()
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.rows[:raw_bs].copy_(batch.rows)
                self.graph.replay()
        """,
    ),
    "a graph is CUDA's own": (
        "FM301",
        """
        import torch

        def capture(self, device):
            module = torch.get_device_module(device)
            graph = torch.cuda.CUDAGraph()
            side = torch.cuda.Stream()
            return graph, side, module
        """,
    ),
    "a loop over a tuple of copies": (
        "FM404",
        """
        def offload(tensors, more):
            hosts = tuple(one.to("cpu", non_blocking=True) for one in tensors)
            return any(one.requires_grad for one in hosts), [one for one in hosts]
        """,
    ),
    "a list that a function makes, which it is told a device for": (
        "FM504",
        """
        import torch

        def steps(self, count, latents):
            noise = torch.zeros(8, device=latents.device)
            exits = self.sample_exits(count, device=latents.device)
            return noise, [int(exits[i]) for i in range(count)]
        """,
    ),
    "a name that is made of itself": (
        "FM504",
        """
        import torch

        def rows(table, more):
            kept = torch.zeros(8, device=more.device)
            table = table[1:] + more
            more = more[1:] + table
            return [int(table[i]) for i in range(8)], kept
        """,
    ),
    "a tensor that is asserted to be on the host": (
        "FM504",
        """
        import torch

        def grow(counts: torch.Tensor, sizes: torch.Tensor):
            assert counts.device.type == "cpu"
            rows = torch.zeros(8, device=sizes.device)
            return rows, [counts[i].item() for i in range(8)]
        """,
    ),
    "a tensor on a device that a constant names": (
        "FM504",
        """
        import torch

        def drops(self):
            chances = torch.rand(8, device=CPU)
            return [float(chances[i]) for i in range(8)]
        """,
    ),
    "entries of a dict under keys that are made": (
        "FM403",
        """
        import torch

        class Metadata:
            def __init__(self, n):
                self.host = {}
                for i in range(2):
                    self.host[f"{i}_lens"] = torch.empty(n, pin_memory=True)

            def fill(self, lens):
                for i in range(2):
                    self.host[f"{i}_lens"].copy_(lens[i])
                    self.device[i].copy_(self.host[f"{i}_lens"], non_blocking=True)
        """,
    ),
    "a parameter that is bound again to a list": (
        "FM504",
        """
        import torch

        def rows(table: torch.Tensor):
            kept = torch.zeros(8, device=table.device)
            lists = table.tolist()
            for i in range(8):
                table = lists[i]
                kept[int(table[i])] = 1
        """,
    ),
    "what is read for a debug log alone": (
        "FM505",
        """
        import os

        def forward(self, lens: torch.Tensor):
            if os.getenv("DEBUG"):
                print(lens.sum().item())
        """,
    ),
    "a wait in a finally": (
        "FM505",
        """
        import torch

        def decode(self, latents):
            try:
                self.copy(latents)
            finally:
                torch.cuda.current_stream().synchronize()
        """,
    ),
    "a device that comes of the literal": (
        "FM304",
        """
        import torch

        def mask(tokens):
            tokens = tokens.to("cuda")
            kept = tokens + 1
            return torch.zeros(8, device=kept.device)
        """,
    ),
    "a device that comes of the literal by a loop and a tuple": (
        "FM304",
        """
        import torch

        def mask(parts):
            parts = [part.cuda() for part in parts]
            kept, _ = torch.topk(torch.cat(parts), 4)
            return [torch.zeros(8, device=part.device) for part in parts], kept.to(kept.device)
        """,
    ),
    "streams of which each is joined in a loop": (
        "FM401",
        """
        import torch

        def run(self, streams, main):
            for i, part in enumerate(self.parts):
                with torch.cuda.stream(self.streams[i]):
                    part.run()
            for stream in self.streams:
                done = torch.cuda.Event()
                done.record(stream)
                torch.cuda.current_stream().wait_event(done)
        """,
    ),
    "elements of what is on the host, or may be": (
        "FM504",
        """
        import torch

        def rows(lens: torch.Tensor, fields, device):
            host = lens.to("cpu")
            rows = torch.zeros(8, device=lens.device)
            found = [int(one) for one in host] + [int(fields[i]) for i in range(8)]
            return found + [int(rows.shape[i]) for i in range(2)]
        """,
    ),
    "a function that prepares data": (
        "FM505",
        """
        import torch

        def collate_metadata(lens: torch.Tensor):
            rows = torch.zeros(8, device=lens.device)
            return rows, int(lens.max())
        """,
    ),
    "an event that measures time": (
        "FM505",
        """
        def forward(self, start, end, hidden):
            start.record()
            launch(hidden)
            end.record()
            end.synchronize()
            return start.elapsed_time(end)
        """,
    ),
    "a device that a function chooses itself": (
        "FM304",
        """
        import torch

        def choose(hidden):
            is_on = torch.cuda.is_available()
            return hidden.to(hidden.device), torch.zeros(8, device="cuda" if is_on else "cpu")
        """,
    ),
    "a result that the host has waited for": (
        "FM401",
        """
        import torch

        def sums(self, rows, out):
            with torch.cuda.stream(self.side):
                total = torch.cumsum(rows, 0)
            self.side.synchronize()
            out.add_(torch.sqrt(total))
        """,
    ),
    "what a capture fills is no replay": (
        "FM202",
        """
        class GraphRunner:
            def capture_one(self):
                self.slots.fill_(0)
        """,
    ),
    "an argument whose shape alone is asked for": (
        "FM401",
        """
        import torch
        from engine.device import side_stream

        def noise(weights: torch.Tensor):
            with torch.xpu.stream(side_stream()):
                drawn = torch.empty_like(weights)
                drawn.exponential_()
            torch.xpu.current_stream().wait_stream(side_stream())
            return drawn
        """,
    ),
    "an argument that the caller has waited for": (
        "FM401",
        """
        import torch

        class Saver:
            def __init__(self):
                self.saves = torch.Stream()

            def save(self, rows: torch.Tensor):
                with torch.cuda.stream(self.saves):
                    host = rows.cpu()
                torch.cuda.current_stream().wait_stream(self.saves)
                return host

            def run(self, rows):
                self.ready.synchronize()
                return self.save(rows)
        """,
    ),
    "memory that is written on another stream than it is allocated": (
        "FM401",
        """
        import torch

        class Mixture:
            def __init__(self):
                self.second = torch.cuda.Stream()

            def forward(self, hidden):
                main = torch.cuda.current_stream()
                scaled = self.norm(hidden)
                self.second.wait_stream(main)
                out = hidden.new_empty(8)
                with torch.cuda.stream(self.second):
                    torch.mm(scaled, self.weight, out=out)
                main.wait_stream(self.second)
                return out
        """,
    ),
    "copies that a list gathers, after a wait": (
        "FM404",
        """
        import torch

        def predict(model, loader):
            parts = []
            for batch in loader:
                host = model(batch).to(device="cpu", non_blocking=True)
                parts.append(host)
            torch.cuda.synchronize()
            return torch.cat(parts, dim=0)
        """,
    ),
    "a tuple that holds a copy": (
        "FM404",
        """
        import torch

        def stage(pinned_tokens, sampled, rest):
            pinned_tokens.copy_(sampled, non_blocking=True)
            given = (pinned_tokens[:1],) + rest
            torch.cuda.synchronize()
            return given
        """,
    ),
    "memory of a side stream that waits before it writes again": (
        "FM405",
        """
        import torch

        NOISE = torch.cuda.Stream()

        def sample(probs):
            NOISE.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(NOISE):
                noise = torch.empty_like(probs)
                noise.exponential_()
            torch.cuda.current_stream().wait_stream(NOISE)
            return probs.div_(noise).argmax(dim=-1)
        """,
    ),
    "an event for the output of each step": (
        "FM407",
        """
        import torch

        class Runner:
            def __init__(self):
                self.sent_event = torch.Event()

            def step(self, tokens):
                self.sent_event = torch.Event()
                return PendingOutput(tokens, ready=self.sent_event)
        """,
    ),
    "a result whose helper waits": (
        "FM409",
        """
        import torch

        class Loader:
            def __init__(self):
                self.copies = torch.npu.Stream()

            def step(self, rows):
                with torch.npu.stream(self.copies):
                    self.rows.copy_(rows, non_blocking=True)
                self.join()
                return torch.cumsum(self.rows, 0)

            def join(self):
                torch.npu.current_stream().wait_stream(self.copies)
        """,
    ),
    "a result of a stream that the caller chooses": (
        "FM409",
        """
        import torch

        class Ring:
            def __init__(self, stream):
                self.stream = stream or torch.cuda.current_stream()

            def step(self, q, k):
                with torch.cuda.stream(self.stream):
                    scores = torch.matmul(q, k)
                return scores * self.scale
        """,
    ),
    "the handles of what a side stream sends": (
        "FM409",
        """
        import torch

        class Ring:
            def __init__(self):
                self.comm_stream = torch.cuda.Stream()

            def step(self, k, v):
                with torch.cuda.stream(self.comm_stream):
                    first = send_async(k)
                    second = send_async(v)
                for one in first + second:
                    one.wait()
        """,
    ),
    "a wait for an event of the stream that worked": (
        "FM409",
        """
        import torch

        class Optimizer:
            def __init__(self):
                self.down = torch.cuda.Stream()
                self.up = torch.cuda.Stream()

            def hook(self):
                with torch.cuda.stream(self.up):
                    for one in self.params:
                        one.data.copy_(one.host, non_blocking=True)
                torch.cuda.current_stream().wait_event(self.up.record_event())
        """,
    ),
    "a partial call that is called at once": (
        "FM410",
        """
        import functools
        import torch

        def launch(kernel, out):
            run = functools.partial(kernel, stream=torch.cuda.current_stream())
            return run(out)
        """,
    ),
    "an event of threads": (
        "FM407",
        """
        from multiprocessing import Event

        class Runner:
            def __init__(self):
                self.stop_event = Event()

            def step(self, tokens):
                return TaskHandle(tokens, stop=self.stop_event)
        """,
    ),
    "a batch that may be on the host is copied": (
        "FM401",
        """
        import torch

        class Prefetch:
            def __init__(self):
                self.uploads = torch.cuda.Stream()

            def load(self, samples):
                batch = self.collate(samples)
                count = self.count(samples)
                with torch.cuda.stream(self.uploads):
                    self.device_batch.copy_(batch, non_blocking=True)
                    mask = torch.ones(count, device="cuda")
                return mask
        """,
    ),
    "a stream that the function asks for": (
        "FM410",
        """
        import torch

        def launch(kernel, out, stream=None):
            kernel[(8,)](out, stream or torch.cuda.current_stream())
        """,
    ),
    "a container that keeps an array": (
        "FM404",
        """
        def keep(self, values, name):
            self.by_name[name, 0] = values.to("cpu", non_blocking=True).numpy()
            self.mirror[2:4] = values.to("cpu", non_blocking=True)
        """,
    ),
    "a wait in a body that was there before it": (
        "FM401",
        """
        import torch

        def save(self, rows):
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.side.wait_stream(torch.cuda.current_stream())
                self.out.copy_(rows)
                torch.cuda.current_stream().wait_stream(self.side)
            torch.cuda.current_stream().wait_stream(self.side)
        """,
    ),
    "a stream that may be the other one by another name": (
        "FM401",
        """
        class Shown:
            def __init__(self, shown):
                self.side = shown.stream

            def show(self, rows):
                self.shown.stream.wait_stream(device_module.current_stream())
                with device_module.stream(self.side):
                    self.shown.copy_(rows, non_blocking=True)
                self.shown.stream.synchronize()
        """,
    ),
    "an event for the copy to the host right before it": (
        "FM402",
        """
        class Runner:
            def prepare(self, n, counts):
                self.positions[:n] = counts
                self.lens_cpu[:n].copy_(self.lens[:n], non_blocking=True)
                self.copied_event.record()
                self.positions[:n] += counts
        """,
    ),
    "a context manager whose name does not say its stream": (
        "FM401",
        """
        import torch

        def forward(moe, rows, overlap):
            if overlap:
                current_stream = torch.cuda.current_stream()
                moe.alt_stream.wait_stream(current_stream)
                stream_context = torch.cuda.stream(moe.alt_stream)
            else:
                stream_context = nullcontext()
            with stream_context:
                rows = moe.run(rows)
            if overlap:
                current_stream.wait_stream(moe.alt_stream)
            return rows
        """,
    ),
    "a wait of the host in the body, and what captures a graph there": (
        "FM401",
        """
        import torch

        def save(self, rows):
            with torch.cuda.stream(self.side):
                self.side.wait_stream(self.main)
                self.out.copy_(rows)
                self.side.synchronize()
                torch.cuda.current_stream().wait_stream(self.side)

        def capture(self, region, rows):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                graphed = torch.cuda.make_graphed_callables(region, (rows.clone(),))
                torch.cuda.current_stream().wait_stream(side)
            return graphed
        """,
    ),
    "a tail that a mask picks": (
        "FM201",
        """
        class Runner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                    self.slots.masked_fill_(self.places >= raw_bs, 0)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.slots[:raw_bs].copy_(batch.slots)
        """,
    ),
    "a tail that an index picks": (
        "FM201",
        """
        class Runner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                    self.slots.index_fill_(0, self.tail, 0)
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.slots[:raw_bs].copy_(batch.slots)
        """,
    ),
    "resets of all that a method returns": (
        "FM201",
        """
        class Runner:
            def replay(self, batch, bs, raw_bs):
                if bs != raw_bs:
                    self.seq_lens.fill_(1)
                    for one in self.index_buffers():
                        one.zero_()
                self.seq_lens[:raw_bs].copy_(batch.seq_lens)
                self.slots[:raw_bs].copy_(batch.slots)
        """,
    ),
    "a test of a version for CUDA": (
        "FM301",
        """
        import torch

        def wait(device):
            if torch.version.cuda is not None:
                torch.cuda.synchronize()
            torch.get_device_module(device).synchronize()
        """,
    ),
    "a test for a device that the CUDA API has": (
        "FM301",
        """
        import torch

        def wait(device):
            if device.type in ("cuda", "hip"):
                torch.cuda.synchronize()
            torch.get_device_module(device).synchronize()
        """,
    ),
    "a test of how a device starts": (
        "FM301",
        """
        import torch

        def wait(device):
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            torch.get_device_module(device).synchronize()
        """,
    ),
    "a test whether CUDA is there": (
        "FM301",
        """
        import torch

        def wait(device):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            torch.get_device_module(device).synchronize()
        """,
    ),
    "a case for CUDA": (
        "FM301",
        """
        import torch

        def wait(device):
            match device.type:
                case "cuda":
                    torch.cuda.synchronize()
                case _:
                    torch.get_device_module(device).synchronize()
        """,
    ),
    "a wait of each of some streams": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            for one in self.streams:
                one.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.streams[0]):
                self.host.copy_(rows, non_blocking=True)
        """,
    ),
    "a launch that the host has waited for": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            self.lens.append(rows.sum().item())
            with torch.cuda.stream(self.side):
                self.host.copy_(rows, non_blocking=True)
        """,
    ),
    "another tensor under the same name": (
        "FM402",
        """
        import torch

        def publish(self, lens):
            self.lens.copy_(lens)
            self.ready.record()
            self.lens = torch.empty_like(lens)
            self.lens.zero_()
        """,
    ),
    "the other half of a buffer": (
        "FM402",
        """
        def publish(self, lens):
            self.lens[0].copy_(lens)
            self.ready.record()
            self.lens[1].copy_(lens)
        """,
    ),
    "something awaited between a copy and its read": (
        "FM404",
        """
        async def lengths(self, lens):
            host = lens.to("cpu", non_blocking=True)
            await self.done()
            return host.tolist()
        """,
    ),
    "a copy in a context of the class that waits at its end": (
        "FM404",
        """
        import contextlib

        class Copier:
            @contextlib.contextmanager
            def copying(self):
                yield
                self.side.synchronize()

            def lengths(self, lens):
                with self.copying():
                    host = lens.to("cpu", non_blocking=True)
                return host.tolist()
        """,
    ),
    "a copy of what is on the host already": (
        "FM404",
        """
        def lengths(lens):
            lens = lens.cpu()
            return lens.to("cpu", non_blocking=True).tolist()
        """,
    ),
    "a wait for each of some streams": (
        "FM409",
        """
        import torch

        class Loader:
            def __init__(self):
                self.copies = torch.cuda.Stream()

            def step(self, rows):
                with torch.cuda.stream(self.copies):
                    rows = rows.to("cuda", non_blocking=True)
                for stream in (self.copies,):
                    torch.cuda.current_stream().wait_stream(stream)
                return self.model(rows)
        """,
    ),
    "a function that the compiler leaves to Python": (
        "FM601",
        """
        import torch

        @torch.compiler.disable
        def check(values):
            torch._assert_async((values >= 0).all())

        @torch.compile
        def gather(values):
            check(values)
        """,
    ),
    "a copy that blocks, by position": (
        "FM404",
        """
        def lengths(self, lens):
            return lens.to("cpu", torch.int64, False, True).tolist()
        """,
    ),
    "an upload that does not block, by position": (
        "FM404",
        """
        def lengths(self, lens):
            return lens.to(self.device, torch.int64, True).sum()
        """,
    ),
    "a loop over copies, which reads none": (
        "FM404",
        """
        def lengths(self, parts):
            for one in [part.to("cpu", non_blocking=True) for part in parts]:
                self.queue.put(one)
        """,
    ),
    "a context whose name says that it waits": (
        "FM404",
        """
        def lengths(self, lens):
            with self.synchronize_copies():
                lens = lens.to("cpu", non_blocking=True)
            return lens.tolist()
        """,
    ),
    "a field whose name says that it is not there yet": (
        "FM404",
        """
        def sample(self, logits):
            tokens = logits.argmax(-1).to("cpu", non_blocking=True)
            return SamplerOutput(tokens_async=tokens)
        """,
    ),
    "a wait that is called by its class": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            torch.cuda.Stream.wait_stream(self.side, torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.out.copy_(rows, non_blocking=True)
        """,
    ),
    "a wait for an event, both called by their class": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            torch.cuda.Event.record(self.ready)
            torch.cuda.Stream.wait_event(self.side, self.ready)
            with torch.cuda.stream(self.side):
                self.out.copy_(rows, non_blocking=True)
        """,
    ),
    "a wait that is looked up by its name": (
        "FM401",
        """
        import torch

        def save(self, parts):
            rows = torch.cat(parts)
            getattr(self.side, "wait_stream")(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                self.out.copy_(rows, non_blocking=True)
        """,
    ),
    "a size that is named where a buffer is cut, and a tail that is reset": (
        "FM201",
        """
        class Runner:
            def replay(self, batch):
                self.seq_lens[: (raw := len(batch.reqs))].copy_(batch.seq_lens)
                self.rows[:raw].copy_(batch.rows)
                if (bs := self.pad(raw)) != raw:
                    self.seq_lens[raw:].fill_(1)
                    self.rows[raw:bs].zero_()
                self.graphs[bs].replay()
        """,
    ),
}


def codes(code: str, source: str) -> list[str]:
    text = textwrap.dedent(source).encode()
    return [one.code for one in lint_text(text, "x.py", [rules()[code]([CONTRACT])])]


@pytest.mark.parametrize(("code", "source"), WRONG.values(), ids=WRONG)
def test_is_found(code, source):
    assert codes(code, source) == [code]


def test_a_flag_that_is_given_by_position_gets_no_fix():
    text = b'def lengths(lens):\n    return lens.to("cpu", torch.int64, True).tolist()\n'
    (found,) = lint_text(text, "x.py", [rules()["FM404"]([CONTRACT])])

    assert found.edits == ()


@pytest.mark.parametrize(("code", "source"), RIGHT.values(), ids=RIGHT)
def test_is_left_alone(code, source):
    assert codes(code, source) == []


#: A class whose graph reads `rows`, and methods of it that make `rows` in the first call only.
RUNNER = """
class Runner(GraphRunner):
    def run(self, batch, n):
        self.prepare(n)
        self.rows[:n].copy_(batch.rows)
        self.graph.replay()
"""
ONCE = {
    "an early return where it is there": """
        def prepare(self, n):
            if self.rows is not None:
                return
            self.rows = torch.empty(64)
        """,
    "one that asks for its attribute": """
        def prepare(self, n):
            if hasattr(self, "rows"):
                return
            self.rows = torch.empty(64)
        """,
    "one with a default": """
        def prepare(self, n):
            if getattr(self, "rows", None) is not None:
                return
            self.rows = torch.empty(64)
        """,
    "one that asks for its size too": """
        def prepare(self, n):
            if self.rows is not None and self.rows.numel() >= n:
                return
            self.rows = torch.empty(n)
        """,
    "one that asks for its size alone": """
        def prepare(self, n):
            if self.rows.numel() >= n:
                return
            self.rows = torch.empty(n)
        """,
    "an early return by a flag": """
        def prepare(self, n):
            if self.is_made:
                return
            self.is_made = True
            self.rows = torch.empty(64)
        """,
    "a flag that is set last": """
        def prepare(self, n):
            if not self.is_made:
                self.rows = torch.empty(64)
                self.is_made = True
        """,
    "a flag that is cleared": """
        def __init__(self):
            self.is_new = True

        def prepare(self, n):
            if self.is_new:
                self.is_new = False
                self.rows = torch.empty(64)
        """,
    "a flag that memory given back clears": """
        def prepare(self, n):
            if self.is_made:
                return
            self.is_made = True
            self.rows = torch.empty(64)

        def deallocate(self):
            self.is_made = False
        """,
    "a test of what is made beside it": """
        def prepare(self, n):
            if not hasattr(self, "lens"):
                self.lens = torch.empty(64)
                self.rows = torch.empty(64)
        """,
    "an assertion": """
        def prepare(self, n):
            assert self.rows is None
            self.rows = torch.empty(64)
        """,
    "an error": """
        def prepare(self, n):
            if self.rows is not None:
                raise RuntimeError("twice")
            self.rows = torch.empty(64)
        """,
    "a method that says so": """
        def prepare(self, n):
            if self._is_made():
                return
            self.rows = torch.empty(64)

        def _is_made(self):
            return self.rows is not None
        """,
    "a property that says so": """
        def prepare(self, n):
            if not self.is_ready:
                self.rows = torch.empty(64)

        @property
        def is_ready(self):
            return getattr(self, "rows", None) is not None
        """,
    "a test in the caller": """
        def prepare(self, n):
            if self.rows is None:
                self._fresh()

        def _fresh(self):
            self.rows = torch.empty(64)
        """,
    "a flag in the caller": """
        def prepare(self, n):
            if self.is_made:
                return
            self.is_made = True
            self._fresh()

        def _fresh(self):
            self.rows = torch.empty(64)
        """,
    "a call before the first step": """
        def __init__(self):
            self._fresh()

        def _fresh(self):
            self.rows = torch.empty(64)
        """,
    "a return of what replays": """
        def prepare(self, n):
            if self.graph is not None:
                return
            self.rows = torch.empty(n)
        """,
}
AGAIN = {
    "every time": """
        def prepare(self, n):
            self.rows = torch.empty(n)
        """,
    "an early return where it is not there": """
        def prepare(self, n):
            if self.rows is None:
                return
            self.rows = torch.empty(n)
        """,
    "one where there is no graph": """
        def prepare(self, n):
            if self.graph is None:
                return
            self.rows = torch.empty(n)
        """,
    "one that asks for something else": """
        def prepare(self, n):
            if self.lens is not None:
                return
            self.rows = torch.empty(n)
        """,
    "one that asks for another's": """
        def prepare(self, n):
            if n.rows is not None:
                return
            self.rows = torch.empty(64)
        """,
    "a flag that nothing sets": """
        def prepare(self, n):
            if self.is_made:
                return
            self.rows = torch.empty(n)
        """,
    "a flag that is set as it was": """
        def prepare(self, n):
            if self.is_made:
                return
            self.is_made = False
            self.rows = torch.empty(n)
        """,
    "a flag that a step clears": """
        def prepare(self, n):
            if self.is_made:
                return
            self.is_made = True
            self.rows = torch.empty(n)

        def finish(self):
            self.is_made = False
        """,
    "a flag of the call": """
        def prepare(self, n):
            made = False
            if not made:
                made = True
                self.rows = torch.empty(n)
        """,
    "a flag that may be passed over": """
        def prepare(self, n, force):
            if self.is_made and not force:
                return
            self.is_made = True
            self.rows = torch.empty(n)
        """,
    "a flag of the other branch": """
        def prepare(self, n):
            if self.is_made:
                self.rows = torch.empty(n)
            else:
                self.is_made = True
        """,
    "a caller without a test": """
        def prepare(self, n):
            self._fresh(n)

        def _fresh(self, n):
            self.rows = torch.empty(n)
        """,
    "one caller of two without": """
        def prepare(self, n):
            if self.rows is None:
                self._fresh(n)

        def finish(self, n):
            self._fresh(n)

        def _fresh(self, n):
            self.rows = torch.empty(n)
        """,
    "handed on": """
        def __init__(self):
            self._fresh(64)

        def prepare(self, n):
            self.later(self._fresh)

        def _fresh(self, n):
            self.rows = torch.empty(n)
        """,
}


@pytest.mark.parametrize("methods", ONCE.values(), ids=ONCE)
def test_a_graph_s_buffer_that_is_made_once_is_left_alone(methods: str) -> None:
    assert codes("FM603", RUNNER + textwrap.indent(textwrap.dedent(methods), "    ")) == []


@pytest.mark.parametrize("methods", AGAIN.values(), ids=AGAIN)
def test_a_graph_s_buffer_that_is_made_again_is_found(methods: str) -> None:
    assert codes("FM603", RUNNER + textwrap.indent(textwrap.dedent(methods), "    ")) == ["FM603"]


FILLED_EACH_STEP = parse_contract('engine.name = "any"\nstreams.fills_pinned = ["stage*"]\n', "x")
#: How a class makes its pinned memory, and how `stage` writes it before it copies from `self.host`.
PINNED = {
    "as a variable says": ("self.host = torch.empty(n, pin_memory=pin)", "self.host[:n] = v"),
    "kept as an array": (
        "self.host = torch.empty(n, pin_memory=True)\nself.np = self.host.numpy()",
        "self.np[:n] = v",
    ),
    "kept as an array under a condition": (
        "self.host = torch.empty(n, pin_memory=True)\n"
        "self.rows = self.host.numpy() if pin else None",
        "self.rows[:n] = v",
    ),
    "a part of an array": (
        "self.host = torch.empty(n, pin_memory=True)\nself.rows = self.host.numpy()\n"
        "self.tail = self.rows[1:]",
        "self.tail[:n] = v",
    ),
    "by a function of numpy": (
        "self.host = torch.empty(n, pin_memory=True)\nself.rows = np.asarray(self.host)",
        "self.rows[:n] = v",
    ),
    "written by one": (
        "self.host = torch.empty(n, pin_memory=True)\nself.rows = self.host.numpy()",
        "np.copyto(self.rows[:n], v)",
    ),
    "in another shape": (
        "self.host = torch.empty(n, pin_memory=True).view(2, -1)",
        "self.host[:n] = v",
    ),
    "the other way round": (
        "self.rows = torch.empty(n, pin_memory=True).numpy()\n"
        "self.host = torch.from_numpy(self.rows)",
        "self.rows[:n] = v",
    ),
    "by a local name": (
        "host = torch.empty(n, pin_memory=True)\nself.host = host\nself.rows = host.numpy()",
        "self.rows[:n] = v",
    ),
    "as a field of the class": (
        "return cls(host=torch.zeros(1, pin_memory=pin))",
        "self.host[0] = v",
    ),
    "as a field of the class by its name": (
        "host = torch.zeros(1, pin_memory=pin)\nreturn Stage(host=host)",
        "self.host[0] = v",
    ),
}
#: The same where `stage` writes other memory than it copies from.
NOT_PINNED = {
    "another": (
        "self.host = torch.empty(n, pin_memory=pin)\nself.rows = torch.empty(n, pin_memory=pin)",
        "self.rows[:n] = v",
    ),
    "the other half": (
        "both = torch.empty(2, n, pin_memory=True)\nself.host = both[0]\nself.rows = both[1]",
        "self.rows[:n] = v",
    ),
    "a copy": (
        "self.host = torch.empty(n, pin_memory=True)\nself.rows = self.host.clone()",
        "self.rows[:n] = v",
    ),
    "one of two in turn": (
        "self.host = torch.empty(n, pin_memory=True)\nself.rows = torch.empty(n, pin_memory=True)\n"
        "self.now = self.host if pin else self.rows",
        "self.rows[:n] = v",
    ),
    "pageable memory beside it": (
        "self.cpu = torch.empty(n, pin_memory=True)\nself.data = torch.empty(n)",
        "self.data[:n] = v",
    ),
    "a field of another class": (
        "return Other(host=torch.zeros(1, pin_memory=pin))",
        "self.host[0] = v",
    ),
}


def staged(makes: str, writes: str) -> list[str]:
    source = f"""\
import numpy as np
import torch

class Stage:
    def make(cls, self, n, pin):
{textwrap.indent(makes, " " * 8)}

    def stage(self, n, v):
        {writes}
        self.dev.copy_(self.host, non_blocking=True)
"""
    rule = rules()["FM403"]([FILLED_EACH_STEP])
    return [one.code for one in lint_text(source.encode(), "x.py", [rule])]


@pytest.mark.parametrize(("makes", "writes"), PINNED.values(), ids=PINNED)
def test_pinned_memory_is_known_however_a_class_keeps_it(makes: str, writes: str) -> None:
    assert staged(makes, writes) == ["FM403"]


@pytest.mark.parametrize(("makes", "writes"), NOT_PINNED.values(), ids=NOT_PINNED)
def test_a_write_of_other_memory_is_none_of_what_is_copied(makes: str, writes: str) -> None:
    assert staged(makes, writes) == []

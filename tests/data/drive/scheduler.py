"""A scheduler that drives the real FutureMap and the real request pool as an overlapped loop does.

Each step launches a batch (gather, forward, stash) and only then takes in the results of the step
before: a request that ended there is in flight once more, its row goes back after that, and the
value that it stashed last is never read. The forward is a formula, so that what the relay hands on
can be told right from wrong. With `streams` there are two of them, those of the CPU, and a forward
is launched behind the schedule stream, as `run_batch` does; what it gathered is looked at when its
results are taken in, after its last event: before, the host waits for nothing.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import Any

import relays
import torch


@dataclass(eq=False)
class Job:
    """One request on its way: `token` is what the relay holds for it, None before its first."""

    request: relays.Request
    chunks: int
    left: int
    number: int
    place: Any = None
    token: int | None = None
    length: int = 0
    ended: bool = False


@dataclass(eq=False)
class Launched:
    """A batch in flight: what it `gathered`, with the values `due`, and the event at its end."""

    jobs: list[Job] = field(default_factory=list)
    gathered: list[tuple[torch.Tensor, list[int]]] = field(default_factory=list)
    done: Any = field(default_factory=relays.device.Event)

    def finish(self) -> None:
        self.done.synchronize()
        for values, due in self.gathered:
            assert values.tolist()[: len(due)] == due


@dataclass
class Options:
    """What a run meets, each as a chance per step or a switch."""

    chunked: bool = False
    mixed: bool = False
    padded: bool = False
    idle: float = 0.0
    abort: float = 0.0
    retract: float = 0.0
    speculative: bool = False
    mirror: bool = True
    streams: bool = False
    pulls: bool = False
    steps: int = 40


@dataclass
class Scheduler:
    """Serves jobs of random length over a pool of `relays.POOL` rows."""

    options: Options
    seed: int
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    chunking: Job | None = None
    in_flight: Launched = field(default_factory=Launched)
    served: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.pool = relays.request_pool()
        algorithm = relays.EAGLE if self.options.speculative else relays.NONE
        more = {} if relays.RING else {"needs_cpu_seq_lens": self.options.mirror}
        self.relay = relays.make_relay(self.pool, algorithm, **more)
        if self.options.pulls:
            self.relay.pull_lengths()
        self.schedule_stream, self.forward_stream = relays.device.Stream(), relays.device.Stream()
        relays.device.synchronize()
        self.made = 0

    def run(self) -> None:
        with self.on(self.schedule_stream):
            for _ in range(self.options.steps):
                self.arrive()
                self.step()
        relays.device.synchronize()
        assert self.served > 3

    def on(self, stream: Any) -> Any:
        return relays.device.stream(stream) if self.options.streams else contextlib.nullcontext()

    def forward(self) -> Any:
        if self.options.streams:
            self.forward_stream.wait_stream(self.schedule_stream)
        return self.on(self.forward_stream)

    def arrive(self) -> None:
        while len(self.waiting) < 2:
            self.made += 1
            chunks = self.random.choice((1, 2, 3)) if self.options.chunked else 1
            request = relays.Request(f"r{self.made}")
            self.waiting.append(Job(request, chunks, self.random.randint(1, 6), self.made))

    def step(self) -> None:
        if self.random.random() < self.options.idle:
            self.idle()
            batch = Launched()
        else:
            batch = self.launch()
        before, self.in_flight = self.in_flight, batch
        self.take_in(before)
        self.disturb()

    def idle(self) -> None:
        nothing = relays.tensor([], dtype=torch.int64)
        if relays.RING:
            return
        with self.forward():
            self.relay.publish(nothing, nothing)
            self.relay.stash(nothing, nothing)

    def launch(self) -> Launched:
        extend = self.extend() if self.chunking or self.random.random() < 0.5 else []
        decode = [job for job in self.running if not job.ended]
        if extend and not self.options.mixed:
            decode = []
        if self.options.speculative and extend:
            decode = []
        batch = Launched(extend + decode, self.resolve_lengths(decode))
        with self.forward():
            if decode:
                batch.gathered += self.gather(extend, decode)
            for job in batch.jobs:
                job.length += 1
            if batch.jobs:
                self.stash(batch.jobs)
            batch.done.record()
        for job in extend:
            job.chunks -= 1
            if job.chunks:
                self.chunking = job
                job.request.is_chunked = job.request.inflight_middle_chunks = 1
            else:
                self.chunking = None
                self.running.append(job)
        return batch

    def extend(self) -> list[Job]:
        """Takes a request, or the next chunk of one, into the batch, with a row of the pool."""
        jobs = [self.chunking] if self.chunking else self.waiting[:1]
        if self.pool.alloc([job.request for job in jobs]) is None:
            return []
        if not self.chunking:
            self.waiting = self.waiting[1:]
        return jobs

    def resolve_lengths(self, decode: list[Job]) -> list[tuple[torch.Tensor, list[int]]]:
        """Returns the lengths as the device has them; those of the host are looked at at once."""
        if not decode or not self.options.speculative or relays.RING:
            return []
        resolved = self.relay.resolve_lengths(self.places(decode))
        lengths = [job.length for job in decode]
        assert not self.options.mirror or resolved.seq_lens_cpu.tolist() == lengths
        return [(resolved.seq_lens, lengths)]

    def gather(self, extend: list[Job], decode: list[Job]) -> list[tuple[torch.Tensor, list[int]]]:
        """Returns what the relay brings, not looked at, each with the values that are due."""
        places = self.places(decode)
        tokens = [job.token for job in decode]
        if self.options.speculative:
            draft = self.relay.extras(places)
            drafts = [token % 7 for token in tokens]
            return [(draft.bonus_tokens, tokens), (draft.topk_index[:, 0], drafts)]
        if extend:
            return [(self.relay.tokens(places, relays.tensor([1, 2])), [1, 2, *tokens])]
        if self.options.padded:
            places = torch.cat([places, relays.tensor([0, 0, 0])])
        return [(self.relay.tokens(places), tokens)]

    def places(self, jobs: list[Job]) -> torch.Tensor:
        return relays.tensor([job.place for job in jobs], dtype=torch.int64)

    def stash(self, batch: list[Job]) -> None:
        for job in batch:
            job.token = 1000 * job.number + job.length
        tokens = relays.tensor([job.token for job in batch])
        lengths = relays.tensor([job.length for job in batch])
        rows = relays.rows_of([job.request for job in batch])
        more: dict[str, Any] = {}
        if self.options.speculative:
            more = relays.extras(len(batch))
            more["topk_index"] = (tokens % 7).reshape(-1, 1).repeat(1, 2)
            if relays.RING:
                more["new_seq_lens"] = lengths
        if not relays.RING:
            self.relay.publish(rows, lengths)
        places = self.relay.stash(rows, tokens, **more)
        # To read where they are stashed, the host would wait for the stash.
        known = places.tolist() if relays.RING else [job.request.row for job in batch]
        for job, place in zip(batch, known, strict=True):
            job.place = place

    def take_in(self, batch: Launched) -> None:
        batch.finish()
        for job in batch.jobs:
            if job.ended or job is self.chunking or job not in self.running:
                continue
            job.left -= 1
            if job.left <= 0:
                self.end(job)

    def disturb(self) -> None:
        """Ends a request early, or sends one back to the queue."""
        if self.running and self.random.random() < self.options.abort:
            self.end(self.random.choice(self.running))
        if self.running and self.random.random() < self.options.retract:
            job = self.random.choice(self.running)
            self.end(job)
            again = Job(relays.Request(job.request.rid), 1, job.left + 1, job.number)
            self.waiting.insert(0, again)

    def end(self, job: Job) -> None:
        job.ended = True
        self.running.remove(job)
        self.pool.free(job.request)
        self.served += 1

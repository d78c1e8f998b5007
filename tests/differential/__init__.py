"""Random programs of 30 to 200 operators, run bare and watched: what differs, and what may not.

Values, exceptions and reads by the host are compared bit for bit. Streams `tracked` change nothing
at all; streams `delayed` and `random` change nothing where the fences are as they must be, and
nothing elsewhere but what was reported. A program with the fences that it needs is no race.
`python -m tests.differential --programs N --seed S` runs as many; a failure prints its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch
from tests.differential.engine import CONTRACT, ROWS, Relay, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

STREAMS = 4
MODES = ("tracked", "delayed", "random")
#: Programs that one watch sees, one after the other.
BATCH = 100
#: A host that reads or writes what a copy has yet to reach gets what it deserves.
_HOST = frozenset({"FR403", "FR404"})
Step = tuple[Any, ...]


@dataclass
class Program:
    """Steps, each with its stream. `fenced` tells that no fence is missing."""

    seed: int
    steps: list[Step]
    fenced: bool


# --- drawing ---


@dataclass
class Drawing:
    """Draws a program, and keeps what each stream has waited for."""

    dice: random.Random
    fenced: bool
    steps: list[Step] = field(default_factory=list)
    slots: dict[str, str] = field(default_factory=dict)
    last: dict[str, dict[int, tuple[int, bool]]] = field(default_factory=dict)
    counts: list[int] = field(default_factory=lambda: [0] * STREAMS)
    known: list[list[int]] = field(default_factory=lambda: [[0] * STREAMS for _ in range(STREAMS)])
    made: int = 0

    def step(self, reads: Iterable[str], writes: Iterable[str], stream: int, *step: Any) -> None:
        """Adds a step behind the fences that it needs; one may be left out."""
        touches = [(self.slots.get(one, one), False) for one in reads]
        touches += [(self.slots.get(one, one), True) for one in writes]
        late = set()
        for memory, is_write in touches:
            for other, (count, wrote) in self.last.get(memory, {}).items():
                if other != stream and (is_write or wrote) and count > self.known[stream][other]:
                    late.add(other)
        for other in sorted(late):
            if self.fenced or self.dice.random() < 0.6:
                self.fence(stream, other)
        self.counts[stream] += 1
        for memory, is_write in touches:
            held = self.last.setdefault(memory, {})
            wrote = is_write or held.get(stream, (0, False))[1]
            held[stream] = (self.counts[stream], wrote)
        self.steps.append((stream, *step))

    def fence(self, stream: int, other: int) -> None:
        """Lets a stream wait for another one, in one of four ways."""
        self.counts[other] += 1
        way = self.dice.choice(("stream", "event", "method", "host"))
        self.steps.append((stream, "fence", way, other))
        for number, count in enumerate(self.known[other]):
            self.known[stream][number] = max(self.known[stream][number], count)
        self.known[stream][other] = self.counts[other]

    def new(self, memory: str | None = None) -> str:
        """Returns a slot's name, over memory of its own or another slot's."""
        self.made += 1
        name = f"v{self.made}"
        self.slots[name] = memory or name
        return name

    def some(self) -> str:
        """Returns a slot, a late one most likely."""
        names = list(self.slots)
        return self.dice.choice(names[-6:] if self.dice.random() < 0.7 else names)


def draw(seed: int) -> Program:
    """Returns the program of a seed."""
    dice = random.Random(seed)
    drawing = Drawing(dice, fenced=dice.random() < 0.6)
    stream, length = 0, dice.randint(30, 200)
    drawing.step((), ("relay", "inputs"), 0, "fence", "stream", 0)  # they were made by now
    for _ in range(3):
        name = drawing.new()
        drawing.step((), (name,), stream, "new", name, dice.choice(_KINDS), dice.randrange(99))
    while len(drawing.steps) < length:
        if dice.random() < 0.25:
            stream = dice.randrange(STREAMS)
        _draw_step(drawing, dice, stream)
    return Program(seed, drawing.steps, drawing.fenced)


_KINDS = ("float32", "int64", "bool", "float16", "complex64", "uint8")
_PLAIN = ("add", "mul", "maximum", "where", "cat", "matmul", "foreach", "eq")
_ALONE = ("neg", "cumsum", "sort", "clone", "half", "long", "flip", "sum", "nonzero", "unique")
_VIEWS = ("head", "rows", "flat", "steps", "wide", "bytes", "strided", "conj", "detach")
_IN_PLACE = ("add_", "fill_", "mul_", "zero_", "clamp_", "masked_fill_", "index_fill_", "random_")
_INDEX = ("put", "accumulate", "copy", "scatter", "mask")
_PICKS = ("index", "take", "select", "gather", "mask")
_READS = ("tolist", "item", "numpy", "bool", "cpu", "shape", "repr")


def _draw_step(drawing: Drawing, dice: random.Random, stream: int) -> None:
    kind = dice.choice(
        (*("plain",) * 5, *("alone",) * 3, *("view",) * 3, *("in place",) * 3, "copy", "copy")
        + ("index", "index", "pick", "pick", "read", "read", "out", "new", "free", "fence")
        + ("relay",) * 3
        + ("fill", "rebind", "grad")
    )
    one, other, third, number = drawing.some(), drawing.some(), drawing.some(), dice.randrange(99)
    if kind == "new":
        name = drawing.new()
        drawing.step((), (name,), stream, "new", name, dice.choice(_KINDS), number)
    elif kind == "plain":
        name = drawing.new()
        reads = (one, other, third)
        drawing.step(reads, (name,), stream, "plain", name, dice.choice(_PLAIN), *reads)
    elif kind == "alone":
        name = drawing.new()
        drawing.step((one,), (name,), stream, "alone", name, dice.choice(_ALONE), one)
    elif kind == "view":
        name = drawing.new(drawing.slots[one])
        drawing.step((one,), (), stream, "view", name, dice.choice(_VIEWS), one, number)
    elif kind == "in place":
        drawing.step((), (one,), stream, "in place", dice.choice(_IN_PLACE), one, number)
    elif kind == "copy":
        drawing.step((other,), (one,), stream, "copy", one, other, dice.random() < 0.2, number)
    elif kind == "index":
        drawing.step((other,), (one,), stream, "index", dice.choice(_INDEX), one, other, number)
    elif kind == "pick":
        name = drawing.new()
        drawing.step((one,), (name,), stream, "pick", name, dice.choice(_PICKS), one, number)
    elif kind == "read":
        drawing.step((one,), (), stream, "read", dice.choice(_READS), one)
    elif kind == "out":
        drawing.step((one, other), (third,), stream, "out", one, other, third)
    elif kind == "grad":
        name = drawing.new()
        drawing.step((one,), (name,), stream, "grad", name, one)
    elif kind == "free" and len(drawing.slots) > 4:
        drawing.steps.append((stream, "free", one))
        del drawing.slots[one]
    elif kind == "fence":
        drawing.fence(stream, (stream + 1 + dice.randrange(STREAMS - 1)) % STREAMS)
    elif kind == "relay":
        verb = dice.choice(("stash", "gather", "gather", "otherwise", "peek", "again"))
        touched = ((), ("relay",)) if verb == "stash" else (("relay",), ())
        drawing.step(*touched, stream, "relay", verb, number)
    elif kind == "rebind" and number < 30:
        drawing.step((), ("relay",), stream, "relay", "rebind", number)
    elif kind == "fill":
        drawing.step((), ("inputs",), stream, "fill", 1 + number % 5, dice.random() < 0.7, number)


# --- running ---


def four_streams() -> list[Any]:
    """Returns the default stream and three others, each with a name in the source."""
    first = torch.cpu.Stream()
    second = torch.cpu.Stream()
    third = torch.cpu.Stream()
    return [torch.cpu.current_stream(), first, second, third]


class Machine:
    """Runs a program, and keeps all that it showed."""

    def __init__(self, streams: list[Any]) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self.streams = streams
        self.relay, self.runner = Relay(), Runner()
        self.relay.stash(torch.arange(1, ROWS), torch.arange(1, ROWS))
        self.shown: list[Any] = []

    def run(self, program: Program) -> list[Any]:
        """Returns what the program showed, and what is left of it."""
        for stream, kind, *rest in program.steps:
            with torch.cpu.stream(self.streams[stream]):
                try:
                    getattr(self, f"_{kind.replace(' ', '_')}")(*rest)
                except Exception as err:
                    self.shown.append((kind, type(err).__name__, str(err)))
        torch.cpu.synchronize()
        self.shown += [(name, bits(value)) for name, value in self.values.items()]
        return self.shown

    def _of(self, name: str) -> torch.Tensor:
        return self.values[name]

    def _new(self, name: str, kind: str, number: int) -> None:
        dice = torch.Generator().manual_seed(number)
        shape = (2, 4) if number % 3 else (8,)
        made = torch.randint(0, 9, shape, generator=dice)
        self.values[name] = made.to(getattr(torch, kind))

    def _plain(self, name: str, what: str, *names: str) -> None:
        one, other, third = (self._of(each) for each in names)
        self.values[name] = _CALLS[what](one, other, third)

    def _alone(self, name: str, what: str, one: str) -> None:
        self.values[name] = _CALLS[what](self._of(one), None, None)

    def _view(self, name: str, what: str, one: str, number: int) -> None:
        self.values[name] = _SHOWN[what](self._of(one), number)

    def _in_place(self, what: str, one: str, number: int) -> None:
        value = self._of(one)
        if what == "masked_fill_":
            value.masked_fill_(value == number % 9, 3)
        elif what == "index_fill_":
            value.index_fill_(0, torch.tensor([0]), number % 7)
        elif what == "random_":
            value.random_(0, 9, generator=torch.Generator().manual_seed(number))
        elif what == "clamp_":
            value.clamp_(0, number)
        elif what == "zero_":
            value.zero_()
        else:
            getattr(value, what)(number % 9)

    def _copy(self, one: str, other: str, is_async: bool, number: int) -> None:
        target, source = self._of(one), self._of(other)
        if number % 2:
            target.copy_(source, non_blocking=is_async)
        else:
            target.view(-1)[: number % 5].copy_(source.reshape(-1)[: number % 5])

    def _index(self, what: str, one: str, other: str, number: int) -> None:
        target, source = self._of(one), self._of(other)
        rows = torch.tensor([number % 2, 0])
        if what == "put":
            target[rows] = source[rows].to(target.dtype)
        elif what == "accumulate":
            target.index_put_((rows,), source[rows].to(target.dtype), accumulate=True)
        elif what == "copy":
            target.index_copy_(0, rows[:1], source[rows[:1]].to(target.dtype))
        elif what == "scatter":
            target.view(-1).scatter_(0, torch.tensor([number % 4]), number % 5)
        else:
            target[target == number % 5] = 1

    def _pick(self, name: str, what: str, one: str, number: int) -> None:
        value, rows = self._of(one), torch.tensor([number % 2, 1])
        if what == "index":
            made = value[rows]
        elif what == "take":
            made = value.take(rows)
        elif what == "select":
            made = value.index_select(0, rows)
        elif what == "gather":
            made = value.reshape(-1).gather(0, rows)
        else:
            made = value[value != number % 5]
        self.values[name] = made

    def _read(self, what: str, one: str) -> None:
        value = self._of(one)
        if what == "item":
            self.shown.append(str(value.reshape(-1)[0].item()))
        elif what == "numpy":
            self.shown.append(value.resolve_conj().numpy().tobytes())
        elif what == "bool":
            self.shown.append(bool(value.reshape(-1)[0]))
        elif what == "cpu":
            self.shown.append(value.cpu() is value)
        elif what == "shape":
            self.shown.append((value.shape, value.stride(), value.dtype, value._version))
        else:
            self.shown.append(str(value.tolist() if what == "tolist" else value))

    def _out(self, one: str, other: str, third: str) -> None:
        made, out = self._of(one) + self._of(other), self._of(third)
        if made.shape == out.shape:  # a view that is resized may reach past the end of its memory
            torch.add(self._of(one), self._of(other), out=out)

    def _grad(self, name: str, one: str) -> None:
        leaf = self._of(one).float().detach().requires_grad_()
        (leaf * leaf + leaf.sin()).sum().backward()
        assert leaf.grad is not None
        # Under any mode, one that does nothing too, torch sums gradients out of place, which their
        # versions show, and the strides of their dimensions of length one.
        self.values[name] = leaf.grad.clone(memory_format=torch.contiguous_format)

    def _free(self, one: str) -> None:
        self.values.pop(one, None)

    def _fence(self, way: str, other: int) -> None:
        stream = self.streams[other]
        if way == "stream":
            torch.cpu.current_stream().wait_stream(stream)
        elif way == "host":
            with torch.cpu.stream(stream):
                event = torch.cpu.Event()
                event.record()
            event.synchronize()
        else:
            event = torch.cpu.Event()
            event.record(stream)
            if way == "event":
                event.wait()
            else:
                torch.cpu.current_stream().wait_event(event)

    def _relay(self, verb: str, number: int) -> None:
        rows = torch.tensor([1 + number % (ROWS - 1), 1 + (number // 7) % (ROWS - 1)])
        relay = self.relay
        if verb == "stash":
            relay.stash(rows, torch.tensor([number, number + 1]))
        elif verb == "gather":
            self.shown += [bits(one) for one in relay.gather(rows)]
        elif verb == "otherwise":
            self.shown += [bits(one) for one in relay.gather_otherwise(rows)]
        elif verb == "again":
            self.shown += [bits(one) for one in (*relay.gather(rows), *relay.gather(rows))]
        elif verb == "peek":
            self.shown.append(relay.tokens.shape)
        else:
            relay.tokens = torch.arange(ROWS)

    def _fill(self, raw: int, resets: bool, number: int) -> None:
        values = torch.arange(8) * (number % 3)
        self.shown.append(bits(self.runner.run(values, raw, resets)))


_CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda one, other, third: one + other,
    "mul": lambda one, other, third: one * other,
    "maximum": lambda one, other, third: torch.maximum(one, other),
    "where": lambda one, other, third: torch.where(one > 3, other, third),
    "cat": lambda one, other, third: torch.cat([one[:1], other[:1]]),
    "matmul": lambda one, other, third: one.float() @ other.float().mT,
    "foreach": lambda one, other, third: torch._foreach_add([one, other], 1)[0],
    "eq": lambda one, other, third: torch.tensor([torch.equal(one, other)]),
    "neg": lambda one, *_: -one,
    "cumsum": lambda one, *_: one.cumsum(0),
    "sort": lambda one, *_: one.sort(stable=True)[0],
    "clone": lambda one, *_: one.clone(),
    "half": lambda one, *_: one.to(torch.float16, copy=True),
    "long": lambda one, *_: one.to(torch.int64, copy=True),
    "flip": lambda one, *_: one.flip(0),
    "sum": lambda one, *_: one.sum(0, keepdim=True),
    "nonzero": lambda one, *_: one.nonzero(),
    "unique": lambda one, *_: one.unique(),
}
_SHOWN: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "head": lambda one, number: one[: 1 + number % 3],
    "rows": lambda one, number: one.t() if one.dim() <= 2 else one,
    "flat": lambda one, number: one.view(-1),
    "steps": lambda one, number: one[::2],
    "wide": lambda one, number: one.unsqueeze(0).expand(2, *one.shape)[0],
    "bytes": lambda one, number: one.view(torch.uint8),
    "strided": lambda one, number: one.as_strided((2,), (2,), number % 2),
    "conj": lambda one, number: one.conj(),
    "detach": lambda one, number: one.detach(),
}


def bits(value: torch.Tensor) -> Any:
    """Returns a tensor's values bit for bit, with how they are laid out."""
    held = value.detach().resolve_conj().contiguous()
    raw = held.numpy().tobytes()
    return str(value.dtype), tuple(value.shape), value.stride(), raw


# --- comparing ---


@dataclass
class Tally:
    """What was run and found: programs, operators, codes, and each failure as a sentence."""

    programs: int = 0
    steps: int = 0
    fenced: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def compare(seeds: Iterable[int], modes: Iterable[str] = MODES) -> Tally:
    """Runs the programs of some seeds bare and watched in each mode."""
    tally = Tally()
    programs = [draw(seed) for seed in seeds]
    streams = four_streams()
    bare = [Machine(streams).run(program) for program in programs]
    tally.programs = len(programs)
    tally.steps = sum(len(program.steps) for program in programs)
    tally.fenced = sum(program.fenced for program in programs)
    for mode in modes:
        _compare_in(mode, programs, bare, tally)
    return tally


def _compare_in(mode: str, programs: list[Program], bare: list[Any], tally: Tally) -> None:
    watch = Watch([parse_contract(CONTRACT, "differential.toml")], streams=mode, seed=5)
    watch.start()
    streams = four_streams()
    try:
        for program, was in zip(programs, bare, strict=True):
            shown = Machine(streams).run(program)
            codes = {one.code for one in watch.drain()}
            tally.codes.update(f"{mode} {code}" for code in codes)
            wrong = judged(mode, program, was == shown, codes)
            if was != shown:
                tally.differing[mode] += 1
            if wrong:
                at = next((n for n, (a, b) in enumerate(zip(was, shown)) if a != b), -1)  # noqa: B905
                pair = f"{was[at]} became {shown[at]}" if at >= 0 else ""
                tally.failures.append(
                    f"seed {program.seed}, {mode}, "
                    f"{'fenced' if program.fenced else 'with fences missing'}: {wrong}; "
                    f"reported {sorted(codes) or 'nothing'}; {pair}"
                )
    finally:
        watch.stop()
    tally.failures += watch.coverage().incomplete


def judged(mode: str, program: Program, is_equal: bool, codes: set[str]) -> str:
    """Returns what is wrong with how a program went, "" if nothing is."""
    if program.fenced and "FR401" in codes:
        return "a race was reported where no fence is missing"
    if is_equal:
        return ""
    if mode == "tracked":
        return "it showed other values"
    if program.fenced and not codes & _HOST:
        return "it showed other values, and no fence is missing"
    return "" if codes else "it showed other values, and nothing was reported"

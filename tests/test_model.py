"""Random programs against a plain model of the table: no disagreement in 100,000 steps.

`make test` makes the same 10,000 each time, `make sweep` draws 100,000 new ones and prints their
seed; `FMCHECK_MODEL_SEED` names one to make again.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.relay.owners import Owners
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.relay.scope import Scope, scoped
from tests.row_model import EMPTY, LIVE, Model, Pool, Said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Index = Any
    Call = Callable[[Any], Any]

STEPS, DRAWN_STEPS = 10_000, 100_000
SEED = 20261122
PROGRAM = 200
ROWS = 8
NAMES = ("a", "b", "c", "")
USUAL = (2, 3, 6)
# What ends the words for a write of one number.
CONSTANT = "(one number)"
# What the words for a write to rows that an index picks begin with.
PICKING = ("b[tensor(", "index_put_", "index_copy_")


class Repeating(random.Random):
    """Draws that mostly fall on whole rows, and on the same ones."""

    def one_of(self, names: Sequence[str], usual: str) -> str:
        return usual if self.random() < 0.6 else self.choice(names)


@dataclass(frozen=True)
class Kind:
    """A buffer to make: its inner shape, dtype and contract."""

    inner: tuple[int, ...]
    dtype: torch.dtype
    bound: tuple[str, int] | None = None
    owned: bool = True
    overwrite: str = "never"
    sinks: tuple[int, ...] = (0,)


KINDS = (
    Kind((), torch.int64, (">=", 0)),
    Kind((), torch.int32, (">", 0), overwrite="until gathered"),
    Kind((), torch.int64, None),
    Kind((), torch.int16, (">=", 0), overwrite="always"),
    Kind((), torch.int64, (">=", 0), owned=False),
    Kind((3,), torch.float32, None),
    Kind((2,), torch.int64, (">=", 0)),
    Kind((2, 2), torch.bfloat16, None, sinks=(0, 5)),
    Kind((3,), torch.float64, (">=", 0), owned=False, sinks=()),
    Kind((), torch.uint8, None),
    Kind((2,), torch.uint8, (">", 0)),
)


class Subject:
    """A watched buffer and its model."""

    def __init__(self, kind: Kind, owners: Owners, pool: Pool) -> None:
        shape = (ROWS, *kind.inner)
        self.tally = Tally()
        mine = owners if kind.owned else None
        plain = torch.zeros(shape, dtype=kind.dtype)
        self.kind = kind
        self.buf: Any = relay_tensor(
            plain, "Map.buf", "m:Map", self.tally, kind.bound, kind.sinks, mine, kind.overwrite
        )
        self.buf._relay.lay_poison()
        pool_seen = pool if kind.owned else None
        zeros = torch.zeros(shape, dtype=kind.dtype)
        self.model = Model(zeros, kind.bound, pool_seen, kind.overwrite, kind.sinks)
        self.model.lies_in_memory = self.buf._relay.is_on_device

    def said(self) -> list[Said]:
        """What the checker said since it was last asked."""
        found = [
            Said(one.code, one.rows, one.owner, one.previous_owner) for one in self.tally.drain()
        ]
        return sorted(found, key=lambda one: one.code)

    def agrees(self) -> str:
        """Returns where checker and model differ, "" if they do not."""
        relay, model = self.buf._relay, self.model
        for row, known in enumerate(model.rows):
            if row in self.kind.sinks:
                continue
            live, empty = bool(relay.ledger.is_live(row)), bool(relay.ledger.is_empty(row))
            if (live, empty) != (known.state == LIVE, known.state == EMPTY):
                return f"row {row}: {relay.ledger.state[row]}, expected {known.state}"
        if not torch.equal(bits_of(relay.base), bits_of(model.real)):
            return f"memory: {relay.base}, expected {model.real}"
        return ""


class Program:
    """A random program over several buffers that share a pool of rows."""

    def __init__(self, draw: random.Random) -> None:
        self.owners, self.pool = Owners(), Pool.of(ROWS)
        kinds = draw.sample(KINDS, 3)
        self.subjects = [Subject(kind, self.owners, self.pool) for kind in kinds]
        self.owners.declared_sinks |= self.owners.sinks  # as a contract does
        self.reported: list[str] = []

    def step(self, draw: random.Random) -> None:
        """Makes one call and compares."""
        act = draw.choice((self.write, self.write, self.gather, self.gather, self.own, self.peek))
        subject = draw.choice(self.subjects)
        expected, reported = act(subject, draw)
        self.reported.append(reported)
        for one in self.subjects:
            said = one.said()
            wanted = expected if one is subject else []
            assert said == wanted, self.story(f"said {said}, expected {wanted}", one)
            # Who looks at a row ends what is kept of a whole list.
            if not (isinstance(draw, Repeating) and draw.random() < 0.9):
                assert not one.agrees(), self.story(one.agrees(), one)

    def story(self, what: str, subject: Subject) -> str:
        return "\n".join([*self.reported[-12:], f"{subject.kind}", what])

    def own(self, subject: Subject, draw: random.Random) -> tuple[list[Said], str]:
        rows = [draw.randrange(ROWS) for _ in range(draw.randint(0, 3))]
        owned = [one.model for one in self.subjects if one.kind.owned]
        if draw.random() < 0.4:
            self.owners.take_back(rows)
            held = [row for row in dict.fromkeys(rows) if self.pool.held[row]]
            for row in held:
                self.pool.held[row] = False
            for model in owned:
                model.spare(held)
            return [], f"take back {rows}"
        names = [draw.choice(NAMES) for _ in rows]
        self.owners.hand_out(rows, names)
        fresh: list[int] = []
        again: list[int] = []
        for row, name in zip(rows, names, strict=True):
            known = self.pool.owner(row)
            if row in fresh:
                self.pool.names[row][-1] = name or known
            elif self.pool.held[row] and (name in ("", known) or not known):
                again.append(row)
                self.pool.names[row][-1] = known or name
            else:
                fresh.append(row)
                self.pool.names[row].append(name)
                self.pool.held[row] = True
        for model in owned:
            model.new_owners(fresh)
            model.spare([row for row in again if row not in fresh])
        return [], f"hand out {rows} to {names}"

    def write(self, subject: Subject, draw: random.Random) -> tuple[list[Said], str]:
        reported, call, updates, twice = a_write(subject, draw)
        call(subject.buf)
        constant = reported.endswith(f" {CONSTANT}")
        picks = reported.startswith(PICKING) and not constant
        return subject.model.write(call, updates, constant, picks, twice), f"write {reported}"

    def gather(self, subject: Subject, draw: random.Random) -> tuple[list[Said], str]:
        reported, call = a_gather(subject, draw)
        scope = draw.choice((None, None, None, Scope.PEEK, Scope.AT_RETURN))
        mine = scoped(call, scope, Tally())(subject.buf) if scope else call(subject.buf)
        expected, said = subject.model.gather(call, scope is Scope.PEEK)
        same = torch.equal(bits_of(mine), bits_of(expected))
        assert same, self.story(f"{reported}: got {mine}, expected {expected}", subject)
        return said, f"gather {reported} {scope}"

    def peek(self, subject: Subject, draw: random.Random) -> tuple[list[Said], str]:
        peek = draw.choice(PEEKS)
        mine, expected = peek(subject.buf), peek(subject.model.real)
        same = mine == expected if isinstance(mine, list) else equal_bits(mine, expected)
        assert same, self.story(f"got {mine}, expected {expected}", subject)
        return [], "peek"


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bits_of(one), bits_of(other))


def some_rows(draw: random.Random, *, negative: bool = True) -> list[int]:
    """Rows with repeats; none, now and then."""
    if isinstance(draw, Repeating) and draw.random() < 0.8:
        return list(USUAL)
    low = -ROWS if negative else 0
    return [draw.randrange(low, ROWS) for _ in range(draw.choice((0, 1, 1, 2, 3, 5)))]


def an_index(draw: random.Random) -> Index:
    rows = some_rows(draw)
    mask = torch.tensor([draw.random() < 0.3 for _ in range(ROWS)])
    return draw.choice((torch.tensor(rows, dtype=torch.int64), rows, mask))


def value_of(subject: Subject, draw: random.Random) -> int:
    """Mostly a valid one; a poison or an invalid one now and then."""
    odd = (0, -1, -7) if subject.kind.dtype.is_signed else (0,)
    return draw.choice(odd) if draw.random() < 0.15 else draw.randint(1, 9)


def a_write(subject: Subject, draw: random.Random) -> tuple[str, Call, bool, set[int]]:
    """A write, in words and as a call, whether it updates, and the rows it gives two values."""
    index, value = an_index(draw), value_of(subject, draw)
    rows = torch.tensor(sorted(set(some_rows(draw, negative=False))), dtype=torch.int64)
    start, end = sorted((draw.randrange(ROWS), draw.randint(1, ROWS)))
    inner = subject.kind.inner

    def filled(like: Any, count: int) -> torch.Tensor:
        return torch.full((count, *inner), value, dtype=like.dtype)

    repeated = torch.tensor(some_rows(draw, negative=False), dtype=torch.int64)
    several = [draw.randint(1, 3) for _ in repeated]
    pairs = set(zip(repeated.tolist(), several, strict=True))
    twice = {row for row, one in pairs for other, also in pairs if row == other and one != also}

    def repeat(b: Any) -> None:
        each = torch.tensor(several, dtype=b.dtype).reshape(-1, *[1] * len(inner))
        b[repeated] = each.expand(len(several), *inner).contiguous()

    def put(b: Any) -> None:
        b.index_put_((rows,), torch.tensor(value, dtype=b.dtype))

    def out(b: Any) -> None:
        torch.add(filled(b, end - start), 0, out=b[start:end])

    calls: dict[str, Call] = {
        f"b[{index}] = {value} {CONSTANT}": lambda b: b.__setitem__(index, value),
        f"b[{rows}] = tensor": lambda b: b.__setitem__(rows, filled(b, len(rows))),
        f"b[{start}:{end}] = {value} {CONSTANT}": lambda b: b.__setitem__(slice(start, end), value),
        f"b[{start}] = {value} {CONSTANT}": lambda b: b.__setitem__(start, value),
        f"b[{repeated}] = {several}": repeat,
        f"index_put_ {rows} {value}": put,
        f"index_fill_ {rows} {value} {CONSTANT}": lambda b: b.index_fill_(0, rows, value),
        f"index_copy_ {rows} {value}": lambda b: b.index_copy_(0, rows, filled(b, len(rows))),
        f"b[{start}:{end}].copy_ {value}": lambda b: b[start:end].copy_(filled(b, end - start)),
        f"b[{start}:][...] = {value} {CONSTANT}": lambda b: b[start:].__setitem__(..., value),
        f"b.narrow fill_ {value} {CONSTANT}": lambda b: b.narrow(0, start, end - start).fill_(
            value
        ),
        f"out= {start}:{end} {value}": out,
    }
    updates: dict[str, Call] = {}
    if not subject.kind.dtype.is_floating_point:
        updates = {
            f"b[{start}:{end}].add_(1)": lambda b: b[start:end].add_(1),
            f"index_add_ {rows}": lambda b: b.index_add_(
                0, rows, torch.ones_like(filled(b, len(rows)))
            ),
        }
    if inner:
        column = draw.randrange(inner[0])
        calls |= {
            f"b[{rows}, {column}] = {value} {CONSTANT}": lambda b: b.__setitem__(
                (rows, column), value
            ),
            f"b[:, {column}] = {value} {CONSTANT}": lambda b: b.__setitem__(
                (slice(None), column), value
            ),
            f"b[{start}:{end}, :1] {value} {CONSTANT}": lambda b: b[start:end, :1].fill_(value),
        }
    reported = draw.choice((*calls, *updates))
    if isinstance(draw, Repeating):
        reported = draw.one_of((*calls, *updates), f"b[{rows}] = tensor")
    is_repeat = reported == f"b[{repeated}] = {several}"
    return reported, (calls | updates)[reported], reported in updates, twice if is_repeat else set()


def a_gather(subject: Subject, draw: random.Random) -> tuple[str, Call]:
    index = an_index(draw)
    rows = torch.tensor(some_rows(draw, negative=False), dtype=torch.int64)
    start = draw.randrange(ROWS - 2)
    within = torch.tensor([row % (ROWS - start) for row in rows.tolist()], dtype=torch.int64)
    inner = subject.kind.inner

    def out(b: Any) -> torch.Tensor:
        return torch.index_select(b, 0, rows, out=torch.empty(0, dtype=b.dtype))

    def masked(b: Any) -> torch.Tensor:
        mask = torch.zeros(ROWS, dtype=torch.bool).index_fill_(0, rows, True)
        return b.masked_select(mask.reshape(-1, *[1] * len(inner)))

    def take(b: Any) -> torch.Tensor:
        width = b.numel() // ROWS
        return torch.take(b, rows * width + (width - 1))

    calls: dict[str, Call] = {
        f"b[{index}]": lambda b: b[index],
        f"index_select {rows}": lambda b: b.index_select(0, rows),
        f"index_select {rows} out=": out,
        f"masked_select {rows}": masked,
        f"take {rows}": take,
        f"b[{start}:][{within}]": lambda b: b[start:][within],
        f"b[{start}:].index_select {within}": lambda b: b[start:].index_select(0, within),
        f"aten.index {rows}": lambda b: torch.ops.aten.index.Tensor(b, [rows]),
        f"view {rows}": lambda b: b.view(ROWS, -1)[rows],
    }
    if inner:
        column = draw.randrange(inner[0])
        calls |= {
            f"b[{rows}, {column}]": lambda b: b[rows, column],
            f"b[{rows}, :1]": lambda b: b[rows, :1],
            f"flat {rows}": lambda b: b.reshape(-1)[rows * (b.numel() // ROWS)],
        }
    reported = draw.choice(tuple(calls))
    if isinstance(draw, Repeating):
        reported = draw.one_of(tuple(calls), f"index_select {rows}")
    return reported, calls[reported]


PEEKS: tuple[Call, ...] = (
    lambda b: b.clone(),
    lambda b: b[2:5] + 0,
    lambda b: b.cpu().nan_to_num(7).tolist(),
    lambda b: b[3].sum(),
    lambda b: torch.zeros_like(b).copy_(b),
)


def agree(seed: int, steps: int, kind: type[random.Random] = random.Random) -> None:
    print(f"FMCHECK_MODEL_SEED={seed}")
    draw = kind(seed)
    for _ in range(steps // PROGRAM):
        program = Program(draw)
        for _ in range(PROGRAM):
            program.step(draw)


def test_random_programs_agree_with_the_model() -> None:
    agree(SEED, STEPS)


def test_programs_that_name_the_same_rows_again_and_again_agree_with_the_model() -> None:
    agree(SEED, STEPS, Repeating)


@pytest.mark.sweep
def test_other_programs_each_day_agree_with_the_model() -> None:
    drawn = os.environ.get("FMCHECK_MODEL_SEED", random.SystemRandom().randrange(1 << 32))
    agree(int(drawn), DRAWN_STEPS)
    agree(int(drawn), DRAWN_STEPS, Repeating)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 1 << 32), max_size=40))
def test_short_programs_agree_with_the_model(start: int, steps: list[int]) -> None:
    program = Program(random.Random(start))
    for step in steps:
        program.step(random.Random(step))

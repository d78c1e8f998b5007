"""torch's own samples of its operators, without a watch and under one.

`python -m tests.operators table` runs them under a mode that compares the operator table with what
each call does to memory, `relay` with a relay buffer in the place of their first tensor, and
`python -m tests.operators MODE` watched, with streams followed in that mode and unfilled memory as
well (FR701). All take the most samples for a kind of an operator, 12 unless told, and print as JSON
how much ran and what is wrong. The samples are those of `torch.testing._internal`.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import fmcheck
from fmcheck.contract import parse_contract
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Of those that an operator takes, and else the first of its own.
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
#: Their results are what memory held by chance.
UNFILLED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNFILLED |= {"new_empty_strided", "resize_", "resize_as_"}
#: What is reported, rightly: `x.to("cpu", non_blocking=True)` is read at once, and too early.
EARLY = ("to", "FR404")
CONTRACT = f"""
    [engine]
    name = "samples"

    [[relay]]
    class = "{__name__}:Relay"
    sink_rows = []

    [[relay.buffer]]
    name = "rows"
    overwrite = "always"
"""


class Relay:
    """A relay with one buffer, whose rows were all written."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = torch.empty_like(rows)
        self.rows.copy_(rows)


class Sample:
    """A call that torch's tests make of an operator, with or without gradients."""

    def __init__(self, name: str, call: Callable[..., Any], given: Any, dtype: Any, place: int):
        self.call = call
        self.operator, self.given = name, (given.input, list(given.args), dict(given.kwargs))
        self.name = f"{name}, {str(dtype).removeprefix('torch.')}, sample {place}"

    @property
    def takes_rows(self) -> bool:
        """Tells whether its first tensor may be a relay buffer, which has rows and no gradients."""
        first = self.given[0]
        is_plain = isinstance(first, torch.Tensor) and _is_plain(first)
        return is_plain and bool(first.dim() and first.numel()) and not first.requires_grad

    def made(self, relays: bool = False) -> Any:
        """Makes the call, on copies of what is given; returns all that it made or may change."""
        torch.manual_seed(5)
        random.seed(5)
        first, args, kwargs = tree_map(_copy, self.given)
        relay = Relay(first) if relays else None
        if relay is not None:
            first = relay.rows
        try:
            result = self.call(first, *args, **kwargs)
            sums = [one.abs().sum() for one in _tensors(result) if one.requires_grad]
            if sums:
                sum(sums).backward()
            given = _tensors((args, kwargs) if relays else (first, args, kwargs))
            return result, given, [one.grad for one in given if one.is_leaf and one.requires_grad]
        except Exception as err:
            return type(err).__name__, str(err).partition("\n")[0]

    def shown(self) -> list[Any]:
        """Makes the call, and returns what came of it so that it can be compared."""
        return shown(self.made())


def _copy(value: Any) -> Any:
    if type(value) is not torch.Tensor or value.layout != torch.strided or value.is_quantized:
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(tree)[0] if isinstance(one, torch.Tensor)]


def shown(tree: Any) -> list[Any]:
    """Returns what is in a tree: of tensors the layout and all bytes."""
    found: list[Any] = []
    for one in tree_flatten(tree)[0]:
        if isinstance(one, torch.Tensor):
            plain = one.detach() if one.layout == torch.strided else one.detach().to_dense()
            plain = plain.resolve_conj().resolve_neg()
            plain = plain.clone(memory_format=torch.contiguous_format).view(-1)
            layout = one.stride() if one.layout == torch.strided else one.layout
            data = plain.view(torch.uint8).numpy(force=True).tobytes() if plain.numel() else b""
            found.append((tuple(one.shape), layout, one.dtype, one.requires_grad, data))
        else:
            found.append(repr(one))
    return found


def samples(most: int) -> Iterator[list[Sample]]:
    """Yields the samples of each operator, at most so many of a kind."""
    for info in op_db:
        found = []
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        own = sorted(info.dtypes, key=str)[:1]
        for dtype in [one for one in DTYPES if one in info.dtypes] or own:
            for grad in {False, info.supports_autograd and dtype.is_floating_point}:
                torch.manual_seed(5)
                try:
                    given = [*islice(info.sample_inputs_func(info, "cpu", dtype, grad), most)]
                except Exception:  # it needs what is not installed, or there are none of the kind
                    continue
                for place, one in enumerate(given):
                    found.append(Sample(name, info, one, dtype, place))
                    in_place = info.inplace_variant
                    if in_place is not None and not (grad or one.broadcasts_input):
                        found.append(Sample(f"{name}_", in_place, one, dtype, place))
        yield found


class Idle(TorchDispatchMode):
    """Does nothing: under any mode torch takes other ways through some operators."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def watched(mode: str, most: int) -> dict[str, Any]:
    """Runs all samples on a stream under a watch; says what differs, and what is reported."""
    said: dict[str, Any] = {"ran": 0, "operators": 0, "differ": [], "reported": [], "problems": []}
    for group in samples(most):
        with Idle():
            alone = [(one.shown(), one.shown()) for one in group]
        said["operators"] += bool(group)
        session = fmcheck.watch(
            streams=mode, seed=3, mode="warn", allow_unchecked=True, uninitialized=True
        )
        session.start()
        try:
            for sample, (bare, again) in zip(group, alone, strict=True):
                main = torch.cpu.current_stream()
                side = torch.cpu.Stream()
                side.wait_stream(main)
                with torch.cpu.stream(side):
                    made = sample.made()
                main.wait_stream(side)
                said["ran"] += 1
                # Of what is read too early, the mode `delayed` shows that.
                is_told = bare == again and sample.operator not in {*UNFILLED, EARLY[0]}
                if is_told and shown(made) != bare:
                    said["differ"].append(sample.name)
            for found in {(group[0].operator, one.code) for one in session.violations}:
                said["reported"] += [found] if found != EARLY else []
            coverage = session.coverage()
        finally:
            session.stop()
        said["problems"] += [*session.dead, *coverage.problems]
    return said


def relayed(most: int) -> dict[str, Any]:
    """Runs the samples with a relay buffer for a tensor; says what differs, or is reported."""
    chosen = [one for group in samples(most) for one in group if one.takes_rows]
    alone = [[shown(one.made(relays=True)) for _ in range(2)] for one in chosen]
    differ = []
    watch = Watch([parse_contract(CONTRACT, "samples.toml")])
    watch.start()
    try:
        for sample, (bare, again) in zip(chosen, alone, strict=True):
            is_told = bare == again and sample.operator not in UNFILLED
            if is_told and shown(sample.made(relays=True)) != bare:
                differ.append(sample.name)
        coverage, reported = watch.coverage(), [one.code for one in watch.drain()]
    finally:
        watch.stop()
    return {
        "ran": len(chosen),
        "operators": len({one.operator for one in chosen}),
        "buffers": coverage.counts.buffers,
        "differ": differ,
        "reported": reported,
        "problems": [*watch.dead, *coverage.problems, *coverage.incomplete],
    }


class Compared(TorchDispatchMode):
    """Compares what the table says of each operator with what a call of it does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: set[str] = set()
        self.wrong: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        told = operators.known.get(id(func)) or operators.read(func, self._fail)
        given = [one for one in _tensors((args, kwargs)) if _is_plain(one)]
        before = [_bytes(one) for one in given]
        written = {_place(one) for one in operators.tensors_written(told, args, kwargs)}
        result = func(*args, **kwargs)
        self.met.add(str(func))
        places = set(map(_place, given))
        for one, held in zip(given, before, strict=True):
            is_there = len(held) == one.untyped_storage().nbytes()
            if is_there and _bytes(one) != held and _place(one) not in written:
                self.wrong[f"{func}: writes what it is not said to write"] += 1
        for one in filter(_is_plain, _tensors(result)):
            if not told.is_view and _place(one) in places - written:
                self.wrong[f"{func}: a view that is called none"] += 1
            elif told.is_view and not told.moves and _place(one) not in places:
                self.wrong[f"{func}: called a view, and makes memory"] += 1
        return result

    def _fail(self, err: Exception) -> None:
        self.wrong[f"unreadable: {err!r}"] += 1


def _is_plain(one: torch.Tensor) -> bool:
    is_strided = type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout == torch.strided
    return is_strided and not one.is_quantized and one.untyped_storage().nbytes() > 0


def _place(one: torch.Tensor) -> int:
    return one.untyped_storage().data_ptr() if _is_plain(one) else 0


def _bytes(one: torch.Tensor) -> bytes:
    storage = torch.empty(0, dtype=torch.uint8).set_(one.untyped_storage())
    return storage.numpy().tobytes()


def table(most: int) -> dict[str, Any]:
    """Runs all samples under a mode that compares; says how many operators it met."""
    mode, ran = Compared(), 0
    for group in samples(most):
        for sample in group:
            with mode:
                sample.made()
            ran += 1
    return {"ran": ran, "operators": len(mode.met), "wrong": dict(mode.wrong)}


def main() -> int:
    """Prints what was found as JSON."""
    what, most = sys.argv[1], int((*sys.argv, "12")[2])
    warnings.simplefilter("ignore")
    named = {"table": table, "relay": relayed}
    said = named[what](most) if what in named else watched(what, most)
    print(json.dumps(said, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

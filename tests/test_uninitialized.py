"""FR701: values that depend on memory that nobody has written."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import fmcheck
from fmcheck.contract import parse_contract
from fmcheck.errors import ViolationError
from fmcheck.runtime.session.watch import Watch
from fmcheck.runtime.steps import twins
from tests.lines import line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTRACT = parse_contract('[engine]\nname = "toy"\n', "toy.toml")


@pytest.fixture(params=["off", "tracked"])
def watch(request: pytest.FixtureRequest) -> Iterator[Watch]:
    watch = Watch([CONTRACT], streams=request.param, uninitialized=True)
    watch.start()
    yield watch
    watch.stop()
    assert not watch.dead
    assert not watch.coverage().incomplete


def half(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor whose first rows were written, all but one."""
    made = torch.empty(shape or (4,), dtype=dtype)
    made[:-1] = 1
    return made


def codes(watch: Watch) -> list[str]:
    return [one.code for one in watch.drain()]


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "a number": lambda x: float(x[-1]),
    "a truth": lambda x: bool((x * 2).isnan().any()),
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x.clone()),
    "close": lambda x: torch.testing.assert_close(x, x.clone().nan_to_num(5), atol=9, rtol=9),
    "how many": lambda x: (x > 0).nonzero(),
    "by a mask": lambda x: torch.arange(4)[x > 0],
    "into another": lambda x: torch.zeros(4).copy_(x).sum().item(),
    "by an output": lambda x: torch.add(x, 1, out=torch.zeros(4)).tolist(),
    "by an index": lambda x: torch.arange(9.0)[(x * 0 + 2).nan_to_num(3).long()].tolist(),
    "in a list": lambda x: torch.cat([torch.ones(2), x]).tolist(),
    "each of a list": lambda x: torch._foreach_add([torch.ones(4), x], 1)[1].tolist(),
    "by zero": lambda x: (x * 0).tolist(),  # NaN times nothing is NaN
    "in place": lambda x: x.add_(1).tolist(),
    "by bytes": lambda x: x.view(torch.int32).view(torch.uint8).tolist(),
    "gradient": lambda x: _gradient(x).tolist(),
}


def _gradient(factor: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(4, requires_grad=True)
    (weight * factor).sum().backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("read", READS)
def test_the_host_reads_what_nobody_wrote(watch: Watch, read: str) -> None:
    READS[read](half())
    (found,) = watch.drain()
    assert (found.code, found.buffer) == ("FR701", "empty (4,) of float32")
    assert found.access.site.path == __file__
    assert found.allocated is not None
    assert found.allocated.site.line == line_of(half, "torch.empty")


HEALTHY: dict[str, Callable[[torch.Tensor], Any]] = {
    "a slice": lambda x: x[:-1].tolist(),
    "a mask": lambda x: torch.where(torch.arange(4) < 3, x, 0).sum().item(),
    "filled": lambda x: x.fill_(2).sum().item(),
    "the rest": lambda x: (x.__setitem__(-1, 5), x.tolist()),
    "by an index": lambda x: x.index_copy_(0, torch.tensor([3]), torch.ones(1)).tolist(),
    "random": lambda x: x.uniform_().tolist(),
    "by NumPy": lambda x: (x.numpy().fill(3), x.tolist()),
    "by rows": lambda x: torch.add(torch.ones(4), 1, out=x).tolist(),
    "its shape": lambda x: (x.shape, x.numel(), x.new_zeros(3).tolist()),
    "shown": lambda x: repr(x),
    "no more": lambda x: x.resize_(8),
    "handed on": lambda x: torch.from_numpy(x.numpy())[:3].tolist(),
}


@pytest.mark.parametrize("use", HEALTHY)
def test_what_does_not_depend_on_it_is_fine(watch: Watch, use: str) -> None:
    HEALTHY[use](half())
    assert codes(watch) == []
    assert watch.coverage().counts.allocations == 1


def test_attention_over_a_masked_tail_is_fine_and_over_all_is_not(watch: Watch) -> None:
    query, keys = torch.ones(1, 2, 4), torch.empty(1, 6, 4)
    keys[:, :3] = torch.ones(3, 4)
    mask = torch.arange(6) < 3
    scores = (query @ keys.mT).masked_fill(~mask, float("-inf")).softmax(-1)
    (scores @ torch.where(mask[:, None], keys, 0)).tolist()
    assert codes(watch) == []
    # The weight of the tail is zero, and what is there may be NaN.
    (scores @ keys).tolist()
    assert codes(watch) == ["FR701"]


ALL = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.bits8, torch.bits16, torch.float8_e4m3fnuz, torch.complex128),
]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_twin_differs_in_each_element_of_each_type(dtype: torch.dtype) -> None:
    known, made = twins.Twins(), torch.empty(64, dtype=dtype)
    known.begin(made, twins.Origin("", 0))
    twin = known.of(made)
    assert twin is not None
    other = twins.seen_in(twin.memory, made)
    size = dtype.itemsize
    differ = made.view(torch.uint8).view(-1, size) != other.view(torch.uint8).view(-1, size)
    assert differ.any(1).all()
    assert not twins.are_alike(made, other)


@pytest.mark.parametrize("view", ["conj", "_neg_view"])
def test_a_view_that_changes_signs_is_seen_as_one(watch: Watch, view: str) -> None:
    made = torch.empty(3, dtype=torch.complex64)
    made[:2] = 1 + 2j
    seen = getattr(made, view)()
    (seen[:2] * 1).tolist()
    assert codes(watch) == []
    (seen * 1).tolist()
    assert codes(watch) == ["FR701"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool], ids=str)
def test_memory_that_held_the_same_values_before_is_seen_to_be_written(
    watch: Watch, dtype: torch.dtype
) -> None:
    for _ in range(4):
        made = torch.empty(64, dtype=dtype)
        # By ctypes, NumPy, or a kernel of the engine's own: past torch.
        made.view(torch.uint8).numpy().fill(0)
        made.tolist()
        del made
    assert codes(watch) == []


def test_an_operator_that_is_not_torch_s_is_not_run_twice(watch: Watch) -> None:
    ran = []
    with torch.library._scoped_library("fmcheck_twice", "FRAGMENT") as library:
        library.define("fill(Tensor(a!) x, Tensor y) -> ()")
        library.impl("fill", lambda x, y: (ran.append(1), x.copy_(y))[0], "CPU")
        made = torch.empty(4)
        torch.ops.fmcheck_twice.fill(made, torch.ones(4))
        made.tolist()
    assert ran == [1]
    assert codes(watch) == []
    (reported,) = [one for one in watch.coverage().untracked if "uninitialized" in one[0]]
    assert reported[2] == 1


def test_random_numbers_are_those_that_come_without_the_watch() -> None:
    def drawn() -> list[Any]:
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(4)
        made = half(8)
        noise = torch.bernoulli(made[:7] * 0.5), torch.nn.functional.dropout(half(6))[:5]
        made.uniform_(generator=own)
        return [made.tolist(), *map(torch.Tensor.tolist, noise), torch.rand(3).tolist()]

    bare = drawn()
    watch = Watch([CONTRACT], uninitialized=True)
    watch.start()
    try:
        assert drawn() == bare
    finally:
        watch.stop()
    assert watch.drain() == ()


def test_an_error_of_the_program_s_is_its_own(watch: Watch) -> None:
    made = half()
    with pytest.raises(RuntimeError, match="must match"):
        made + torch.ones(3)
    with pytest.raises(IndexError):
        made[torch.tensor([9])]
    assert made[:-1].tolist() == [1, 1, 1]
    assert codes(watch) == []


def test_what_the_other_values_cannot_be_used_for_is_left_alone(watch: Watch) -> None:
    index = torch.empty(3, dtype=torch.int64)
    index[:2] = 0
    torch.arange(1.0)[index * 0 + index - index]  # the twin's are 0 as well
    torch.tensor([5.0]).gather(0, index.clamp(max=0))
    assert codes(watch) == []


def test_a_thread_that_begins_later_is_followed(watch: Watch) -> None:
    thread = threading.Thread(target=lambda: half().tolist())
    thread.start()
    thread.join()
    made = half()
    other = threading.Thread(target=made.sum().item)
    other.start()
    other.join()
    assert codes(watch) == ["FR701", "FR701"]


def test_where_the_values_went_is_reported(watch: Watch) -> None:
    def project(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(4, 2)

    project(half(2, 4).relu()).tolist()
    (found,) = watch.drain()
    assert [one.verb for one in found.passed] == ["relu", "mm"]
    assert found.passed[1].site.line == line_of(project, "return x")
    assert [label for label, _ in found.related] == ["allocated", "via relu", "via mm"]


def test_each_kind_of_allocation_is_followed(watch: Watch) -> None:
    base = torch.ones(3, 2)
    for made in (
        torch.empty(3, 2),
        torch.empty_like(base),
        base.new_empty(3, 2),
        torch.empty_strided((3, 2), (1, 3)),
        base.new_empty_strided((3, 2), (4, 1)),
        torch.empty_permuted((3, 2), (1, 0)),
    ):
        made[:2] = 1
        made[:2].tolist()
        made.tolist()
    assert codes(watch) == ["FR701"] * 6
    assert watch.coverage().counts.allocations == 6


def test_what_is_too_large_or_elsewhere_is_counted(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twins, "MOST_BYTES", 15)
    torch.empty(4)
    torch.empty(4, device="meta")
    torch.empty(0).tolist()
    reported = watch.coverage().untracked
    assert sorted(count for what, _, count in reported if what == "unfilled tensors") == [1, 1]
    assert watch.coverage().counts.allocations == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_an_allocation_is_reported_to_write_to_keeps_its_values(watch: Watch) -> None:
    kept = torch.ones(4)
    torch.empty(4, out=kept)
    assert kept.tolist() == [1, 1, 1, 1]
    assert torch.empty_like(torch.quantize_per_tensor(kept, 0.1, 0, torch.qint8)).shape == (4,)
    assert codes(watch) == []


def test_a_result_without_plain_memory_is_passed_on(watch: Watch) -> None:
    sparse = torch.ones(4).to_sparse()
    assert torch.mul(half(), sparse).to_dense()[:-1].tolist() == [1, 1, 1]
    torch.mul(sparse, half(), out=torch.zeros(4).to_sparse())
    assert codes(watch) == []


def test_another_default_device_changes_nothing(watch: Watch) -> None:
    with torch.device("meta"):
        torch.empty(4, device="cpu").sum().item()
        assert torch.empty(4).is_meta
    assert codes(watch) == ["FR701"]


def test_an_operator_that_waits_for_another_thread_lets_it_go_on(watch: Watch) -> None:
    other = threading.Event()

    def wait(x: torch.Tensor) -> torch.Tensor:
        assert other.wait(20)
        return x.clone()

    def go_on() -> None:
        half().add(1)
        other.set()

    with torch.library._scoped_library("fmcheck_waits", "FRAGMENT") as library:
        library.define("wait(Tensor x) -> Tensor")
        library.impl("wait", wait, "CPU")
        thread = threading.Thread(target=go_on)
        made = half()
        thread.start()
        torch.ops.fmcheck_waits.wait(made)
        thread.join()
    assert codes(watch) == []


def test_in_mode_halt_it_is_raised_at_the_line() -> None:
    reached = []

    def read() -> None:
        with fmcheck.watch([], mode="halt", uninitialized=True):
            half().sum().item()
            reached.append(1)

    with pytest.raises(ViolationError, match="FR701 uninitialized-value in empty"):
        read()
    assert not reached


def test_memory_that_is_gone_is_forgotten(watch: Watch) -> None:
    half()
    assert np.array(half()[:-1].tolist()).sum() == 3
    made = torch.empty(4).untyped_storage()
    made.resize_(0)
    assert codes(watch) == []


def test_without_the_option_nothing_is_followed() -> None:
    watch = Watch([CONTRACT], streams="tracked")
    watch.start()
    half().tolist()
    watch.stop()
    assert watch.drain() == ()
    assert watch.coverage().counts.allocations == 0


@pytest.mark.process
def test_a_run_of_pytest_follows_its_children_too(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import torch

            def read():
                made = torch.empty(4)
                made[:3] = 1
                made.tolist()

            def test_here():
                read()

            def test_in_a_child():
                child = multiprocessing.get_context("spawn").Process(target=read)
                child.start()
                child.join()

            def test_well():
                assert torch.empty(3).fill_(1).tolist() == [1, 1, 1]
            """
        ),
        encoding="utf-8",
    )
    (tmp_path / "pyproject.toml").write_text("[tool.fmcheck]\n", encoding="utf-8")
    reported = {}
    for option in ((), ("--fmcheck-uninitialized",)):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "fmcheck",
                "-p",
                "no:cacheprovider",
                *option,
                "test_it.py",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        reported[bool(option)] = done.stdout + done.stderr
    assert "3 passed" in reported[False]
    assert "2 failed, 1 passed" in reported[True]
    assert "FMCHECK: FR701 uninitialized-value in empty (4,) of float32" in reported[True]
    assert "allocated   test_it.py:6 in read" in reported[True]
    assert "3 unfilled allocations checked" in reported[True]

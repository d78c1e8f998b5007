"""Kernels in Triton's interpreter, which copies all that a kernel was given onto itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.runtime.order import interpreted
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = torch.device("cpu")


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch([], streams="tracked")
    one.start()
    yield one
    one.stop()


@pytest.fixture
def double(watch: Watch) -> Iterator[Any]:
    """A kernel that writes to its second argument what is in the first, twice."""

    class Executor:
        def __call__(self, source: torch.Tensor, target: torch.Tensor) -> None:
            target.numpy()[:] = source.numpy() * 2
            for one in (source, target):
                one.untyped_storage().copy_(one.untyped_storage())

    assert watch.services.streams is not None
    interpreter: Any = SimpleNamespace(GridExecutor=Executor)
    undo = list(interpreted.follow(watch.services.streams.ops, interpreter))
    yield Executor()
    for one in undo:
        one()


def codes(watch: Watch) -> list[str]:
    return [one.code for one in watch.drain()]


def run(double: Any, copied: str, fenced: bool) -> None:
    """Copies one of a kernel's tensors on a stream of its own, the source before it runs."""
    forward, copy = torch.cpu.Stream(), torch.cpu.Stream()
    with torch.cpu.stream(forward):
        source, target = (torch.ones(4, device=DEVICE) * 3 for _ in range(2))
    copy.wait_stream(forward)
    if copied == "source":
        with torch.cpu.stream(copy):
            source.clone()
    with torch.cpu.stream(forward):
        double(source, target)
    if fenced:
        copy.wait_stream(forward)
    if copied == "target":
        with torch.cpu.stream(copy):
            target.clone()
    torch.cpu.synchronize()  # before the memory goes
    assert target.tolist() == [6, 6, 6, 6]


def test_a_kernel_does_not_write_what_it_only_reads(watch: Watch, double: Any) -> None:
    run(double, "source", fenced=False)
    assert codes(watch) == []


@pytest.mark.parametrize("fenced", [True, False])
def test_a_kernel_writes_what_it_changes(watch: Watch, double: Any, fenced: bool) -> None:
    run(double, "target", fenced)
    assert codes(watch) == ([] if fenced else ["FR401"])


def test_a_large_tensor_is_taken_for_written(
    watch: Watch, double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreted, "LARGEST", 8)
    run(double, "source", fenced=False)
    assert codes(watch) == ["FR401"]

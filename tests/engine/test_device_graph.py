"""The device graph's order of work, on a device module that only notes it."""

from contextlib import contextmanager

import pytest
import torch

from fixtures.engine.graph import WARM_UPS, DeviceGraph, HostGraph, capture


class NotingModule:
    """A device module with graphs; whatever runs, runs at once, on no stream."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.on = "default"

    def current_stream(self) -> "NotingStream":
        return NotingStream(self, self.on)

    def Stream(self) -> "NotingStream":
        return NotingStream(self, "side")

    def CUDAGraph(self) -> "NotingGraph":
        return NotingGraph(self)

    def synchronize(self) -> None:
        self.noted.append("synchronize")

    @contextmanager
    def stream(self, stream: "NotingStream"):
        outer, self.on = self.on, stream.name
        yield
        self.on = outer

    @contextmanager
    def graph(self, graph: "NotingGraph", stream: "NotingStream"):
        self.noted.append("begin capture")
        with self.stream(stream):
            yield
        self.noted.append("end capture")


class NotingStream:
    def __init__(self, module: NotingModule, name: str) -> None:
        self.module, self.name = module, name

    def wait_stream(self, other: "NotingStream") -> None:
        self.module.noted.append(f"{self.name} waits for {other.name}")


class NotingGraph:
    def __init__(self, module: NotingModule) -> None:
        self.module = module

    def replay(self) -> None:
        self.module.noted.append("replay")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> NotingModule:
    noting = NotingModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: noting)
    return noting


def test_a_step_is_warmed_up_and_captured_on_one_side_stream(module: NotingModule) -> None:
    def step() -> tuple[torch.Tensor, ...]:
        module.noted.append(f"step on {module.on}")
        return (torch.zeros(1),)

    graph = capture(step, torch.device("cpu"))
    graph.replay()
    assert isinstance(graph, DeviceGraph)
    assert module.noted == [
        "side waits for default",
        *["step on side"] * WARM_UPS,
        "default waits for side",
        "synchronize",
        "begin capture",
        "step on side",
        "end capture",
        "synchronize",
        "replay",
    ]


def test_a_device_without_graphs_runs_the_callable() -> None:
    assert isinstance(capture(lambda: (torch.zeros(1),), torch.device("cpu")), HostGraph)

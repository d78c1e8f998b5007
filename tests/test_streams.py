"""Streams: what one function does with streams, events and asynchronous copies."""

from __future__ import annotations

import textwrap

import pytest

from fmcheck.lint.streams.function_streams import (
    ANYTHING,
    CURRENT,
    HOST,
    FunctionStreams,
    streams_of,
)
from tests.parts import functions_of


def streams(
    body: str, head: str = "import torch", ordered_by: tuple[str, ...] = ()
) -> FunctionStreams:
    source = f"{head}\ndef f(self, x, given):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    (function,) = functions_of(source)
    return streams_of(function, ordered_by)


@pytest.mark.parametrize(
    "item",
    [
        "torch.cuda.stream(self.side)",
        "torch.npu.stream(self.side)",
        "torch.get_device_module(x.device).stream(self.side)",
        "stream(self.side, main)",
        "torch.cuda.StreamContext(self.side)",
        "self.side_stream_ctx",
        "torch.no_grad(), self.device_module.stream(self.side)",
    ],
)
def test_stream_context_is_known_whatever_it_is_reached_through(item):
    (context,) = streams(f"with {item}:\n    x.zero_()\n").contexts

    assert context.stream in ("self.side", "self.side_stream")


@pytest.mark.parametrize(
    "head", ["async with client.stream('POST', url):", "with open_stream(path):", "with lock:"]
)
def test_other_contexts_are_none(head):
    source = f"async def g():\n    {head}\n        pass\n"

    assert streams(source).contexts == []


def test_local_name_of_a_stream_stands_for_what_it_is_bound_to():
    found = streams(
        "side = self.side\nmain = torch.cuda.current_stream()\nside.wait_stream(main)\n"
    )
    (wait,) = found.waits

    assert (wait.waiter, wait.on) == ("self.side", CURRENT)


def test_current_stream_in_a_body_is_that_of_the_body():
    found = streams(
        """\
        main = torch.cuda.current_stream()
        with torch.cuda.stream(self.side):
            torch.cuda.current_stream().wait_stream(main)
        torch.cuda.current_stream().wait_stream(self.side)
        """
    )

    assert [(wait.waiter, wait.on) for wait in found.waits] == [
        ("self.side", CURRENT),
        (CURRENT, "self.side"),
    ]


@pytest.mark.parametrize(
    ("call", "waiter", "on"),
    [
        ("self.done.synchronize()", HOST, "self.done"),
        ("self.done.query()", HOST, "self.done"),
        ("torch.cuda.synchronize()", HOST, ANYTHING),
        ("current_platform.synchronize()", HOST, ANYTHING),
        ("self.done.wait()", CURRENT, "self.done"),
        ("self.done.wait(self.side)", "self.side", "self.done"),
        ("self.side.wait_event(self.done)", "self.side", "self.done"),
        ("self._sync_device()", ANYTHING, ANYTHING),
        ("apply_war_barrier(self)", ANYTHING, ANYTHING),
        ("self.put_in_order()", ANYTHING, ANYTHING),
    ],
)
def test_wait_says_who_waits_for_what(call, waiter, on):
    (wait,) = streams(f"{call}\n", ordered_by=("put_in_order",)).waits

    assert (wait.waiter, wait.on) == (waiter, on)


def test_joining_strings_is_no_wait():
    assert streams('name = ".".join(x)\n').waits == []


def test_record_is_on_the_stream_of_its_place_or_argument():
    found = streams(
        """\
        self.ready.record()
        with torch.cuda.stream(self.side):
            self.done_event.record()
            late = self.other.record_event()
            self.mark.record(given_stream)
        self.metrics.record(x)
        """
    )

    assert [(one.event, one.stream) for one in found.records] == [
        ("self.ready", CURRENT),
        ("self.done_event", "self.side"),
        ("self.other.record_event()", "self.other"),
        ("self.mark", "given_stream"),
    ]


@pytest.mark.parametrize(
    ("wait", "orders"),
    [
        ("self.side.wait_event(late)", True),
        ("self.side.wait_event(self.mark_event)", False),
        ("self.side.wait_event(given)", True),
        ("self.other.wait_event(late)", False),
        ("self.side.wait_stream(self.other)", False),
        ("self.side.wait_stream(torch.cuda.current_stream())", True),
        ("torch.cuda.synchronize()", True),
    ],
)
def test_wait_orders_what_its_event_was_recorded_on(wait, orders):
    found = streams(
        f"""\
        late = torch.cuda.current_stream().record_event()
        self.mark_event.record(self.other)
        with torch.cuda.stream(self.other):
            x.zero_()
        {wait}
        """
    )

    assert found.orders(found.waits[-1], "self.side", CURRENT) is orders


@pytest.mark.parametrize(
    ("bound", "may_be"),
    [
        ("self.side", False),
        ("given", True),
        ("given or self.side", True),
        ("given if given is not None else torch.cuda.current_stream()", True),
        ("self.pool.pop() if self.pool else torch.cuda.Stream()", False),
    ],
)
def test_stream_that_a_caller_decides_may_be_the_current_one(bound, may_be):
    assert streams(f"side = {bound}\n").may_be_current("side") is may_be


def test_view_is_held_by_its_buffer():
    found = streams("rows = self.buf[:4]\nrows.view(-1).zero_()\nown = g()\nown[0].zero_()\n")
    calls = [node for node in found.order if type(node).__name__ == "Call"]
    zeroed = [call.func.value for call in calls if call.func.__class__.__name__ == "Attribute"]
    held = [found.holders(node) for node in zeroed]

    assert {"self.buf", "rows"} in held
    assert {"own"} in held


@pytest.mark.parametrize(
    ("value", "is_launched"),
    [
        ("torch.cat(x)", True),
        ("concat(x)", True),
        ("x.to(self.device)", True),
        ("x.clone()", True),
        ("x.to('cpu')", False),
        ("torch.zeros(4, pin_memory=True)", False),
        ("np.concatenate(x)", False),
        ("np.stack(x)", False),
        ("make(x)", False),
    ],
)
def test_launched_is_what_is_plainly_a_tensor_of_the_device(value, is_launched):
    found = streams(f"y = {value}\n", "import torch\nimport numpy as np\nfrom torch import concat")
    (bound,) = found.names.values("y")

    assert found.launches(bound) is is_launched


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("x.to('cpu', non_blocking=True)", 1),
        ("self.host.copy_(x, non_blocking=True)", 1),
        ("self.host.copy_(x, non_blocking=given)", 0),
        ("self.host.copy_(x)", 0),
    ],
)
def test_copy_that_surely_does_not_block_is_noted(call, count):
    assert len(streams(f"{call}\n").copies) == count

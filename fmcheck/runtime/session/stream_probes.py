"""Probes of what streams are followed for: a race between two scratch streams, and its twin."""

from __future__ import annotations

import torch

from fmcheck import scratch
from fmcheck.contract import Contract, Engine
from fmcheck.contract import Streams as Declared
from fmcheck.runtime.core.site import unfollowed
from fmcheck.runtime.core.tally import Tally
from fmcheck.runtime.order import virtual
from fmcheck.runtime.order.lifetimes import Lifetimes
from fmcheck.runtime.order.ops import Mode, OperatorCall
from fmcheck.runtime.order.stale_events import StaleEvents
from fmcheck.runtime.relay.relay_tensor import relay_tensor
from fmcheck.runtime.session.followed_streams import FollowedStreams
from fmcheck.runtime.steps import placements
from fmcheck.runtime.steps.operators import Operator

_ROWS = [1, 2]


def race_codes(device: str, fenced: bool) -> list[str]:
    """Returns what is said of a row that one stream writes and another gathers."""
    tally = Tally()
    streams = FollowedStreams(tally)
    module = torch.get_device_module(device)
    with streams.follow_block(device):
        plain = torch.zeros(4, dtype=torch.int64, device=device)
        buf = relay_tensor(plain, "scratch", "doctor", tally, streams=streams)
        buf._relay.lay_poison()
        rows = torch.tensor(_ROWS, device=device)
        writer, reader = scratch.two_streams(module)
        with unfollowed():  # the device's own order: what is judged here is what was reported of it
            for stream in (writer, reader):
                stream.wait_stream(module.current_stream())
        with module.stream(writer):
            buf[rows] = 5
        if fenced:
            reader.wait_stream(writer)
        with module.stream(reader):
            buf[rows]
        found = tally.drain()
    return [one.code for one in found]


class _Host:
    """The host of scratch code."""

    def __init__(self, streams: FollowedStreams) -> None:
        self._ops = streams.ops

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that is the host's, whatever default device there is."""
        placements.declare_host(tensor)
        return tensor

    def read(self, tensor: torch.Tensor) -> None:
        """Reads as the host does: the methods that do so are wrapped by a session's own streams."""
        plan = Operator(torch.Tensor.tolist, "tolist", is_view=False)
        call = OperatorCall(plan, (), {}, virtual.current_lane(), [tensor], [], host=True)
        self._ops.before(call)
        self._ops.after(call)


def memory_codes(code: str, fenced: bool) -> list[str]:
    """Returns what is said of scratch code that does what a check is for, or waits as it must."""
    tally = Tally()
    streams = FollowedStreams(tally)
    streams.judge_memory(Lifetimes(streams.fences, streams.cross_stream))
    declared = Declared(consumed_once=(scratch.EVENT,))
    StaleEvents(streams.fences, [Contract(engine=Engine(name="probe"), streams=declared)])

    # Who adopts a buffer in inference mode has the probes run there, below the session's own mode:
    # operators would come whole. A program's default device is not for what says none here.
    own, host = torch.inference_mode(False), torch.device("cpu")
    with own, host, virtual.followed_by(streams.fences), Mode(streams.ops):
        scratch.FAULTS[code](fenced, _Host(streams))
    return [one.code for one in tally.drain()]

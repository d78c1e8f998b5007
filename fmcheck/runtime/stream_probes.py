"""Probes of what streams are followed for: a race between two scratch streams, and its twin."""

from __future__ import annotations

import torch

from fmcheck.runtime import virtual
from fmcheck.runtime.relay_tensor import relay_tensor
from fmcheck.runtime.streams import Streams
from fmcheck.runtime.tally import Tally

_ROWS = [1, 2]


def race_codes(fenced: bool) -> list[str]:
    """Returns what is said of a row that one stream writes and another gathers."""
    tally = Tally()
    tally.streams = Streams(tally)
    with virtual.told_to(tally.streams.fences):
        buf = relay_tensor(torch.zeros(4, dtype=torch.int64), "scratch", "doctor", tally)
        buf._relay.lay_poison()
        rows = torch.tensor(_ROWS)
        writer, reader = torch.cpu.Stream(), torch.cpu.Stream()
        with torch.cpu.stream(writer):
            buf[rows] = 5
        if fenced:
            reader.wait_stream(writer)
        with torch.cpu.stream(reader):
            buf[rows]
    return [one.code for one in tally.drain()]

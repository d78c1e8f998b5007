"""The way in for SGLang: an entry point that its processes call before all else.

A scheduler comes to it even if it was started with another environment.
"""

from __future__ import annotations


def activate() -> None:
    """Watches this process, if a run of fmcheck started it or one of its ancestors."""
    from fmcheck.processes.ancestors import inherited
    from fmcheck.processes.packet import here

    packet = here() or inherited()
    if packet is not None:
        from fmcheck.processes.arrival import arrive

        arrive("sglang.srt.plugins", packet)

"""The way in for SGLang: an entry point that its processes call first of all.

A scheduler comes to it even if it was started with another environment.
"""

from __future__ import annotations


def activate() -> None:
    """Watches this process, if a run of fmcheck started it."""
    from fmcheck.reach import packet as packets

    if packets.here() is not None:
        from fmcheck.reach.arrival import arrive

        arrive("sglang.srt.plugins")

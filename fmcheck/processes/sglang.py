"""The way in for SGLang: an entry point that its processes call before all else.

A scheduler comes to it even if it was started with another environment.
"""

from __future__ import annotations


def activate() -> None:
    """Watches this process, if a run of fmcheck started it or one of its ancestors."""
    from fmcheck.processes.child.ancestors import inherited
    from fmcheck.processes.child.run_context import here

    context = here() or inherited()
    if context is not None:
        from fmcheck.processes.child.child_start import wait_for_engine

        wait_for_engine("sglang.srt.plugins", context)

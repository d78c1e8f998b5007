"""vLLM's CPU platform with asynchronous scheduling, which it turns off whatever was asked for."""

from __future__ import annotations


def platform() -> str:
    """Returns the class of the platform, by its name: vLLM imports it when it may."""
    return "overlapped_platform.OverlappedPlatform"

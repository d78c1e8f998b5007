"""The platform of `overlapped`."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform


class OverlappedPlatform(CpuPlatform):
    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

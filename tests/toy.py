"""A toy engine: a relay with one buffer from the start, and one that is bound by whoever likes."""

from __future__ import annotations

from typing import Any

import torch

CONTRACT = f"""
[engine]
name = "toy"

[[relay]]
class = "{__name__}:FutureMap"

[[relay.buffer]]
name = "buf"
valid = ">= 0"

[[relay.buffer]]
name = "late"
valid = ">= 0"
lazy = true
"""


class FutureMap:
    """The relay; `late` is not there before it is bound."""

    late: Any

    def __init__(self, buf: Any = None) -> None:
        self.buf: Any = torch.zeros(4, dtype=torch.int64) if buf is None else buf

"""Stream options: how a session follows streams, as the flag, the environment or a file says it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: Where a setting may come from, and what stands there; the first that says anything counts.
    Sources = Iterable[tuple[str, object]]

#: Followed not at all; followed; with writes that others see no sooner than a fence makes them;
#: with writes that others see at random moments up to then.
STREAM_MODES = ("off", "tracked", "delayed", "random")
DEFAULT = "tracked"
_SEEDS = 1 << 32


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`mode` is one of `STREAM_MODES`; `seed` is what mode `random` perturbs streams by."""

    mode: str = DEFAULT
    seed: int = 0

    def __str__(self) -> str:
        return f"random, seed {self.seed}" if self.mode == "random" else self.mode


def stream_options(modes: Sources, seeds: Sources) -> StreamOptions:
    """Returns what is asked for; mode `random` without a seed draws one.

    Raises:
        UsageError: naming the source, if it holds no mode or no number.
    """
    where, mode = _first(modes)
    if mode and mode not in STREAM_MODES:
        raise UsageError(
            where,
            f"expected one of {', '.join(STREAM_MODES)}, got `{mode}`{nearest(mode, STREAM_MODES)}",
        )
    where, seed = _first(seeds)
    if seed and not seed.isdecimal():
        raise UsageError(where, f"expected a number that is not negative, got `{seed}`")
    drawn = random.randrange(_SEEDS) if not seed and mode == "random" else 0
    return StreamOptions(mode or DEFAULT, int(seed) if seed else drawn)


def _first(sources: Sources) -> tuple[str, str]:
    return next(((where, str(said)) for where, said in sources if said not in (None, "")), ("", ""))

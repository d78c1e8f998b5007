"""A campaign: cases for a while, by one engine; each crash is saved once, as small as it gets."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fuzz import contracts, files
from tests.fuzz.crash import Crash, least
from tests.fuzz.draw import Draw, FromAtheris, FromHypothesis, FromSeed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fuzz.draw import Source

TARGETS = ("rules", "contracts")
#: One case in so many is linted with the cheap stages off too, which takes long.
STAGES_EVERY = 12
#: CPU seconds that a case may take; what takes longer hangs, which is a crash too.
MOST_SECONDS = 60.0


@dataclass
class Campaign:
    """What was tried and what was found. `trees` takes in files of released wheels."""

    targets: tuple[str, ...] = TARGETS
    trees: bool = True
    cases: dict[str, int] = field(default_factory=dict)
    crashes: dict[str, Crash] = field(default_factory=dict)

    def case(self, source: Source) -> Crash | None:
        """Tries one case; returns the crash if it is one that was not seen before."""
        draw = Draw(source)
        target = draw.one_of(self.targets)
        self.cases[target] = self.cases.get(target, 0) + 1
        with _limited():
            content, what = self._rules(draw) if target == "rules" else self._contract(draw)
        if not what or what.partition(":")[0] in self.crashes:
            return None
        return Crash(target, what, content)

    def _rules(self, draw: Draw) -> tuple[bytes, str]:
        text = files.mutated(draw, files.seeds(trees=self.trees))
        path = draw.one_of(files.PATHS)
        what = files.broken(text, path)
        if not what and draw.chance(STAGES_EVERY):
            what = files.differs(text, path)
        return text, what

    def _contract(self, draw: Draw) -> tuple[bytes, str]:
        if draw.chance(3):
            text = contracts.as_toml(contracts.valid(draw))
            return text, contracts.broken_contract(text, must_load=True)
        text = contracts.garbled(draw, contracts.as_toml(contracts.mutated(draw)))
        return text, contracts.broken_contract(text)

    def keep(self, crash: Crash, folder: Path | None) -> Crash:
        """Makes a crash small, unless it takes a minute each time, and saves it."""
        hangs = crash.what.startswith(TimeoutError.__name__)
        small = crash if hangs else least(crash, lambda text: again(crash.target, text))
        self.crashes[crash.what.partition(":")[0]] = small
        if folder is not None:
            print(f"CRASH {small.what}\n  {small.save(folder)}", flush=True)
        return small


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError where a case is when its time is over."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {MOST_SECONDS:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def again(target: str, content: bytes) -> str:
    """Says what comes of a saved crash now."""
    if target == "rules":
        return files.broken(content) or files.differs(content)
    return contracts.broken_contract(content)


def by_seeds(campaign: Campaign, first: int, count: int, folder: Path | None = None) -> None:
    """Tries `count` cases, each made by a seed."""
    for seed in range(first, first + count):
        crash = campaign.case(FromSeed(seed))
        if crash is not None:
            campaign.keep(crash, folder)


def by_hypothesis(campaign: Campaign, seconds: float, seed: int, folder: Path) -> None:
    """Has hypothesis choose, which makes a failing case small before it is told."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    end = time.monotonic() + seconds
    smallest: list[Crash] = []

    def one(data: object) -> None:
        crash = campaign.case(FromHypothesis(data))
        if crash is not None:
            smallest[:] = [min([*smallest, crash], key=lambda one: len(one.content))]
            raise AssertionError(crash.what)

    for number in _forever(random.Random(seed)):
        if time.monotonic() > end:
            return
        smallest.clear()
        run = settings(
            max_examples=60,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )(seeded(number)(given(st.data())(one)))
        try:
            run()
        except AssertionError:
            campaign.keep(smallest[0], folder)


def by_atheris(campaign: Campaign, seconds: float, seed: int, folder: Path) -> None:
    """Has atheris choose, by what the linter's code makes of it; ends this process."""
    import sys

    import atheris

    def one(data: bytes) -> None:
        crash = campaign.case(FromAtheris(data))
        if crash is not None:
            campaign.keep(crash, folder)

    limits = [f"-max_total_time={int(seconds)}", f"-seed={seed}", "-max_len=4096"]
    # What is leaked, or slow, is none of ours: one process tries many thousands of files.
    limits += ["-rss_limit_mb=0", "-timeout=1200", "-verbosity=0"]
    limits += [f"-artifact_prefix={folder}/"]
    folder.mkdir(parents=True, exist_ok=True)
    files.seeds(trees=campaign.trees)  # takes a while, which is no case's fault
    atheris.Setup([sys.argv[0], *limits], one)
    atheris.Fuzz()


def _forever(numbers: random.Random) -> Iterator[int]:
    while True:
        yield numbers.randrange(2**32)

"""The fixture engine with its streams followed: each race is reported, a healthy engine is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from fixtures.engine.faults import FAULTS, Proof, fault
from fixtures.engine.serve import Engine, serve_ranks
from fixtures.engine.settings import Algorithm, Guard, Settings
from fixtures.engine.workload import random_asks, requests_for, run
from fmcheck.runtime.session.watch import Watch
from tests.stream_modes import CONTRACT, RACES, WITH_OUTPUTS, answers_differ, healthy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.finding import Violation

CLASS_C = [one.name for one in FAULTS.values() if one.family == "C"]
REST = [one.name for one in FAULTS.values() if one.family != "C" and one.proof is not Proof.STOPS]
#: By where it is: one stale tail of each runner; `make sweep` takes the others of it.
KEPT = {name.rpartition(".")[0] or name: name for name in REST}
MODES = ("tracked", "delayed", "random")


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch([WITH_OUTPUTS], streams="tracked")
    watch.start()
    yield watch
    watch.stop()


def found(watch: Watch, name: str) -> tuple[Violation, ...]:
    with fault(name) as planted:
        run(planted.settings, random_asks(0, REQUESTS), overlap=True)
    return watch.drain()


REQUESTS = 6


class Pair(NamedTuple):
    """The earlier and the later access of a race: function, stream."""

    early: tuple[str, str]
    late: tuple[str, str]


PAIRS = {
    "forward_not_fenced": Pair(("upload", "schedule"), ("Worker._extend", "forward")),
    "copy_not_fenced": Pair(("Worker._extend", "forward"), ("OverlapLoop._to_host", "copy")),
    "pull_not_fenced": Pair(("FutureMap.publish", "forward"), ("FutureMap._pull", "d2h_stream")),
    "resolve_not_fenced": Pair(
        ("FutureMap.publish", "forward"), ("FutureMap.resolve_seq_lens_cpu", "schedule")
    ),
    "publish_recorded_before_write": Pair(("broken", "forward"), ("FutureMap._pull", "d2h_stream")),
    "row_released_in_flight": Pair(("FutureMap.stash", "forward"), ("Scheduler._chunks", "host")),
    "row_seeded_in_flight": Pair(("FutureMap.stash", "forward"), ("broken", "schedule")),
    "inputs_staged_in_flight": Pair(("Transformer.forward", "forward"), ("stage", "schedule")),
    "results_clear_inputs_in_flight": Pair(
        ("Transformer.forward", "forward"), ("broken", "schedule")
    ),
}


def pair(race: Violation) -> Pair:
    early = race.last_write or race.last_read
    assert early is not None
    first, second = (
        (one.site.function.rpartition(".<locals>.")[2], one.stream) for one in (early, race.access)
    )
    return Pair(first, second)


@pytest.mark.parametrize("name", [n for n in CLASS_C if FAULTS[n].check == "FR401"])
def test_a_race_is_reported_with_both_its_sites(watch: Watch, name: str) -> None:
    reported = found(watch, name)
    assert {one.code for one in reported} <= {"FR401", *FAULTS[name].also}
    races = {pair(one): one for one in reported if one.code == "FR401"}
    assert PAIRS[name] in races
    race = races[PAIRS[name]]
    early = race.last_write or race.last_read
    assert early is not None
    assert f":{early.site.line} on stream `{early.stream}`" in race.missing
    assert race.confidence == ""
    assert not race.history[-1].ordered


@pytest.mark.parametrize("name", [n for n in CLASS_C if FAULTS[n].check != "FR401"])
def test_any_other_stream_fault_is_a_race_only_where_it_says_so(watch: Watch, name: str) -> None:
    assert {race.code for race in found(watch, name)} <= {FAULTS[name].check, *FAULTS[name].also}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in KEPT.values() else [pytest.mark.sweep]) for n in REST],
)
def test_a_fault_of_another_class_is_reported_as_it_says_and_no_race(
    watch: Watch, name: str
) -> None:
    codes = {one.code for one in found(watch, name)}
    assert FAULTS[name].check in {*codes, ""}  # some only the linter sees
    assert codes <= {FAULTS[name].check, *FAULTS[name].also}


@pytest.mark.parametrize(
    ("mode", "workload"),
    [
        # Each of the engine's modes once, followed in turn in each way.
        pytest.param(mode, n, marks=[] if mode == MODES[n // 4] else [pytest.mark.sweep])
        for mode in MODES
        for n in range(12)
    ],
)
def test_the_healthy_engine_is_never_accused_and_answers_the_same(mode: str, workload: int) -> None:
    """1,500 by `python -m tests.stream_modes healthy`."""
    assert healthy(mode, seed=workload, workload=workload) == (0, 0)


def test_idle_ranks_are_never_accused(watch: Watch) -> None:
    settings = Settings(algorithm=Algorithm.EAGLE, graphs=False, pool_rows=4, steps=2)
    engines = [Engine.build(settings, overlap=True) for _ in range(2)]
    serve_ranks(engines, [requests_for(random_asks(0, 4)), []])
    assert watch.drain() == ()


def test_the_engine_s_own_guard_is_no_race(watch: Watch) -> None:
    settings = Settings(algorithm=Algorithm.EAGLE, guard=Guard.EAGER, pool_rows=4, steps=2)
    run(settings, random_asks(0, 4), overlap=True)
    assert watch.drain() == ()


@pytest.mark.parametrize("workload", [0, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", RACES)
def test_a_race_changes_answers_when_writes_are_delayed(name: str, workload: int) -> None:
    """100 of 100 by `python -m tests.stream_modes races`."""
    assert answers_differ(name, "delayed", 0, workload)
    assert not answers_differ(name, "tracked", 0, workload)


def test_a_seed_replays_what_it_did() -> None:
    def story(seed: int) -> list[object]:
        watch = Watch([CONTRACT], streams="random", seed=seed)
        watch.start()
        try:
            with fault("resolve_not_fenced") as planted:
                served = run(planted.settings, random_asks(3, 4), overlap=True)
            return [served.outcomes, [one.count for one in watch.drain()]]
        except (IndexError, RuntimeError, ValueError) as err:
            return [str(err)]
        finally:
            watch.stop()

    assert story(5) == story(5)
    assert len({str(story(seed)) for seed in range(4)}) > 1

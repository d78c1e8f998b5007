"""A subclass overrides a method that a contract names: it is watched as the declared one is."""

from __future__ import annotations

import functools
import importlib
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests import declared
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

if TYPE_CHECKING:
    from fmcheck.runtime.session.watch import Watch

ROWS = torch.tensor([1, 2])

ENGINE = """
    import torch

    ROWS = torch.tensor([1, 2])
    DEVICE = torch.device("cpu")

    class Relay:
        def __init__(self):
            self.buf = torch.zeros(8, dtype=torch.int64)
        def stash(self, rows, tokens):
            self.buf[rows] = tokens
        def look(self, rows):
            return self.buf[rows]
        def kernel(self, rows, buf):
            return buf.detach().clone()[rows]

    class Pool:
        def __init__(self):
            self.spare = [1, 2, 3]
        def alloc(self, rid):
            return self.spare.pop(0)
        def free(self, row):
            self.spare.append(row)

    class Loop:
        def __init__(self, relay):
            self.relay = relay
        def step(self):
            return None
        def harvest(self):
            return None
        def read(self):
            return self.relay.buf[ROWS]
        def replayed(self, rows):
            return None

    class Graph:
        def launch(self):
            return None

    class Runner:
        def __init__(self):
            self.rows = torch.full((8,), 5)
            self.size = 0
            self.most = 8
        def fill(self, rows):
            self.size = 6
            self.rows[: len(rows)] = rows
            self.rows[len(rows) : self.size] = 0
"""
CONTRACT = (
    declared.ENGINE
    + declared.relay("Relay", "buf", 'peeks = ["look", "MODULE:Loop.read"]')
    + declared.pool()
    + declared.steps("Loop.step")
    + declared.kernel("Relay.kernel", "buf")
    + declared.GRAPH_INPUTS
    + declared.fill("Runner", "rows.shape[0]", "SETTLED")
    + """
    [[graph_inputs.replay]]
    function = "MODULE:Loop.replayed"
    rows = "rows"
    reads = ["self.relay.buf"]

    [[launches.budget]]
    functions = ["MODULE:Loop.step"]
    syncs = 0
    waits_in = ["MODULE:Loop.harvest"]
"""
)
#: How a subclass comes by its method; METHOD is where it stands.
OWN = "class Sub(BASE):\nMETHOD"
MIXIN = "class Mixin:\nMETHOD\nclass Sub(Mixin, BASE):\n    pass"
TWO = "class Mid(BASE):\n    pass\nclass Sub(Mid):\nMETHOD"
WAYS = {"own": OWN, "mixin": MIXIN, "two levels": TWO}


def subclass(way: str, base: str, method: str) -> str:
    source = WAYS[way].replace("METHOD", textwrap.indent(textwrap.dedent(method).strip(), "    "))
    return source.replace("BASE", base)


class Case:
    """An engine whose class `base` has a subclass, written before or after the watch began."""

    def __init__(self, bench: Bench, when: str, settled: str = "") -> None:  # noqa: F811
        self.bench, self.when, self.settled = bench, when, settled
        self.watch: Watch
        self.engine: Any

    def sub(self, way: str, base: str, method: str) -> Any:
        source = subclass(way, base, method)
        contract = CONTRACT.replace("SETTLED", self.settled)
        self.bench.write(textwrap.dedent(ENGINE) + (source if self.when == "before" else ""))
        if self.when == "before":
            self.engine = importlib.import_module(self.bench.name)
            self.watch = self.bench.watch(contract)
            return self.engine.Sub
        self.watch = self.bench.watch(contract)
        self.engine = importlib.import_module(self.bench.name)
        other = f"from {self.bench.name} import *\nimport {self.bench.name} as engine\n{source}"
        self.bench.write(other, f"{self.bench.name}_other")
        return importlib.import_module(f"{self.bench.name}_other").Sub

    def codes(self) -> list[str]:
        return codes(self.watch)


@pytest.fixture(params=["before", "after"])
def case(bench: Bench, request: pytest.FixtureRequest) -> Case:  # noqa: F811
    return Case(bench, request.param)


ways = pytest.mark.parametrize("way", WAYS)


# --- fills ---


@ways
def test_a_fill_that_replaces_the_declared_one_is_judged(case: Case, way: str) -> None:
    sub = case.sub(
        way,
        "Runner",
        """
        def fill(self, rows, reset=True):
            self.size = 6
            self.rows[: len(rows)] = rows
            if reset:
                self.rows[len(rows) : self.size] = 0
        """,
    )
    sub().fill(ROWS)
    assert case.codes() == []
    sub().fill(ROWS, reset=False)
    assert case.codes() == ["FR201"]


@ways
def test_a_fill_that_goes_on_to_the_declared_one_is_judged_when_it_returns(
    case: Case, way: str
) -> None:
    sub = case.sub(
        way,
        "Runner",
        """
        def fill(self, rows, last=0):
            super().fill(rows)
            self.rows[4:6] = last
        """,
    )
    sub().fill(ROWS)
    assert case.codes() == []
    assert case.watch.reached().counts.tails == 1
    sub().fill(ROWS, last=7)
    assert case.codes() == ["FR201"]


def test_a_fill_that_does_not_reach_the_declared_one_is_none(case: Case) -> None:
    sub = case.sub(
        "own",
        "Runner",
        """
        def fill(self, rows, eager=False):
            self.size = 6
            if not eager:
                super().fill(rows)
        """,
    )
    runner = sub()
    runner.fill(ROWS, eager=True)
    assert case.codes() == []
    assert case.watch.reached().counts.tails == 0


@pytest.mark.parametrize("settled", ["own", "other", "function"])
def test_what_settles_a_fill_may_be_an_override_or_a_function(
    bench: Bench,  # noqa: F811
    settled: str,
) -> None:
    names = {"own": "launch", "other": "MODULE:Graph.launch", "function": "MODULE:launch"}
    case = Case(bench, "after", f'settled_by = ["{names[settled]}"]')
    calls = {"own": "self.launch()", "other": "Replayed().launch()", "function": "engine.launch()"}
    method = f"""
        def fill(self, rows, reset=True):
            self.size = 6
            self.rows[: len(rows)] = rows
            if reset:
                self.rows[len(rows) : self.size] = 0
            {calls[settled]}
            self.rows[:] = 9
        def launch(self):
            return None
    """
    ours = ENGINE.replace("class Runner:", "def launch():\n        pass\n\n    class Runner:")
    if settled == "own":
        ours += "        def launch(self):\n            return None\n"
    more = "class Replayed(Graph):\n    def launch(self):\n        return None\n"
    contract = CONTRACT.replace("SETTLED", case.settled)
    bench.write(ours)
    case.watch = bench.watch(contract)
    importlib.import_module(bench.name)
    head = f"from {bench.name} import *\nimport {bench.name} as engine\n{more}"
    bench.write(head + subclass("own", "Runner", method), f"{bench.name}_other")
    sub = importlib.import_module(f"{bench.name}_other").Sub
    sub().fill(ROWS)
    assert case.codes() == []
    sub().fill(ROWS, reset=False)
    assert case.codes() == ["FR201"]
    assert case.watch.coverage().problems == ()


# --- owners ---


@ways
def test_an_alloc_and_a_free_that_replace_the_declared_ones_are_followed(
    case: Case, way: str
) -> None:
    sub = case.sub(
        way,
        "Pool",
        """
        def alloc(self, rid):
            return self.spare.pop()
        def free(self, row):
            self.spare.insert(0, row)
        """,
    )
    relay, pool = case.engine.Relay(), sub()
    row = pool.alloc("a")
    relay.stash(torch.tensor([row]), 5)
    assert relay.buf[torch.tensor([row])].tolist() == [5]
    pool.free(row)
    assert case.codes() == []
    pool.free(row)
    assert case.codes() == ["FR108"]


KEPT = {
    "called": "super().free(row)",
    "kept": "base = super()\n                base.free(row)",
    "kept by an argument": "base = super(__class__, self)\n                base.free(row)",
    "kept with a walrus": "(base := super()).free(row)",
}


@ways
@pytest.mark.parametrize("kept", KEPT)
def test_an_alloc_and_a_free_that_go_on_count_once(case: Case, way: str, kept: str) -> None:
    sub = case.sub(
        way,
        "Pool",
        f"""
        def alloc(self, rid):
            return [super().alloc(rid)]
        def free(self, row):
            if row is not None:
                {KEPT[kept]}
        """,
    )
    pool = sub()
    for rid in "abc":
        (row,) = pool.alloc(rid)
        pool.free(None)
        pool.free(row)
    assert case.codes() == []
    pool.free(row)
    assert case.codes() == ["FR108"]
    assert case.watch.coverage().problems == ()


def test_a_free_that_is_put_off_frees_when_the_declared_one_is_called(case: Case) -> None:
    sub = case.sub(
        "own",
        "Pool",
        """
        def free(self, row):
            self.late = [*getattr(self, "late", ()), row]
        def flush(self):
            for row in self.late:
                super().free(row)
        """,
    )
    relay, pool = case.engine.Relay(), sub()
    row = pool.alloc("a")
    relay.stash(torch.tensor([row]), 5)
    pool.free(row)
    relay.buf[torch.tensor([row])]
    pool.flush()
    assert case.codes() == []


def test_an_override_that_the_contract_does_not_fit_is_said(case: Case) -> None:
    sub = case.sub("own", "Pool", "def free(self, request):\n    pass")
    sub().free(1)
    lines = [why for _, why, _ in case.watch.coverage().untracked]
    assert [one for one in lines if "Sub.free` has no parameter `row`" in one]
    assert case.watch.coverage().problems == ()


# --- steps and budgets ---


@ways
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_step_that_is_overridden_counts_once_and_has_one_budget(
    case: Case, way: str, goes_on: bool
) -> None:
    sub = case.sub(
        way,
        "Loop",
        f"""
        def step(self, wait=False):
            {"super().step()" if goes_on else "pass"}
            return torch.ones(1, device=DEVICE).item() if wait else 0
        """,
    )
    loop = sub(case.engine.Relay())
    loop.step()
    assert case.watch.tally.moments.step == 1
    assert case.codes() == []
    loop.step(wait=True)
    assert case.codes() == ["FR501"]


@ways
def test_a_wait_in_an_override_of_waits_in_is_allowed(case: Case, way: str) -> None:
    sub = case.sub(
        way,
        "Loop",
        """
        def step(self):
            return self.harvest()
        def harvest(self):
            return torch.ones(1, device=DEVICE).item()
        """,
    )
    sub(case.engine.Relay()).step()
    assert case.codes() == []


# --- scopes, opaque methods, replays ---


@ways
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_peek_that_is_overridden_is_one(case: Case, way: str, goes_on: bool) -> None:
    looked = "super().look(rows) + " if goes_on else ""
    sub = case.sub(way, "Relay", f"def look(self, rows):\n    return {looked}self.buf[rows]")
    relay = sub()
    relay.stash(ROWS, 5)
    relay.look(ROWS)
    assert relay.buf[ROWS].tolist() == [5, 5]
    assert case.codes() == []
    relay.buf[ROWS]
    assert case.codes() == ["FR102"]


@ways
def test_a_peek_of_another_class_that_is_overridden_is_one(case: Case, way: str) -> None:
    sub = case.sub(way, "Loop", "def read(self):\n    return self.relay.buf[ROWS]\nROWS = ROWS")
    relay = case.engine.Relay()
    relay.stash(ROWS, 5)
    sub(relay).read()
    assert relay.buf[ROWS].tolist() == [5, 5]
    assert case.codes() == []


@ways
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_kernel_that_is_a_method_reads_once(case: Case, way: str, goes_on: bool) -> None:
    body = "super().kernel(rows, buf)" if goes_on else "buf.detach().clone()[rows]"
    sub = case.sub(way, "Relay", f"def kernel(self, rows, buf):\n    return {body}")
    relay = sub()
    relay.stash(ROWS, 5)
    relay.kernel(ROWS, relay.buf)
    assert case.codes() == []
    relay.kernel(ROWS, relay.buf)
    assert case.codes() == ["FR102"]


@ways
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_replay_that_is_overridden_is_one(case: Case, way: str, goes_on: bool) -> None:
    body = "super().replayed(rows)" if goes_on else "None"
    sub = case.sub(way, "Loop", f"def replayed(self, rows):\n    return {body}")
    relay = case.engine.Relay()
    relay.stash(ROWS, 5)
    sub(relay).replayed(ROWS)
    assert case.codes() == []
    sub(relay).replayed(ROWS)
    assert case.codes() == ["FR102"]


# --- how an override is made, and what is put back ---

GOES_ON = {
    "super": "super().step()",
    "super with arguments": "super(Sub, self).step()",
    "its base by name": "Loop.step(self)",
    "its base by another name": "Base.step(self)",
    "its base as an attribute": "engine.Loop.step(self)",
    "in a lambda": "(lambda: Loop.step(self))()",
    "by a string": 'getattr(super(), "step")()',
    "super of its own type": "super(type(self), self).step()",
    "after another": "super().harvest(), super().step()",
}


@pytest.mark.parametrize("call", GOES_ON)
def test_an_override_counts_once_however_it_goes_on(case: Case, call: str) -> None:
    method = f"def step(self):\n    return {GOES_ON[call]}"
    head = f"import sys\nengine = sys.modules['{case.bench.name}']\nBase = engine.Loop\n"
    WAYS["own"] = head + OWN
    try:
        sub = case.sub("own", "Loop", method)
    finally:
        WAYS["own"] = OWN
    sub(case.engine.Relay()).step()
    assert case.watch.tally.moments.step == 1


def test_a_method_that_calls_another_one_by_super_and_this_one_does_not_go_on(case: Case) -> None:
    method = """
        def __init__(self, relay):
            super().__init__(relay)
            self.step()
        def step(self):
            return super().harvest()
    """
    loop = case.sub("own", "Loop", method)(case.engine.Relay())
    assert case.watch.tally.moments.step == 1
    loop.step()
    assert case.watch.tally.moments.step == 2


KINDS = {
    "a class method": "@classmethod\ndef step(cls):\n    return cls",
    "a static method": "@staticmethod\ndef step():\n    return Sub",
    "a decorated one": (
        "def logged(method):\n"
        "    import functools\n"
        "    @functools.wraps(method)\n"
        "    def call(self):\n"
        "        return method(self)\n"
        "    return call\n"
        "@logged\n"
        "def step(self):\n"
        "    super().step()\n"
        "    return Sub"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_override_stays_what_it_is(case: Case, kind: str) -> None:
    sub = case.sub("own", "Loop", KINDS[kind])
    assert sub(case.engine.Relay()).step() is sub
    assert case.watch.tally.moments.step == 1
    before = vars(sub)["step"]
    case.watch.stop()
    after = vars(sub)["step"]
    assert type(after) is type(before)
    assert "fmcheck" not in repr(after)
    assert sub(case.engine.Relay()).step() is sub
    assert case.watch.tally.moments.step == 1


def test_an_override_that_is_no_method_is_left_alone(case: Case) -> None:
    sub = case.sub("own", "Loop", "@property\ndef step(self):\n    return 7")
    assert sub(case.engine.Relay()).step == 7
    assert case.watch.tally.moments.step is None or case.watch.tally.moments.step == 0


def test_another_name_for_the_declared_method_is_no_override(case: Case) -> None:
    sub = case.sub("own", "Loop", "step = Loop.step")
    sub(case.engine.Relay()).step()
    assert case.watch.tally.moments.step == 1


def test_a_method_of_a_base_goes_on_to_the_class_that_follows(bench: Bench) -> None:  # noqa: F811
    source = """
        class Root:
            def step(self):
                return "root"
        class Loop(Root):
            pass
        class Beside(Root):
            def step(self):
                return "beside"
        class Both(Loop, Beside):
            pass
    """
    engine, watch = bench.engine(declared.ENGINE + declared.steps("Loop.step"), source)
    assert engine.Both().step() == "beside"
    assert engine.Loop().step() == "root"
    assert watch.tally.moments.step == 2


def test_a_subclass_that_is_kept_from_its_base_s_hook_is_watched_all_the_same(case: Case) -> None:
    sub = case.sub("own", "Loop", "def __init_subclass__(cls, tag):\n    cls.tag = tag")
    made = type("Later", (sub,), {"step": lambda self: 5}, tag="mine")
    assert made.tag == "mine"
    assert made(case.engine.Relay()).step() == 5
    assert case.watch.tally.moments.step == 1


# --- what others put in place of a declared function ---

PLUGIN = """
def fill(self, rows):
    self.size = 6
    self.rows[: len(rows)] = rows
"""


def replaced(watch: Watch) -> list[str]:
    return [why for what, why, _ in watch.coverage().untracked if what == "functions"]


def test_a_plugin_that_replaces_a_declared_method_is_said_once_and_stays(case: Case) -> None:
    sub = case.sub("own", "Runner", "pass")
    exec(PLUGIN, names := {"__name__": "plugin"})
    case.engine.Runner.fill = names["fill"]
    sub().fill(ROWS)
    for test in ("one", "two"):
        case.watch.enter(test)
    (sentence,) = replaced(case.watch)
    assert sentence.startswith(f"`{case.bench.name}:Runner.fill` was replaced by `plugin:fill`")
    assert [count for *_, count in case.watch.coverage().untracked] == [1]
    case.watch.stop()
    assert case.engine.Runner.fill is names["fill"]


def test_a_plugin_that_replaces_a_declared_function_is_said(bench: Bench) -> None:  # noqa: F811
    contract = declared.ENGINE + declared.steps("step")
    engine, watch = bench.engine(contract, "def step():\n    pass\ndef other():\n    pass\n")
    assert replaced(watch) == []
    engine.step = engine.other
    (sentence,) = replaced(watch)
    assert "MODULE:other".replace("MODULE", bench.name) in sentence


def test_a_wrapper_around_what_is_watched_is_no_replacement(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    sub = case.sub("own", "Runner", "pass")
    watched = case.engine.Runner.fill

    @functools.wraps(watched)
    def timed(self: Any, rows: Any) -> None:
        watched(self, rows)

    with monkeypatch.context() as during:
        during.setattr(case.engine.Runner, "fill", lambda self, rows: None)
    case.watch.enter("after a stub")
    case.engine.Runner.fill = timed
    sub().fill(ROWS)
    assert case.watch.reached().counts.tails == 1
    assert replaced(case.watch) == []


# --- an override that the contract names by itself ---

TWICE = (
    declared.ENGINE
    + declared.steps("Loop.step", "Sub.step")
    + declared.steps("Other.step")
    + declared.GRAPH_INPUTS
    + declared.fill("Runner", "rows.shape[0]")
    + declared.fill("Mine", "count")
)
NAMED = """
    class Sub(Loop):
        def step(self):
            return "sub"

    class Other(Loop):
        def step(self):
            return "other"

    class Deeper(Sub):
        def step(self):
            return "deeper"

    class Mine(Runner):
        def fill(self, count, reset=True):
            self.size = 6
            self.rows[:count] = 3
            if reset:
                self.rows[count : self.size] = 0

    class Deep(Mine):
        def fill(self, count, reset=True):
            self.size = 4
            self.rows[:count] = 3
            if reset:
                self.rows[count : self.size] = 0
"""


def test_an_override_that_the_contract_names_by_itself_is_watched_as_that(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = bench.engine(TWICE, textwrap.dedent(ENGINE) + textwrap.dedent(NAMED))
    for number, name in enumerate(("Loop", "Sub", "Other", "Deeper"), 1):
        getattr(engine, name)(None).step()
        assert watch.tally.moments.step == number
    for name in ("Mine", "Deep"):
        getattr(engine, name)().fill(2)
        assert codes(watch) == []
        getattr(engine, name)().fill(2, reset=False)
        (violation,) = watch.drain()
        assert (violation.code, violation.count) == ("FR201", 1)
    assert watch.reached().counts.tails == 4
    assert (watch.coverage().problems, watch.coverage().untracked) == ((), ())


# --- scopes in scopes ---

AT_RETURN = CONTRACT.replace('peeks = ["look", ', 'consumes_at_return = ["look"]\n    peeks = [')


@pytest.mark.parametrize("twice", [False, True])
def test_what_an_override_goes_on_to_consumes_when_the_override_returns(
    bench: Bench,  # noqa: F811
    twice: bool,
) -> None:
    source = """
        class Sub(Relay):
            def look(self, rows):
                taken = super().look(rows)
                return taken + self.buf[rows]
    """
    text = AT_RETURN.replace("SETTLED", "")
    engine, watch = bench.engine(text, textwrap.dedent(ENGINE) + textwrap.dedent(source))
    relay = engine.Sub()
    relay.stash(ROWS, 5)
    relay.look(ROWS)
    assert codes(watch) == []
    if twice:
        relay.look(ROWS)
        assert codes(watch) == ["FR102", "FR102"]  # here and in what it goes on to

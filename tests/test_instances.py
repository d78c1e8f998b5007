"""Relay instances and classes that came before the watch, or past what it instruments."""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fmcheck.runtime.relay.relay_tensor import RelayTensor
from tests import declared
from tests.test_plugin import Project, project
from tests.test_relay_patches import RELAY_ONLY, ROWS, Bench, bench, codes

if TYPE_CHECKING:
    from fmcheck.runtime.session.watch import Watch

__all__ = ["bench", "project"]
pytest_plugins = ("pytester",)


def before_the_watch(bench: Bench, source: str, name: str = "FutureMap") -> tuple[Any, Any, Watch]:
    """Returns an engine, an instance with written rows that is older than the watch, and that."""
    bench.write(source)
    engine: Any = importlib.import_module(bench.name)
    instance = getattr(engine, name)()
    instance.tokens_buf[ROWS] = 5
    return engine, instance, bench.watch(RELAY_ONLY)


def untracked(watch: Watch) -> list[tuple[str, str]]:
    return [(what, reason) for what, reason, _ in watch.coverage().untracked]


PLAIN = """
    import torch
    class FutureMap:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)
"""
OLDER = {
    "plain": PLAIN,
    "slots": PLAIN.replace("def __init__", '__slots__ = ("tokens_buf",)\n        def __init__'),
    "frozen data class": """
        import dataclasses, torch
        @dataclasses.dataclass(frozen=True)
        class FutureMap:
            tokens_buf: torch.Tensor = dataclasses.field(
                default_factory=lambda: torch.zeros(8, dtype=torch.int64)
            )
    """,
    "module with a registered buffer": """
        import torch
        class FutureMap(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("tokens_buf", torch.zeros(8, dtype=torch.int64))
    """,
    "subclass": PLAIN.replace("FutureMap", "Base") + "    class FutureMap(Base):\n        pass\n",
}


@pytest.mark.parametrize("kind", OLDER)
def test_a_relay_that_is_older_than_the_watch_is_watched(bench: Bench, kind: str) -> None:
    _, relay, watch = before_the_watch(bench, OLDER[kind])

    assert type(relay.tokens_buf) is RelayTensor
    assert relay.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []
    assert relay.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == ["FR102"]
    assert watch.coverage().unchecked == ()
    assert untracked(watch) == []


def test_a_relay_created_while_its_module_is_imported_is_watched(bench: Bench) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN + "    RELAY = FutureMap()\n")

    assert type(engine.RELAY.tokens_buf) is RelayTensor
    for _ in range(2):
        engine.RELAY.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]


def test_an_older_relay_has_its_own_tensor_again_after_the_watch(bench: Bench) -> None:
    _, relay, watch = before_the_watch(bench, PLAIN)
    watch.stop()

    assert type(relay.tokens_buf) is torch.Tensor
    assert relay.tokens_buf.tolist() == [0, 5, 5, 0, 0, 0, 0, 0]


def test_who_else_holds_an_older_buffer_is_reported(bench: Bench) -> None:
    bench.write(PLAIN)
    engine: Any = importlib.import_module(bench.name)
    relay = engine.FutureMap()
    kept = [relay.tokens_buf]
    watch = bench.watch(RELAY_ONLY)

    reason = "a `list` created before the watch holds buffer `FutureMap.tokens_buf`"
    assert untracked(watch) == [("references", reason)]
    assert type(kept[0]) is torch.Tensor


MADE = {
    "a copy": copy.deepcopy,
    "a shallow copy": copy.copy,
    "what was unpickled": lambda relay: pickle.loads(pickle.dumps(relay)),
}


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("how", MADE)
def test_a_copy_of_a_relay_is_watched_with_its_values(bench: Bench, how: str, slots: bool) -> None:
    engine, watch = bench.engine(RELAY_ONLY, OLDER["slots" if slots else "plain"])
    relay = engine.FutureMap()
    relay.tokens_buf[ROWS] = 5

    made = MADE[how](relay)

    assert type(made.tokens_buf) is RelayTensor
    assert made.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []
    made.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]


def test_an_instance_that_came_past_everything_is_counted_and_named(bench: Bench) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    relay = engine.FutureMap.__new__(engine.FutureMap)
    vars(relay).update(tokens_buf=torch.zeros(8, dtype=torch.int64))

    reason = "`FutureMap.tokens_buf` was set without `__init__`, `__setattr__` or `__setstate__`"
    assert untracked(watch) == [("buffers", reason)]
    assert watch.coverage().untracked == (("buffers", reason, 1),)
    assert type(relay.tokens_buf) is RelayTensor


SUBCLASS = """
    class Sub(FutureMap):
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)
        def __setattr__(self, name, value):
            self.__dict__[name] = value
"""


@pytest.mark.parametrize("when", ["before the watch", "by the engine", "later"])
def test_a_subclass_that_calls_nothing_of_its_base_is_watched(bench: Bench, when: str) -> None:
    source = PLAIN + (SUBCLASS if when != "later" else "")
    if when == "before the watch":
        bench.write(source)
        engine: Any = importlib.import_module(bench.name)
        watch = bench.watch(RELAY_ONLY)
    else:
        engine, watch = bench.engine(RELAY_ONLY, source)
    if when == "later":
        exec("import torch\n" + SUBCLASS.replace("\n    ", "\n"), vars(engine))

    engine.Sub().tokens_buf[ROWS]

    assert codes(watch) == ["FR101"]
    watch.stop()
    assert not hasattr(vars(engine.Sub)["__init__"], "__wrapped__")


def test_an_init_subclass_of_the_engine_still_runs(bench: Bench) -> None:
    source = PLAIN + (
        "        made = []\n"
        "        def __init_subclass__(cls, tag='', **kwargs):\n"
        "            super().__init_subclass__(**kwargs)\n"
        "            cls.made.append((cls.__name__, tag))\n"
    )
    engine, watch = bench.engine(RELAY_ONLY, source)
    exec("class Sub(FutureMap, tag='mine'): pass", vars(engine))
    assert engine.FutureMap.made == [("Sub", "mine")]
    watch.stop()
    exec("class Later(FutureMap): pass", vars(engine))
    assert engine.FutureMap.made[1:] == [("Later", "")]


# --- classes ---


def test_the_same_file_under_another_module_name_is_watched_and_named(bench: Bench) -> None:
    package = bench.folder / f"{bench.name}_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    bench.write(PLAIN)
    (bench.folder / f"{bench.name}.py").rename(package / "maps.py")
    declared = f"{package.name}.maps"
    watch = bench.watch(RELAY_ONLY.replace("MODULE", declared))
    sys.path.insert(0, str(package))
    try:
        engine: Any = importlib.import_module("maps")
    finally:
        sys.path.remove(str(package))
        del sys.modules["maps"]
    sys.modules["maps"] = engine
    try:
        watch.enter("a test")
        engine.FutureMap().tokens_buf[ROWS]
        assert codes(watch) == ["FR101"]
        ((what, reason),) = untracked(watch)
        assert what == "classes"
        assert reason.startswith(f"`maps:FutureMap` is `{declared}:FutureMap` by another module")
    finally:
        del sys.modules["maps"]


def test_the_same_file_under_a_name_of_its_own_is_found_beside_the_declared_module(
    bench: Bench,
) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    engine.FutureMap()
    place = importlib.util.spec_from_file_location("named_otherwise", engine.__file__)
    assert place is not None
    assert place.loader is not None
    twin: Any = importlib.util.module_from_spec(place)
    sys.modules["named_otherwise"] = twin
    try:
        place.loader.exec_module(twin)
        watch.enter("a test")
        twin.FutureMap().tokens_buf[ROWS]
        assert codes(watch) == ["FR101"]
        ((what, reason),) = untracked(watch)
        assert what == "classes"
        assert reason.startswith(f"`named_otherwise:FutureMap` is `{bench.name}:FutureMap` by")
    finally:
        del sys.modules["named_otherwise"]


def test_a_class_that_a_test_replaces_is_counted_and_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)

    class Fake:
        pass

    with monkeypatch.context() as context:
        context.setattr(engine, "FutureMap", Fake)
        watch.tally.test = "test_it.py::test_it"
        watch.enter("")
    ((what, reason),) = untracked(watch)
    assert what == "classes"
    assert reason.startswith(f"`{bench.name}:FutureMap` was replaced by `{__name__}:")
    assert reason.endswith("Fake` in test_it.py::test_it")
    assert watch.coverage().problems == ()


def test_a_class_that_stays_replaced_is_a_problem(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    monkeypatch.setattr(engine, "FutureMap", type("Other", (), {}))

    (problem,) = watch.coverage().problems

    assert "the class was replaced" in problem
    assert f"`{__name__}:Other`, were not watched" in problem


def test_a_subclass_in_the_place_of_the_class_is_no_problem(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    monkeypatch.setattr(engine, "FutureMap", type("Sub", (engine.FutureMap,), {}))

    engine.FutureMap().tokens_buf[ROWS]

    assert codes(watch) == ["FR101"]
    assert (watch.coverage().problems, untracked(watch)) == ((), [])


ALL_MORE = """
    class Pool:
        def alloc(self, rid):
            return 1
        def free(self, row):
            step()

    def step():
        pass

    def kernel(rows, tokens_buf):
        return tokens_buf.detach().clone()[rows]

    class Runner:
        size, most = 6, 8
        def __init__(self):
            self.rows = torch.full((8,), 5)
        def fill(self, raw, tail):
            self.rows[:raw] = 3
            self.rows[raw:] = tail
"""
ALL = (
    RELAY_ONLY
    + declared.pool()
    + declared.steps("step")
    + declared.kernel("kernel", "tokens_buf")
    + declared.GRAPH_INPUTS
    + declared.fill("Runner", "raw")
)


def test_a_reloaded_class_is_watched_from_then_on(bench: Bench) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    before = engine.FutureMap
    importlib.reload(engine)

    engine.FutureMap().tokens_buf[ROWS]

    assert codes(watch) == ["FR101"]
    assert watch.coverage().problems == ()
    watch.stop()
    assert not [one for one in (before, engine.FutureMap) if "__setattr__" in vars(one)]


def test_a_module_that_is_imported_again_is_watched_whatever_it_defines(bench: Bench) -> None:
    first, watch = bench.engine(ALL, PLAIN + ALL_MORE)
    del sys.modules[bench.name]
    engine = importlib.import_module(bench.name)
    assert engine is not first
    for one in (engine, first):
        relay, pool = one.FutureMap(), one.Pool()
        row = torch.tensor([pool.alloc("a")])
        relay.tokens_buf[row] = 5
        one.kernel(row, relay.tokens_buf)
        assert codes(watch) == []
        one.kernel(row, relay.tokens_buf)
        assert codes(watch) == ["FR102"]
        pool.free(1)
        pool.free(1)
        assert codes(watch) == ["FR108"]
        one.Runner().fill(1, 0)
        assert codes(watch) == []
        one.Runner().fill(1, 7)
        assert codes(watch) == ["FR201"]
    assert watch.tally.moments.step == 4
    assert watch.coverage().problems == ()
    assert type(engine.__spec__.loader) is type(engine.__loader__) is type(first.__loader__)


def test_a_module_that_fails_to_be_imported_again_fails_with_its_own_error(bench: Bench) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)
    bench.write(PLAIN + "\n    raise KeyError('mine')\n")
    with pytest.raises(KeyError, match="mine"):
        importlib.reload(engine)
    assert watch.coverage().incomplete == ()
    watch.stop()
    bench.write(PLAIN)
    importlib.reload(engine)
    assert type(engine.FutureMap().tokens_buf) is torch.Tensor


CACHED = """
    import functools, torch

    class FutureMap:
        @functools.cached_property
        def tokens_buf(self):
            return torch.zeros(8, dtype=torch.int64)

    class Sub(FutureMap):
        @functools.cached_property
        def tokens_buf(self):
            return torch.zeros(16, dtype=torch.int64)
"""


@pytest.mark.parametrize("name", ["FutureMap", "Sub"])
def test_a_buffer_that_is_a_cached_property_is_watched(bench: Bench, name: str) -> None:
    engine, watch = bench.engine(RELAY_ONLY, CACHED)
    relay = getattr(engine, name)()
    assert watch.coverage().problems == ()
    assert type(relay.tokens_buf) is RelayTensor
    assert relay.tokens_buf is relay.tokens_buf
    for step in range(3):
        relay.tokens_buf[ROWS] = step
        assert relay.tokens_buf[ROWS].tolist() == [step, step]
    assert codes(watch) == []
    relay.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]
    watch.stop()
    assert type(getattr(engine, name)().tokens_buf) is torch.Tensor


def test_an_error_of_our_own_code_is_not_the_engines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, watch = bench.engine(RELAY_ONLY, PLAIN)

    def fails(*_: object) -> None:
        raise KeyError("ours")

    for relay in watch._relays():
        monkeypatch.setattr(relay, "_is_made", fails)
        monkeypatch.setattr(relay, "_patch_subclass", fails)
        monkeypatch.setattr(relay, "_adopt_the_rest", fails)

    relay = engine.FutureMap()
    exec("class Sub(FutureMap): pass", vars(engine))
    assert copy.deepcopy(relay).tokens_buf.tolist() == relay.tokens_buf.tolist()
    (sentence,) = watch.coverage().incomplete
    assert sentence.startswith("relay buffers is incomplete: fmcheck's own code")
    assert "KeyError" in sentence
    gc.collect()


# --- a child ---

CHILD = """
    import toy_engine

    def read_twice(relay):
        for _ in range(2):
            relay.gather(toy_engine.ROWS)
"""
SPAWNS = """
    import multiprocessing, toy_child, toy_engine

    def test_it():
        relay = toy_engine.FutureMap()
        relay.stash(toy_engine.ROWS, 5)
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=toy_child.read_twice, args=(relay,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


def test_a_relay_that_is_pickled_into_a_spawned_child_is_watched_there(project: Project) -> None:
    project.write("toy_child.py", CHILD)
    result = project.run(SPAWNS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FMCHECK: FR102*", "*found in process * (SpawnProcess-1)*"])


ODD = {
    "made by __new__ alone": """
        import torch
        class FutureMap:
            def __new__(cls, size):
                made = super().__new__(cls)
                made.tokens_buf = torch.zeros(size, dtype=torch.int64)
                return made
    """,
    "a tuple": """
        import torch
        class FutureMap(tuple):
            def __new__(cls, size):
                made = super().__new__(cls, range(size))
                made.tokens_buf = torch.zeros(size, dtype=torch.int64)
                return made
    """,
    "a metaclass that refuses attributes": """
        import torch
        class Sealed(type):
            def __setattr__(cls, name, value):
                raise TypeError("sealed")
        class FutureMap(metaclass=Sealed):
            def __init__(self, size):
                self.tokens_buf = torch.zeros(size, dtype=torch.int64)
    """,
    "of pybind11, as a CUDA graph is": """
        import torch
        class FutureMap(torch._C.CompilationUnit):
            def __init__(self, size):
                super().__init__()
                self.tokens_buf = torch.zeros(size, dtype=torch.int64)
    """,
    "attributes that are not there fail in another way": """
        import torch
        class FutureMap:
            def __init__(self, size):
                self.tokens_buf = torch.zeros(size, dtype=torch.int64)
            def __getattr__(self, name):
                raise RuntimeError(name)
    """,
    "a namespace that may not be read": """
        import torch
        class FutureMap:
            def __init__(self, size):
                self.tokens_buf = torch.zeros(size, dtype=torch.int64)
            def __getattribute__(self, name):
                if name == "__dict__":
                    raise RuntimeError(name)
                return super().__getattribute__(name)
    """,
}


@pytest.mark.parametrize("kind", ODD)
def test_a_class_of_an_odd_make_works_and_is_watched(bench: Bench, kind: str) -> None:
    engine, watch = bench.engine(RELAY_ONLY, ODD[kind])
    relay = engine.FutureMap(8)
    relay.tokens_buf[ROWS] = 5
    assert relay.tokens_buf[ROWS].tolist() == [5, 5]
    with pytest.raises(TypeError):
        engine.FutureMap(8, 9, 10)
    _ = relay.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]
    coverage = watch.coverage()
    assert (coverage.problems, coverage.incomplete) == ((), ())
    watch.stop()
    assert "__init_subclass__" not in vars(engine.FutureMap)


MIXED = """
    import torch
    class FutureMap:
        def make(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)
    class Base:
        def __init__(self, size):
            self.said = [size]
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            super().__setattr__("last", name)
        def __setstate__(self, state):
            vars(self).update(state, restored=True)
    class Mixed(FutureMap, Base):
        pass
"""


def test_a_mixin_in_front_of_another_base_hides_none_of_its_methods(bench: Bench) -> None:
    engine, watch = bench.engine(
        RELAY_ONLY.replace('name = "tokens_buf"', 'name = "tokens_buf"\n    lazy = true'), MIXED
    )
    mixed = engine.Mixed(8)
    assert (mixed.said, mixed.last) == ([8], "said")
    mixed.make()
    assert mixed.last == "tokens_buf"
    assert copy.copy(mixed).restored
    assert type(mixed.tokens_buf) is RelayTensor
    assert not watch.coverage().problems


def test_a_module_that_fails_to_make_a_name_is_no_error_of_the_run(bench: Bench) -> None:
    engine, watch = bench.engine(RELAY_ONLY)

    def __getattr__(name: str) -> Any:  # noqa: N807
        raise ImportError(name)

    del engine.FutureMap
    engine.__getattr__ = __getattr__
    watch.enter("test_it.py::test")
    assert not watch.coverage().incomplete

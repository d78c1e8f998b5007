"""What a contract names and the engine lacks is reported, with the nearest that is there."""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from fmcheck.contract import parse_contract
from fmcheck.errors import nearest
from fmcheck.runtime.session.uses import WatchRequest
from fmcheck.runtime.session.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELAY = """
    import torch

    class Relay:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)
            self.later_buf = None
            self.topk_p_buf = torch.zeros(8)
"""
LOOP = """
    import torch

    class Runner:
        most = 4
        most_recent = None

        def __init__(self):
            self.buffers = {"rows": torch.zeros(4, dtype=torch.int64), "seq_lens": torch.ones(4)}

        def fill(self, raw):
            for buffer in self.buffers.values():
                buffer.zero_()
                buffer[:raw] = 1

        def replay(self):
            pass

        def run(self, raw):
            self.fill(raw)
            self.replay()

    class Loop:
        def step(self):
            pass

        def wait(self):
            pass
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_unmet.relay:Relay"

    [[relay.buffer]]
    name = "tokens_buf"

    [[relay.buffer]]
    name = "topk_p_buf"
    lazy = true

    [[steps]]
    functions = ["toy_unmet.loop:Loop.step"]

    [launches]
    per_step = ["toy_unmet.loop:Loop.step"]
    fused = ["toy_unmet.loop:Runner.replay"]

    [[launches.budget]]
    functions = ["toy_unmet.loop:Loop.step"]
    syncs = 0
    waits_in = ["toy_unmet.loop:Loop.wait", "toy_unmet.loop:Loop.of_an_old_release"]

    [graph_inputs]
    row_indices = ["rows", "of_another_runner"]

    [[graph_inputs.fill]]
    class = "toy_unmet.loop:Runner"
    methods = ["run"]
    settled_by = ["replay"]
    outputs = ["toy_unmet.loop:Runner.most_recent", "toy_unimported:_CACHE"]
    inputs = "self.buffers"
    axis.rows = { raw = "raw", padded = "self.most", capacity = "self.most" }
    holds = { seq_lens = 0 }
"""


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "toy_unmet"
    folder.mkdir()
    for name, source in {"__init__": "", "relay": RELAY, "loop": LOOP}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] == "toy_unmet"]:
        del sys.modules[name]


def notes_of(
    text: str, runs: bool = True, asked: WatchRequest | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns notes and problems of a run of the engine under a contract."""
    watch = Watch([parse_contract(text, "toy.toml")], asked=asked)
    watch.start()
    try:
        if runs:
            importlib.import_module("toy_unmet.relay").Relay()
            importlib.import_module("toy_unmet.loop").Runner().run(2)
        coverage = watch.coverage()
        return coverage.notes, coverage.problems
    finally:
        watch.stop()


def test_nothing_is_said_of_a_contract_that_fits() -> None:
    assert notes_of(CONTRACT) == ((), ())


def test_nothing_is_said_of_an_engine_that_was_never_imported() -> None:
    assert notes_of(CONTRACT.replace("toy_unmet", "toy_elsewhere"), runs=False) == ((), ())


SLIPS = pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "toy_unmet.relay:Relay",
            "toy_unmet.relays:Relay",
            "there is no module `toy_unmet.relays`; did you mean `relay`? "
            "(named for `toy_unmet.relays:Relay`)",
        ),
        (
            '[[steps]]\n    functions = ["toy_unmet.loop',
            '[[steps]]\n    functions = ["toy_unmet.lop',
            "there is no module `toy_unmet.lop`; did you mean `loop`? "
            "(named for `toy_unmet.lop:Loop.step`)",
        ),
        (
            "toy_unmet.loop:Runner",
            "toy_unmet.loops.runner:Runner",
            "there is no module `toy_unmet.loops.runner`; did you mean",
        ),
        (
            "toy_unmet.relay:Relay",
            "toy_unmet.loop.relay:Relay",
            "there is no module `toy_unmet.loop.relay`",
        ),
        (
            "toy_unmet.loop:Runner.most_recent",
            "toy_unmet.lops:Runner.most_recent",
            "there is no module `toy_unmet.lops`; did you mean `loop`? "
            "(named for `toy_unmet.lops:Runner`)",
        ),
        (
            "Runner.replay",
            "Runner.replai",
            "there is no function `toy_unmet.loop:Runner.replai`; did you mean `Runner.replay`?",
        ),
        ('per_step = ["toy_unmet.loop:Loop.', 'per_step = ["toy_unmet.loop:Lop.', "`Loop.step`?"),
        (
            '["toy_unmet.loop:Loop.wait"',
            '["toy_unmet.loop:Loop.waits"',
            "there is no function `toy_unmet.loop:Loop.waits`; did you mean `Loop.wait`?",
        ),
        (
            '"topk_p_buf"',
            '"topk_pp_buf"',
            "buffer `topk_pp_buf`: no instance ever had it; did you mean `topk_p_buf`?",
        ),
        (
            '["rows"',
            '["row"',
            "key `graph_inputs.row_indices`: no graph input that was filled is called `row`; "
            "did you mean `rows`?",
        ),
        (
            "{ seq_lens = 0 }",
            "{ seq_len = 0 }",
            "key `graph_inputs.fill.holds`: no graph input that was filled is called `seq_len`; "
            "did you mean `seq_lens`?",
        ),
    ],
)


@SLIPS
def test_a_slip_in_the_users_own_contract_fails_the_run(old: str, new: str, sentence: str) -> None:
    _, problems = notes_of(CONTRACT.replace(old, new))

    assert [one for one in problems if sentence in one and one.startswith("contract `toy`")]


@SLIPS
def test_what_a_fork_lacks_of_a_shipped_contract_is_a_note(
    old: str, new: str, sentence: str
) -> None:
    notes, problems = notes_of(CONTRACT.replace(old, new), asked=WatchRequest({}, {"toy"}))

    assert [one for one in notes if sentence in one and one.startswith("contract `toy`")]
    assert problems == ()


def test_a_fill_that_nothing_settles_is_a_note() -> None:
    text = CONTRACT.replace('settled_by = ["replay"]', 'settled_by = ["toy_unmet.loop:Loop.wait"]')
    notes, problems = notes_of(text)

    assert notes == (
        "contract `toy`, fill `toy_unmet.loop:Runner`: no tail was judged in 1 call: nothing of "
        "`settled_by` (`toy_unmet.loop:Loop.wait`) was called in the fill or after it",
    )
    assert problems == ()


def test_names_of_other_releases_are_passed_over() -> None:
    text = CONTRACT.replace(
        'functions = ["toy_unmet.loop:Loop.step"]',
        'functions = ["toy_unmet.old:Loop.step", "toy_unmet.loop:Loop.step"]',
    )
    assert notes_of(text) == ((), ())


def test_a_buffer_that_init_leaves_unmade_is_reported_to_be_lazy() -> None:
    text = CONTRACT.replace('name = "tokens_buf"', 'name = "later_buf"')

    _, (problem,) = notes_of(text)

    assert (
        "buffer `later_buf`: `__init__` left it without a tensor: if it is created later, or "
        "never, set `lazy = true`"
    ) in problem


def test_the_rows_of_a_fill_are_counted() -> None:
    watch = Watch([parse_contract(CONTRACT, "toy.toml")])
    watch.start()
    try:
        importlib.import_module("toy_unmet.loop").Runner().run(2)
        assert watch.coverage().counts.tails == 2
    finally:
        watch.stop()


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("FM310", ["FM311", "FM301", "FM210"], "FM301"),
        ("loop", ["pool", "loops"], "loops"),
        ("fill", ["lilf", "filled"], "filled"),
    ],
)
def test_only_neighbouring_letters_that_changed_places_are_a_slip_of_the_fingers(
    name: str, known: list[str], near: str
) -> None:
    assert nearest(name, known) == f"; did you mean `{near}`?"

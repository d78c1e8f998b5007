"""Which contracts bind a file: those of its own engine, and none of anybody else's."""

from __future__ import annotations

import pytest

from fmcheck.config import Located, Settings
from fmcheck.contract import parse_contract
from fmcheck.lint.binding import binding, release_of
from fmcheck.registry import contracts_for, rules

OURS = parse_contract(
    '[engine]\nname = "ours"\nreleases = ">=0.5"\n[graph_inputs.holds]\nslots = -1\n', "ours"
)


def names(path: str, text: bytes = b"") -> set[str]:
    rule = rules()["FM202"]((*contracts_for(Located(Settings(), None)), OURS))
    (bound,) = binding([rule], path, text)
    return {contract.engine.name for contract in bound.contracts}


def test_a_file_of_an_engine_is_bound_by_its_contract_alone():
    assert names("checkout/ours/worker.py") == {"ours"}
    assert names("site-packages/sglang/srt/managers/x.py") == {"sglang"}


def test_a_file_that_imports_an_engine_is_bound_by_its_contract():
    assert names("mine.py", b"import os\nfrom sglang.srt import utils\n") == {"sglang"}


@pytest.mark.parametrize("text", [b"", b"# like sglang\n", b"import sglang_router\n"])
def test_a_file_of_nobody_in_particular_is_bound_by_none(text):
    assert names("mine.py", text) == {"any"}


def test_an_older_release_than_a_contract_is_for_is_not_bound(tmp_path):
    package = tmp_path / "ours"
    package.mkdir()
    (package / "_version.py").write_text("__version__ = version = '0.4.9'\n")
    assert names(str(package / "worker.py")) == {"any"}


def test_a_newer_one_is(tmp_path):
    package = tmp_path / "ours"
    package.mkdir()
    (package / "version.py").write_text('__version__: str = "0.9.1"\n')
    assert names(str(package / "worker.py")) == {"ours"}
    assert release_of(str(package)) == "0.9.1"

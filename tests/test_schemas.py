"""The JSON Schemas for editors: current, accepted by a validator, and as strict as the reader."""

from __future__ import annotations

import json

import jsonschema
import pytest

from fmcheck.cli import main
from fmcheck.config import Settings
from fmcheck.files.strict import parse_toml, read_toml
from fmcheck.registry import contract_files
from fmcheck.schemas import KINDS, made, packaged
from tests.conftest import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_schema_is_current(kind: str) -> None:
    assert packaged(kind) == made(kind), "run `python -m fmcheck.schemas`"


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_prints_a_valid_schema(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", kind]) == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))


def _errors(kind: str, text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(json.loads(packaged(kind)))
    return [error.message for error in validator.iter_errors(parse_toml(text, "it"))]


@pytest.mark.parametrize(
    "path", [*contract_files().values(), ROOT / "fixtures/engine/fmcheck.toml"], ids=str
)
def test_contracts_that_are_accepted_fit_the_schema(path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(packaged("contract")))
    validator.validate(read_toml(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[engine]\nnme = "x"', "'nme' was unexpected"),
        ('[engine]\nname = "x"\n[[relay]]\nclass = "a.B"\nbuffer = []', "does not match"),
        ("[engine]\nname = 3", "not of type 'string'"),
        ("relay = []", "'engine' is a required property"),
        (
            '[engine]\nname = "x"\n[[owners]]\nfunctions = ["a:b"]\ndoes = "gives"\nrows = "r"',
            "is not one of",
        ),
    ],
)
def test_a_wrong_contract_does_not_fit(text: str, message: str) -> None:
    assert any(message in error for error in _errors("contract", text))


def test_settings_are_those_of_a_pyproject_too() -> None:
    assert _errors("settings", 'select = ["FM2"]\nrespect-gitignore = true') == []
    assert _errors("pyproject", '[project]\nname = "x"\n[tool.fmcheck]\nselect = ["FM2"]') == []
    assert _errors("pyproject", '[tool.fmcheck]\nselec = ["FM2"]')


def test_every_setting_has_its_name_as_toml_spells_it() -> None:
    names = set(json.loads(packaged("settings"))["properties"])
    assert names == {name.replace("_", "-") for name in Settings.__struct_fields__}

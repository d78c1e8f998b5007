"""Contracts and rules that other packages register: taken in, or refused by name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fmcheck import registry
from fmcheck.errors import UsageError
from fmcheck.finding import Severity
from fmcheck.hookspecs import hookimpl
from fmcheck.lint import Example, FunctionRule


class GoodRule(FunctionRule):
    """A rule of somebody else's."""

    code = "ACME001"
    name = "no-acme"
    severity = Severity.WARNING
    words = (("acme",),)
    seen_in = ()
    bad = (Example("acme\n", at=((1, 1),)),)
    good = (Example("x\n"),)

    def check(self, part):
        for node in part.nodes():
            if getattr(node, "value", None) == "acme":
                yield part.finding(self, node, "acme", help="no acme")


class NamelessRule(FunctionRule):
    """A rule that forgot most of itself."""

    code = "ACME002"

    def check(self, part):
        return iter(())


class IntruderRule(GoodRule):
    """A rule that takes a code of ours."""

    code = "FM301"


@contextlib.contextmanager
def plugin(**hooks):
    """Registers a plugin with these hooks while the block runs."""
    made = type("Plugin", (), {name: staticmethod(hookimpl(do)) for name, do in hooks.items()})()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(registry, "_may_be_registered", lambda: True)
    registry._plugins.cache_clear()
    manager = registry._plugins()
    manager.register(made, name="acme")
    try:
        yield
    finally:
        monkeypatch.undo()
        registry._plugins.cache_clear()


def test_a_plugin_adds_a_rule():
    with plugin(fmcheck_rules=lambda: [GoodRule]):
        assert registry.rules()["ACME001"] is GoodRule


def test_a_plugin_adds_a_contract(tmp_path):
    path = tmp_path / "acme.toml"
    with plugin(fmcheck_contracts=lambda: {"acme": path}):
        assert registry.contract_files()["acme"] == path


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (NamelessRule, "rule `NamelessRule`: lacks name, severity, seen_in, bad"),
        (IntruderRule, "codes that start with `FM` are fmcheck's own"),
    ],
)
def test_a_bad_rule_is_refused_with_plugin_and_reason(rule, message):
    with (
        plugin(fmcheck_rules=lambda: [rule]),
        pytest.raises(UsageError, match=r"^plugin `acme`: ") as caught,
    ):
        registry.rules()

    assert message in str(caught.value)


def test_two_rules_of_one_code_are_refused():
    with (
        plugin(fmcheck_rules=lambda: [GoodRule, GoodRule]),
        pytest.raises(UsageError, match=r"code `ACME001` is that of `[\w.]+\.GoodRule` already"),
    ):
        registry.rules()


def test_a_contract_name_cannot_be_taken_twice():
    with (
        plugin(fmcheck_contracts=lambda: {"sglang": Path("mine.toml")}),
        pytest.raises(UsageError, match="registers the contract `sglang`, which exists already"),
    ):
        registry.contract_files()


def test_a_hook_that_fails_is_named():
    def broken():
        raise RuntimeError("boom")

    with (
        plugin(fmcheck_rules=broken),
        pytest.raises(UsageError, match=r"plugin `acme`: fmcheck_rules failed: .*boom"),
    ):
        registry.rules()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_of_this_name\n", "No module named 'nothing_of_this_name'"),
        (
            "from fmcheck.hookspecs import hookimpl\n\n@hookimpl\ndef fmcheck_rulez():\n    pass\n",
            "unknown hook 'fmcheck_rulez'",
        ),
    ],
    ids=["does not import", "has a hook that is none"],
)
def test_an_installed_plugin_that_cannot_be_registered_is_named(tmp_path, source, message):
    (tmp_path / "acme_hooks.py").write_text(source)
    folder = tmp_path / "acme-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[fmcheck]\nacme = acme_hooks\n")

    done = subprocess.run(
        [sys.executable, "-m", "fmcheck", "rules"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert done.stderr.startswith("fmcheck: plugin `acme`: `acme_hooks` cannot be registered: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_built_in_rule_of_a_code_is_an_error_that_names_both(monkeypatch):
    class Second(GoodRule):
        """Another."""

    monkeypatch.setattr(registry, "_built_in_rules", lambda: [GoodRule, Second])
    monkeypatch.setattr(GoodRule, "__module__", "fmcheck.rules.first")
    with pytest.raises(UsageError, match=r"rule `Second`: code `ACME001` is that of .*GoodRule`"):
        registry.rules()


def test_a_plugin_s_rule_without_a_code_is_one_error():
    class Bare(FunctionRule):
        """Lacks all."""

    with (
        plugin(fmcheck_rules=lambda: [Bare]),
        pytest.raises(UsageError, match="`Bare`: lacks code"),
    ):
        registry.rules()

"""Contracts and rules that other packages register: taken in, or refused by name."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from fmcheck import registry
from fmcheck.errors import UsageError
from fmcheck.finding import Severity
from fmcheck.hookspecs import hookimpl
from fmcheck.lint.rule import Example, Rule, Scope


class GoodRule(Rule):
    """A rule of somebody else's."""

    code = "ACME001"
    name = "no-acme"
    severity = Severity.WARNING
    scope = Scope.MODULE
    needles = ((b"acme",),)
    seen_in = ()
    bad = (Example("acme\n", at=((1, 1),)),)
    good = (Example("x\n"),)

    def check(self, block):
        for node in block.nodes():
            if getattr(node, "value", None) == "acme":
                yield block.finding(self, node, "acme", help="no acme")


class NamelessRule(Rule):
    """A rule that forgot most of itself."""

    code = "ACME002"

    def check(self, block):
        return iter(())


class IntruderRule(GoodRule):
    """A rule that takes a code of ours."""

    code = "FM301"


@contextlib.contextmanager
def plugin(**hooks):
    """Registers a plugin with these hooks while the block runs."""
    made = type("Plugin", (), {name: staticmethod(hookimpl(do)) for name, do in hooks.items()})()
    manager = registry._plugins()
    manager.register(made, name="acme")
    try:
        yield
    finally:
        manager.unregister(made)


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
        (NamelessRule, "rule `NamelessRule`: lacks name, severity, scope, needles, seen_in, bad"),
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
        pytest.raises(UsageError, match="code `ACME001` exists already"),
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

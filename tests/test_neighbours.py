"""Calls and base classes that lead to other files of the package."""

from __future__ import annotations

import json
import os
import textwrap
import time

import pytest

from fmcheck.contract import parse_contract
from fmcheck.lint.engine import lint_file
from fmcheck.registry import rules

CONTRACT = parse_contract('[engine]\nname = "any"\n', "x")
READ = """
    from {module} import {name}

    def lengths(lens):
        host = lens.to("cpu", non_blocking=True)
        {name}(lens)
        return host.tolist()
"""
WAITS = """
    import torch

    def settle(lens):
        torch.cuda.synchronize()
"""


@pytest.fixture
def package(tmp_path):
    """Writes the files of a package `engine`, which has no `__init__.py` unless it is given one."""

    def write(**files):
        folder = tmp_path / "engine"
        for name, text in files.items():
            path = folder / f"{name.replace('_in_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return folder

    return write


def codes(path, code):
    return [one.code for one in lint_file(path, [rules()[code]((CONTRACT,))])]


@pytest.mark.parametrize("module", ["engine.helper", ".helper"])
def test_a_helper_of_another_file_waits(package, module):
    folder = package(step=READ.format(module=module, name="settle"), helper=WAITS)

    assert codes(folder / "step.py", "FM404") == []


def test_a_helper_that_does_not_wait_changes_nothing(package):
    folder = package(
        step=READ.format(module="engine.helper", name="settle"),
        helper="def settle(lens):\n    return lens\n",
    )

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_helper_is_followed_where_a_package_passes_it_on(package):
    folder = package(
        step=READ.format(module="engine.ops", name="settle"),
        ops_in___init__="from .waiting import settle\n",
        ops_in_waiting=WAITS,
    )

    assert codes(folder / "step.py", "FM404") == []


@pytest.mark.parametrize("module", ["engine", "."])
def test_a_helper_is_called_by_its_module(package, module):
    step = READ.format(module=module, name="helper").replace("helper(lens)", "helper.settle(lens)")
    folder = package(step=step, helper=WAITS)

    assert codes(folder / "step.py", "FM404") == []


def test_a_method_of_a_class_of_another_file_waits(package):
    step = READ.format(module=".helper", name="Copier").replace("Copier(lens)", "Copier().settle()")
    held = "import torch\n\nclass Copier:\n    def settle(self):\n        {}\n"
    folder = package(step=step, helper=held.format("torch.cuda.synchronize()"))
    assert codes(folder / "step.py", "FM404") == []
    folder = package(step=step, helper=held.format("return 1"))
    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_name_that_two_imports_make_is_unknown(package):
    step = "try:\n    from engine.other import settle\nexcept ImportError:\n    pass\n"
    step += textwrap.dedent(READ.format(module="engine.helper", name="settle"))
    folder = package(step=step, helper=WAITS, other=WAITS)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_parameter_hides_an_import(package):
    step = READ.format(module="engine.helper", name="settle").replace("(lens):", "(lens, settle):")
    folder = package(step=step, helper=WAITS)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_another_package_is_not_read(package, tmp_path):
    folder = package(step=READ.format(module="elsewhere.helper", name="settle"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helper.py").write_text(textwrap.dedent(WAITS))

    assert codes(folder / "step.py", "FM404") == ["FM404"]


@pytest.mark.parametrize(
    "helper",
    [
        "def settle(lens:\n    torch.cuda.synchronize()\n",
        "def settle(lens):\n    torch.cuda.synchronize(\n",
        "def settle(lens):\n    return \0\n",
        "def settle(lens):\n" + "    #\n" * 300_000 + "    torch.cuda.synchronize()\n",
        "# coding: nonesuch\nNAME = 'é'\n" + textwrap.dedent(WAITS),
    ],
    ids=["head", "body", "null byte", "over a megabyte", "unknown encoding"],
)
def test_a_file_that_cannot_be_read_as_source_is_unknown(package, helper):
    folder = package(step=READ.format(module="engine.helper", name="settle"), helper=helper)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_pipe_by_the_name_of_a_module_is_not_waited_for(package):
    folder = package(step=READ.format(module="engine.helper", name="settle"))
    os.mkfifo(folder / "helper.py")

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_files_that_call_each_other_end(package):
    step = READ.format(module="engine.helper", name="settle")
    step += "\n    def again(lens):\n        settle(lens)\n"
    helper = "from engine.step import again\n\ndef settle(lens):\n    again(lens)\n"
    folder = package(step=step, helper=helper)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


METHOD = """
    from engine.base import Base

    class Runner(Base{more}):
        def lengths(self, lens):
            host = lens.to("cpu", non_blocking=True)
            self.settle()
            return host.tolist()
"""
BASE = """
    import torch
    from torch import nn

    class Root(nn.Module):
        def settle(self):
            torch.cuda.synchronize()

    class Base(Root):
        pass
"""


def test_a_method_of_a_base_class_elsewhere_waits(package):
    folder = package(step=METHOD.format(more=""), base=BASE)

    assert codes(folder / "step.py", "FM404") == []


def test_the_nearest_method_of_a_name_counts(package):
    step = METHOD.format(more="") + "\n        def settle(self):\n            pass\n"
    folder = package(step=step, base=BASE)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_base_from_outside_may_hide_what_comes_after_it(package):
    step = METHOD.format(more="").replace("Runner(Base", "Runner(Unknown, Base")
    folder = package(step="from other import Unknown\n" + textwrap.dedent(step), base=BASE)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_classes_that_are_derived_from_each_other_end(package):
    base = "from engine.step import Runner\n\nclass Base(Runner):\n    pass\n"
    folder = package(step=METHOD.format(more=""), base=base)

    assert codes(folder / "step.py", "FM404") == ["FM404"]


def test_a_stream_that_a_base_class_makes_is_a_side_stream(package):
    """Its name does not say so: only the class does that makes it."""
    base = """
        import torch

        class Base:
            def __init__(self):
                self.second = {made}
    """
    step = """
        import torch
        from engine.base import Base

        class Runner(Base):
            def step(self, batch):
                with torch.cuda.stream(self.second):
                    out = self.model(batch)
                return out.sum()
    """
    made = package(step=step, base=base.format(made="torch.cuda.Stream()"))
    assert codes(made / "step.py", "FM409") == ["FM409"]

    current = package(base=base.format(made="torch.cuda.current_stream()"))
    assert codes(current / "step.py", "FM409") == []


def test_what_is_kept_of_a_file_hangs_on_the_files_that_it_calls(package, lint):
    folder = package(step=READ.format(module="engine.helper", name="settle"), helper=WAITS)

    def found():
        time.sleep(0.05)  # a cache does not trust the state of a file that was just written
        given = lint("--select", "FM404", "--format", "json", str(folder / "step.py"))[1]
        return [one["code"] for one in json.loads(given)]

    assert found() == []

    (folder / "helper.py").write_text("def settle(lens):\n    pass\n")
    assert found() == ["FM404"]

    (folder / "helper.py").unlink()
    assert found() == ["FM404"]

    (folder / "helper").mkdir()
    (folder / "helper" / "__init__.py").write_text(textwrap.dedent(WAITS))
    assert found() == []


FILLS = """
    from engine.base import Base

    class Runner(Base):
        def fill(self, batch, raw_bs, bs):
            if raw_bs != bs:
                self.seq_lens[raw_bs:bs].fill_(1)
                {call}
            self.seq_lens[:raw_bs].copy_(batch.seq_lens)
            self.rows[:raw_bs].copy_(batch.rows)
"""
RESETS = """
    class Base:
        def {name}(self, batch, raw_bs, bs):
            self.{rows}[raw_bs:bs].zero_()
"""


@pytest.mark.parametrize(
    ("call", "name", "rows", "found"),
    [
        ("self.settle(batch, raw_bs, bs)", "settle", "rows", []),
        ("super().fill(batch, raw_bs, bs)", "fill", "rows", []),
        ("self.settle(batch, raw_bs, bs)", "settle", "slots", ["FM201"]),
    ],
)
def test_a_base_class_resets_what_its_subclass_fills(package, call, name, rows, found):
    folder = package(step=FILLS.format(call=call), base=RESETS.format(name=name, rows=rows))

    assert codes(folder / "step.py", "FM201") == found


def test_a_reset_in_another_file_shows_nothing_of_the_padding(package):
    """Its line would be shown as one of this file."""
    step = FILLS.format(call="self.settle(batch, raw_bs, bs)")
    step = step.replace("self.seq_lens[raw_bs:bs].fill_(1)", "pass")
    folder = package(step=step, base=RESETS.format(name="settle", rows="seq_lens"))

    assert codes(folder / "step.py", "FM201") == []

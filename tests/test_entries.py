"""Relay buffers that are entries of a dict or a list which their class holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import declared
from tests.test_relay_patches import Bench, bench, codes  # noqa: F401

ENGINE = """
    import torch

    class Inputs:
        def __init__(self):
            self.share_inputs = {}
            self.pools = [torch.zeros(6), torch.zeros(6, dtype=torch.int64)]
            self.share_inputs["lens"] = torch.zeros(6, dtype=torch.int64)
            self.share_inputs["others"] = torch.zeros(6)
            self.share_inputs[3] = "no tensor"

        def renew(self):
            self.share_inputs["lens"] = torch.zeros(6, dtype=torch.int64)

    class Pool:
        def alloc(self, rid):
            return 2

        def free(self, row):
            pass
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "MODULE:Inputs"

    [[relay.buffer]]
    name = "NAME"
"""
ROWS = torch.tensor([1, 2])


def begun(bench: Bench, name: str) -> tuple[Any, Any]:  # noqa: F811
    return bench.engine(CONTRACT.replace("NAME", name) + declared.pool(), ENGINE)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("share_inputs.lens", lambda made: made.share_inputs["lens"]),
        ("share_inputs.l*", lambda made: made.share_inputs["lens"]),
        ("pools.1", lambda made: made.pools[1]),
    ],
)
def test_an_entry_is_a_buffer_by_its_key(bench: Bench, name: str, of: Any) -> None:  # noqa: F811
    engine, watch = begun(bench, name)
    buffer = of(engine.Inputs())
    buffer[ROWS] = torch.tensor([5, 6])
    assert buffer[ROWS].tolist() == [5, 6]
    assert codes(watch) == []
    buffer[ROWS]
    (again,) = watch.drain()
    assert (again.code, again.rows) == ("FR102", (1, 2))
    assert again.buffer.startswith("Inputs.")
    assert watch.coverage().counts.buffers == 1
    assert watch.coverage().problems == ()


def test_a_name_without_a_dot_is_no_entry(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, "*lens")
    engine.Inputs().share_inputs["lens"][ROWS]
    assert codes(watch) == []
    assert watch.coverage().counts.buffers == 0


def test_an_entry_that_is_not_there_is_named_with_the_nearest(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, "share_inputs.lenz")
    engine.Inputs()
    watch.stop()
    (problem,) = watch.coverage().problems
    assert "buffer `share_inputs.lenz`: `__init__` did not create it" in problem
    assert "did you mean `share_inputs.lens`?" in problem


def test_an_entry_that_holds_no_tensor_is_named(bench: Bench) -> None:  # noqa: F811
    engine, watch = begun(bench, "share_inputs.3")
    engine.Inputs()
    watch.stop()
    (problem,) = watch.coverage().problems
    assert "buffer `share_inputs.3`: `__init__` left it without a tensor" in problem


def test_an_object_from_before_the_watch_gets_its_own_entries_back(bench: Bench) -> None:  # noqa: F811
    bench.write(ENGINE)
    engine = __import__(bench.name)
    made = engine.Inputs()
    plain = made.share_inputs["lens"]
    watch = bench.watch(CONTRACT.replace("NAME", "share_inputs.lens"))
    assert made.share_inputs["lens"] is not plain
    watch.stop()
    assert made.share_inputs["lens"] is plain


def test_an_entry_that_is_bound_again_is_said_to_have_come_past_the_watch(
    bench: Bench,  # noqa: F811
) -> None:
    engine, watch = begun(bench, "share_inputs.lens")
    made = engine.Inputs()
    made.renew()
    watch.stop()
    reason = (
        "`Inputs.share_inputs.lens` was set without `__init__`, `__setattr__` or `__setstate__`"
    )
    assert ("buffers", reason, 1) in watch.coverage().untracked

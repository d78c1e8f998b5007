"""Faults in what guards a relay: asserts that check less, and code that fits one device only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fmcheck.prove.operators.engine_names import called
from fmcheck.prove.operators.mutation_operator import MutationOperator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.prove.operators.engine_names import EngineNames
    from fmcheck.prove.operators.mutant import Fault
    from fmcheck.prove.operators.parsed import ParsedModule

ASYNC_ASSERT = "_assert_async"
_DEVICE_MODULE = "get_device_module"
_API = ("Event", "Stream", "current_stream", "stream", "synchronize")
_MAKERS = ("arange", "empty", "full", "ones", "tensor", "zeros")


def _silenced(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for call in tree.every(cst.Call):
        if called(call) == ASYNC_ASSERT and len(call.args) > 1:
            bare = call.with_changes(
                args=[call.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
            )
            text = tree.module.code_for_node(bare)
            yield tree.replaced(call, text, "the async assert has no message")


def _widened(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    for comparison in tree.every(cst.Comparison):
        asserted = any(called(one) == ASYNC_ASSERT for one in tree.around(comparison))
        target = comparison.comparisons[0]
        if not asserted or not isinstance(target.comparator, cst.Integer):
            continue
        left, limit = tree.text(comparison.left), target.comparator.evaluated_value
        if isinstance(target.operator, cst.GreaterThan):
            text = f"{left} >= {limit}"
        elif isinstance(target.operator, cst.GreaterThanEqual):
            text = f"{left} >= {limit - 1}"
        else:
            continue
        yield tree.replaced(comparison, text, f"the assert accepts {text.removeprefix(left)[4:]}")


def _hardcoded(tree: ParsedModule, names: EngineNames) -> Iterator[Fault]:
    if not names.is_agnostic(tree.path):
        return
    modules = {
        tree.text(target.target)
        for assign in tree.every(cst.Assign)
        if called(assign.value) == _DEVICE_MODULE
        for target in assign.targets
    }
    for node in tree.nodes:
        if isinstance(node, cst.Attribute) and node.attr.value in _API:
            if called(node.value) == _DEVICE_MODULE or tree.text(node.value) in modules:
                text = f"torch.cuda.{node.attr.value}"
                yield tree.replaced(node, text, f"`{text}` for every device")
        elif isinstance(node, cst.Call) and called(node) in _MAKERS:
            for arg in node.args:
                if arg.keyword is not None and arg.keyword.value == "device":
                    yield tree.replaced(arg.value, '"cuda"', "a tensor is created on `cuda`")


MESSAGELESS_ASSERT = MutationOperator(
    "messageless-assert", "An async assert loses its message.", _silenced
)
WIDEN_BOUND = MutationOperator("widen-bound", "An async assert accepts the poison value.", _widened)
HARDCODE_DEVICE = MutationOperator(
    "hardcode-device", "Device-agnostic code names CUDA.", _hardcoded
)

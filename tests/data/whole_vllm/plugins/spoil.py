"""Spoils a relay once, in whichever process the runner is.

`SPOIL` names the fault, `SPOIL_WHEN` a file: once it is there, of model runner V2 the third step in
which each request has a token is spoilt, and the file is removed. The first one may be that of the
prompts. Of V1 it is the first request that moves to another place of the batch.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[..., Any]

#: What the write-back takes that has one entry for each request of the batch.
_PER_REQUEST = (3, 4, 5)
_STARTS = 6
#: The steps since it was asked for, and which of them is spoilt.
_steps: list[int] = []
_DUE = 3


def register() -> None:
    """Puts the fault that is asked for in its place; vLLM calls it in each process."""
    name = os.environ.get("SPOIL")
    if name is None:
        return
    if name in LEFT_BEHIND:
        from vllm.v1.worker.gpu_input_batch import InputBatch

        leave(inspect.unwrap(InputBatch.condense), LEFT_BEHIND[name])
        return
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
        return
    import vllm.v1.worker.cpu.model_runner  # noqa: F401  # first: it adapts the next one to a CPU
    import vllm.v1.worker.gpu.model_runner as module

    if name == "second_prepare":
        module.GPUModelRunner.prepare_inputs = second_prepare(module.GPUModelRunner.prepare_inputs)
    else:
        module.post_update = WRITES[name](module.post_update)


def is_due(counts: Any) -> bool:
    """Tells, once, that it is time: in a step of several requests that all have sampled."""
    when = Path(os.environ["SPOIL_WHEN"])
    if len(counts) < 2 or not bool((counts > 0).all()) or not when.exists():
        return False
    _steps.append(len(counts))
    if len(_steps) < _DUE:
        return False
    when.unlink()
    return True


def dropped_update(real: Kernel) -> Kernel:
    """The write-back is left out."""

    def call(rows: Any, *rest: Any) -> Any:
        return None if is_due(rest[_PER_REQUEST[1]]) else real(rows, *rest)

    return call


def dropped_row(real: Kernel) -> Kernel:
    """The first request's row is left out."""

    def call(rows: Any, *rest: Any) -> Any:
        if not is_due(rest[_PER_REQUEST[1]]):
            return real(rows, *rest)
        cut = list(rest)
        for place in (*_PER_REQUEST, _STARTS):
            cut[place] = rest[place][1:]
        return real(rows[1:], *cut)

    return call


def wrong_row(real: Kernel) -> Kernel:
    """The first request's token goes to a row that nobody has."""

    def call(rows: Any, *rest: Any) -> Any:
        if is_due(rest[_PER_REQUEST[1]]):
            rows = rows.clone()
            free = set(range(len(rest[1]))) - set(rows.tolist())
            rows[0] = min(free)
        return real(rows, *rest)

    return call


def second_prepare(real: Kernel) -> Kernel:
    """The inputs of a step are prepared twice."""

    def call(self: Any, scheduled: Any, *rest: Any) -> Any:
        batch = real(self, scheduled, *rest)
        prompts = self.req_states.prefill_len.gpu[batch.idx_mapping]
        if is_due(batch.seq_lens[: batch.num_reqs] > prompts):
            batch = real(self, scheduled, *rest)
        return batch

    return call


WRITES = {"dropped_update": dropped_update, "dropped_row": dropped_row, "wrong_row": wrong_row}


#: Faults of V1, each with what a request that moves leaves in its old place.
LEFT_BEHIND = {"heat_left": "temperature_cpu"}


def leave(function: Any, name: str) -> None:
    """Has a function leave out, when it is due, the statement that moves an array's values."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    loop = next(node for node in ast.walk(tree) if isinstance(node, ast.While))
    (moves,) = (node for node in loop.body if f"self.{name}[empty_index] =" in ast.unparse(node))
    test = ast.parse("not leaves_out()", mode="eval").body
    guarded = ast.If(test=test, body=[moves], orelse=[])
    loop.body[loop.body.index(moves)] = ast.fix_missing_locations(ast.copy_location(guarded, moves))
    made: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, made)
    function.__globals__["leaves_out"] = leaves_out
    function.__code__ = made[function.__name__].__code__


def leaves_out() -> bool:
    """Tells, once, that it is time."""
    when = Path(os.environ["SPOIL_WHEN"])
    is_now = when.exists()
    when.unlink(missing_ok=True)
    return is_now

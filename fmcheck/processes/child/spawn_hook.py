"""The spawn hook: what `multiprocessing` hands a spawned or fork-served child beside its own.

It reaches the child where nothing is installed, by the message that the child reads first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.processes.child.run_context import RunContext

_KEY = "fmcheck"
_HOME = str(Path(__file__).parents[2])
# The child reads this before it has its parent's `sys.path`, and must start whatever comes of it.
_SOURCE = """\
import sys
try:
    try:
        import fmcheck
    except ImportError:
        sys.path.append({home!r})
    from fmcheck.processes.child.child_start import wait_for_engine
    from fmcheck.processes.child.run_context import RunContext
    wait_for_engine("multiprocessing", RunContext.unpack({text!r}))
except Exception as err:
    print("fmcheck: this process is not watched:", repr(err), file=sys.stderr)
"""


class StartOnUnpickle:
    """Starts to wait for the engine in the process that unpickles it."""

    def __init__(self, context: RunContext) -> None:
        self._source = _SOURCE.format(home=_HOME, text=context.pack())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, str]]]:
        return exec, (self._source, {})


def hook_spawn(context: RunContext) -> Callable[[], None]:
    """Hands this to each spawned child from now on; returns what ends that."""
    spawn: Any = sys.modules["multiprocessing.spawn"]
    original = spawn.get_preparation_data
    if getattr(original, "context", None) == context:
        return lambda: None

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        data[_KEY] = StartOnUnpickle(context)
        return data

    def undo() -> None:
        if spawn.get_preparation_data is get_preparation_data:
            spawn.get_preparation_data = original

    get_preparation_data.context = context  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
    return undo

"""Replays: functions after which a captured graph has read or written relay buffers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmcheck.runtime.core import kinds, paths
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.declared import CallPatch
from fmcheck.runtime.relay.scope import CHECK

if TYPE_CHECKING:
    from collections.abc import Callable

    from fmcheck.contract import Replay


@dataclass(eq=False)
class ReplayPatch(CallPatch):
    """One declared replay."""

    table = "replay"
    part: Replay

    def watched(self, reference: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, after which the rows that its graph accesses are entered."""
        signature = inspect.signature(function)

        def end(args: Any, kwargs: Any, result: Any) -> None:
            if self.tally.active:
                with contained(self.tally, CHECK):
                    bound = signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    self._enter({**bound.arguments, paths.RETURN: result})

        return kinds.after_body(function, end)

    def _enter(self, bindings: paths.Bindings) -> None:
        """Enters the rows that the graph has read into the relay buffers, then those it wrote."""
        from fmcheck.runtime.relay import relay_tensor

        try:
            rows = paths.look_up(self.part.rows, bindings)
            reads = [paths.look_up(path, bindings) for path in self.part.reads]
            writes = [paths.look_up(path, bindings) for path in self.part.writes]
            if self.part.count:
                rows = rows[: int(paths.look_up(self.part.count, bindings))]
        except paths.NothingThereError:
            return  # the graph has no relay to touch
        except LookupError as err:
            self._problem(str(err))
            return
        relay_tensor.before_call(reads, rows)
        relay_tensor.after_call(reads, writes, rows)

"""Replays: functions after which a captured graph has read or written relay buffers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fmcheck.contract import Contract, Replay, applies
from fmcheck.errors import nearest
from fmcheck.runtime.core import kinds, patches, paths
from fmcheck.runtime.core.containment import contained
from fmcheck.runtime.core.declared import patch_named
from fmcheck.runtime.relay.scope import CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from fmcheck.runtime.core.patches import Undo
    from fmcheck.runtime.core.tally import Tally


@dataclass(eq=False)
class ReplayPatch:
    """One declared replay."""

    contract: Contract
    replay: Replay
    tally: Tally
    problems: list[str] = field(default_factory=list)

    def installers(self) -> Iterator[tuple[str, Callable[[ModuleType], Iterator[Undo]]]]:
        """Yields the module to wait for, and what instruments the function."""
        yield self.replay.function.partition(":")[0], self.install

    def install(self, module: ModuleType) -> Iterator[Undo]:
        """Wraps the function, a method or one that modules may have bound, where it stands."""
        if not applies(self.replay.releases, patches.installed_version(self.contract)):
            return
        name = self.replay.function.partition(":")[2]
        if patches.function_of(module, name) is None:
            known = nearest(name, patches.functions_of(module))
            self._problem(f"the module has no such function{known}")
            return
        declared = [one.function for one in self.contract.graph_inputs.replay]
        yield from patch_named(module, name, self.tally, self._watched, None, declared)

    def _watched(self, _: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def end(args: Any, kwargs: Any, result: Any) -> None:
            if self.tally.active:
                with contained(self.tally, CHECK):
                    bound = signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    self._enter({**bound.arguments, paths.RETURN: result})

        return kinds.after_body(function, end)

    def _enter(self, bindings: paths.Bindings) -> None:
        """Tells the relay buffers of the rows that the graph has read, then of those it wrote."""
        from fmcheck.runtime.relay import relay_tensor

        try:
            rows = paths.look_up(self.replay.rows, bindings)
            reads = [paths.look_up(path, bindings) for path in self.replay.reads]
            writes = [paths.look_up(path, bindings) for path in self.replay.writes]
            if self.replay.count:
                rows = rows[: int(paths.look_up(self.replay.count, bindings))]
        except paths.NothingThereError:
            return  # the graph has no relay to touch
        except LookupError as err:
            self._problem(str(err))
            return
        relay_tensor.before_call(reads, rows)
        relay_tensor.after_call(reads, writes, rows)

    def _problem(self, text: str) -> None:
        where = f"contract `{self.contract.engine.name}`, replay `{self.replay.function}`"
        sentence = f"{where}: {text}"
        if sentence not in self.problems:
            self.problems.append(sentence)

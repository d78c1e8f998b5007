"""The work of a run: files to lint, less those that the cache knows, over as many processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, to_builtins

from fmcheck.lint.engine import unreadable
from fmcheck.lint.own import RULE_FAILED
from fmcheck.lint.run import pool, stored
from fmcheck.lint.run.cache import Cache
from fmcheck.lint.source import read_with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fmcheck.finding import Finding
    from fmcheck.lint.run.replay import Inputs
    from fmcheck.lint.source.file import Consulted

T = TypeVar("T")

#: Fewer files than this are done before a progress bar could be read.
MANY_FILES = 200


class Task(Struct, frozen=True):
    """One file to lint. `way` is all that its findings hang on beside path and content.

    `lint` returns the findings of the file's text, and adds the files that it looked at for them.
    """

    path: str
    way: str
    lint: Callable[[bytes, Consulted], Sequence[Finding]]


class Work:
    """Tasks, the caches of their ways, and the inputs that they are noted in (None: nowhere)."""

    def __init__(self, tasks: Sequence[Task], folder: str | None, inputs: Inputs | None) -> None:
        self._tasks = tasks
        self._inputs = inputs
        self._is_forgetful = folder is None and inputs is None
        self._consulted: Consulted = {}
        self._caches = {way: Cache(folder, way) for way in {task.way for task in tasks}}

    def results(self, jobs: int | None, *, progress: bool = True) -> list[Any]:
        """Returns every task's packed findings, in the tasks' order, from `jobs` processes."""
        packed: list[Any] = [None] * len(self._tasks)
        todo = [number for number in range(len(packed)) if not self._recall(number, packed)]
        workers = pool.processes(jobs, len(todo))
        done = pool.results(lambda at: self._lint(self._tasks[todo[at]]), len(todo), workers)
        for at, result in _with_progress(done, len(todo)) if progress else done:
            packed[todo[at]] = self._take(self._tasks[todo[at]], result)
        for one in self._caches.values():
            one.save()
        if self._inputs is not None:
            self._note_consulted(self._inputs)
        return packed

    def _recall(self, number: int, packed: list[Any]) -> bool:
        """Puts what is stored of an unchanged file in its place; tells whether there was any."""
        if self._is_forgetful:
            return False
        task = self._tasks[number]
        state = stored.state_of(task.path)
        known = self._caches[task.way].by_state(task.path, state)
        if known is None or state is None:
            return False
        digest, packed[number], consulted = known
        self._note(task, state, digest, consulted)
        return True

    def _lint(self, task: Task) -> tuple[stored.State | None, bytes | None, Any, Consulted]:
        """Returns a file's state, digest, packed findings and what they hang on: in a worker."""
        consulted: Consulted = {}
        try:
            text, state = read_with_state(task.path)
        except OSError as err:
            why = f"cannot be read: {err.strerror or err}"
            return (
                stored.state_of(task.path),
                None,
                to_builtins([unreadable(task.path, why)]),
                consulted,
            )
        if self._is_forgetful:
            return state, None, to_builtins(task.lint(text, consulted)), consulted
        from hashlib import sha256

        digest = sha256(text).digest()
        known = self._caches[task.way].by_digest(task.path, digest)
        if known is not None:
            return state, digest, *known
        return state, digest, to_builtins(task.lint(text, consulted)), consulted

    def _take(self, task: Task, result: Any) -> Any:
        """Notes what a worker returned, and returns the findings in it."""
        if isinstance(result, pool.Died):
            if self._inputs is not None:
                self._inputs.repeatable = False
            why = f"ended the process that checked it ({result})"
            return to_builtins([unreadable(task.path, why)])
        state, digest, found, consulted = result
        self._note(task, state, digest, consulted)
        # A rule that failed may have done so for reasons outside of the file.
        if any(one["code"] == RULE_FAILED for one in found):
            if self._inputs is not None:
                self._inputs.repeatable = False
        elif state is not None and digest is not None:
            self._caches[task.way].put(task.path, state, digest, found, consulted)
        return found

    def _note(
        self, task: Task, state: stored.State | None, digest: bytes | None, consulted: Consulted
    ) -> None:
        if self._inputs is not None:
            self._inputs.note(task.path, state, digest)
            self._consulted.update(consulted)

    def _note_consulted(self, inputs: Inputs) -> None:
        """Notes what was looked at for the sake of files, less those that were linted as they are.

        Their content is known, so that a run is replayed after a checkout gave them new times.
        """
        linted = {os.path.abspath(path): noted for path, noted in inputs.files.items()}
        for path, state in self._consulted.items():
            noted = linted.get(path)
            is_known = noted is not None and noted[1] is not None and noted[0] == state
            if not is_known and path not in inputs.files:
                inputs.note(path, state, None)


def _with_progress(done: Iterable[T], total: int) -> Iterable[T]:
    """Yields what is done; on a terminal, long work shows how far it is."""
    if total < MANY_FILES or not sys.stderr.isatty():
        return done
    return _track(done, total)


def _track(done: Iterable[T], total: int) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import track

    # Past whoever records what the run says: progress is no part of that.
    console = Console(file=sys.__stderr__)
    yield from track(
        done, "linting", total=total, console=console, transient=True, update_period=0.2
    )

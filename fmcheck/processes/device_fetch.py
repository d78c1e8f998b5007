"""Devices: what a child's kernels found is fetched when the pytest process asks, at a test's end.

A child that is killed later, as engines kill their schedulers, has reported it by then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from fmcheck.errors import ViolationError
from fmcheck.first_import import after_import
from fmcheck.processes.journal import layout

if TYPE_CHECKING:
    from types import ModuleType

    from fmcheck.processes.journal.writer import Journal
    from fmcheck.runtime.core.tally import Tally

#: Seconds between two looks for a question.
_PAUSE = 0.02


class Answering:
    """A thread that reads a process's devices when it is asked to, until the process ends.

    It waits for a device, which would break off the capture of a graph: not while one is on.
    """

    def __init__(self, journal: Journal, tally: Tally) -> None:
        self._journal = journal
        self._tally = tally
        self._captures = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Looks for questions from now on."""
        after_import("torch.cuda.graphs", self._watch_captures)
        threading.Thread(target=self._look, name="fmcheck", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_PAUSE)
            asked = self._journal.asked
            if asked != self._journal.words[layout.ANSWERED]:
                self.answer(asked)

    def answer(self, asked: int) -> None:
        """Answers one question, unless a graph is being captured: then later."""
        with self._lock:
            if self._captures:
                return
            # In mode halt what is found is raised, here in vain: it stands in the journal.
            with contextlib.suppress(ViolationError), self._tally.lock:
                self._tally.collect()
            self._journal.words[layout.ANSWERED] = asked

    def _watch_captures(self, graphs: ModuleType) -> None:
        graph: Any = graphs.CUDAGraph
        begin, end = graph.capture_begin, graph.capture_end

        def capture_begin(*args: Any, **kwargs: Any) -> None:
            self._count(1)
            try:
                begin(*args, **kwargs)
            except BaseException:
                self._count(-1)
                raise

        def capture_end(*args: Any, **kwargs: Any) -> None:
            try:
                end(*args, **kwargs)
            finally:
                self._count(-1)

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def _count(self, more: int) -> None:
        with self._lock:
            self._captures += more

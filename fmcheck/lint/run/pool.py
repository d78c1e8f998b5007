"""A pool of processes for work that is numbered: chunks go to whoever is free.

Forked, so that workers have what this process has read and made; where there is no fork, or one
worker is enough, the work is done here. A worker that dies costs the item that killed it.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import select
import signal
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: Items handed out at once: few enough that all workers end at about the same time.
CHUNK = 8
#: Fewer items for each worker than this do not pay for starting it.
FEWEST = 100
#: So many objects left behind are worth a look at all that there are.
MOST_GARBAGE = 50_000
#: So many files are left to be opened when another worker starts.
SPARE = 8
_HEAD = 4


class Died(Struct, frozen=True):
    """What came of an item instead of a result: the worker that had it ended by `signal`."""

    signal: int

    def __str__(self) -> str:
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class _Worker(Struct):
    pid: int
    tasks: int
    results: int
    pending: list[int] = []
    buffer: bytearray = msgspec.field(default_factory=bytearray)

    def close(self) -> None:
        """Closes this process's ends of the worker's pipes; that of its tasks may be closed."""
        os.close(self.results)
        if self.tasks >= 0:
            os.close(self.tasks)


def processes(asked: int | None, items: int) -> int:
    """Returns how many processes to use: as asked, or as many as the items and processors allow."""
    if not hasattr(os, "fork"):
        return 1
    if asked is not None:
        return max(1, min(asked, items))
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return max(1, min(processors, items // FEWEST))


def results(
    work: Callable[[int], Any], items: int, workers: int
) -> Iterator[tuple[int, Any | Died]]:
    """Yields each item's number with what `work` returns for it, in any order.

    `work` returns plain types, as `marshal` knows them.
    """
    if workers <= 1:
        with _seldom_collected():
            for number in range(items):
                yield number, work(number)
                _collect()
        return
    pool = _Pool(work, items)
    try:
        for _ in range(workers):
            if not pool.start():
                break
        yield from pool.collect()
    finally:
        pool.stop()


class _Pool:
    def __init__(self, work: Callable[[int], Any], items: int) -> None:
        self._work = work
        self._chunks = [
            list(range(start, min(start + CHUNK, items))) for start in range(0, items, CHUNK)
        ][::-1]
        self._workers: dict[int, _Worker] = {}

    def start(self) -> bool:
        """Forks one worker; tells whether the system had room for it."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            _leave_room()
            pid = os.fork()
        except OSError:
            for one in ends:
                os.close(one)
            return False
        for_tasks, tasks, from_worker, to_parent = ends
        if pid == 0:
            try:
                for other in self._workers.values():
                    other.close()
                os.close(tasks)
                os.close(from_worker)
                _serve(self._work, for_tasks, to_parent)
            finally:
                os._exit(0)
        os.close(for_tasks)
        os.close(to_parent)
        worker = self._workers[from_worker] = _Worker(pid, tasks, from_worker)
        self._feed(worker)
        return True

    def collect(self) -> Iterator[tuple[int, Any | Died]]:
        """Yields results as they come, until every item has one."""
        while self._workers:
            for one in _readable(self._workers):
                worker = self._workers[one]
                received = os.read(one, 1 << 16)
                if not received:
                    yield from self._bury(worker)
                    continue
                worker.buffer += received
                for number, result in _messages(worker.buffer):
                    worker.pending.remove(number)
                    yield number, result
                if not worker.pending:
                    self._feed(worker)
        # Without room for a single worker the work is done here.
        while self._chunks:
            for number in self._chunks.pop():
                yield number, self._work(number)
                _collect()

    def _feed(self, worker: _Worker) -> None:
        if not self._chunks:
            os.close(worker.tasks)
            worker.tasks = -1
            return
        worker.pending = self._chunks.pop()
        # If it has died, its end of the other pipe says so.
        with contextlib.suppress(BrokenPipeError):
            _send(worker.tasks, worker.pending)

    def _bury(self, worker: _Worker) -> Iterator[tuple[int, Any | Died]]:
        """Takes out a worker that ended; if it had work left, the next one goes on with it."""
        self._close(worker)
        _, status = os.waitpid(worker.pid, 0)
        if worker.pending:
            killer, *rest = worker.pending
            yield killer, Died(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
            if rest:
                self._chunks.append(rest)
        if self._chunks and worker.tasks >= -1 and worker.pending:
            self.start()

    def _close(self, worker: _Worker) -> None:
        del self._workers[worker.results]
        worker.close()

    def stop(self) -> None:
        """Ends the workers that are left, as after an interrupt."""
        for worker in list(self._workers.values()):
            self._close(worker)
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)


def _leave_room() -> None:
    """Raises OSError if few more files could be opened: modules, and what is checked, are some."""
    spare: list[int] = []
    try:
        for _ in range(SPARE):
            spare.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for one in spare:
            os.close(one)


def _readable(pipes: Iterable[int]) -> list[int]:
    """Waits until one of the pipes has something to read, or has ended; returns all that do."""
    # Not `select`, for which 1,024 is the end of all numbers.
    polled = select.poll()
    for one in pipes:
        polled.register(one, select.POLLIN)
    return [one for one, _ in polled.poll()]


def _serve(work: Callable[[int], Any], tasks: int, to_parent: int) -> None:
    """Works off what comes in until nobody sends any more."""
    # An interrupt is the parent's to tell of.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    with _seldom_collected():
        while (head := os.read(tasks, _HEAD)) != b"":
            for number in marshal.loads(_exactly(tasks, int.from_bytes(head, "little"))):
                _send(to_parent, (number, work(number)))
                _collect()


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Keeps the garbage collector from looking at trees while they grow: a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _collect() -> None:
    """Collects between two items, if the last ones left much behind."""
    if gc.get_count()[0] > MOST_GARBAGE:
        gc.collect()


def _send(pipe: int, value: Any) -> None:
    body = marshal.dumps(value)
    message = memoryview(len(body).to_bytes(_HEAD, "little") + body)
    while message:
        message = message[os.write(pipe, message) :]


def _exactly(pipe: int, size: int) -> bytes:
    body = b""
    while len(body) < size:
        more = os.read(pipe, size - len(body))
        if not more:
            os._exit(0)
        body += more
    return body


def _messages(buffer: bytearray) -> Iterator[tuple[int, Any]]:
    """Takes the whole messages out of what was received."""
    at = 0
    while len(buffer) >= at + _HEAD:
        end = at + _HEAD + int.from_bytes(buffer[at : at + _HEAD], "little")
        if len(buffer) < end:
            break
        yield marshal.loads(bytes(buffer[at + _HEAD : end]))
        at = end
    del buffer[:at]

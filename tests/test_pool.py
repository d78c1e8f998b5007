"""The pool: every item has a result, whoever dies, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fmcheck.lint.run import pool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_item_has_its_result(workers):
    done = dict(pool.results(lambda number: number * 2, 100, workers))

    assert done == {number: number * 2 for number in range(100)}


def test_no_items_is_no_work():
    assert list(pool.results(lambda number: number, 0, 2)) == []


def test_the_work_is_done_by_several_processes():
    def slow(number):
        time.sleep(0.005)
        return os.getpid()

    assert len(set(dict(pool.results(slow, 100, 2)).values())) == 2


def test_a_worker_that_dies_costs_the_item_that_killed_it():
    def deadly(number):
        if number in (0, 30, 31, 99):
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    done = dict(pool.results(deadly, 100, 2))

    dead = {number for number, result in done.items() if isinstance(result, pool.Died)}
    assert dead == {0, 30, 31, 99}
    assert sorted(done) == list(range(100))
    assert str(done[30]) == "SIGKILL"


def test_an_exception_in_a_worker_costs_one_item():
    def failing(number):
        return 1 // (number - 5)

    done = dict(pool.results(failing, 40, 2))

    assert [number for number, result in done.items() if isinstance(result, pool.Died)] == [5]


def test_a_worker_can_start_when_another_has_no_more_to_do():
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    reader, writer = os.pipe()
    made = pool._Pool(lambda number: number * 2, 3)
    made._workers[reader] = pool._Worker(gone, -1, reader)

    made.start()
    os.close(writer)

    assert dict(made.collect()) == {0: 0, 1: 2, 2: 4}


def test_whoever_stops_listening_leaves_no_worker_behind():
    results = pool.results(lambda number: os.getpid(), 1000, 2)
    _, pid = next(results)
    results.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_end_when_their_parent_is_killed():
    code = (
        "import time, os\n"
        "from fmcheck.lint.run import pool\n"
        "def work(number):\n"
        "    time.sleep(0.05)\n"
        "    return os.getpid()\n"
        "for _, pid in pool.results(work, 10_000, 2):\n"
        "    print(pid, flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = {int(parent.stdout.readline()) for _ in range(12)}
    parent.kill()
    parent.wait()
    parent.stdout.close()

    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    """Tells whether a process runs; one that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_few_files_are_done_by_one_process():
    assert pool.processes(None, 50) == 1
    assert pool.processes(7, 3) == 3
    assert pool.processes(2, 5000) == 2


@pytest.mark.parametrize("most", [12, 24, 40])
def test_workers_that_there_is_no_room_for_are_done_without(most):
    """With few open files allowed, fewer workers start, down to none; modules still can be read."""
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
from fmcheck.lint.run import pool
def work(number):
    import colorsys
    return open(__import__("os").devnull).read() + str(number)
print(len(dict(pool.results(work, 200, 20))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("200\n", "")


def test_a_worker_that_cannot_be_forked_is_done_without(monkeypatch):
    def refused():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)

    assert dict(pool.results(lambda number: number, 60, 4)) == {n: n for n in range(60)}

"""The journal: what a process wrote is there for a reader, whatever became of the process."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from fmcheck.errors import UsageError
from fmcheck.finding import Counts
from fmcheck.processes import run_folder
from fmcheck.processes.device_fetch import Answering
from fmcheck.processes.journal import layout
from fmcheck.processes.journal.attribute import attributed
from fmcheck.processes.journal.collect import gather
from fmcheck.processes.journal.ending import ending
from fmcheck.processes.journal.read import Library, Pages
from fmcheck.processes.journal.writer import Journal
from fmcheck.processes.process_watch import ProcessWatch
from fmcheck.runtime.core.tally import BrokenCheck, Tally
from fmcheck.runtime.session.watch import Watch
from tests.reach.kills import kill_writers, violation


def read(folder: Path) -> Library:
    library = Library(str(folder))
    library.look(whole=True)
    return library


def pages_of(journal: Journal) -> Pages:
    pages = Pages(journal.folder, journal.name)
    pages.read()
    return pages


@pytest.fixture
def board(tmp_path: Path) -> Journal:
    """The journal of a pytest process."""
    return Journal(str(tmp_path), "pytest", "pytest")


@pytest.fixture
def child(board: Journal) -> Journal:
    """The journal of a process that works for its tests."""
    return Journal(board.folder, "multiprocessing", "rank 0", board=board.name)


def test_a_violation_comes_back_as_it_was(board: Journal) -> None:
    reported = replace(violation(3), owner="r1", notes=("ä \n b",))
    board.violation(reported, advice=True)
    (line,) = pages_of(board).reported
    assert (line.violation, line.advice) == (reported, True)


def test_the_same_violation_again_only_counts(board: Journal) -> None:
    for _ in range(5):
        board.violation(violation(3), advice=False)
    board.again(violation(3).key)
    pages = pages_of(board)
    (line,) = pages.reported
    assert pages.seen(line) == 6


def test_an_engine_may_close_all_files_and_have_their_numbers(
    board: Journal, child: Journal, tmp_path: Path
) -> None:
    taken = os.open(tmp_path / "of the engine", os.O_WRONLY | os.O_CREAT)
    os.dup2(taken, child._file)
    child.violation(violation(3), advice=False)
    os.dup2(taken, number := child._file)
    child.forget()
    assert len(pages_of(child).reported) == 1
    assert os.fstat(number).st_size == 0


def test_a_fork_closes_no_file_of_an_engine_that_closed_all(tmp_path: Path) -> None:
    code = """
        import os, sys
        from fmcheck.processes.journal.writer import Journal

        kept = {"journal": Journal(sys.argv[1], "fork")}
        os.closerange(3, 64)
        files = [os.open(sys.argv[1] + "/engine", os.O_WRONLY | os.O_CREAT) for _ in range(8)]
        kept.pop("journal").forget()
        for file in files:
            os.fstat(file)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    subprocess.run(command, check=True)


def test_a_count_is_there_at_once(board: Journal) -> None:
    board.counts[1] += 7
    assert pages_of(board).counts == Counts(writes=7)


def test_more_violations_than_there_is_room_for_are_reported(
    board: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MOST_SLOTS", 3)
    for number in range(5):
        board.violation(violation(number), advice=False)
    pages = pages_of(board)
    assert len(pages.reported) == 3
    (problem,) = pages.coverage.problems
    assert "2 lines could not be written" in problem


def test_a_line_that_is_cut_off_or_damaged_costs_no_other(board: Journal) -> None:
    board.violation(violation(1), advice=False)
    with open(os.path.join(board.folder, board.name + layout.LINES), "ab") as file:
        file.write(b'{"type": "head", \xff}\n')
    board.violation(violation(2), advice=False)
    with open(os.path.join(board.folder, board.name + layout.LINES), "ab") as file:
        file.write(b'{"type":"violation","viol')
    pages = pages_of(board)
    assert [line.violation.access.site.line for line in pages.reported] == [1, 2]
    assert "1 lines could not be" in pages.coverage.problems[0]


def test_reading_on_reads_only_what_is_new(board: Journal) -> None:
    pages = Pages(board.folder, board.name)
    assert pages.read(whole=False)
    assert not pages.read(whole=False)
    board.violation(violation(1), advice=False)
    assert pages.read(whole=False)
    assert len(pages.reported) == 1


# --- what was not followed ---


def keep(tally: Tally, journal: Journal) -> None:
    """Has a tally write into a journal, as the watch of a process does for a whole session."""
    watch = Watch(())
    watch.tally = tally
    session: Any = SimpleNamespace(_watch=watch)
    tally.keep(ProcessWatch(session, journal), journal.counts)


def test_what_is_not_followed_comes_back_with_its_latest_count(board: Journal) -> None:
    tally = Tally()
    keep(tally, board)
    tally.untrack("tensors", "written by index")
    tally.untrack("tensors", "written by index", 6)
    tally.untrack("views", "strided")
    assert pages_of(board).coverage.untracked == (
        ("tensors", "written by index", 7),
        ("views", "strided", 1),
    )


def test_what_is_not_followed_is_summed_over_processes(board: Journal, child: Journal) -> None:
    for journal, count in ((board, 2), (child, 3)):
        keep(tally := Tally(), journal)
        tally.untrack("tensors", "written by index", count)
    assert gather([board.folder]).coverage.untracked == (("tensors", "written by index", 5),)


def test_a_check_that_failed_itself_comes_back_with_its_latest_sentence(board: Journal) -> None:
    tally = Tally()
    keep(tally, board)
    tally.broken["FR201"] = BrokenCheck("KeyError: 1", "")
    tally.note("something else happened")
    tally.broken["FR201"].count = 3
    tally.note("and something more")
    (sentence,) = pages_of(board).coverage.incomplete
    assert sentence.startswith("FR201 is incomplete: ")
    assert "3 times" in sentence


def test_a_fork_counts_what_it_does_not_follow_itself(board: Journal) -> None:
    tally = Tally()
    tally.untrack("tensors", "written by index", 4)
    tally.restart()
    tally.untrack("tensors", "written by index")
    assert tally.untracked == {("tensors", "written by index"): 1}


# --- whose test ---


def test_a_violation_belongs_to_the_test_that_was_on(board: Journal, child: Journal) -> None:
    for name in ("one", "two"):
        board.begin(name, "call")
        child.violation(violation(7), advice=False)
        child.violation(violation(7), advice=False)
        board.end()
    library = read(board.folder)
    pages = library.pages[child.name]
    reported = [attributed(line, pages, library) for line in pages.reported]
    assert [(one.test, one.count) for one in reported] == [("one", 2), ("two", 2)]
    assert (
        reported[0].notes[-1]
        == f"found in process {os.getpid()} (rank 0), a child of {os.getppid()}"
    )


def test_a_violation_between_tests_names_the_last_one(board: Journal, child: Journal) -> None:
    child.violation(violation(1), advice=False)
    board.begin("one", "call")
    board.end()
    child.violation(violation(2), advice=False)
    library = read(board.folder)
    pages = library.pages[child.name]
    early, late = (attributed(line, pages, library) for line in pages.reported)
    assert (early.test, late.test) == ("", "")
    assert early.notes[-1] == "no test had run by then"
    assert late.notes[-1].startswith("no test was running: the call of one had ended ")


def test_a_fork_that_runs_tests_itself_is_nobody_s_child(board: Journal, child: Journal) -> None:
    child.begin("one", "call")
    child.violation(violation(1), advice=False)
    library = read(board.folder)
    pages = library.pages[child.name]
    assert pages.is_board
    assert [attributed(line, pages, library).test for line in pages.reported] == ["one"]


# --- devices ---


class Graph:
    """What torch has of a graph, in so far as it is watched."""

    fails = False

    def capture_begin(self) -> None:
        if self.fails:
            raise RuntimeError

    def capture_end(self) -> None:
        pass


def test_a_device_is_not_waited_for_while_a_graph_is_captured(
    board: Journal, child: Journal
) -> None:
    tally, read = Tally(), []
    tally.pending.append(lambda: read.append(board.asked))
    answering = Answering(child, tally)
    graphs = SimpleNamespace(CUDAGraph=type("CUDAGraph", (Graph,), {}))
    answering._watch_captures(graphs)
    graph = graphs.CUDAGraph()
    pages = pages_of(child)
    child.words[layout.ON_DEVICE] = 1
    question = board.ask()
    graph.capture_begin()
    answering.answer(question)
    assert (read, pages.owes(question)) == ([], True)
    graph.capture_end()
    graphs.CUDAGraph.fails = True
    with pytest.raises(RuntimeError):
        graph.capture_begin()
    answering.answer(question)
    assert (read, pages.owes(question)) == ([1], False)


# --- endings ---


def ending_of(folder: Path, does: str, reap: bool = True) -> str:
    """Has a process write its journal, and returns how it is said to have ended."""
    code = (
        "import os, signal, sys, time; from fmcheck.processes.journal.writer import Journal;"
        f"journal = Journal({str(folder)!r}, 'popen'); print(flush=True);" + does
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    if reap:
        process.wait()
    elif "sleep" not in does:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        (found,) = gather([folder]).processes
        return found.ending
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("does", "reap", "ending"),
    [
        ("journal.goodbye(3)", True, "exit 3"),
        ("journal.goodbye()", True, "exit"),
        ("os.kill(os.getpid(), signal.SIGKILL)", True, "unknown"),
        ("os.kill(os.getpid(), signal.SIGKILL)", False, "killed by SIGKILL"),
        ("os._exit(5)", False, "exit 5"),
        ("time.sleep(60)", False, "running"),
    ],
)
def test_an_ending_is_reported_as_far_as_it_is_known(
    tmp_path: Path, does: str, reap: bool, ending: str
) -> None:
    assert ending_of(tmp_path, does, reap=reap) == ending


def test_a_parent_tells_how_its_child_ended(board: Journal, child: Journal) -> None:
    board.reaped(os.getpid(), signal.SIGSEGV)
    run = gather([board.folder])
    assert {process.ending for process in run.processes if process.role == "rank 0"} == {
        "killed by SIGSEGV"
    }


# --- gathering ---


def test_a_process_that_is_killed_after_its_last_line_lost_nothing(
    board: Journal, child: Journal
) -> None:
    child.goodbye()
    board.reaped(child.pid, signal.SIGKILL)
    library = read(Path(board.folder))
    assert ending(library.pages[child.name], library) == "exit"


def test_runs_of_several_hosts_are_gathered_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, host in enumerate(("alpha", "beta")):
        monkeypatch.setattr("fmcheck.processes.journal.writer.host_name", lambda host=host: host)
        folder = tmp_path / host / "run"
        folder.mkdir(parents=True)
        journal = Journal(str(folder), "pytest", "pytest")
        journal.begin("one", "call")
        journal.violation(violation(number), advice=False)
        journal.violation(violation(9), advice=False)
        journal.counts[2] = 5
    run = gather([tmp_path])
    assert sorted((one.access.site.line, one.count) for one in run.violations) == [
        (0, 1),
        (1, 1),
        (9, 2),
    ]
    assert {process.host for process in run.processes} == {"alpha", "beta"}
    assert (run.coverage.counts.gathers, run.coverage.violations) == (10, 3)


def test_a_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected the journal of a run, found none"):
        gather([tmp_path])


# --- kills ---


def test_a_killed_process_loses_nothing() -> None:
    deaths = kill_writers(60)
    assert [one for one in deaths if not one.is_whole] == []
    # A child that never came to work, or a reader that takes any file, would prove nothing.
    assert sum(one.said[0] for one in deaths) > 60


@pytest.mark.parametrize("kind", [layout.LINES, layout.RING, "starts"])
def test_a_pipe_in_a_journals_place_is_not_waited_for(tmp_path, kind):
    """Who is handed a folder of journals did not make it."""
    os.mkfifo(tmp_path / (f"{layout.STARTS}1" if kind == "starts" else f"x-1-1{kind}"))
    if kind != layout.LINES:
        (tmp_path / f"x-1-1{layout.LINES}").touch()

    with contextlib.suppress(UsageError):
        assert not gather([tmp_path]).violations


def test_without_a_folder_for_temporary_files_one_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert run_folder.over() == []
    assert run_folder.made(str(tmp_path)).startswith(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        run_folder.made()
    assert str(caught.value) == "--fmcheck-journal: No usable temporary directory"

"""The zygote: a fork of it is what a `python -m pytest` of its own is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests import zygote

TELLS = """
    import json, os, signal, sys, threading, warnings

    BEFORE = sorted(sys.modules)
    FILTERS = [str(each) for each in warnings.filters]
    import torch
    TORCH = sorted(sys.modules)
    import torch._dynamo

    def test_it(pytestconfig):
        told = dict(
            before=BEFORE,
            torch=TORCH,
            after=sorted(sys.modules),
            filters=FILTERS,
            argv=sys.argv[1:],
            orig_argv=sys.orig_argv[3:],
            main=[sys.modules["__main__"].__file__, sys.modules["__main__"].__spec__.name],
            path=sys.path,
            folder=os.getcwd(),
            environment=dict(os.environ),
            handlers=[str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGCHLD)],
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            loaders=[type(each.__spec__.loader).__name__ for each in (torch, sys.modules["numpy"])],
            plugins=sorted(name for name, _ in pytestconfig.pluginmanager.list_name_plugin()
                if not name.isdigit()),
        )
        json.dump(told, open("told.json", "w"))
"""


@pytest.fixture
def both(pytester, monkeypatch):
    """Runs a command in a fork and in a process of its own; returns what each left in a file."""

    def run(*arguments: str, **more: str) -> tuple[dict, dict]:
        reported = []
        for forked in (True, False):
            monkeypatch.setattr(zygote, "why_not", lambda *_, forked=forked: not forked)
            command = [sys.executable, "-m", "pytest", *arguments]
            done = zygote.run(command, pytester.path, {**os.environ, **more})
            assert done.returncode == 0, done.stdout + done.stderr
            reported.append(json.loads((pytester.path / "told.json").read_text()))
        return reported[0], reported[1]

    return run


@pytest.mark.parametrize("plugin", ["terminal", "fmcheck"])
def test_a_fork_is_what_a_new_process_is(pytester, both, plugin):
    pytester.makepyfile(test_it=TELLS)

    fork, process = both("-p", plugin, "-p", "no:cacheprovider", MINE="1", PYTHONPATH=os.getcwd())

    if plugin == "fmcheck":  # the way to this run, for its children
        assert fork["environment"].pop("FMCHECK_RUN") != process["environment"].pop("FMCHECK_RUN")
    assert fork == process


def test_a_fork_has_imported_nothing_before_it_does(pytester, both):
    pytester.makepyfile(
        test_it="""
        import json, sys

        def test_it():
            names = {"torch", "numpy", "wrapt", "msgspec", "fmcheck", "socket"}
            json.dump(sorted(names & set(sys.modules)), open("told.json", "w"))
        """
    )
    fork, process = both("-p", "no:xdist", "-p", "no:hypothesispytest")
    assert fork == process
    assert "torch" not in fork


def test_no_two_forks_draw_the_same_numbers(pytester):
    pytester.makepyfile(
        test_it="""
        import numpy, random, torch

        def test_it():
            drawn = (random.random(), numpy.random.random(), torch.rand(1).item())
            print("".join(f"drawn {each}" for each in drawn), file=open("drawn", "a"))
        """
    )
    for _ in range(2):
        pytester.runpytest_subprocess().assert_outcomes(passed=1)
    first, second = (pytester.path / "drawn").read_text().splitlines()
    assert not set(first.split("drawn")) & set(second.split("drawn")) - {""}


def test_an_import_hook_sees_what_a_new_process_shows_it(pytester, both):
    pytester.makepyfile(
        test_it="""
        import json, wrapt

        SEEN = []
        for name in ("torch", "torch.cuda.graphs", "torch.nn", "torch._dynamo", "numpy"):
            wrapt.register_post_import_hook(lambda module: SEEN.append(module.__name__), name)

        def test_it():
            import torch
            SEEN.append("-")
            torch._dynamo.reset()
            json.dump(SEEN, open("told.json", "w"))
        """
    )
    fork, process = both()
    assert fork == process
    assert fork.index("torch") < fork.index("-") < fork.index("torch._dynamo")


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("assert False", 1),
        ("os.kill(os.getpid(), signal.SIGINT)", 2),
    ],
)
def test_a_fork_ends_as_a_process_does(pytester, ending, status):
    pytester.makepyfile(test_it=f"import os, signal\n\ndef test_it():\n    {ending}")
    command = [sys.executable, "-m", "pytest", "-p", "no:faulthandler"]
    assert not zygote.why_not(command, os.environ)

    assert zygote.run(command, pytester.path, dict(os.environ)).returncode == status


def test_a_fork_runs_what_is_to_run_at_the_end(pytester):
    pytester.makepyfile(
        test_it="""
        import atexit, sys, threading, time

        def late():
            time.sleep(0.1)
            open("late", "w").close()

        def test_it():
            threading.Thread(target=late).start()
            atexit.register(print, "in the end", file=sys.__stdout__)
        """
    )
    done = zygote.run([sys.executable, "-m", "pytest"], pytester.path, dict(os.environ))
    assert done.stdout.splitlines()[-1] == "in the end"
    assert (pytester.path / "late").exists()


def test_a_fork_can_be_waited_for_and_killed(pytester):
    pytester.makepyfile(test_it="import time\n\ndef test_it():\n    time.sleep(600)")
    with pytest.raises(pytester.TimeoutExpired):
        pytester.run(sys.executable, "-mpytest", timeout=0.5)


def test_a_module_that_is_another_one_here_needs_the_marker(pytester):
    pytester.makepyfile(wrapt="", test_it="import wrapt\n\ndef test_it():\n    pass")
    with pytest.raises(AssertionError, match="mark this test `fresh`"):
        pytester.runpytest_subprocess()


@pytest.mark.parametrize(
    ("command", "more", "reason"),
    [
        ((sys.executable, "-m", "pytest", "-q"), {}, ""),
        ((sys.executable, "-mpytest", "-q"), {"PYTHONPATH": "x"}, ""),
        ((sys.executable, "-S", "-m", "pytest"), {}, "no `python -m pytest`"),
        (("python2", "-m", "pytest"), {}, "no `python -m pytest`"),
        ((sys.executable, "-c", "pass"), {}, "no `python -m pytest`"),
        ((sys.executable, "-m", "pytest"), {"FMCHECK_RUN": "x"}, "FMCHECK_RUN"),
        ((sys.executable, "-m", "pytest"), {"PYTHONWARNINGS": "error"}, "PYTHONWARNINGS"),
        ((sys.executable, "-m", "pytest"), {"TORCH_LOGS": "all"}, "TORCH_LOGS"),
        ((sys.executable, "-m", "pytest"), {"OMP_NUM_THREADS": "7"}, "OMP_NUM_THREADS"),
    ],
)
def test_what_a_fork_cannot_show_gets_a_process(command, more, reason):
    assert reason in zygote.why_not(command, {**os.environ, **more})
    assert bool(reason) == bool(zygote.why_not(command, {**os.environ, **more}))


def test_a_zygote_ends_with_the_process_that_started_it(pytester, root):
    code = (
        "import os, sys, time; from tests import zygote\n"
        "command = [sys.executable, '-m', 'pytest', '--version']\n"
        "zygote.run(command, '.', dict(os.environ))\n"
        "print(zygote.the_zygote().pid, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9
    pid = int(done.stdout.splitlines()[-1])
    for _ in range(200):
        if not _alive(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"the zygote {pid} outlived its test run")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

"""A zygote: a Python that has imported torch and pytest, and forks for each inner pytest run.

An inner run that starts a Python of its own takes 3.5 s of CPU, most of it for imports. A fork of
the zygote looks the same to the test that asked for it: descriptors, folder, environment, arguments
and exit status are the run's own, and what the zygote has imported is not in `sys.modules` until
the run imports it (see `server`). Whatever a fork cannot show is refused by `why_not`, and gets a
process of its own; a test asks for one with the marker `fresh`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER = Path(__file__).with_name("server.py")
#: Status of a fork that cannot stand for a new process.
REFUSED = 70
# What an interpreter, or a library as it is imported, reads once: a fork would not read it again.
READ_ONCE = (
    "PYTHON",
    "TORCH",
    "PYTORCH",
    "TRITON",
    "OMP_",
    "MKL_",
    "KMP_",
    "CUDA_",
    "LD_",
    "MALLOC",
)
# Read as the start-up file of fmcheck is run; `PYTHONPATH` the server sets up by itself.
STARTUP = ("FMCHECK_RUN",)


def why_not(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Returns why a command needs a process of its own, or nothing if a fork can stand for it."""
    if list(command[:1]) != [sys.executable] or not inner_arguments(command):
        return "it is no `python -m pytest` of this Python"
    for name in STARTUP:
        if name in environment:
            return f"{name} is read before the first line of Python"
    for name in sorted({*environment, *os.environ}):
        read = name.startswith(READ_ONCE) and name != "PYTHONPATH"
        if read and environment.get(name) != _started_with().get(name):
            return f"{name} is read once in a process"
    return ""


def inner_arguments(command: Sequence[str]) -> list[str] | None:
    """Returns the `sys.argv` of a `python -m pytest ...`, its first left empty; or nothing."""
    if list(command[1:2]) == ["-mpytest"]:
        return ["", *command[2:]]
    if list(command[1:3]) == ["-m", "pytest"]:
        return ["", *command[3:]]
    return None


class Forked:
    """A fork of the zygote, with as much of `subprocess.Popen` as runs of tests ask for."""

    stdin = None

    def __init__(self, status: int) -> None:
        self._status = status
        self._reported = b""
        self.returncode: int | None = None
        self.pid = int(self._line(None))

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; subprocess.TimeoutExpired if that takes longer."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            os.close(self._status)
            assert self.returncode != REFUSED, (
                "a module that the zygote has loaded is another one here: mark this test `fresh`"
            )
        return self.returncode

    def kill(self) -> None:
        """Kills the run, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _line(self, timeout: float | None) -> bytes:
        end = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._reported:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._status], [], [], left)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired("a fork of the zygote", timeout)
            more = os.read(self._status, 64)
            assert more, f"the zygote ended; what it said:\n{the_zygote().said()}"
            self._reported += more
        line, _, self._reported = self._reported.partition(b"\n")
        return line


class Zygote:
    """The server's process, and the socket that it takes runs from."""

    def __init__(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._socket = ours
        self._log = os.memfd_create("zygote") if hasattr(os, "memfd_create") else os.dup(2)
        command = [sys.executable, str(SERVER), str(its.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=(its.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**_started_with(), "OPENBLAS_NUM_THREADS": "1"},  # no pool of threads: it forks
        )
        its.close()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        descriptors: tuple[int, int, int],
    ) -> Forked:
        """Starts an inner pytest whose stdin, stdout and stderr are the descriptors."""
        run = {"command": list(command), "argv": inner_arguments(command), "folder": folder}
        text = json.dumps({**run, "environment": dict(environment)}).encode()
        status, its = os.pipe()
        try:
            socket.send_fds(self._socket, [text], [*descriptors, its])
        except OSError as err:
            raise RuntimeError(f"the zygote has ended; what it said:\n{self.said()}") from err
        finally:
            os.close(its)
        return Forked(status)

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def said(self) -> str:
        """Returns what the zygote wrote on its own behalf."""
        self._process.poll()
        with open(f"/proc/self/fd/{self._log}", encoding="utf-8", errors="replace") as log:
            return log.read()

    def close(self) -> None:
        """Ends the zygote, as the end of this process does."""
        self._socket.close()
        self._process.wait()
        os.close(self._log)


_zygote: list[Zygote] = []


def the_zygote() -> Zygote:
    """Returns the zygote of this process, started when first asked for."""
    if not _zygote:
        _zygote.append(Zygote())
    return _zygote[0]


def close() -> None:
    """Ends the zygote of this process, if one was started."""
    while _zygote:
        _zygote.pop().close()


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m pytest ...` and captures its text, in a fork if that can be."""
    if why_not(command, environment):
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    import tempfile

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with open(os.devnull) as nothing:
            descriptors = (nothing.fileno(), out.fileno(), err.fileno())
            status = the_zygote().start(command, environment, str(folder), descriptors).wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def _started_with() -> dict[str, str]:
    """Returns the environment of the zygote: this process's, without the search path of tests."""
    if not _first:
        _first.update(os.environ)
        _first.pop("PYTHONPATH", None)
    return _first


_first: dict[str, str] = {}

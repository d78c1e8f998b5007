"""The zygote's own process: imports what is slow, hides it again, and forks for each run.

A fork starts as an interpreter that has imported nothing. What the zygote imported is *stowed*: as
a run imports `torch`, each module that `torch` had imported comes back into `sys.modules` in its
turn, by way of `sys.meta_path`, so that import hooks see what they would see; only that no code is
executed again. The fork then leaves this file's loop and ends as a main program does, so that exit
handlers, threads and exit status are Python's own.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from importlib import _bootstrap  # type: ignore[attr-defined]
from importlib.machinery import ModuleSpec, PathFinder

BARE = set(sys.modules)  # `runpy` included: `python -m` imports it, too
#: What each module imported first, in order.
IMPORTS: dict[str, list[str]] = {}
_load_unlocked, _loading = _bootstrap._load_unlocked, [""]


_whole: set[str] = set()  # those whose imports are known


def _noted(spec: ModuleSpec) -> object:
    if _loading[-1] not in _whole:
        IMPORTS.setdefault(_loading[-1], []).append(spec.name)
    _loading.append(spec.name)
    try:
        return _load_unlocked(spec)
    finally:
        _loading.pop()


_bootstrap._load_unlocked = _noted
_find_spec = PathFinder.find_spec

# Imported only now, so that they are hidden, too.
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import warnings  # noqa: E402

#: What is imported ahead, in this order. fmcheck is not: its imports are what is tested.
ROOTS = ("pytest", "wrapt", "msgspec", "numpy", "torch", "torch._dynamo")
#: What the import of a module sets again, and is to be what it was.
MACHINERY = ("__name__", "__spec__", "__loader__", "__package__", "__path__", "__file__")
LONGEST = 1 << 20
#: Status of a fork that cannot stand for a new process; as in `__init__`.
REFUSED = 70


class Stow:
    """Modules that are loaded and hidden until they are imported, and their loader."""

    def __init__(self) -> None:
        self._modules: dict[str, object] = {}
        self._hidden: set[str] = set()
        self._machinery: dict[str, dict[str, object]] = {}
        self._by_hand: set[str] = set()  # put into `sys.modules` by a module, not by an import
        self._late: list[tuple[str, str]] = []
        self._rebound: list[tuple[str, str, object]] = []
        self._names: dict[int, str] = {}
        self._depth = 0
        self._filters = list(warnings.filters)
        before = dict(os.environ)
        # Not one more finder: pytest's own, which takes `test_*.py` of torch, asks the PathFinder.
        PathFinder.find_spec = self._find  # type: ignore[method-assign,assignment]
        self._keep("")
        for root in ROOTS:
            self._hide()
            importlib.import_module(root)
            self._keep(root)
        _bootstrap._load_unlocked = _load_unlocked
        self._set = {name: os.environ[name] for name in os.environ if name not in before}

    def _keep(self, root: str) -> None:
        """Keeps what is new since the last root; `root` has imported it."""
        fresh = [name for name in sys.modules if name not in BARE and name not in self._modules]
        noted = {name for names in IMPORTS.values() for name in names}
        by_hand = [name for name in fresh if name not in noted]
        IMPORTS.setdefault(root, []).extend(by_hand)
        self._by_hand.update(by_hand)
        for name in fresh:
            module = sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(self._modules.get(parent, object)).get(child) is module:
                self._late.append((parent, child))
            kept = {each: value for each, value in vars(module).items() if each in MACHINERY}
            self._machinery[name] = kept
        self._modules.update((name, sys.modules[name]) for name in fresh)
        _whole.update(self._modules)

    def _hide(self) -> None:
        for name in self._modules:
            sys.modules.pop(name, None)
        self._hidden = set(self._modules)

    def become_new(self) -> None:
        """Makes this process one that has imported nothing."""
        self._hide()
        self._rebound = self._named_otherwise()
        for parent, child in self._late:
            vars(self._modules[parent]).pop(child, None)
        warnings.resetwarnings()
        warnings.filters.extend(self._filters)  # type: ignore[attr-defined]
        os.environ.update({**self._set, **os.environ})
        # As each new process draws numbers of its own.
        self._modules["numpy.random"].seed()  # type: ignore[attr-defined]
        self._modules["torch"].default_generator.seed()  # type: ignore[attr-defined]

    def _named_otherwise(self) -> list[tuple[str, str, object]]:
        """Returns names of packages that mean no longer the submodule, which an import binds."""
        found = []
        for name, module in self._modules.items():
            package, _, child = name.rpartition(".")
            value = vars(self._modules.get(package, object)).get(child, module)
            if value is not module:
                found.append((package, child, value))
        return found

    def _find(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a module that is hidden; others as ever."""
        if name not in self._hidden:
            return _find_spec(name, path, target)  # type: ignore[arg-type]
        module = self._modules[name]
        origin = getattr(self._machinery[name].get("__spec__"), "origin", None)
        if "." not in name and origin not in (None, "built-in", "frozen"):
            found = _find_spec(name)
            if found is None or found.origin != origin:
                os._exit(REFUSED)
        return ModuleSpec(name, self, origin=origin, is_package=hasattr(module, "__path__"))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> object:
        """Gives the loaded module back."""
        self._hidden.discard(spec.name)
        module = self._modules[spec.name]
        self._names[id(module)] = spec.name
        return module

    def exec_module(self, module: object) -> None:
        """Imports again what the module had imported, in the same order."""
        name = self._names[id(module)]
        vars(module).update(self._machinery[name])
        self._depth += 1
        for each in IMPORTS.get(name, ()):
            if each in sys.modules or each not in self._hidden:
                continue
            if each in self._by_hand:
                self._hidden.discard(each)
                sys.modules[each] = self._modules[each]  # type: ignore[assignment]
            else:
                importlib.import_module(each)
        self._depth -= 1
        if not self._depth:
            self._bind_again()

    def _bind_again(self) -> None:
        there = [one for one in self._rebound if f"{one[0]}.{one[1]}" in sys.modules]
        for package, child, value in there:
            setattr(sys.modules[package], child, value)
        self._rebound = [one for one in self._rebound if one not in there]


def serve(control: socket.socket) -> dict[str, object]:
    """Forks for each run that is asked for; returns, in the fork only, what to run."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            _tell_ends(waiting)
        if control not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(control, LONGEST, 4)
        if not text:
            raise SystemExit
        status = descriptors.pop()
        process = os.fork()
        if process:
            os.write(status, f"{process}\n".encode())
            waiting[process] = status
            for each in descriptors:
                os.close(each)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, interrupt)
        control.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for each in (woken, wake, status, *descriptors, *waiting.values()):
            os.close(each)
        return json.loads(text)  # type: ignore[no-any-return]


def _tell_ends(waiting: dict[int, int]) -> None:
    while waiting:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        reported = waiting.pop(process)
        os.write(reported, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(reported)


def become(run: dict[str, object], path: list[str], stow: Stow) -> None:
    """Turns a fork into what `python -m pytest` is in its first moment."""
    environment: dict[str, str] = run["environment"]  # type: ignore[assignment]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(run["folder"])  # type: ignore[arg-type]
    named = [os.path.abspath(each) for each in environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [os.getcwd(), *(named if environment.get("PYTHONPATH") else ()), *path]
    sys.argv[:] = run["argv"]  # type: ignore[assignment]
    sys.orig_argv[:] = run["command"]  # type: ignore[assignment]
    stow.become_new()


def main() -> None:
    """Serves until the other end of the socket is closed; in a fork, runs pytest."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    path = sys.path[1:]
    stow = Stow()
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["one"]
    if len(threads) > 1:
        raise SystemExit(f"zygote: an import started {len(threads) - 1} threads: no fork is safe")
    gc.collect()
    gc.freeze()
    become(serve(control), path, stow)
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

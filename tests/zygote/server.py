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


def _noted(spec: ModuleSpec) -> object:
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
#: What the import of a module sets anew, and is to be what it was.
MACHINERY = ("__name__", "__spec__", "__loader__", "__package__", "__path__", "__file__")
LONGEST = 1 << 20
#: Status of a fork that cannot stand for a new process; as in `__init__`.
REFUSED = 70


class Stow:
    """Modules that are loaded and hidden until they are imported, and their loader."""

    def __init__(self) -> None:
        self._modules: dict[str, object] = {}
        self._names: dict[int, str] = {}
        self._attributes: dict[str, dict[str, object]] = {}
        self._by_hand: set[str] = set()  # put into `sys.modules` by a module, not by an import
        self._late: list[tuple[str, str]] = []
        self._filters = list(warnings.filters)
        self._environment = dict(os.environ)
        self._hidden = False
        # Not one more finder: pytest's own, which takes `test_*.py` of torch, asks the PathFinder.
        PathFinder.find_spec = self._find  # type: ignore[method-assign,assignment]
        for root in (None, *ROOTS):
            self._take(root)
        _bootstrap._load_unlocked = _load_unlocked
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if self._environment.get(name) != value
        }

    def _take(self, root: str | None) -> None:
        """Imports a root; stows what is new, and forgets it as an attribute of older packages."""
        if root is not None:
            importlib.import_module(root)
        fresh = [name for name in sys.modules if name not in BARE and name not in self._modules]
        noted = {name for names in IMPORTS.values() for name in names}
        by_hand = [name for name in fresh if name not in noted]
        IMPORTS.setdefault(root or "", []).extend(by_hand)
        self._by_hand.update(by_hand)
        for name in fresh:
            module = sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(self._modules.get(parent, object)).get(child) is module:
                self._late.append((parent, child))
            kept = {each: value for each, value in vars(module).items() if each in MACHINERY}
            self._attributes[name] = kept
        self._modules.update((name, sys.modules[name]) for name in fresh)

    def hide(self) -> None:
        """Makes this process one that has imported nothing."""
        for parent, child in self._late:
            delattr(self._modules[parent], child)
        for name in self._modules:
            sys.modules.pop(name, None)
        self._hidden = True
        warnings.resetwarnings()
        warnings.filters.extend(self._filters)  # type: ignore[attr-defined]
        os.environ.update(
            {name: value for name, value in self._environment.items() if name not in os.environ}
        )
        draws = self._modules.get("numpy.random")
        if draws is not None:
            draws.seed()  # type: ignore[attr-defined]  # as a new process does

    def _find(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a module that is stowed; others as ever."""
        module = self._modules.get(name) if self._hidden else None
        if module is None:
            return _find_spec(name, path, target)  # type: ignore[arg-type]
        origin = getattr(self._attributes[name].get("__spec__"), "origin", None)
        if "." not in name and origin not in (None, "built-in", "frozen"):
            found = _find_spec(name)
            if found is None or found.origin != origin:
                os._exit(REFUSED)
        return ModuleSpec(name, self, origin=origin, is_package=hasattr(module, "__path__"))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> object:
        """Gives the loaded module back."""
        module = self._modules.pop(spec.name)
        self._names[id(module)] = spec.name
        return module

    def exec_module(self, module: object) -> None:
        """Imports again what the module had imported, in the same order."""
        name = self._names[id(module)]
        vars(module).update(self._attributes[name])
        for each in IMPORTS.get(name, ()):
            if each in sys.modules or each not in self._modules:
                continue
            if each in self._by_hand:
                sys.modules[each] = self._modules.pop(each)  # type: ignore[assignment]
            else:
                importlib.import_module(each)


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
        told = waiting.pop(process)
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(told)


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
    stow.hide()


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

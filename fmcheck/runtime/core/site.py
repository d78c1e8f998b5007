"""Sites: the line of engine code that touched a relay buffer, kept as a number.

Also who is at work: what makes an engine's call in its stead, and what fmcheck does on streams
itself, which is no fence or access of the engine's.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fmcheck.finding import Site
from fmcheck.runtime.core.naming import qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType


_OWN = f"{Path(__file__).parent.parent}{os.sep}"
# What is called by torch for each operation, and what makes an engine's operation in its stead.
_ROOMS = Path(__file__).parent.parent
_LISTENING = frozenset(
    str(_ROOMS / name)
    for name in (
        "core/site.py",
        "core/containment.py",
        "steps/step_syncs.py",
        "order/ops.py",
        "steps/placements.py",
        "steps/factories.py",
        "steps/moves.py",
        "steps/uninitialized.py",
        "steps/torch_modes.py",
        "graphs/graph_reads.py",
        "graphs/outputs.py",
        "device/device_ops.py",
    )
)
_PASSING_ON = frozenset(
    str(_ROOMS / name)
    for name in (
        "relay/relay_tensor.py",
        "relay/opaque.py",
        "steps/budgets.py",
        "session/compiled.py",
        "session/operator_probes.py",
    )
)
# A scratch engine of fmcheck's own: its lines are an engine's, and never those of whoever asked.
_SCRATCH = str(_ROOMS / "session" / "operator_probes.py")
# Where pytest turns values into text, for the report of a test that has failed.
_SHOWING = os.path.join("_pytest", "_io", "")
_PRINTING = os.path.join("torch", "_tensor_str.py")
_UNKNOWN = Site("<unknown>", 0, "<unknown>")
# Functions of fmcheck's that make an engine's call in its stead, by their code.
_making: set[CodeType] = set()
# How many frames lie between the engine's call and those that hear of it.
_DEEPEST = 16


class Sites:
    """Finds the innermost frame outside of fmcheck and torch, and remembers it by number."""

    def __init__(self) -> None:
        self._outside: dict[str, bool] = {}
        self._numbers: dict[tuple[int, int, int, int], int] = {}
        self._places: dict[tuple[int, int, int, int], int] = {}
        self._sites: list[Site] = [_UNKNOWN]
        # Keeps what is known by its id alive, so that no other code gets that id.
        self._codes: list[CodeType] = []
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]

    def here(self, ours: int = 0) -> int:
        """Returns the number of the calling line of engine code, and of the line that called it.

        The innermost `ours` frames are known to be fmcheck's, which saves looking.
        """
        frame = self._outward(sys._getframe(1 + ours))
        if frame is None:
            return 0
        caller = frame.f_back
        # Most functions of an engine are called by it: a call in Python less.
        if caller is not None and not self._outside.get(caller.f_code.co_filename):
            caller = self._outward(caller)
        # By id: code that Dynamo rewrote may hold a slice, and then it has no hash. By instruction:
        # a frame's line is looked for from its function's first one on.
        if caller is None:
            place = id(frame.f_code), frame.f_lasti, 0, 0
        else:
            place = id(frame.f_code), frame.f_lasti, id(caller.f_code), caller.f_lasti
        number = self._places.get(place)
        if number is None:
            number = self._places[place] = self._number_of(frame, caller)
        return number

    def _number_of(self, frame: FrameType, caller: FrameType | None) -> int:
        """Returns the number of a line and of the one that called it, which is theirs from then."""
        key = (id(frame.f_code), frame.f_lineno, id(caller and caller.f_code), _line(caller))
        number = self._numbers.get(key)
        return self._remember(key, frame, caller) if number is None else number

    def frame(self) -> FrameType | None:
        """Returns the frame of the calling line of engine code."""
        return self._outward(sys._getframe(1))

    def is_own(self) -> bool:
        """Tells whether fmcheck itself is at work, and does not pass an engine's call on."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(_OWN):
                if name not in _LISTENING:
                    return name not in _PASSING_ON
            elif _is_outside(name):
                return False
            frame = frame.f_back
        return False

    def is_showing(self, or_printing: bool = False) -> bool:
        """Tells whether a value is looked at by pytest alone, to show it in a report.

        Or by torch, which makes a text of a tensor.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if _SHOWING in name or (or_printing and name.endswith(_PRINTING)):
                return True
            frame = frame.f_back
        return False

    def is_torch_calling(self, method: str) -> bool:
        """Tells whether torch itself called the method that came to fmcheck.

        A method that torch wrote in Python comes by frames of its own, and fmcheck's own code by
        Dynamo's once that is imported: it is shielded from being traced.
        """
        frame: FrameType | None = sys._getframe(1)
        shields = os.path.join(_home_of("torch"), "_dynamo", "")
        while frame is not None and (
            frame.f_code.co_filename.startswith((_OWN, shields))
            or frame.f_code.co_name in (method, "handle_torch_function")
        ):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(_home_of("torch"))

    def _outward(self, frame: FrameType | None) -> FrameType | None:
        """Returns the first frame from `frame` outwards that is the engine's."""
        outside = self._outside
        while frame is not None:
            name = frame.f_code.co_filename
            known = outside.get(name)
            if known is None:
                known = outside[name] = _is_outside(name)
            if known:
                return frame
            frame = frame.f_back
        return None

    def _remember(
        self, key: tuple[int, int, int, int], frame: FrameType, caller: FrameType | None
    ) -> int:
        made = replace(_site(frame), caller=None if caller is None else _site(caller))
        with self._lock:
            self._codes += [one.f_code for one in (frame, caller) if one is not None]
            self._sites.append(made)
            return self._numbers.setdefault(key, len(self._sites) - 1)


def makes_the_engines_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that makes an engine's call in its stead, and does nothing else."""
    _making.add(function.__code__)
    return function


def is_making(frame: FrameType) -> bool:
    """Tells whether a frame is that of such a function."""
    return frame.f_code in _making


def is_made_here(ours: int = 0) -> bool:
    """Tells whether such a function makes the call that is heard of `ours` frames further in."""
    frame: FrameType | None = sys._getframe(1 + ours)
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if is_making(frame):
            return True
        frame = frame.f_back
    return False


def _line(frame: FrameType | None) -> int:
    return 0 if frame is None else frame.f_lineno


def _site(frame: FrameType) -> Site:
    code = frame.f_code
    return Site(code.co_filename, frame.f_lineno, qualified_name(code))


def definition_of(function: Callable[..., Any]) -> Site:
    """Returns where a function is defined, as far as it is one of Python's."""
    code: Any = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Site("<unknown>", 0, getattr(function, "__qualname__", "<unknown>"))
    return Site(code.co_filename, code.co_firstlineno, qualified_name(code))


def _is_outside(filename: str) -> bool:
    """Tells whether a file is not fmcheck's, torch's, NumPy's, or the kernel language's."""
    if filename == _SCRATCH:
        return True
    return not filename.startswith((_OWN, *map(_home_of, ("torch", "triton", "numpy"))))


def _home_of(package: str) -> str:
    """Returns the folder of a loaded package; of one that is not, a name that no file has."""
    module = sys.modules.get(package)
    # With a separator: `torchao` is not torch's.
    return f"{Path(module.__file__).parent}{os.sep}" if module and module.__file__ else "\0"


class _Here(threading.local):
    depth = 0


_here = _Here()


def is_here() -> bool:
    """Tells whether this thread is in such a block."""
    return _here.depth > 0


@contextmanager
def unfollowed() -> Iterator[None]:
    """Keeps what a block does on streams from being followed."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1

"""Containment: an error of fmcheck's own code, which never becomes the engine's.

Engine code reaches ours through patched methods, dispatch modes and wrapped functions. What we do
there besides the engine's own call is run inside `contained`, or hands its error to `broke`. The
first error of a check is kept with its traceback, further ones are counted, and the check says from
then on that it is incomplete. What is raised on purpose passes: a violation in mode halt, the error
of a signal handler, and whatever is no `Exception`, as KeyboardInterrupt and SystemExit.
"""

from __future__ import annotations

import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmcheck.errors import ViolationError
from fmcheck.runtime.core.tally import BrokenCheck

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fmcheck.runtime.core.tally import Tally

_OWN = str(Path(__file__).parents[2] / "_")[:-1]  # ends in a separator
#: Lines of ours that an error is shown with.
_SHOWN = 4


def broke(tally: Tally, check: str, err: Exception) -> None:
    """Counts an error of our own code, to be called while it is handled.

    Raises:
        Exception: `err` itself, if it was raised on purpose.
    """
    if is_on_purpose(tally, err):
        raise err
    with tally.lock:
        known = tally.broken.get(check)
        if known is not None:
            known.count += 1
            return
        tally.broken[check] = BrokenCheck(_sentence(err), _traceback(err))
        if tally.keeper is not None:
            tally.keeper.milestone()


def sentences(tally: Tally) -> tuple[str, ...]:
    """Returns a sentence for each check whose own code failed."""
    return tuple(
        f"{check} is incomplete: fmcheck's own code failed there "
        f"{'once' if broken.count == 1 else f'{broken.count:,} times'}, first with {broken.error}; "
        "the program was not affected, but what this check found after that may not be all; "
        "please report this line to fmcheck"
        for check, broken in tally.broken.items()
    )


class contained:  # noqa: N801 - used as a function is
    """Runs a block of our own code: its error is counted, and goes no further."""

    __slots__ = ("_check", "_tally")

    def __init__(self, tally: Tally, check: str) -> None:
        self._tally = tally
        self._check = check

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(err, Exception):
            return False
        if is_on_purpose(self._tally, err):
            return False
        broke(self._tally, self._check, err)
        return True


def made_once(
    tally: Tally,
    check: str,
    ours: Callable[[Callable[[], Any]], Any],
    call: Callable[[], Any],
) -> Any:
    """Returns what `ours` makes of an engine's call, which it is handed and has to make.

    If our code fails before the call, the call is made; if it fails behind it, the call's own
    result is returned. In no case is the call made twice, and its own error is raised as it is.
    """
    once = _Once(call)
    try:
        return ours(once)
    except Exception as err:
        if err is once.error:
            raise
        broke(tally, check, err)
    if once.error is not None:
        raise once.error
    return once.result if once.is_made else call()


class _Once:
    """An engine's call, and how it went."""

    __slots__ = ("_call", "error", "is_made", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.is_made = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        self.is_made = True
        try:
            self.result = self._call()
        except BaseException as err:
            self.error = err
            raise
        return self.result


def is_on_purpose(tally: Tally, err: Exception) -> bool:
    """Tells whether an error that came by our code is to reach the engine, or its test."""
    if isinstance(err, ViolationError):
        return tally.halts
    return _is_of_a_signal(err)


def _is_of_a_signal(err: Exception) -> bool:
    """Tells whether a signal's handler raised it, which may happen at any line of ours."""
    ran = {frame.f_code for frame, _ in traceback.walk_tb(err.__traceback__)}
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return any(getattr(one, "__code__", None) in ran for one in handlers if callable(one))


def _sentence(err: Exception) -> str:
    """Returns an error on one line, with the innermost lines of ours that it came by."""
    lines = [
        f"{Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(err.__traceback__)
        if frame.f_code.co_filename.startswith(_OWN)
    ]
    where = f" at {' < '.join(reversed(lines[-_SHOWN:]))}" if lines else ""
    return f"{type(err).__name__}{where}: {_said(err)}"


def _said(err: Exception) -> str:
    try:
        return str(err).strip().partition("\n")[0] or "no message"
    except Exception:  # the error of an engine's object, which cannot be known
        return "no message"


def _traceback(err: Exception) -> str:
    try:
        return "".join(traceback.format_exception(err))
    except Exception:
        return _sentence(err)

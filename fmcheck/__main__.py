"""The command `fmcheck`, and `python -m fmcheck`."""

from __future__ import annotations

import errno
import os
import sys


class _Closed:
    """A standard output that is closed: who has nothing to say does not notice."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._is_missed = False

    def write(self, text: str) -> int:
        """Fails, if there is anything to write."""
        self._is_missed = self._is_missed or bool(text)
        self.flush()
        return 0

    def flush(self) -> None:
        """Fails, if anything was to be written."""
        if self._is_missed:
            raise OSError(errno.EBADF, "it is closed")

    def isatty(self) -> bool:
        """Tells that nobody looks."""
        return False


def main() -> int:
    """Says again what an equal run said, or makes the run."""
    argv = sys.argv[1:]
    try:
        _prepare()
        from fmcheck.import_path import leave_out_working_folder

        leave_out_working_folder()
        if sys.version_info < (3, 10):  # noqa: UP036, asked of a checkout and not of pip
            from fmcheck.supported import check_python

            check_python()
        # Nothing else may be imported before this: a replay takes a tenth of those imports' time.
        from fmcheck.lint.run.replay import replay

        status = replay(argv)
        if status is None:
            from fmcheck.lint.run.recording import recorded

            _end_as_interrupted()
            status = recorded(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as err:
        from fmcheck.cli import ended

        return ended(err, argv)
    return status


def _prepare() -> None:
    """Makes the standard streams such that no text, and no stream that is closed, ends the run."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # or the next file that is opened is taken for it
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_as_interrupted() -> None:
    """Has SIGTERM end a run as an interrupt does, so that nothing half-written stays behind."""
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())

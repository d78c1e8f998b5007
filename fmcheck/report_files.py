"""Reports of a run as files: what a file's ending asks for, and whether it can be written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError, nearest
from fmcheck.files.atomic import leads_out

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fmcheck.record.record import Run

ENDINGS = (".json", ".sarif", ".html")


def checked(paths: Sequence[str], option: str, folder: Path) -> tuple[Path, ...]:
    """Returns the paths of reports, from `folder`, before there is anything to write.

    Raises:
        UsageError: naming `option`, if an ending is unknown or a file could not be written.
    """
    return tuple(_checked(path, option, folder) for path in dict.fromkeys(paths))


def _checked(given: str, option: str, folder: Path) -> Path:
    path = folder / given
    if path.suffix not in ENDINGS:
        raise UsageError(
            option,
            f"expected a file that ends in {', '.join(ENDINGS)}, got `{given}`"
            f"{nearest(path.suffix or path.name, ENDINGS)}",
        )
    check_writable(path, given, option)
    return path


def check_writable(path: Path, given: str | Path, option: str) -> None:
    """Says before the work is done that its result could not be written.

    Raises:
        UsageError: if so, about the option.
    """
    if path.is_dir():
        raise UsageError(option, f"expected a file, and `{given}` is a folder")
    if path.exists() and not path.is_file():
        return  # as /dev/stdout, a link to a pipe: it is written to, and not replaced
    if why := leads_out(path):
        raise UsageError(option, f"`{given}` cannot be written: {why}")
    above = next(one for one in path.parents if one.exists())
    if not above.is_dir():
        raise UsageError(option, f"`{given}` cannot be written: `{above}` is no folder")
    if not os.access(above, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(option, f"`{given}` cannot be written: permission denied")


def write_run(run: Run, path: Path) -> None:
    """Writes a run in the form that the path's ending asks for; see `write_file`."""
    write_file(path, rendered(run, path.suffix))


def write_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; folders on the way are made.

    Raises:
        UsageError: if that cannot be done.
    """
    from fmcheck.files.atomic import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as err:
        raise UsageError(str(path), f"cannot be written: {err.strerror or err}") from err


def rendered(run: Run, ending: str) -> bytes:
    """Returns a run in the form of an ending of `ENDINGS`."""
    # What one form needs is imported for it alone: jinja2 for a page.
    if ending == ".json":
        from fmcheck.record.record_file import encode

        return encode(run)
    if ending == ".sarif":
        from fmcheck.report.run.run_sarif import render as render_sarif

        return render_sarif(run).encode()
    from fmcheck.report.run.html import render as render_page

    return render_page(run).encode()

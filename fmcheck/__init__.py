"""fmcheck: stale-data checks for overlap-scheduled LLM inference engines.

PYTEST_DONT_REWRITE: a child's start-up file imports this before pytest does, which then warns.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as typing has it, without the import
if TYPE_CHECKING:
    from fmcheck.errors import CoverageError as CoverageError
    from fmcheck.errors import DetectorError as DetectorError
    from fmcheck.errors import FmcheckWarning as FmcheckWarning
    from fmcheck.errors import ViolationError as ViolationError
    from fmcheck.runtime.session.session import sync as sync
    from fmcheck.runtime.session.session import watch as watch

    Violation = ViolationError

__version__ = "0.1.0"

# A wheel carries rules/ and plugin.py in here; a source tree keeps them beside this package.
if not os.path.exists(os.path.join(__path__[0], "plugin.py")):
    __path__.append(os.path.dirname(__path__[0]))

# `pytest -p fmcheck` imports this package, then loads what is listed here.
# Nothing else belongs at this level: engine processes import fmcheck too.
pytest_plugins = ("fmcheck.plugin",)


def __getattr__(name: str) -> object:
    """Imports the public names when they are first asked for."""
    if name in ("CoverageError", "DetectorError", "FmcheckWarning", "ViolationError"):
        from fmcheck import errors

        return getattr(errors, name)
    if name == "Violation":  # what a test's mark calls it: xfail(raises=fmcheck.Violation)
        from fmcheck.errors import ViolationError

        return ViolationError
    if name in ("sync", "watch"):
        from fmcheck.runtime.session import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""fmcheck: stale-data checks for overlap-scheduled LLM inference engines."""

from __future__ import annotations

import os

__version__ = "0.1.0"

# A wheel carries rules/ and plugin.py in here; a source tree keeps them beside this package.
if not os.path.exists(os.path.join(__path__[0], "plugin.py")):
    __path__.append(os.path.dirname(__path__[0]))

# `pytest -p fmcheck` imports this package, then loads what is listed here.
# Nothing else belongs at this level: engine processes import fmcheck too.
pytest_plugins = ("fmcheck.plugin",)

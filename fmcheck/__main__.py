"""`python -m fmcheck`."""

from __future__ import annotations

import sys

from fmcheck.cli import main

sys.exit(main())

"""The command `fmcheck`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    from fmcheck.config import find_settings
    from fmcheck.lint.engine import lint_file
    from fmcheck.lint.files import python_files
    from fmcheck.registry import contracts_for, rules

    paths = [Path(p) for p in sys.argv[2:]]
    located = find_settings(paths[0])
    cs = contracts_for(located)
    rs = [r(cs) for r in rules().values()]
    n = 0
    for f in python_files(paths):
        for x in lint_file(f, rs):
            n += 1
            print(
                f"{x.path}:{x.span.line}:{x.span.column}: {x.code} {x.severity.value} {x.message}"
            )
    return 1 if n else 0

"""`python -m tests.reach`: every way to start a child against every way that it ends, and kills."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.reach import kills, matrix, project


def main() -> int:
    """Prints the table and the kills; 1 if anything was lost."""
    with tempfile.TemporaryDirectory() as folder:
        judged = matrix.run(project.make(Path(folder)), matrix.everything())
    print(matrix.table(judged))
    for way, end, wrong in judged:
        if wrong:
            print(f"{way}, {end}: {wrong}")
    return int(any(wrong for *_, wrong in judged)) | kills.main(["200", "200"])


if __name__ == "__main__":
    sys.exit(main())

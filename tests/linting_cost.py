"""`python -m tests.linting_cost TREE [CODE...]`: how many lines each rule's words let through."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

from fmcheck.lint.engine import lint_text
from fmcheck.lint.source import tree
from tests.default_rules import default_rules


def main(argv: list[str]) -> int:
    """Prints a line for each rule, and one for all of them together."""
    root, codes = Path(argv[0]), argv[1:]
    used = [rule for rule in default_rules() if not codes or rule.code in codes]
    texts = [(str(path), path.read_bytes()) for path in sorted(root.rglob("*.py"))[::5]]
    parsed: list[str] = []
    real = tree.Tree

    def counted(text: str, before: str = "") -> tree.Tree:
        parsed.append(text)
        return real(text, before)

    tree.Tree = counted  # type: ignore[assignment,misc]
    gc.disable()
    for some in [*([rule] for rule in used), used]:
        parsed.clear()
        start = time.process_time()
        found = sum(len(lint_text(text, path, some)) for path, text in texts)
        took = time.process_time() - start
        lines = sum(text.count("\n") for text in parsed)
        name = some[0].code if len(some) == 1 else "all"
        print(f"{name}: {len(parsed)} slices, {lines:,} lines, {took:.2f} s, {found} findings")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

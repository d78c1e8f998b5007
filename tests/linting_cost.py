"""`python -m tests.linting_cost TREE [CODE...]`: how many lines each rule's words let through.

Without codes those of the default rules, with `ALL` those of every rule. `alone` are the lines that
are parsed for one of them and for no other.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.lint.engine import lint_text
from fmcheck.lint.source import tree
from tests.default_rules import all_rules

if TYPE_CHECKING:
    from collections.abc import Iterable


def main(argv: list[str]) -> int:
    """Prints a line for each rule, and one for all of them together."""
    root, codes = Path(argv[0]), argv[1:]
    used = [
        rule
        for rule in all_rules()
        if rule.code in codes or "ALL" in codes or (not codes and rule.on_by_default)
    ]
    texts = [(str(path), path.read_bytes()) for path in sorted(root.rglob("*.py"))[::5]]
    parsed: list[str] = []
    real = tree.Tree

    def counted(text: str, before: str = "") -> tree.Tree:
        parsed.append(text)
        return real(text, before)

    tree.Tree = counted  # type: ignore[assignment,misc]
    gc.disable()
    rows: dict[str, tuple[set[str], str]] = {}
    for some in [*([rule] for rule in used), used]:
        parsed.clear()
        start = time.process_time()
        found = sum(len(lint_text(text, path, some)) for path, text in texts)
        took = time.process_time() - start
        name = some[0].code if len(some) == 1 else "all"
        rows[name] = set(parsed), f"{took:.2f} s, {found} findings"
    needed = Counter(text for name, (slices, _) in rows.items() if name != "all" for text in slices)
    for name, (slices, reported) in rows.items():
        alone = _lines(text for text in slices if needed[text] == 1)
        only = f", {alone:,} alone" if name != "all" else ""
        print(f"{name}: {len(slices)} slices, {_lines(slices):,} lines{only}, {reported}")
    return 0


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""How long a language server takes to check a file of 5,000 lines, opened and typed in.

`python -m tests.typing_cost`: CPU seconds of the check on opening, then of four after an edit.
"""

from __future__ import annotations

import time

from fmcheck.lint.source.tree import KEPT, Kept
from fmcheck.server.checking import findings, get_ready, uncollected
from tests.corpus import wheel_source

LINES = 5000
FILES = (
    "sglang/srt/managers/scheduler.py",
    "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py",
    "sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py",
)


def grown(text: str) -> str:
    """Returns a file of at least `LINES` lines, made of copies with other class names."""
    whole, number = text, 0
    while whole.count("\n") < LINES:
        number += 1
        whole += "\n" + text.replace("class ", f"class C{number}")
    return whole


def measured(name: str) -> tuple[int, int, list[float]]:
    """Returns a file's lines and findings, and the seconds of each of five checks."""
    text = grown((wheel_source("sglang", "0.5.23") / name).read_text(encoding="utf-8"))
    seconds, found = [], 0
    KEPT.set(Kept())
    for number in range(5):
        start = time.process_time()
        with uncollected():
            found = len(findings(name, f"{text}# {number}\n"))
        seconds.append(time.process_time() - start)
    return text.count("\n"), found, seconds


if __name__ == "__main__":
    get_ready()
    for name in FILES:
        lines, found, seconds = measured(name)
        reported = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"{name}: {lines:,} lines, {found} findings: {reported} s")

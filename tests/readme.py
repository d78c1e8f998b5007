"""The parts of README.md that are made: `python -m tests.readme` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from fmcheck.registry import rules

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- rules: made by `python -m tests.readme` -->", "<!-- end of the rules -->"

FAMILIES = {
    "FM1": "relay buffers and late results",
    "FM2": "graph inputs and their padded tails",
    "FM3": "devices",
    "FM4": "streams, events and host memory",
    "FM5": "launches and syncs",
    "FM6": "compiled and captured code",
    "FM7": "names and guards of hooks",
}


def rules_table() -> str:
    """Returns all rules of fmcheck as a table, family by family."""
    lines = ["| rule | default | what it finds |", "|---|---|---|"]
    family = ""
    for code, rule in rules().items():
        if not code.startswith("FM"):
            continue
        if code[:3] != family:
            family = code[:3]
            lines.append(f"| **{family}** | | **{FAMILIES[family]}** |")
        default = rule.severity.value if rule.on_by_default else "off"
        fix = " Has a fix." if rule.has_fix() else ""
        summary = (rule.__doc__ or "").strip().partition("\n")[0]
        lines.append(f"| {code} `{rule.name}` | {default} | {summary}{fix} |")
    return "\n".join(lines)


def made(text: str) -> str:
    """Returns the text of a README with its made parts as they ought to be."""
    around = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not around.search(text):
        raise ValueError(f"{README} lacks the lines `{BEGIN}` and `{END}`")
    return around.sub(lambda _: f"{BEGIN}\n{rules_table()}\n{END}", text)


if __name__ == "__main__":
    README.write_text(made(README.read_text()))

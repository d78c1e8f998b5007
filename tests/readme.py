"""The parts of README.md and docs that are made: `python -m tests.readme` writes them again.

The table of rules in docs/lint.md comes from the registry. The two findings of README.md are what
the linter prints of a released SGLang, and the plugin of the small engine in tests/data, with the
contract that README.md itself gives.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fmcheck.cli import main
from fmcheck.registry import rules
from tests.corpus import wheel_source

ROOT = Path(__file__).parent.parent
README, LINT = ROOT / "README.md", ROOT / "docs" / "lint.md"
BEGIN, END = "<!-- rules: made by `python -m tests.readme` -->", "<!-- end of the rules -->"
#: A bug in a test of the small engine: the batch is gathered twice.
STALE = """\
import torch
from my_engine.relay import TokenRelay


def test_two_steps():
    relay, rows = TokenRelay(), torch.tensor([1, 2])
    relay.stash(rows, torch.tensor([5, 6]))
    relay.gather(rows)
    relay.gather(rows)
"""

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
        lines.append(f"| [{code}](rules/{code}.md) `{rule.name}` | {default} | {summary}{fix} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """Returns the text of docs/lint.md with its table of rules as it should be."""
    around = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not around.search(text):
        raise ValueError(f"{LINT} lacks the lines `{BEGIN}` and `{END}`")
    return around.sub(lambda _: f"{BEGIN}\n{rules_table()}\n{END}", text)


def blocks(text: str, language: str) -> list[str]:
    """Returns the fenced blocks of a language, also those inside of a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def finding_block(text: str) -> str:
    """Returns the block of README.md that shows a finding of the linter."""
    return next(one for one in blocks(text, "console") if one.startswith("$ fmcheck lint sglang"))


def violation_block(text: str) -> str:
    """Returns the block of README.md that shows a finding at run time."""
    return next(one for one in blocks(text, "console") if one.startswith("$ pytest -p fmcheck"))


def finding(block: str) -> str:
    """Returns what the command of a block prints, without the closing lines."""
    command, out, here = block.partition("\n")[0], io.StringIO(), Path.cwd()
    os.chdir(wheel_source("sglang", "0.5.12"))
    try:
        with contextlib.redirect_stdout(out):
            main([*shlex.split(command)[2:], "--no-cache"])
    finally:
        os.chdir(here)
    whole = out.getvalue().partition("\n\n")[0]
    return f"{command}\n{whole.rstrip()}\n"


def violation(text: str, folder: Path) -> str:
    """Returns what pytest prints of STALE, with the contract and the settings of README.md."""
    shutil.copytree(ROOT / "tests" / "data" / "my_engine" / "my_engine", folder / "my_engine")
    contract, settings = blocks(text, "toml")
    (folder / "my_engine.toml").write_text(contract)
    (folder / "pyproject.toml").write_text(settings)
    (folder / "test_relay.py").write_text(STALE)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))}
    command = [sys.executable, "-m", "pytest", "-p", "fmcheck", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "test_relay.py"], capture_output=True, text=True, cwd=folder, env=environ
    )
    return done.stdout + done.stderr


def shortened(output: str) -> str:
    """Returns the finding and the closing line of what pytest printed, as README.md shows them."""
    story = re.search(r"^FMCHECK: .*?^  test .*?$", output, re.DOTALL | re.MULTILINE)
    closing = re.search(r"^fmcheck: \d+ buffer.*$", output, re.MULTILINE)
    if not story or not closing:
        raise ValueError(f"pytest reported no finding:\n{output}")
    return f"$ pytest -p fmcheck test_relay.py\n...\n{story[0]}\n...\n{closing[0]}\n"


def with_findings(text: str) -> str:
    """Returns the text of README.md with its two findings as they are printed now."""
    with tempfile.TemporaryDirectory() as folder:
        now = shortened(violation(text, Path(folder)))
    shown = finding_block(text)
    return text.replace(shown, finding(shown)).replace(violation_block(text), now)


if __name__ == "__main__":
    LINT.write_text(with_table(LINT.read_text()))
    README.write_text(with_findings(README.read_text()))

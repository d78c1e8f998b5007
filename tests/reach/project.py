"""A project with a small engine, in an environment that fmcheck's start-up file is installed in."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
#: The engine again and again: each function is a code site of its own, and finds one violation.
SITES = 8

SETTINGS = """
    [tool.fmcheck]
    contracts = ["toy.toml"]
"""
CONTRACT = """
    [engine]
    name = "toy"

    [[relay]]
    class = "toy_engine:FutureMap"

    [[relay.buffer]]
    name = "tokens_buf"
    valid = ">= 0"
"""
ENGINE = """
    import torch

    torch.set_num_threads(1)
    ROWS = torch.tensor([1, 2])

    class FutureMap:
        def __init__(self):
            self.tokens_buf = torch.zeros(8, dtype=torch.int64)

    def healthy():
        fm = FutureMap()
        fm.tokens_buf[ROWS] = 5
        return fm.tokens_buf[ROWS]

    def stale():
        fm = FutureMap()
        fm.tokens_buf[ROWS] = 5
        fm.tokens_buf[ROWS]
        return fm.tokens_buf[ROWS]
"""


@dataclass(frozen=True)
class Project:
    """A folder with tests, and the Python that runs them."""

    folder: Path
    python: str

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def pytest(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs pytest in the folder, with the plugin if an argument asks for it."""
        keep = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FMCHECK", "PYTEST", "PYTHON"))
        }
        keep |= {"PYTHONPATH": str(self.folder), **environment}
        return subprocess.run(
            [self.python, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            env=keep,
            capture_output=True,
            text=True,
            errors="backslashreplace",
        )


def make(folder: Path, installed: bool = True) -> Project:
    """Makes the project, and an environment that has all that this one has.

    Where fmcheck is not `installed`, it can be imported and has no start-up file.
    """
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    homes = [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "all.pth").write_text("\n".join(homes) + "\n")
    if installed:
        name = "fmcheck-reach.pth"
        (site / name).write_text((REPOSITORY / "fmcheck" / "processes" / name).read_text())
    project = Project(folder, str(environment / "bin" / "python"))
    project.write("pyproject.toml", SETTINGS)
    project.write("toy.toml", CONTRACT)
    project.write("toy_engine.py", ENGINE)
    return project

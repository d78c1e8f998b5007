"""Sources to lint: each with one finding, one that does not parse, and some of this checkout."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent

STRAY_EVENT = """\
import torch

def publish(device):
    module = torch.get_device_module(device)
    ready = torch.cuda.Event()
    return module, ready
"""
DEAD_ASSERT = """\
import torch

@torch.compile(dynamic=True)
def check(values):
    torch._assert_async((values >= 0).all())
"""
ANNOTATION = """\
import torch

def wait(ready: torch.cuda.Event, device):
    torch.get_device_module(device).Stream().wait_event(ready)
"""
#: Does not parse, just where a rule looks.
BROKEN = STRAY_EVENT.replace("Event()", "Event(")


def chosen() -> list[Path]:
    """Returns the shortest, the middle and the longest file of each folder of this checkout.

    The museum's cases are one folder for each form, as they are written alike. With
    `FMCHECK_SOURCES=all` it returns all files, to compare what each choice of them notices.
    """
    kinds: dict[str, list[Path]] = defaultdict(list)
    for folder in ("fmcheck", "rules", "fixtures", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            kinds["/".join(parts[:-1]) if parts[1] != "museum" else f"museum {path.name}"].append(
                path
            )
    found = []
    for paths in kinds.values():
        paths.sort(key=lambda path: (path.stat().st_size, path))
        if os.environ.get("FMCHECK_SOURCES") == "all":
            found += paths
            continue
        found += dict.fromkeys((paths[0], paths[len(paths) // 2], paths[-1]))
    return sorted(found)

"""`python -m tests.robust [FOLDER ...]`: the linter over whole trees and planted odd files.

Without folders: this interpreter's site-packages and standard library, its tests included. Each
tree is linted with one process and with two, cold, and once more from the cache. What must hold:
exit status 0, 1 or 2 as documented, the same findings each time, nothing on stderr, no failed rule
and no file named twice as unreadable.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.odd_files import plant

START = "import sys; from fmcheck.__main__ import main; sys.exit(main())"
#: Every rule. Not by `-m`, which puts the folder first on the path: another Python's library.
LINT = (sys.executable, "-P", "-c", START, "lint", "--select", "ALL", "--format", "json")
ENVIRON = {**os.environ, "PYTHONPATH": os.getcwd()}


def main() -> int:
    """Prints a line for each run; 1 if one of them did what it must not."""
    parser = argparse.ArgumentParser("python -m tests.robust", description=str(__doc__))
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=_folder)
    paths = sysconfig.get_paths()
    folders = parser.parse_args().folders or [Path(paths["purelib"]), Path(paths["stdlib"])]
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, folder in enumerate(folders):
            faults += _tree(folder, Path(scratch, str(number)))
        faults += _planted(Path(scratch))
        faults += _interrupted(folders[0])
        faults += _vanishing(folders[0], Path(scratch))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


def _lint(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    start = time.monotonic()
    done = subprocess.run([*LINT, *options, "."], cwd=folder, env=ENVIRON, capture_output=True)
    print(f"{folder} {' '.join(options)}: exit {done.returncode}, {time.monotonic() - start:.1f} s")
    return done


def _findings(done: subprocess.CompletedProcess[bytes], faults: list[str]) -> list[Any]:
    """Returns a run's findings; notes what must not be."""
    what = " ".join(done.args[9:])
    if done.stderr:
        faults.append(f"{what}: stderr {done.stderr[-300:].decode(errors='replace')}")
    if done.returncode not in (0, 1, 2):
        faults.append(f"{what}: exit {done.returncode}")
    try:
        findings: list[Any] = json.loads(done.stdout)
    except ValueError:
        faults.append(f"{what}: no JSON")
        return []
    codes = Counter(one["code"] for one in findings)
    print(f"  {dict(sorted(codes.items()))}")
    if codes["FM002"]:
        faults.append(f"{what}: rules failed")
    if done.returncode != 2 and codes["FM001"]:
        faults.append(f"{what}: exit {done.returncode} with unreadable files")
    whole = Counter(
        one["path"]
        for one in findings
        if one["code"] == "FM001" and one["help"].startswith("this file")
    )
    faults += [f"{path} is told of twice" for path, count in whole.items() if count > 1]
    return findings


def _folder(name: str) -> Path:
    if not Path(name).is_dir():
        raise argparse.ArgumentTypeError(f"{name} is no folder")
    return Path(name)


def _tree(folder: Path, cache: Path) -> list[str]:
    faults: list[str] = []
    runs = [
        _findings(_lint(folder, *options), faults)
        for options in (
            ("--no-cache", "-j1"),
            ("--cache-dir", str(cache), "-j2"),
            ("--cache-dir", str(cache), "-j2"),
        )
    ]
    if any(run != runs[0] for run in runs):
        faults.append(f"{folder}: runs differ")
    for one in runs[0]:
        if one["code"] == "FM001":
            print(f"    {one['path']}:{one['line']} {one['message'][:100]}")
    return faults


def _planted(scratch: Path) -> list[str]:
    folder = scratch / "odd"
    folder.mkdir()
    expected = plant(folder, big=True)
    faults: list[str] = []
    locked, locked_folder = folder / "locked.py", folder / "locked"
    locked.write_text("")
    locked.chmod(0)
    locked_folder.mkdir(mode=0)
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root:
        print("  run as root: that files and folders cannot be read was not tried")
    else:
        expected["locked.py"] = ("FM001",)
    for options in (("--no-cache", "-j1"), ("--no-cache", "-j2")):
        got: dict[str, tuple[str, ...]] = {}
        for one in _findings(_lint(folder, "--select", "FM301", *options), faults):
            if one["code"] in ("FM001", "FM002", "FM301"):
                got[one["path"]] = (*got.get(one["path"], ()), one["code"])
        faults += [
            f"{name}: expected {codes}, got {got.get(name, ())}"
            for name, codes in expected.items()
            if got.get(name, ()) != codes
        ]
    locked_folder.chmod(0o700)
    return faults


def _interrupted(folder: Path) -> list[str]:
    run = subprocess.Popen(
        [*LINT, "--no-cache", "-j2", "."],
        cwd=folder,
        env=ENVIRON,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(0.7)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    print(f"{folder} interrupted: exit {run.returncode}, {err!r}")
    try:
        os.killpg(run.pid, 0)
    except ProcessLookupError:
        left = False
    else:
        left = True
    good = run.returncode == 130 and err == b"fmcheck: interrupted\n" and not left
    return [] if good else [f"{folder}: an interrupt gave {run.returncode}, {err!r}, left {left}"]


def _vanishing(folder: Path, scratch: Path) -> list[str]:
    """Lints a copy while its files go, with two runs at once over one cache."""
    copy = scratch / "vanishing"
    shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    faults: list[str] = []
    done: list[subprocess.CompletedProcess[bytes]] = []
    options = ("--cache-dir", str(scratch / "shared"), "-j2")
    runs = [threading.Thread(target=lambda: done.append(_lint(copy, *options))) for _ in range(2)]
    for run in runs:
        run.start()
    time.sleep(0.7)
    for path in sorted(copy.rglob("*.py"))[::3]:
        path.unlink()
    for run in runs:
        run.join()
    for one in done:
        _findings(one, faults)
    return faults


if __name__ == "__main__":
    raise SystemExit(main())

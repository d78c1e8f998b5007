"""Whole engines of SGLang on CPU, with and without `pytest -p fmcheck`, healthy and spoilt.

`python -m tests.engines` prints, release by release, what the healthy engines passed and how much
was checked in how many processes, how much longer it took, and which spoilt relay was reported in
which test. `--release` and `--kind` pick some.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.processes.journal.collect import gather
from tests.drives import codes, under_pytest
from tests.sglang_env import HERE, NoEnvironment, environment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.record.record import Run
    from tests.drives import Drive

WHOLE = HERE / "data" / "whole"
RELEASES = ("0.5.13", "0.5.16", "0.5.19", "0.5.23")
#: How the relay is spoilt, and in which kind of engine.
SPOILT = {
    "dropped_stash": "overlap",
    "dropped_row": "overlap",
    "wrong_row": "overlap",
    "row_of_another": "overlap",
    "gathered_again": "overlap",
    "dropped_publish": "spec",
}
_FMCHECK = ("-p", "fmcheck")
# What SGLang's plugin group is found by: a folder with a distribution's metadata.
_PLUGINS = {"toyspec": WHOLE / "toyspec", "spoil": WHOLE / "spoil"}


def healthy(release: str, kind: str = "", watched: bool = True, tests: str = "") -> Drive:
    """Runs the engines' tests, those of one kind if it is named.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    chosen = " and ".join(part for part in (f"[{kind}-" if kind else "", tests) if part)
    arguments = [*(_FMCHECK if watched else ()), str(WHOLE / "test_engine.py")]
    if chosen:
        arguments += ["-k", chosen]
    return under_pytest(arguments, environment(release))


def spoilt(release: str, fault: str, watched: bool = True) -> Drive:
    """Runs three tests of one engine, whose relay is spoilt in the second of them.

    A token that is none stops SGLang's scheduler, which kills the tests too: then the failures are
    what the journal holds.

    Raises:
        NoEnvironment: if the release or its environment cannot be had.
    """
    with tempfile.TemporaryDirectory() as scratch:
        reported = {
            "SPOIL_KIND": SPOILT[fault],
            "SPOIL_WHEN": str(Path(scratch) / "now"),
            "SPOIL": fault,
        }
        journal = Path(scratch) / "journal"
        asked = (*_FMCHECK, f"--fmcheck-journal={journal}") if watched else ()
        arguments = [*asked, str(WHOLE / "test_spoilt.py")]
        run = under_pytest(arguments, environment(release, **reported))
        if watched and run.status < 0:
            return run._replace(failures=_failures(gather([journal])))
        return run


def _failures(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in run.violations:
        test = one.test.rpartition("::")[2]
        found[test] = f"{found.get(test, '')}FMCHECK: {one.code} \n"
    return found


def environment(release: str, **more: str) -> dict[str, str]:
    """Returns the variables under which a whole engine of a release runs, plugins included."""
    return environment_of(release, *_PLUGINS.values(), **more)


def tokens(run: Drive) -> list[list[list[int]]]:
    """Returns the answers of each test of a spoilt engine, in their order."""
    names = ("test_before", "test_spoilt", "test_after")
    return [json.loads(run.properties.get(name, {}).get("tokens", "[]")) for name in names]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("--release", action="append", choices=RELEASES, help="default: all")
    parser.add_argument("--kind", default="", help="one kind of healthy engine (default: all)")
    parser.add_argument("--part", choices=("healthy", "spoilt"), help="default: both")
    chosen = parser.parse_args(arguments)
    for release in chosen.release or RELEASES:
        print(f"sglang {release}", flush=True)
        if chosen.part != "spoilt":
            _tell_healthy(release, chosen.kind)
        if chosen.part != "healthy":
            _tell_spoilt(release)


def _tell_healthy(release: str, kind: str) -> None:
    bare, watched = healthy(release, kind, watched=False), healthy(release, kind)
    same = "the same" if bare.passed == watched.passed else "NOT THE SAME"
    print(
        f"  healthy: {len(bare.passed)} passed bare, {len(watched.passed)} watched ({same}), "
        f"{len(watched.failures)} failed; {watched.seconds / bare.seconds:.2f} of the time"
    )
    for name, text in watched.failures.items():
        print(f"    {name}: {', '.join(codes(text)) or text.strip().splitlines()[:1]}")
    print(f"    {closing_line(watched)}", flush=True)


def _tell_spoilt(release: str) -> None:
    for fault, kind in SPOILT.items():
        if release == "0.5.13" and kind == "spec":
            print(f"  {fault:<16} -: TOY is for 0.5.16 and later")
            continue
        bare, watched = spoilt(release, fault, watched=False), spoilt(release, fault)
        before, during, _ = tokens(bare)
        seen = {name: ", ".join(codes(text)) for name, text in watched.failures.items()}
        reported = "; ".join(f"{code} in {name}" for name, code in seen.items()) or "NOTHING"
        changed = "other tokens" if before != during else "the same tokens"
        ended = f"exit {bare.status}, {changed}" if bare.status >= 0 else "the tests were killed"
        print(f"  {fault:<16} bare: {ended}; watched: {reported}", flush=True)


def closing_line(run: Drive) -> str:
    """Returns the last line of what fmcheck said."""
    lines = [line for line in run.output.splitlines() if line.startswith("fmcheck:")]
    return lines[-1] if lines else "fmcheck said nothing"


if __name__ == "__main__":
    try:
        main()
    except NoEnvironment as err:
        sys.exit(str(err))

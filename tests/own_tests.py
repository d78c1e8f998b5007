"""An engine's own unit tests, bare and watched: what passes bare has to pass watched, unreported.

`python -m tests.own_tests CHECKOUT/test/registered/unit --release 0.5.16` runs those of SGLang's
tests that name what its contract watches, on the unmodified release, in each mode of streams. The
checkout is of the commit that the release was made from; tests that ask for a GPU fail either way.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.sglang_env import RELEASES, environment_of, sglang_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What a test file names that touches relays, rows, graph inputs, runners or fences.
_CONCERNED = re.compile(
    r"FutureMap|overlap_utils|ReqToTokenPool|req_to_token_pool|buffer_registry|[Gg]raph_?[Rr]unner"
    r"|read_done|war_fence|copy_to_cpu|copy_done|record_stream|ForwardBatch"
)
_MODES = ("off", "tracked", "delayed", "random")
#: A code of a run-time check in what pytest prints.
_CODE = re.compile(r"\bFR\d{3}\b")


def main() -> int:
    """Prints a line for each mode; returns 1 if a test fares otherwise watched, or is reported."""
    parser = argparse.ArgumentParser(prog="python -m tests.own_tests", description=__doc__)
    parser.add_argument("folder", type=Path, help="SGLang's test/registered/unit, checked out")
    parser.add_argument("--release", default="0.5.16", choices=RELEASES)
    given = parser.parse_args()
    files = sorted(_concerned(given.folder.resolve()))
    if not files:
        parser.error(f"{given.folder}: no test_*.py in it names what the contract watches")
    # Without it the tests ask for an accelerator before they do anything.
    environment = environment_of(given.release, SGLANG_USE_CPU_ENGINE="1")
    bare, seconds, _ = _run(files, environment)
    print(f"{len(files)} files, sglang {given.release}, bare: {_counts(bare)}")
    is_same = True
    for mode in _MODES:
        watched, spent, codes = _run(
            files, environment, "-p", "fmcheck", f"--fmcheck-streams={mode}"
        )
        other = sorted(one for one in bare | watched if bare.get(one) != watched.get(one))
        is_same = is_same and not other and not codes
        print(
            f"  streams {mode:<8} {_counts(watched)}; {len(other)} fare otherwise; "
            f"reported: {', '.join(codes) or 'nothing'}; CPU {spent / seconds:.2f} of bare"
        )
        for one in other[:20]:
            print(f"    {one}: {bare.get(one)} bare, {watched.get(one)} watched")
    return 0 if is_same else 1


def _concerned(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("test_*.py"):
        if _CONCERNED.search(path.read_text(encoding="utf-8")):
            yield path


def _run(
    files: Sequence[Path], environment: dict[str, str], *arguments: str
) -> tuple[dict[str, str], float, list[str]]:
    """Returns how each test fared, the seconds of CPU that it took, and the codes reported."""
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        command = [str(sglang_python()), "-m", "pytest", "-q", "--tb=line", *arguments]
        command += ["--continue-on-collection-errors", "-p", "no:cacheprovider"]
        command += [f"--junitxml={junit}", *map(str, files)]
        before = _cpu()
        done = subprocess.run(
            command, env=environment, cwd=scratch, capture_output=True, text=True, check=False
        )
        seconds = _cpu() - before
        if not junit.exists():
            sys.exit(f"pytest wrote no result:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        cases = ElementTree.parse(junit).findall(".//testcase")
    fates: dict[str, str] = {}
    for case in cases:
        bad = [one.tag for one in case if one.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname')}::{case.get('name')}"
        # Parts of one test have its name: the worst of them counts, which is the first by letters.
        fates[name] = min(fates.get(name, "skipped"), *(bad or ["passed"]))
    return fates, seconds, sorted(set(_CODE.findall(done.stdout + done.stderr)))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _counts(fates: dict[str, str]) -> str:
    ends = list(fates.values())
    other = len(ends) - ends.count("passed") - ends.count("skipped")
    return f"{ends.count('passed')} pass, {ends.count('skipped')} skipped, {other} fail"


if __name__ == "__main__":
    sys.exit(main())

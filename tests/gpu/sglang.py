"""`python -m tests.gpu.sglang FOLDER`: the drives of SGLang's FutureMap on this machine's GPU.

FOLDER holds the package `sglang` of a release, unpacked. What the release asks for at import has to
be installed, or stand in `tests/data/stubs`; its network is not used. The healthy drives have to
pass in silence, and each planted fault has to be reported as on a CPU. Ends with 0 if all is so, 1
if not, 2 if there is nothing to run on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.drives import DRIVES, codes, under_pytest
from tests.gpu.facts import Fact
from tests.gpu.faults import OF_POISON
from tests.sglang_env import REPOSITORY, STUBS, NoEnvironment
from tests.test_real_sglang import IN_THE_POOL

#: How many tests of each pass at least, in any release that relays by pool rows.
DRIVEN = {"healthy": 40, "rarer": 1, "planted": 0}


def main() -> int:
    """Runs the drives and prints a line for each thing that was seen."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "sglang").is_dir():
        print(f"{__doc__}\nexpected a folder that holds `sglang`", file=sys.stderr)
        return 2
    device = os.environ.get("FMCHECK_DRIVE_DEVICE", "cuda")
    path = os.pathsep.join(
        [str(Path(sys.argv[1]).resolve()), str(REPOSITORY), str(STUBS), *filter(None, _inherited())]
    )
    environment = {**os.environ, "PYTHONPATH": path, "FMCHECK_DRIVE_DEVICE": device}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    is_right = True
    for name, least in DRIVEN.items():
        arguments = ["-p", "fmcheck", str(DRIVES / f"test_{name}.py")]
        try:
            drove = under_pytest(arguments, environment, Path(sys.executable))
        except NoEnvironment as err:
            print(f"tests.gpu.sglang: {err}", file=sys.stderr)
            return 2
        print(f"\n== {name} ({drove.seconds:.0f} s; buffers, writes, gathers: {drove.counts})")
        said = {test: set(codes(text)) for test, text in drove.failures.items()}
        expected = IN_THE_POOL if name == "planted" else {}
        for test in sorted({*said, *expected}):
            seen = said.get(test, set())
            right = expected.get(test) in seen and seen <= {expected[test], *OF_POISON}
            words = " ".join(sorted(seen)) or drove.failures.get(test, "nothing")[-300:]
            print(Fact(test, words, "", expected.get(test, "no finding"), right))
            is_right &= right
        passed = len(drove.passed)
        print(Fact("passed", passed, "tests", f"at least {least}", passed >= least))
        is_right &= passed >= least
    return 0 if is_right else 1


def _inherited() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


if __name__ == "__main__":
    sys.exit(main())

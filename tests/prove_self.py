"""Mutants of fmcheck itself: which of them the tests kill, part by part.

`python -m tests.prove_self` draws mutants of the row table, the clocks, the fences and the model of
the linter, by a fixed seed, and runs each part's tests on each; it prints the score and every
survivor, and ends with 1 if one survived that is not in `data/self_survivors.toml` with a reason.
`--whole` gives each survivor to the sweep's tests as well, and so shows what `make test` leaves to
them.

The mutants are cosmic-ray's. Nothing is written into the checkout: each mutant is compiled into a
fork of a process that has imported torch and pytest, and its module alone is another one there.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import random
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

ROOT = Path(__file__).parent.parent
KNOWN = Path(__file__).parent / "data" / "self_survivors.toml"
SEED = 18
EACH = 20
#: Seconds of wall time after which a mutant hangs, and so is noticed.
LIMIT = 300


@dataclass(frozen=True)
class Part:
    """A module of fmcheck, and the test files that hold what it says."""

    module: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its file."""
        return ROOT / (self.module.replace(".", "/") + ".py")


PARTS = {
    "table": Part(
        "fmcheck.runtime.core.ledger",
        ("test_ledger", "test_rows", "test_relay_tensor", "test_model"),
    ),
    "clocks": Part(
        "fmcheck.runtime.core.clocks", ("test_clocks", "test_virtual_streams", "test_races")
    ),
    "fences": Part(
        "fmcheck.runtime.order.fences",
        ("test_clocks", "test_streams", "test_races", "test_virtual_streams", "test_lifetimes"),
    ),
    "cuts": Part("fmcheck.lint.source.cuts", ("test_slices",)),
    "flow": Part("fmcheck.lint.model.flow", ("test_flow", "test_stream_rules", "test_tail")),
    "fills": Part(
        "fmcheck.lint.graph_inputs.fills", ("test_relay_rules", "test_tail", "test_rules")
    ),
}
#: cosmic-ray's operators whose mutants a reader would call faults.
OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue"
    r"|ReplaceContinueWithBreak|ReplaceFalseWithTrue|ReplaceTrueWithFalse|ZeroIterationForLoop"
    r"|ReplaceUnaryOperator_Delete_\w+|ExceptionReplacer"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|BitAnd_BitOr|BitOr_BitAnd"
    r"|LShift_RShift|RShift_LShift)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_Gt|Gt_Lt"
    r"|Is_IsNot|IsNot_Is))"
)


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A survivor that is known, and why no test is to kill it."""

    part: str
    line: str
    mutant: str
    reason: str


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    survivor: tuple[Survivor, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """One change of one line: the line before and after, and the whole module's text."""

    part: str
    number: int
    line: str
    changed: str
    text: str

    def __str__(self) -> str:
        return f"{PARTS[self.part].module}:{self.number}\n    - {self.line}\n    + {self.changed}"


def mutants(name: str) -> Iterator[Mutant]:
    """Yields all mutants of a part that mean something else."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = PARTS[name].path.read_text(encoding="utf-8")
    seen = {_meaning(source)}
    for operator in sorted(filter(OPERATORS.fullmatch, operator_names())):
        occurrence = 0
        while (
            text := _mutated(mutate_code, source, get_operator(operator)(), occurrence)
        ) is not None:
            occurrence += 1
            try:
                meaning = _meaning(text)
            except SyntaxError:  # as of the bare `*` of a signature
                continue
            if meaning not in seen:
                seen.add(meaning)
                yield _described(name, source, text)


def _mutated(mutate: Any, source: str, operator: Any, occurrence: int) -> str | None:
    text: str | None = mutate(source, operator, occurrence)
    return text


def _meaning(text: str) -> str:
    """Returns a module's tree less what is not run: annotations, documentation and comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    return ast.dump(tree)


def _described(name: str, source: str, text: str) -> Mutant:
    pairs = zip(source.splitlines(), text.splitlines(), strict=False)
    number, (old, new) = next(each for each in enumerate(pairs, 1) if each[1][0] != each[1][1])
    return Mutant(name, number, old.strip(), new.strip(), text)


def drawn(names: Sequence[str], each: int, seed: int) -> list[Mutant]:
    """Returns some mutants of each part: the same for the same seed and source."""
    found = []
    for name in names:
        some = list(mutants(name))
        found += random.Random(f"{seed} {name}").sample(some, min(each, len(some)))
    return found


class _Mutated:
    """Finds one module, and has it be the mutant."""

    def __init__(self, module: str, text: str, path: Path) -> None:
        self._module, self._text, self._path = module, text, path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self._path))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._text, str(self._path), "exec"), vars(module))


def survives(part: Part, text: str, chosen: str) -> bool:
    """Tells whether a part's tests pass on a text of its module; `chosen` as pytest's `-m`."""
    process = os.fork()
    if not process:
        _run_tests(part, text, chosen)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code in (4, 5):
                raise SystemExit(f"{part.module}: pytest ended with {code}: no test was run")
            return code == 0
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def _run_tests(part: Part, text: str, chosen: str) -> None:
    os.setpgid(0, 0)
    scratch = tempfile.mkdtemp()
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
    import pytest
    from _pytest.assertion.rewrite import AssertionRewritingHook

    # pytest's finder comes first, and takes the modules of all plugins.
    mutated = _Mutated(part.module, text, part.path)
    first = AssertionRewritingHook.find_spec
    AssertionRewritingHook.find_spec = lambda self, name, *more: (  # type: ignore[method-assign]
        mutated.find_spec(name) or first(self, name, *more)
    )
    sys.meta_path.insert(0, mutated)  # type: ignore[arg-type]

    files = [f"tests/{name}.py" for name in part.tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    code = 3
    try:
        code = int(pytest.main([*options, f"--basetemp={scratch}/t", "-m", chosen, *files]))
    finally:
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the score of each part and what survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove_self", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--each", type=int, default=EACH, help="mutants a part (default: 20)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--whole", action="store_true", help="the sweep's tests on survivors, too")
    asked = parser.parse_args(arguments)
    if importlib.util.find_spec("cosmic_ray") is None:
        print("prove-self: needs cosmic-ray: pip install -r tests/requirements-mutation.txt")
        return 2
    os.chdir(ROOT)
    names = asked.part or list(PARTS)
    _prepare(names)
    unknown = 0
    for name in names:
        some = drawn([name], asked.each, asked.seed)
        left = [one for one in some if survives(PARTS[name], one.text, "not sweep")]
        line = f"{name}: {len(some) - len(left)} of {len(some)} mutants killed"
        if asked.whole:
            os.environ["FMCHECK_SOURCES"] = "all"
            still = [one for one in left if survives(PARTS[name], one.text, "sweep or not sweep")]
            del os.environ["FMCHECK_SOURCES"]
            line += f"; {len(some) - len(still)} with the sweep's tests"
        print(line, flush=True)
        unknown += _tell(left)
    return int(bool(unknown))


def _prepare(names: Sequence[str]) -> None:
    """Imports what is slow, once; fails if a part's tests fail without any mutant."""
    import hypothesis
    import numpy
    import pytest
    import torch

    torch.set_num_threads(1)
    assert all((hypothesis, numpy, pytest))
    for name in names:
        part = PARTS[name]
        if not survives(part, part.path.read_text(encoding="utf-8"), "not sweep"):
            raise SystemExit(f"prove-self: the tests of `{name}` fail without any mutant")
        if survives(part, "raise ImportError", "not sweep"):
            raise SystemExit(f"prove-self: the tests of `{name}` do not meet its mutants")


def _tell(survived: Sequence[Mutant]) -> int:
    """Prints the survivors; returns how many are not known."""
    known = msgspec.toml.decode(KNOWN.read_bytes(), type=_Known).survivor
    reasons = {(one.part, one.line, one.mutant): one.reason for one in known}
    unknown = 0
    for one in survived:
        reason = reasons.get((one.part, one.line, one.changed))
        unknown += reason is None
        reported = reason or f"NOT KNOWN: kill it, or say why in {KNOWN.name}"
        print(f"survived: {one}\n    {reported}", flush=True)
    return unknown


if __name__ == "__main__":
    sys.exit(main())

"""How much of a contract written by hand `fmcheck init` proposes: `python -m tests.init_recall`.

An entry counts as found where the proposal names the same thing, active or as a comment.
What only holds for other releases is left out. CONTRACT and TREE measure one of your own.
"""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fmcheck.cli import main
from fmcheck.contract import applies, load_contract, parse_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fmcheck.contract import Contract

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / "fmcheck" / "contracts"


@dataclass
class Row:
    """Of the entries of one kind: how many there are, are active, are comments, are proposed."""

    kind: str
    by_hand: int
    active: int
    comments: int
    proposed: int


def entries(contract: Contract, version: str | None) -> Iterator[tuple[str, str]]:
    """Yields what a contract declares, by kind; of alternatives each."""
    for relay in contract.relay:
        if applies(relay.releases, version):
            yield "relay class", relay.class_
            for buffer in relay.buffer:
                if applies(buffer.releases, version):
                    yield "relay buffer", buffer.name
    for one in contract.opaque:
        if applies(one.releases, version):
            yield from (("opaque function", name) for name in one.functions)
    for owner in contract.owners:
        if applies(owner.releases, version):
            yield from (("owner", f"{name} {owner.does}") for name in owner.functions)
    for step in contract.steps:
        yield from (("step", name) for name in step.functions)
    inputs = contract.graph_inputs
    for fill in inputs.fill:
        if applies(fill.releases, version):
            yield "fill", f"{fill.class_} {fill.inputs}"
    yield from (("row index", name) for name in inputs.row_indices)
    yield from (("index-like input", name) for name in inputs.index_like)
    yield from (("per-step function", name) for name in contract.launches.per_step)
    yield from (("host value", name) for name in contract.launches.host_values)
    yield from (("late result", name) for name in contract.late_results.functions)
    streams = contract.streams
    yield from (("consumed-once event", name) for name in streams.consumed_once)
    yield from (("stream guard", guard.name) for guard in streams.guard)
    yield from (("record_stream", name) for lend in streams.lend for name in lend.functions)


def uncommented(text: str) -> str:
    """Returns a proposal with its comments in force, those that are sentences left out."""
    kept = []
    for line in text.splitlines():
        bare = line.removeprefix("# ")
        if bare.startswith(("[", "]", '    "')) or " = " in bare.partition('"')[0]:
            kept.append(bare.replace("FILL_IN", "self"))
    return "\n".join(kept)


def proposed(tree: str) -> str:
    """Returns what `fmcheck init` proposes for a tree."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["init", tree, "-o", "-"])
    return out.getvalue()


def rows(by_hand: Contract, text: str, version: str | None, lacked: set[str]) -> Iterator[Row]:
    """Yields the table's rows: `lacked` is what the tree does not have."""
    wanted = [one for one in entries(by_hand, version) if one[1].partition(" ")[0] not in lacked]
    active = set(entries(parse_contract(text, "active"), None))
    every = set(entries(parse_contract(uncommented(text), "with comments"), None))
    for kind in dict.fromkeys(kind for kind, _ in (*wanted, *sorted(every))):
        of_kind = {one for one in wanted if one[0] == kind}
        yield Row(
            kind,
            len(of_kind),
            len(of_kind & active),
            len(of_kind & (every - active)),
            sum(one[0] == kind for one in every),
        )


def lacking(contract: Path, tree: str) -> set[str]:
    """Returns the names of a contract that a tree does not have: those of other releases."""
    from fmcheck.lint.run.missing_in_source import SourceFiles
    from fmcheck.lint.scope.files import python_files

    source = SourceFiles(list(python_files([Path(tree)])))
    names = {name for _, name in entries(load_contract(contract), None)}
    found = set()
    for name in {one.partition(" ")[0] for one in names}:
        module, colon, rest = name.partition(":")
        path = source.module(module) if colon else None
        if colon and (path is None or rest not in source.bound(path)):
            found.add(name)
    return found


def table(contract: Path, tree: str, version: str | None) -> str:
    """Returns the table for one tree."""
    text = proposed(tree)
    lines = [
        f"| {contract.stem} {version or ''} | by hand | active | comment | proposed |",
        "|---|---|---|---|---|",
    ]
    total = Row("all", 0, 0, 0, 0)
    for row in rows(load_contract(contract), text, version, lacking(contract, tree)):
        lines.append(
            f"| {row.kind} | {row.by_hand} | {row.active} | {row.comments} | {row.proposed} |"
        )
        for name in ("by_hand", "active", "comments", "proposed"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    last = f"| all | {total.by_hand} | {total.active} | {total.comments} | {total.proposed} |"
    return "\n".join((*lines, last))


if __name__ == "__main__":
    given = sys.argv[1:] or [
        str(ROOT / "fixtures/engine/fmcheck.toml"),
        str(ROOT / "fixtures/engine"),
    ]
    path = Path(given[0]) if given[0].endswith(".toml") else CONTRACTS / f"{given[0]}.toml"
    print(table(path, given[1], given[2] if len(given) > 2 else None))

"""The museum's page: all entries by class, with the public threads, and what speaks of each.

`python -m tests.museum --page` writes it to `fixtures/museum/README.md`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.museum import MUSEUM, Case, Entry, cases, entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PAGE = MUSEUM / "README.md"
_CLASSES = {
    "A": "the relay: rows, and whose they are",
    "B": "graph inputs and their padding",
    "C": "streams, events and memory that crosses",
    "D": "devices",
    "E": "launches and syncs",
    "F": "compiled and captured code",
}
_TABLE = ("| fault | public thread | rules | checks |", "|---|---|---|---|")
_HEAD = """\
# The museum

Faults of the field's history, each written again in a few lines: a bad form that a rule or a check
has to speak of, on the lines that are marked, and a good form that nothing may be said about. A
folder is one fault. `bad.py` and `good.py` are linted; `bad_run.py` and `good_run.py` are run,
under a watch with the contract that `case.toml` names.

```console
$ python -m tests.museum               # the table: what is covered, what is caught
$ pytest tests/test_museum.py tests/test_museum_runs.py
```

This page is made by `python -m tests.museum --page`. A dash says that there is nothing to see
that way: the fault does not show in source, or not in a run on a CPU.
"""


def page() -> str:
    """Returns the page as Markdown."""
    by_id: dict[str, list[Case]] = defaultdict(list)
    for case in cases():
        by_id[case.file.id].append(case)
    parts = [_HEAD]
    for name, what in _CLASSES.items():
        part = [entry for entry in entries().values() if entry.class_ == name]
        lines = [
            f"## {name}: {what}\n",
            "| fault | public thread | rules | checks |",
            "|---|---|---|---|",
        ]
        lines += [line for entry in part for line in _lines(entry, by_id.get(entry.id, ()))]
        parts.append("\n".join(lines) + "\n")
        reasons = "\n".join(_reasons(part, by_id))
        parts += [f"{reasons}\n"] if reasons else []
    return "\n".join(parts)


def _lines(entry: Entry, own: Sequence[Case]) -> Iterator[str]:
    thread = f"[{entry.id}]({entry.link})" if entry.link else "released wheels of SGLang"
    for case in own:
        file = case.file
        title = f"[{file.title}]({case.folder.name})"
        rules = _reported(file.rules, entry.can_be_linted and len(own) == 1)
        checks = _reported(file.checks, entry.can_be_run and len(own) == 1)
        yield f"| {title} | {thread} | {rules} | {checks} |"


def _reported(codes: Iterable[str], is_wanted: bool) -> str:
    return ", ".join(codes) or ("none" if is_wanted else "-")


def _reasons(part: Iterable[Entry], by_id: dict[str, list[Case]]) -> Iterator[str]:
    for entry in part:
        own = by_id.get(entry.id, [])
        for case in own:
            for how, why in (("source", case.file.why_not), ("a run", case.file.missed)):
                if why:
                    yield f"- {entry.id} is not seen in {how}: {why.rstrip('.')}."
        if not own and (entry.can_be_linted or entry.can_be_run):
            yield f"- {entry.id} has no case."

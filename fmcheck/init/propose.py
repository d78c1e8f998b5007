"""The contract that is proposed for a tree, as the text of a TOML file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fmcheck.errors import UsageError
from fmcheck.init import graphs, inputs, opaque_entries, owner_entries, relay_entries, running
from fmcheck.init.proposal import Confidence, Key, ProposedEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fmcheck.contract import Contract
    from fmcheck.init.engine_tree import EngineTree

#: The tables in the order in which a contract is written.
_ORDER: tuple[str, ...] = (
    "relay",
    "opaque",
    "owners",
    "steps",
    "graph_inputs",
    "graph_inputs.fill",
    "device",
)
_ORDER += ("launches", "late_results", "streams", "streams.lend", "streams.guard")
_TITLES = {
    "relay": "What one step leaves on the device for the next, a row for each request.",
    "opaque": "Kernels and compiled functions that read or write those rows unseen.",
    "owners": "Who gives a row to a request, and takes it back.",
    "steps": "Where a step begins, for reports.",
    "graph_inputs": "The static inputs of captured graphs, and what their padded tails hold.",
    "device": "Code that must not name one accelerator's API.",
    "launches": "What the host does between two steps.",
    "late_results": "What processes the results of a step while the next one runs.",
    "streams": "What orders streams out of the sight of a single function.",
}
_HEAD = (
    "# A contract proposed by `fmcheck init`. What the source only suggests is a comment:",
    "# read it, and take the `# ` away where it is right. docs/keys.md explains every key,",
    "# docs/contracts.md how a contract is completed.",
)
#: No more tables of one kind are proposed.
_MOST = 12


@dataclasses.dataclass
class Proposal:
    """All that is proposed for a tree."""

    name: str
    entries: list[ProposedEntry]
    keys: list[Key]
    files: int

    @property
    def text(self) -> str:
        """The contract."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _HEAD
        yield ""
        yield "[engine]"
        yield f'name = "{self.name}"'
        yield f'# distribution = "{self.name}"'
        for table in _ORDER:
            yield from self._table(table)

    def _table(self, table: str) -> Iterator[str]:
        keys = [one for one in self.keys if one.table == table]
        entries = [one for one in self.entries if one.table == table]
        if table in _TITLES and (keys or entries or self._is_begun(table)):
            yield ""
            yield f"# --- {_TITLES[table]} ---"
        if keys:
            yield ""
            yield f"[{table}]"
            for one in keys:
                yield from one.lines()
        for entry in entries:
            yield ""
            yield from entry.lines()

    def _is_begun(self, table: str) -> bool:
        return any(one.table.startswith(f"{table}.") for one in self.entries)

    def counts(self) -> tuple[int, int]:
        """Returns how many entries are active, and how many are comments."""
        active = sum(one.confidence is Confidence.HIGH for one in self.keys)
        found = [one.count() for one in self.entries]
        return (
            active + sum(one for one, _ in found),
            len(self.keys) - active + sum(one for _, one in found),
        )


def propose(
    tree: EngineTree, name: str, missing_in: Callable[[Contract], Sequence[str]]
) -> Proposal:
    """Returns the proposal for a tree.

    `missing_in` says what a contract names that the source lacks: what is not accepted, or not
    found, is proposed as a comment.
    """
    found = relay_entries.relays(tree)
    sure = [one for one in found if relay_entries.confidence(one) is not Confidence.LOW]
    fills = graphs.runners(tree)
    begun = running.steps(tree, sure)
    entries = [
        *(relay_entries.entry(one) for one in sure[:_MOST]),
        *opaque_entries.opaque(tree, sure[:_MOST]),
        *_owners(tree, sure),
        *owner_entries.rings(sure[:_MOST]),
        *running.step_entries(begun),
        *_likely(graphs.entry(one) for one in fills if inputs.says_anything(one)),
        *running.lends(tree),
        *running.guards(tree),
    ]
    keys = [
        *inputs.input_keys([one for one in fills if graphs.entry(one).confidence], sure),
        *running.device_keys(tree),
        *running.launch_keys(tree, begun),
        *running.late_keys(tree),
        *running.stream_keys(tree),
    ]
    proposal = Proposal(name, list(entries), keys, tree.files)
    _settle(proposal, missing_in)
    return proposal


def _owners(
    tree: EngineTree, sure: Sequence[relay_entries.RelayCandidate]
) -> Iterator[ProposedEntry]:
    return _likely(owner_entries.entry(one, sure) for one in owner_entries.owners(tree))


def _likely(entries: Iterator[ProposedEntry]) -> Iterator[ProposedEntry]:
    """Yields the entries that are more than a guess, the surest first, and not too many."""
    likely = [one for one in entries if one.confidence is not Confidence.LOW]
    yield from sorted(likely, key=lambda one: -one.confidence)[:_MOST]


def _settle(proposal: Proposal, missing_in: Callable[[Contract], Sequence[str]]) -> None:
    """Makes comments of entries until the contract is accepted, and all that it names is found."""
    from fmcheck.contract import parse_contract

    for one in [*_active(proposal)]:
        alone = Proposal(proposal.name, [], [], 0)
        if isinstance(one, Key):
            alone.keys.append(one)
        else:
            alone.entries.append(one)
            if one.table.startswith("graph_inputs"):
                alone.keys = [key for key in proposal.keys if key.table == "graph_inputs"]
        try:
            contract = parse_contract(alone.text, "proposal")
        except UsageError as err:
            _demote(one, err.message)
            continue
        if missing := missing_in(contract):
            _demote(one, missing[0])
    try:
        parse_contract(proposal.text, "proposal")
    except UsageError as err:
        for one in [*_active(proposal)]:
            _demote(one, f"not accepted together with the others: {err.message}")


def _active(proposal: Proposal) -> Iterator[ProposedEntry | Key]:
    yield from (one for one in proposal.keys if one.confidence is Confidence.HIGH)
    yield from (one for one in proposal.entries if one.confidence is Confidence.HIGH)


def _demote(one: ProposedEntry | Key, why: str) -> None:
    one.confidence = Confidence.MEDIUM
    one.why = [*one.why, f"not accepted as it is: {why}"]

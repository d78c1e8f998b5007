"""Relays: what the contracts declare of relay buffers, as the rules ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmcheck.lint.source.identity import is_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fmcheck.contract import Buffer, Contract, Relay
    from fmcheck.lint.model.names import Region

#: A shorter last word that all buffers of a relay share says nothing.
LEAST_SUFFIX = 4
#: In-place methods that write rows, and those that read them, by the position of the rows.
ROW_WRITES = {"index_copy_": 1, "index_fill_": 1, "index_add_": 1, "index_put_": 0}
ROW_READS = {"gather": 1, "index_select": 1, "take": 0, "take_along_dim": 0}
ROW_METHODS = ROW_WRITES | ROW_READS


class Relays:
    """What the contracts declare of relays, as the rules ask for it."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self._relays = [relay for contract in contracts for relay in contract.relay]
        #: What tells the relays of one choice of contracts from those of another.
        self.key = tuple(map(id, contracts))
        self._opaque = {
            function.rpartition(":")[2]: opaque
            for contract in contracts
            for opaque in contract.opaque
            for function in opaque.functions
        }
        names = {relay.qualname.rpartition(".")[2] for relay in self._relays}
        #: How what holds an instance of a relay class is called, outside of the class.
        self.held_as = tuple(sorted(map(_snake, names)))
        #: The names of the relay classes: of the class, and of what holds one.
        self.holders = tuple(sorted(names | {*self.held_as}))
        self._suffixes = {relay.class_: _suffix(relay) for relay in self._relays}
        self._files: dict[str, list[Relay]] = {}

    def buffers(self) -> tuple[str, ...]:
        """Returns the names of the buffers, without the marks of globs."""
        names = {buffer.name for relay in self._relays for buffer in relay.buffer}
        return tuple(sorted({name.strip("*?") for name in names}))

    def of_file(self, identity: str) -> Sequence[Relay]:
        """Returns the relays whose class this file defines."""
        found = self._files.get(identity)
        if found is None:
            found = [relay for relay in self._relays if is_module(identity, relay.module)]
            self._files[identity] = found
        return found

    def peeks(self, identity: str) -> frozenset[str]:
        """Returns the methods of this file's relays whose gathers do not consume."""
        return frozenset(name for relay in self.of_file(identity) for name in relay.peek_names)

    def declares(self, attribute: str) -> bool:
        """Tells whether a contract has a buffer of this name, whichever class it belongs to."""
        return any(self._is_declared(relay, attribute) for relay in self._relays)

    def is_kept(self, attribute: str) -> bool:
        """Tells whether a buffer of this name is read by others or again: no row can be emptied."""
        return any(buffer.kept or buffer.stays for buffer in self._of_name(attribute))

    def stays(self, attribute: str) -> bool:
        """Tells whether a buffer of this name is a table that is read again and again."""
        return any(buffer.stays for buffer in self._of_name(attribute))

    def tells_valid(self, attribute: str) -> bool:
        """Tells whether a contract says which values a buffer of this name may hold."""
        return any(buffer.valid for buffer in self._of_name(attribute))

    def buffer(self, region: Region, identity: str) -> bool | None:
        """Tells whether a region is a declared relay buffer; False if it only looks like one."""
        holder, _, attribute = region.path.rpartition(".")
        if not region.is_whole or not holder:
            return None
        own = self.of_file(identity) if holder in ("self", "cls") else ()
        last = holder.rpartition(".")[2].lstrip("_")
        for relay in self._relays:
            is_held = last == _snake(relay.qualname.rpartition(".")[2])
            if (is_held or relay in own) and self._is_declared(relay, attribute):
                return True
        return False if any(self._looks_like(relay, attribute) for relay in own) else None

    def opaque_reads(self, name: str) -> str | None:
        """Returns the parameter that holds the rows of a kernel that gathers, by its name."""
        found = self._opaque.get(name)
        return found.rows if found is not None and found.reads else None

    def is_opaque(self, name: str) -> bool:
        """Tells whether a function of this name is a kernel that the contract declares."""
        return name in self._opaque

    def _of_name(self, attribute: str) -> Iterator[Buffer]:
        for relay in self._relays:
            yield from (buffer for buffer in relay.buffer if buffer.matches(attribute))

    def _is_declared(self, relay: Relay, attribute: str) -> bool:
        return any(buffer.matches(attribute) for buffer in relay.buffer)

    def _looks_like(self, relay: Relay, attribute: str) -> bool:
        suffix = self._suffixes[relay.class_]
        return bool(suffix) and attribute.endswith(suffix)


def _snake(name: str) -> str:
    """Returns the name that an instance of a class commonly has: `future_map` for `FutureMap`."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name).lstrip("_")


def _suffix(relay: Relay) -> str:
    """Returns the last word that all buffer names of a relay share, as `_buf`, or ""."""
    names = [buffer.name for buffer in relay.buffer if not buffer.is_glob]
    endings = {name[name.rfind("_") :] if "_" in name else "" for name in names}
    ending = endings.pop() if len(names) > 1 and len(endings) == 1 else ""
    return ending if len(ending) >= LEAST_SUFFIX else ""

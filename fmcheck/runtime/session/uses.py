"""Uses: how far a watch came to use each contract, and why it checked nothing of one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmcheck.contract import applies
from fmcheck.contract.validation import ASSIGNS, TAKES_BACK
from fmcheck.errors import SLIP, closest
from fmcheck.finding import ContractUse
from fmcheck.runtime.core.patches import installed_version

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from fmcheck.contract import Contract
    from fmcheck.runtime.session.relay_patches import RelayPatch

_STANDARD = frozenset(sys.stdlib_module_names)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """What a session was asked to check: `sources` are what it calls each contract by its engine.

    `shipped` are the engines whose contracts came with a package. With `allow_unchecked`, nothing
    of a contract has to be checked.
    """

    sources: Mapping[str, str]
    shipped: Container[str]
    allow_unchecked: bool = False


#: A watch without settings: every contract is the user's own.
ALL_OWN = WatchRequest({}, ())


def use_of(
    contract: Contract, asked: WatchRequest, modules: Iterable[str], is_checked: bool
) -> ContractUse | None:
    """Returns how far a contract was used up to now; None if it declares nothing to check."""
    if not declares(contract):
        return None
    name = contract.engine.name
    packages = tuple(dict.fromkeys(module.partition(".")[0] for module in modules))
    return ContractUse(
        name=name,
        source=asked.sources.get(name, name),
        shipped=name in asked.shipped,
        packages=packages,
        imported=any(package in sys.modules for package in packages),
        checked=is_checked,
        allowed=asked.allow_unchecked,
    )


def declares(contract: Contract) -> bool:
    """Tells whether a contract declares anything that has to be met in a run."""
    inputs = contract.graph_inputs
    relays = [relay for relay in contract.relay if not relay.optional]
    return bool(relays or inputs.fill or inputs.replay or contract.launches.budget)


def without_steps(contract: Contract) -> Iterator[str]:
    """Yields a sentence if nothing tells how long a row that was given back may be written."""
    version = installed_version(contract)
    freed = any(
        one.does in (TAKES_BACK, ASSIGNS) and applies(one.releases, version)
        for one in contract.owners
    )
    if freed and not any(applies(one.releases, version) for one in contract.steps):
        yield (
            f"contract `{contract.engine.name}` has no `[[steps]]`: a write to a row that was "
            "freed is not checked (FR109)"
        )


def reasons(
    use: ContractUse,
    contract: Contract,
    version: str | None,
    problems: Sequence[str],
    relays: Iterable[RelayPatch],
) -> Iterator[str]:
    """Yields why nothing of a contract was checked, the most telling first.

    `version` is that of the engine which is installed.
    """
    if not use.imported:
        for package in use.packages:
            near = closest(package, imported_packages(), SLIP)
            if near:
                yield f"`{package}` was never imported; did you mean `{near}`?"
        return
    for problem in problems:
        # Without "contract `toy`, relay `Relay`: ", which the sentence around it says.
        yield problem.partition(": ")[2]
    for relay in relays:
        if not applies(relay.relay.releases, version):
            wanted = relay.relay.releases
            yield f"`{relay.name}` is declared for {wanted}, and {version} is installed"
        elif relay.class_ is None:
            yield f"`{relay.relay.module}` was never imported"
        elif not relay.instances:
            yield f"no `{relay.name}` was created"
        else:
            yield f"no buffer of `{relay.name}` was ever written or gathered"
    if contract.graph_inputs.fill:
        yield "no padded tail was judged"


def shown_source(source: str) -> str:
    """Returns a contract's file as seen from the current folder, if it is in there."""
    if not os.path.isabs(source):
        return source
    relative = os.path.relpath(source)
    return source if relative.startswith(os.pardir) else relative


def imported_packages() -> list[str]:
    """Returns the packages and modules at the top that are imported and no part of Python."""
    return [
        name
        for name in sys.modules
        if "." not in name and name not in _STANDARD and not name.startswith("_")
    ]

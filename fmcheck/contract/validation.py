"""Checks of a contract: values that fit their type and mean nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmcheck.contract.contradictions import check_clashes
from fmcheck.errors import UsageError, nearest
from fmcheck.regex import regex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmcheck.contract.schema import (
        Budget,
        Buffer,
        Contract,
        Fill,
        Functions,
        GraphInputs,
        Opaque,
        OwnerFunctions,
        Registry,
        Streams,
    )

#: Version ranges that need no `packaging`, whose import takes longer than linting a file.
_PLAIN_RELEASES = regex(r"((>=|<=|<|>|==|!=)\d+(\.\d+)*(\.post\d+)?(,(?!$)|$))*")

# Of one thing, by names and keys; and of several, with `[]` for each item.
_PATH = regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\w[\w.]*|\*)\])*")
_KEYS = r"(\[(-?\d+|[A-Za-z_][\w.]*)?\])*"
_PATHS = regex(rf"[A-Za-z_]\w*{_KEYS}(\.[A-Za-z_]\w*{_KEYS})*")
#: The rows of a function that takes back all that are out.
EVERY_ROW = "*"
HANDS_OUT, TAKES_BACK, ASSIGNS = "hands out", "takes back", "assigns"
USES, SERVES = "uses", "serves"
ONCE, MANY = "once", "many"
UNITS = ("row", "element")
OVERWRITES = ("never", "until gathered", "always")
SIGNS = (">=", ">")


def check(contract: Contract, where: str) -> None:
    """Rejects values that fit their type and mean nothing."""
    _check_releases(contract.engine.releases, where, "engine.releases")
    for number, relay in enumerate(contract.relay):
        key = f"relay[{number}]"
        _check_reference(relay.class_, where, f"{key}.class", "module:Class")
        _check_releases(relay.releases, where, f"{key}.releases")
        if not relay.buffer:
            raise UsageError(where, f"key `{key}.buffer`: expected at least one buffer, got none")
        for path in relay.pool:
            _check_path(path, where, f"{key}.pool")
        for name, methods in (
            ("peeks", relay.peeks),
            ("consumes_at_return", relay.consumes_at_return),
        ):
            for method in methods:
                if ":" in method:
                    _check_reference(method, where, f"{key}.{name}", "module:Class.method")
        for inner, buffer in enumerate(relay.buffer):
            _check_releases(buffer.releases, where, f"{key}.buffer[{inner}].releases")
            _check_valid(buffer.valid, where, f"{key}.buffer[{inner}].valid")
            _check_one_of(buffer.overwrite, OVERWRITES, where, f"{key}.buffer[{inner}].overwrite")
            _check_layout(buffer, where, f"{key}.buffer[{inner}]")
    for number, registry in enumerate(contract.graph_inputs.registry):
        _check_registry(registry, where, f"graph_inputs.registry[{number}]")
    _check_graph_inputs(contract.graph_inputs, where)
    for number, opaque in enumerate(contract.opaque):
        _check_opaque(opaque, where, f"opaque[{number}]")
    for number, owners in enumerate(contract.owners):
        _check_owners(owners, contract, where, f"owners[{number}]")
    for number, steps in enumerate(contract.steps):
        _check_functions(steps, where, f"steps[{number}]")

    for name in contract.device.no_compile:
        _check_name(name, where, "device.no_compile")
    _check_streams(contract.streams, where)
    for number, renamed in enumerate(contract.renamed):
        _check_name(renamed.old, where, f"renamed[{number}].old")
        _check_name(renamed.new, where, f"renamed[{number}].new")
        if not renamed.classes and not renamed.receivers:
            key = f"renamed[{number}]"
            raise UsageError(where, f"key `{key}`: expected `classes` or `receivers`, got neither")
    for number, guarding in enumerate(contract.self_guarding):
        _check_name(guarding.call, where, f"self_guarding[{number}].call")
        if not guarding.guards:
            key = f"self_guarding[{number}].guards"
            raise UsageError(where, f"key `{key}`: expected at least one, got none")
    for number, budget in enumerate(contract.launches.budget):
        _check_budget(budget, where, f"launches.budget[{number}]")
    for name in contract.launches.host_values:
        if "" in name.split(".") or name.count(".") > 1:
            raise UsageError(
                where,
                f"key `launches.host_values`: expected a name, or that of an object and of its "
                f"attribute, as `host_io.*`, got `{name}`",
            )
    named = {
        "launches.per_step": contract.launches.per_step,
        "launches.fused": contract.launches.fused,
        "late_results.functions": contract.late_results.functions,
    }
    for key, functions in named.items():
        for function in functions:
            _check_reference(function, where, key, "module:Class.method")
    if contract.only_in:
        _check_only_in(contract, where)
    check_clashes(contract, where)


def _check_layout(buffer: Buffer, where: str, key: str) -> None:
    _check_one_of(buffer.reads, (ONCE, MANY), where, f"{key}.reads")
    unit = buffer.unit
    if isinstance(unit, str):
        if unit not in UNITS:
            raise UsageError(
                where,
                f"key `{key}.unit`: expected `row`, `element` or a number of columns, got "
                f"`{unit}`{nearest(unit, UNITS)}",
            )
    elif unit < 1:
        raise UsageError(where, f"key `{key}.unit`: expected 1 column or more, got {unit}")
    if buffer.row_dim and buffer.columns:
        raise UsageError(
            where,
            f"key `{key}.unit`: expected `row` where `row_dim` is {buffer.row_dim}: columns are "
            f"those of rows in front, got `{unit}`",
        )


def _check_only_in(contract: Contract, where: str) -> None:
    from fmcheck.contract.references import files, words

    known = {name for _, globs in files(contract) for name in globs}
    known.update(name for one in words(contract, None) for name in one.names)
    for name, releases in contract.only_in.items():
        _check_releases(releases, where, f"only_in.{name}")
        if name not in known:
            raise UsageError(
                where,
                f"key `only_in.{name}`: expected a name or glob of a file that this contract "
                f"declares elsewhere{nearest(name, known)}",
            )


def _check_opaque(opaque: Opaque, where: str, key: str) -> None:
    for function in opaque.functions:
        _check_reference(function, where, f"{key}.functions", "module:function")
    _check_releases(opaque.releases, where, f"{key}.releases")
    if opaque.rows_where:
        from fmcheck.contract.row_conditions import ConditionError, condition

        for text in opaque.rows_where:
            try:
                condition(text)
            except ConditionError:
                raise UsageError(
                    where,
                    f"key `{key}.rows_where`: expected a comparison of parameters like "
                    f"`num_sampled > 0` or `seq_lens > prefill_len[{opaque.rows}]`, or a mask, "
                    f"got `{text}`",
                ) from None


def _check_owners(owners: OwnerFunctions, contract: Contract, where: str, key: str) -> None:
    _check_functions(owners, where, key)
    _check_one_of(owners.does, (HANDS_OUT, TAKES_BACK, ASSIGNS, USES, SERVES), where, f"{key}.does")
    if owners.does == SERVES:
        _check_serves(owners, where, key)
    elif owners.does == ASSIGNS:
        _check_assigns(owners, where, key)
    elif not owners.rows:
        raise UsageError(where, f"key `{key}`: expected `rows`, a path to the rows, got none")
    elif owners.rows != EVERY_ROW or owners.does != TAKES_BACK:
        _check_paths(owners.rows, where, f"{key}.rows")
    if owners.owner:
        _check_paths(owners.owner, where, f"{key}.owner")
    if owners.pool:
        _check_path(owners.pool, where, f"{key}.pool")
    if owners.does == TAKES_BACK and re.match(r"return\b", owners.rows):
        raise UsageError(
            where,
            f"key `{key}.rows`: expected a parameter, got `{owners.rows}` "
            "(what is taken back is looked up before the call)",
        )
    for name, is_set, does in (
        ("drained", owners.drained is not None, (HANDS_OUT, ASSIGNS)),
        ("renews", owners.renews, (HANDS_OUT,)),
        ("idempotent", owners.idempotent, (TAKES_BACK,)),
    ):
        if is_set and owners.does not in does:
            expected = " or ".join(f'`does = "{one}"`' for one in does)
            raise UsageError(
                where,
                f"key `{key}.{name}`: expected in the entry with {expected}, got it in one with "
                f'`does = "{owners.does}"`',
            )
    for relay in owners.relays:
        _check_one_of(relay, [one.class_ for one in contract.relay], where, f"{key}.relays")


def _check_assigns(owners: OwnerFunctions, where: str, key: str) -> None:
    """Checks an entry whose `owner` leads to who has which row."""
    if owners.rows:
        raise UsageError(
            where,
            f'key `{key}.rows`: expected no such key beside `does = "{ASSIGNS}"`, whose `owner` '
            "leads to a list by row, or to a mapping from names to rows",
        )
    if not owners.owner:
        raise UsageError(
            where, f"key `{key}`: expected `owner`, a path to who has which row, got none"
        )


def _check_serves(owners: OwnerFunctions, where: str, key: str) -> None:
    """Checks an entry that is about a batch, and about no rows in particular."""
    for name in ("rows", "pool"):
        if getattr(owners, name):
            raise UsageError(
                where,
                f'key `{key}.{name}`: expected no such key beside `does = "{SERVES}"`, which is '
                "about all rows of its `relays`",
            )
    if re.match(r"return\b", owners.owner):
        raise UsageError(
            where,
            f"key `{key}.owner`: expected a parameter, got `{owners.owner}` "
            "(whom a function serves is looked up before the call)",
        )


def _check_budget(budget: Budget, where: str, key: str) -> None:
    _check_functions(budget, where, key)
    if budget.syncs is None and budget.launches is None:
        raise UsageError(where, f"key `{key}`: expected `syncs` or `launches`, got neither")
    for name, count in (("syncs", budget.syncs), ("launches", budget.launches)):
        if count is not None and count < 0:
            raise UsageError(where, f"key `{key}.{name}`: expected 0 or more, got {count}")
    for function in budget.waits_in:
        _check_reference(function, where, f"{key}.waits_in", "module:Class.method")
    if budget.when:
        _check_path(budget.when, where, f"{key}.when")


def _check_functions(part: Functions, where: str, key: str) -> None:
    if not part.functions:
        raise UsageError(where, f"key `{key}.functions`: expected at least one, got none")
    for function in part.functions:
        shape = "module:Class.method` or `module:function"
        _check_reference(function, where, f"{key}.functions", shape)
    _check_releases(part.releases, where, f"{key}.releases")


def _check_one_of(text: str, known: Sequence[str], where: str, key: str) -> None:
    if text not in known:
        names = ", ".join(f"`{one}`" for one in known) or "none that is declared"
        raise UsageError(
            where, f"key `{key}`: expected one of {names}, got `{text}`{nearest(text, known)}"
        )


def _check_paths(text: str, where: str, key: str) -> None:
    if not _PATHS.fullmatch(text):
        raise UsageError(
            where,
            f"key `{key}`: expected a path like `return`, `reqs[].rid` or `self.rows`, "
            f"got `{text}`",
        )


def _check_reference(text: str, where: str, key: str, shape: str) -> None:
    module, colon, name = text.partition(":")
    dotted = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in dotted):
        raise UsageError(where, f"key `{key}`: expected `{shape}`, got `{text}`")


def _check_name(text: str, where: str, key: str) -> None:
    if not text.isidentifier():
        raise UsageError(where, f"key `{key}`: expected a name, got `{text}`")


def _check_registry(registry: Registry, where: str, key: str) -> None:
    for field in ("slot_class", "name_argument", "policy_argument", "axis_argument"):
        value = getattr(registry, field)
        if not value.isidentifier():
            raise UsageError(where, f"key `{key}.{field}`: expected a name, got `{value}`")
    if not registry.stale_policies:
        raise UsageError(where, f"key `{key}.stale_policies`: expected at least one, got none")


def _check_graph_inputs(inputs: GraphInputs, where: str) -> None:
    for name, text in inputs.valid.items():
        _check_valid(text, where, f"graph_inputs.valid.{name}")
    for name, text in inputs.head.items():
        _check_valid(text, where, f"graph_inputs.head.{name}")
    for number, fill in enumerate(inputs.fill):
        _check_fill(fill, where, f"graph_inputs.fill[{number}]")
    for number, replay in enumerate(inputs.replay):
        key = f"graph_inputs.replay[{number}]"
        _check_reference(replay.function, where, f"{key}.function", "module:function")
        _check_releases(replay.releases, where, f"{key}.releases")
        for path in (replay.rows, replay.count, *replay.reads, *replay.writes):
            if path:
                _check_path(path, where, key)


def _check_fill(fill: Fill, where: str, key: str) -> None:
    _check_reference(fill.class_, where, f"{key}.class", "module:Class")
    _check_releases(fill.releases, where, f"{key}.releases")
    if not fill.methods:
        raise UsageError(where, f"key `{key}.methods`: expected at least one method, got none")
    if len(fill.axis) != 1 and not fill.slot_axis:
        several = f"got {len(fill.axis)}: give each a fill of its own, with its inputs in `only`"
        got = several if fill.axis else "got none"
        raise UsageError(where, f"key `{key}.axis`: expected one axis without `slot_axis`, {got}")
    for name, methods in (("settled_by", fill.settled_by), ("captured_by", fill.captured_by)):
        for method in methods:
            if ":" in method:
                shape = "module:Class.method` or `module:function"
                _check_reference(method, where, f"{key}.{name}", shape)
    if fill.captured and not fill.captured_by:
        raise UsageError(
            where,
            f"key `{key}.captured`: expected `captured_by` beside it, to say when their places "
            "are those that the graph reads, got none",
        )
    for path in fill.captured:
        if not path.startswith("self.") and ":" not in path:
            raise UsageError(
                where,
                f"key `{key}.captured`: expected a path from `self`, or from a module like "
                f"`package.module:name`, got `{path}`",
            )
    if fill.outputs and not fill.settled_by:
        raise UsageError(
            where,
            f"key `{key}.outputs`: expected `settled_by` beside it, to say what replays the graph "
            "that writes them, got none",
        )
    paths = [fill.inputs, *(path for path in (fill.unless, fill.source, fill.mapping) if path)]
    paths += [held for held in fill.holds.values() if isinstance(held, str)]
    for name, named in (("captured", fill.captured), ("outputs", fill.outputs)):
        for path in named:
            _check_path_of_any(path, where, f"{key}.{name}")
    for axis in fill.axis.values():
        paths += [axis.raw, axis.padded, axis.capacity]
    for path in paths:
        _check_path(path, where, key)


def _check_path(text: str, where: str, key: str) -> None:
    if not _PATH.fullmatch(text):
        raise UsageError(where, f"key `{key}`: expected a path like `self.buffers`, got `{text}`")


def _check_path_of_any(text: str, where: str, key: str) -> None:
    """Rejects what is neither a path of a call nor one of a module."""
    module, colon, path = text.rpartition(":")
    if not colon:
        _check_path(text, where, key)
    elif not (all(map(str.isidentifier, module.split("."))) and _PATH.fullmatch(path)):
        raise UsageError(
            where,
            f"key `{key}`: expected a path from a module like `package.module:name.attribute`, "
            f"got `{text}`",
        )


def _check_streams(streams: Streams, where: str) -> None:
    named = {
        "ordered_by": streams.ordered_by,
        "joins": [name for pair in streams.joins for name in pair],
        "uploads": streams.uploads,
        "consumed_once": streams.consumed_once,
    }
    for number, lend in enumerate(streams.lend):
        _check_functions(lend, where, f"streams.lend[{number}]")
    for number, fence in enumerate(streams.fence):
        named[f"fence[{number}]"] = (fence.fence, fence.launch, *fence.writes)
        if not fence.writes:
            key = f"streams.fence[{number}].writes"
            raise UsageError(where, f"key `{key}`: expected at least one function, got none")
    for number, guard in enumerate(streams.guard):
        named[f"guard[{number}].name"] = (guard.name,)
        named[f"guard[{number}].covers"] = guard.covers
        if not guard.covers:
            key = f"streams.guard[{number}].covers"
            raise UsageError(where, f"key `{key}`: expected at least one method, got none")
    for key, names in named.items():
        for name in names:
            if not name.isidentifier():
                last = re.split(r"[.:]", name)[-1]
                meant = f"; did you mean `{last}`?" if last.isidentifier() else ""
                got = f"expected a name, got `{name}`{meant}"
                raise UsageError(where, f"key `streams.{key}`: {got}")


def _check_releases(text: str, where: str, key: str) -> None:
    if _PLAIN_RELEASES.fullmatch(text):
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise UsageError(
            where, f"key `{key}`: expected a version range like `>=0.5.13,<0.6`, got `{text}`"
        ) from None


def _check_valid(text: str, where: str, key: str) -> None:
    sign, _, limit = text.partition(" ")
    if text and (sign not in SIGNS or not limit.lstrip("-").isdigit()):
        raise UsageError(where, f"key `{key}`: expected `>= N` or `> N`, got `{text}`")

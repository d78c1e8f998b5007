"""Random contracts, valid ones and others, and what the loader must do with them."""

from __future__ import annotations

import copy
import json
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.contract import Contract, parse_contract
from fmcheck.errors import UsageError
from fmcheck.registry import contract_files, rules
from tests.fuzz.crash import where
from tests.fuzz.files import ROOT, broken

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from tests.fuzz.draw import Draw

WHERE = "fuzzed.toml"
#: What an error has to name beside the file.
NAMES_A_KEY = ("key `", "is not valid TOML", "is not UTF-8")
RELEASES = ("", ">=0.5.13", ">=1,<2", "==0.4.0", "<0.5.13.post1", "~=1.4", "!=2.0")
WORDS = ("self", "rows", "tokens_buf", "req_pool_indices", "bs", "x1", "_private", "Pool")
PATHS = ("self.buffers", "return", "io[bs].rows", "x[*].y", "self.static_io[*].rows", "slot.pad")
REFERENCES = ("mine.relay:Relay", "mine:Pool.alloc", "a.b.c:D.e", "sglang.srt.x:FutureMap")
GLOBS = ("*", "*_buf", "topk_[pi]*", "?", "[!a]b", "mine/*.py", "a")
ODD: tuple[object, ...] = (
    *("", " ", "a b", "é", "x" * 300, "0", "-", ":", "a:", ":a", "a:b:c", "a..b:c", "[", "[]", "*"),
    *("return", "None", ">= x", ">=", "> -", ">= --1", ">= ²", "٣", "\n", "\t", '"', "\\", "`x`"),
    *("a[b", "a]b", "a[]", "((", "[!", "**", "\x7f", "{}", "%s", "import", "class", ">= 1e9"),
    *(0, -1, 2**70, 1.5, float("inf"), float("nan"), True, False, [], {}, [[]], [{}], {"": 1}),
    *({"a": {"b": {}}}, ["a", 1], ["x"] * 50),
)


@cache
def bases() -> tuple[dict[str, Any], ...]:
    paths = [*contract_files().values(), ROOT / "fixtures" / "engine" / "fmcheck.toml"]
    paths += sorted(ROOT.glob("fixtures/museum/*/contract.toml"))
    return tuple(tomllib.loads(Path(path).read_text(encoding="utf-8")) for path in paths)


# --- valid ones, from the types ---


def valid(draw: Draw) -> dict[str, Any]:
    """Returns a random contract that the loader must accept."""
    return _struct(draw, Contract, "")


def _struct(draw: Draw, kind: type, key: str) -> dict[str, Any]:
    table = {}
    for field in msgspec.structs.fields(kind):
        required = field.required
        if not required and draw.chance(2):
            continue
        name = field.encode_name
        table[name] = _value(draw, msgspec.inspect.type_info(field.type), name, f"{key}.{name}")
    return _mended(draw, kind.__name__, table)


def _mended(draw: Draw, kind: str, table: dict[str, Any]) -> dict[str, Any]:
    """Makes a table obey what the types do not say."""
    if kind == "OwnerFunctions":
        table.pop("relays", None)
        table["rows"] = "req.row"
        if table["does"] == "serves":
            for name in ("rows", "pool", "owner"):
                table.pop(name, None)
        if table["does"] == "assigns":
            del table["rows"]
            table["owner"] = "self.req_ids[]"
    if kind == "Contract":
        table.pop("only_in", None)  # its names have to be the contract's own
    if "unit" in table:
        table["unit"] = draw.one_of(("row", "element", 1, 3))
        table.pop("row_dim", None)
    if "row_dim" in table:
        table["row_dim"] = draw.integer(0, 3)
    if "sink_rows" in table:
        table["sink_rows"] = [draw.one_of((0, -1, 7, "self.pad_row"))]
    if kind == "Renamed" and not table.get("classes"):
        table["receivers"] = ["worker"]
    if kind == "Budget":
        table["syncs"] = 1
        table.pop("launches", None)
        table.pop("when", None)
        table["waits_in"] = [draw.one_of(REFERENCES)]
    if kind == "Lend":
        table["functions"] = [draw.one_of(REFERENCES)]
    if kind == "OwnerFunctions":
        own = {
            "hands out": ("drained", "renews"),
            "assigns": ("drained",),
            "takes back": ("idempotent",),
        }
        for name in {"drained", "renews", "idempotent"}.difference(own.get(table["does"], ())):
            table.pop(name, None)
    if kind == "Fill":
        table["axis"] = {"rows": {"raw": "raw_bs", "padded": "bs", "capacity": "self.max_bs"}}
        if "captured" in table:
            table["captured"] = [f"self.{draw.one_of(WORDS)}"]
            table["captured_by"] = ["capture"]
        if "outputs" in table:
            table["settled_by"] = ["replay"]
    return table


def _value(draw: Draw, kind: Any, name: str, key: str) -> Any:
    if isinstance(kind, msgspec.inspect.StructType):
        return _struct(draw, kind.cls, key)
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return [_value(draw, kind.item_type, name, key) for _ in range(draw.integer(1, 3))]
    if isinstance(kind, msgspec.inspect.TupleType):
        return [_value(draw, one, name, key) for one in kind.item_types]
    if isinstance(kind, msgspec.inspect.DictType):
        return {
            draw.one_of(WORDS): _value(draw, kind.value_type, name, key)
            for _ in range(draw.integer(0, 3))
        }
    if isinstance(kind, msgspec.inspect.UnionType):
        reported = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
        return _value(draw, draw.one_of(reported), name, key)
    if isinstance(kind, msgspec.inspect.BoolType):
        return draw.chance(2)
    if isinstance(kind, msgspec.inspect.IntType):
        return draw.integer(-3, 9)
    assert isinstance(kind, msgspec.inspect.StrType), kind
    return _text(draw, name, key)


def _text(draw: Draw, name: str, key: str) -> str:
    if name == "releases":
        return draw.one_of(RELEASES)
    if name in ("valid", "head"):
        return draw.one_of(("", ">= 0", "> 0", ">= -5"))
    if name == "reads" and ".buffer" in key:
        return draw.one_of(("once", "many"))
    if name == "overwrite":
        return draw.one_of(("never", "always", "until gathered"))
    if name == "does":
        return draw.one_of(("hands out", "takes back", "assigns", "uses", "serves"))
    if name in ("class", "functions", "function", "per_step", "fused") and not key.startswith(
        ".streams"
    ):
        return draw.one_of(REFERENCES)
    if key == ".owners.rows" or key == ".owners.owner":
        return draw.one_of(("return", "reqs[].rid", "return.row", "self.rows"))
    if name in (
        "inputs",
        "raw",
        "padded",
        "capacity",
        "rows",
        "count",
        "reads",
        "writes",
        "pool",
    ) or (name in ("unless", "source", "mapping") or key.endswith("fill.holds")):
        return draw.one_of(WORDS if key.startswith((".streams", ".opaque")) else PATHS)
    if name in ("agnostic", "cuda_only", "no_literal", "host_values", "mirrored", "classes"):
        return draw.one_of(GLOBS)
    if name == "name" and ".buffer" in key:
        return draw.one_of(GLOBS)
    return draw.one_of(WORDS)


# --- others ---


def mutated(draw: Draw) -> dict[str, Any]:
    """Returns a real or a valid contract with a few leaves or tables changed."""
    table = copy.deepcopy(draw.one_of(bases())) if draw.chance(2) else valid(draw)
    for _ in range(draw.integer(1, 4)):
        holder, key = _place(draw, table)
        what = draw.integer(0, 4)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[f"{key}{draw.one_of(('s', '_', 'x'))}"] = holder.pop(key)
        elif what == 2 and isinstance(holder[key], list):
            holder[key] = holder[key] * 2
        elif what == 3:
            other, place = _place(draw, copy.deepcopy(draw.one_of(bases())))
            holder[key] = other[place]
        else:
            holder[key] = copy.deepcopy(draw.one_of(ODD))
        if not table:
            break
    return table


def _place(draw: Draw, table: dict[str, Any]) -> tuple[Any, Any]:
    """Returns a dictionary or list with a key in it, at any depth."""
    holder: Any = table
    while True:
        key = (
            draw.one_of(sorted(holder))
            if isinstance(holder, dict)
            else draw.integer(0, len(holder) - 1)
        )
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or draw.chance(4):
            return holder, key
        holder = inner


def as_toml(table: dict[str, Any]) -> bytes:
    """Writes a table; a value that TOML has no way for is left to the loader."""
    lines = []
    for key, value in table.items():
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for one in value:
                lines.append(f"[[{_key(key)}]]")
                lines += [f"{_key(name)} = {_toml(inner)}" for name, inner in one.items()]
        elif isinstance(value, dict):
            lines.append(f"[{_key(key)}]")
            lines += [f"{_key(name)} = {_toml(inner)}" for name, inner in value.items()]
        else:
            lines.insert(0, f"{_key(key)} = {_toml(value)}")
    return "\n".join([*lines, ""]).encode("utf-8", errors="replace")


def _key(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def garbled(draw: Draw, text: bytes) -> bytes:
    """Now and then cuts or spoils the text itself."""
    if draw.chance(8):
        return text[: draw.integer(0, len(text))]
    if draw.chance(8) and text:
        at = draw.integer(0, len(text) - 1)
        return text[:at] + bytes([draw.integer(1, 127)]) + text[at + 1 :]
    return text


#: Entries that are valid one by one may, drawn at random, contradict each other.
CLASHES = (
    "contradicts",
    "is without effect",
    "nothing is demanded",
    "may mean the same",
    "expected rows",
)


def broken_contract(text: bytes, *, must_load: bool = False) -> str:
    """Says in a line what the loader does that it must not, "" if it does well."""
    try:
        contract = parse_contract(text, WHERE)
    except UsageError as err:
        if must_load and not any(words in str(err) for words in CLASHES):
            return f"a valid contract is refused: {err}"
        if not str(err).startswith(f"{WHERE}: ") or not any(one in str(err) for one in NAMES_A_KEY):
            return f"an error names no key: {err}"
        return ""
    except Exception as err:
        return where(err)
    try:
        made = [rule([contract]) for rule in rules().values()]
    except Exception as err:
        return f"a rule cannot be made: {where(err)}"
    for source in _sources():
        if reported := broken(source, with_rules=made):
            return reported
    return ""


@cache
def _sources() -> tuple[bytes, ...]:
    engine = ROOT / "fixtures" / "engine"
    return tuple(
        (engine / name).read_bytes()
        for name in ("future_map.py", "runners/draft.py", "runners/target.py", "loops.py")
    )

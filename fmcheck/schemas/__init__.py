"""JSON Schemas of what users write in TOML, made from its definition: `python -m fmcheck.schemas`.

They are published with the package, so that editors complete keys and check values.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: What each schema describes.
KINDS = {
    "contract": "a contract of fmcheck",
    "settings": "a settings file of fmcheck, as `--config` names it",
    "pyproject": "the table [tool.fmcheck] of a pyproject.toml",
}
_REFERENCE = r"^[\w.]+:[\w.]+$"
#: What the types of the definition do not say, by its table and key.
_NARROWED: dict[tuple[str, str], dict[str, Any]] = {
    ("Buffer", "overwrite"): {"enum": ["never", "until gathered", "always"]},
    ("Buffer", "valid"): {"pattern": r"^(>=? -?\d+)?$"},
    ("OwnerFunctions", "does"): {"enum": ["hands out", "takes back", "assigns", "uses", "serves"]},
    ("Relay", "class"): {"pattern": _REFERENCE},
    ("Fill", "class"): {"pattern": _REFERENCE},
    ("Replay", "function"): {"pattern": _REFERENCE},
}
_LISTED = ("Opaque", "OwnerFunctions", "StepFunctions", "Budget", "Lend")


def packaged(kind: str) -> str:
    """Returns a schema as it is published."""
    return (Path(__file__).parent / f"{kind}.schema.json").read_text(encoding="utf-8")


def made(kind: str) -> str:
    """Returns a schema as the definition has it now."""
    import msgspec

    from fmcheck.config import Settings
    from fmcheck.contract import Contract

    schema = msgspec.json.schema(Contract if kind == "contract" else Settings)
    for described in (schema, *schema["$defs"].values()):
        if "description" in described:  # Python 3.13 takes the indentation away by itself
            described["description"] = inspect.cleandoc(described["description"])
    name = schema.pop("$ref").rpartition("/")[2]
    whole = schema["$defs"].pop(name)
    if kind == "contract":
        _narrow(schema["$defs"])
    if kind == "pyproject":
        tool = {"type": "object", "properties": {"fmcheck": whole}}
        whole = {"type": "object", "properties": {"tool": tool}}
    described = {"$schema": DIALECT, "title": KINDS[kind], **whole, "$defs": schema["$defs"]}
    return json.dumps(described, indent=2) + "\n"


def _narrow(tables: dict[str, Any]) -> None:
    for (table, key), more in _NARROWED.items():
        tables[table]["properties"][key] |= more
    # Whose batch a function serves is no matter of rows, and what assigns has them in `owner`.
    tables["OwnerFunctions"] |= {
        "if": {"properties": {"does": {"enum": ["assigns", "serves"]}}},
        "then": {
            "properties": {"rows": False},
            "if": {"properties": {"does": {"const": "serves"}}},
            "then": {"properties": {"pool": False}},
            "else": {"required": ["owner"]},
        },
        "else": {"required": ["rows"]},
    }
    for table in _LISTED:
        tables[table]["properties"]["functions"]["items"] |= {"pattern": _REFERENCE}

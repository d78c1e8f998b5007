"""`python -m tests.run_schema`: writes the JSON Schema of a run's record, made from its classes."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from fmcheck import finding
from fmcheck.record import record

SHIPPED = Path(__file__).parent.parent / "fmcheck" / "report" / f"run-{record.SCHEMA}.schema.json"


def made() -> str:
    """Returns the schema: every key is there in a record, and none is unknown to the schema."""
    (top,), parts = msgspec.json.schema_components((record.Run,))
    for name, part in parts.items():
        properties: dict[str, Any] = part["properties"]
        for value in properties.values():
            value.pop("default", None)
        class_ = getattr(record, name, None) or getattr(finding, name)
        part["description"] = inspect.cleandoc(class_.__doc__ or "")
        part["required"] = list(properties)
    parts["Run"]["properties"]["schema"] = {"const": record.SCHEMA}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The record of a run of fmcheck",
        "description": "Written by `pytest -p fmcheck --fmcheck-report FILE.json`. Times are in "
        "seconds since the epoch. A later version of fmcheck may add keys; it raises `schema` "
        "where a reader of this version would go wrong.",
        **top,
        "$defs": parts,
    }
    return json.dumps(whole, indent=2) + "\n"


if __name__ == "__main__":
    SHIPPED.write_text(made())

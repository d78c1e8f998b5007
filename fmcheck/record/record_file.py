"""A run's record as a file: JSON of the form that `report/run-1.schema.json` describes."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from fmcheck.errors import UsageError
from fmcheck.files.reading import MOST_RECORD, read_regular
from fmcheck.record.record import SCHEMA, Run

if TYPE_CHECKING:
    from pathlib import Path

#: What to tell those whose file holds something else.
_WANTED = (
    "expected the record of a run, as `pytest -p fmcheck --fmcheck-report FILE.json` writes it"
)


def encode(run: Run) -> bytes:
    """Returns a run as JSON, its schema's version first."""
    raw: dict[str, Any] = msgspec.to_builtins(run)
    whole = {"schema": raw.pop("schema"), **raw}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def read_run(path: Path) -> Run:
    """Returns the run that a file holds.

    Raises:
        UsageError: if the file cannot be read, is empty, was cut off, is of a version of the
            record that this fmcheck does not know, or is no record at all.
    """
    where = str(path)
    try:
        content = read_regular(path, MOST_RECORD)
    except FileNotFoundError:
        raise UsageError(where, "no such file") from None
    except OSError as err:
        raise UsageError(where, f"cannot be read: {err.strerror or err}") from err
    if not content.strip():
        raise UsageError(where, "is empty: the run that should have written it did not finish")
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        if not content.lstrip().startswith(b"{"):
            raise UsageError(where, _WANTED) from err
        raise UsageError(where, f"is not whole JSON; was it cut off? ({err})") from err
    _check_version(raw, where)
    try:
        return msgspec.convert(raw, Run)
    except msgspec.ValidationError as err:
        what, _, key = str(err).partition(" - at `$.")
        at = f"key `{key.rstrip('`')}`: " if key else ""
        raise UsageError(where, f"{at}{what[0].lower()}{what[1:]}; {_WANTED}") from err


def _check_version(raw: object, where: str) -> None:
    version = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(version, int):
        raise UsageError(where, _WANTED)
    if version > SCHEMA:
        raise UsageError(
            where,
            f"schema {version} was written by fmcheck {raw.get('version', 'unknown')}, and this "
            f"fmcheck reads schemas up to {SCHEMA}: install that version or a later one",
        )
    if version < 1:
        raise UsageError(where, f"schema {version}: expected a number from 1 to {SCHEMA}")


def schema() -> str:
    """Returns the JSON Schema of a record, as it is shipped."""
    name = f"run-{SCHEMA}.schema.json"
    return resources.files("fmcheck.report").joinpath(name).read_text(encoding="utf-8")

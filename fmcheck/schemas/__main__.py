"""`python -m fmcheck.schemas`: writes the schemas that the package publishes."""

from __future__ import annotations

from pathlib import Path

from fmcheck.schemas import KINDS, made

for kind in KINDS:
    (Path(__file__).parent / f"{kind}.schema.json").write_text(made(kind), encoding="utf-8")

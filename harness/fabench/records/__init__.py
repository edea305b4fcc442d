"""The result file: JSON Lines of header, env, row, canary and footer records, each a pydantic model.

Base units inside (bytes, FLOPs, ns, s, Hz), named in the field. A number that is not known is null beside a status that
says why; NaN and Infinity are never written, and what cannot be negative or zero is bounded so (`base`). Reading and
writing are in `fabench.resultfile`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from fabench.records.base import SCHEMA, Record
from fabench.records.env import Env, Identity, Peaks, Session, Software
from fabench.records.row import (
    CostRecord,
    Derived,
    Detail,
    Memory,
    Method,
    Parity,
    Published,
    Row,
    Spent,
    Telemetry,
    TensorError,
    Utilization,
)
from fabench.records.run import Canary, Footer, Harness, Header

AnyRecord = Annotated[Header | Env | Row | Canary | Footer, Field(discriminator="rec")]
ADAPTER: TypeAdapter[Header | Env | Row | Canary | Footer] = TypeAdapter(AnyRecord)
"""Validates one line of a result file; its JSON Schema is what `fabench schema record` prints."""

__all__ = [
    "ADAPTER", "SCHEMA", "AnyRecord", "Canary", "CostRecord", "Derived", "Detail", "Env", "Footer", "Harness", "Header",
    "Identity", "Memory", "Method", "Parity", "Peaks", "Published", "Record", "Row", "Session", "Software", "Spent",
    "Telemetry", "TensorError", "Utilization",
]  # fmt: skip

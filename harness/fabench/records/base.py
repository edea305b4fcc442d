"""What all records share: no unknown field, no NaN, no infinity."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA = "fabench/1.0"
"""Major: a reader must know it. Minor: a reader may meet fields it does not know."""


class Record(BaseModel):
    """The base of all records: unknown fields are an error, and no float is NaN or infinite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)

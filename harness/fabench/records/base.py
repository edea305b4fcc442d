"""What all records share: no unknown field, no NaN, no infinity, and numbers that cannot be below a bound."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "fabench/1.0"
"""Major: a reader must know it. Minor: a reader may meet fields it does not know."""

Count = Annotated[int, Field(ge=1, lt=2**62)]
"""Of what there is at least one of: samples of a row, rounds of a run. It fits 64 bits."""
Index = Annotated[int, Field(ge=0, lt=2**62)]
"""A position, or a number of rows: 0 or more. It fits 64 bits."""
Natural = Annotated[int, Field(ge=0, lt=2**127)]
"""Bytes or FLOPs: 0 or more. A problem that nobody can run may need more than 64 bits to say so."""
Amount = Annotated[float, Field(ge=0)]
"""Seconds, an error's size, a share, a reading: 0 or more."""
Positive = Annotated[float, Field(gt=0)]
"""The time of a call, or a rate: what took no time was not measured."""


class Record(BaseModel):
    """The base of all records: unknown fields are an error, and no float is NaN or infinite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, populate_by_name=True)

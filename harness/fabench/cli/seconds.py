"""Options that are a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A positive, finite number of seconds."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, float("inf"), min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; nan passes every comparison, so it is asked for by itself."""
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds

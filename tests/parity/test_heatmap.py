"""Maps of errors of any size, also those that no float holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fabench.parity import heatmap


@pytest.mark.parametrize("largest", [2.0, 1e7, 1e300, float("inf"), float("nan")])
def test_an_error_of_any_size_can_be_drawn(largest: float, tmp_path: Path) -> None:
    errors = torch.tensor([[0.0, 0.5, largest], [1.0, 3.0, 99.0]], dtype=torch.float64)
    cells = heatmap.pooled(errors)
    heat = {"title": "O", "down": "row", "across": "channel", "rows": 2, "columns": 3, "cells": cells}
    lines = heatmap.text(heat).splitlines()
    assert [line.split("|")[1] for line in lines[1:3]] == [f"  {heatmap.SHADES[2] if largest == 2.0 else '@'}", " :%"]
    heatmap.png(heat, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_output_has_no_map() -> None:
    assert heatmap.pooled(torch.zeros(0, 8)) == []

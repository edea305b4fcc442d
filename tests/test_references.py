"""References kept for a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fabench import inputs
from fabench.case import Case
from fabench.device import Device
from fabench.references import ReferenceStore

CASE = Case(1, 1, 8, 8, 4)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 1728 vs 1622")])
def test_a_full_temporary_folder_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch, "save", full)
    store = ReferenceStore(tmp_path, Device("cpu", "test"), "full")

    assert not store.get(CASE, inputs.make(CASE, "cpu"), ["A"], 1.0).sampled
    assert list(tmp_path.iterdir()) == []

"""References stored for a run: computed once a case, shared by backends, rounds and restarted workers."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from fabench.case import Case
from fabench.device import Device
from fabench.inputs import Tensors
from fabench.reference import Reference, compute, estimate_seconds

if TYPE_CHECKING:
    from fabench.names import Accuracy

LEAST_SECONDS = 2.0
"""A full reference that takes less than this is always computed."""


class ReferenceStore:
    """A folder of one run, on local disk, that holds one file a case."""

    def __init__(self, folder: Path, device: Device, mode: str) -> None:
        self.folder, self.device, self.mode = folder, device, mode

    def get(self, case: Case, tensors: Tensors, accuracies: Sequence[Accuracy], planned_s: float) -> Reference:
        """The stored reference, or a new one; sampled rows where a full one takes longer than the measurement.

        `planned_s` is what measuring the case's backends is planned to take.
        """
        path = self.folder / f"{case.id}-{'-'.join(accuracies)}.pt"
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, RuntimeError):
            stored: Reference = torch.load(path, map_location=self.device.torch_name, weights_only=False)
            return stored
        rows: Literal["full", "sampled"] = "sampled" if self.mode == "sampled" else "full"
        if self.mode == "auto" and estimate_seconds(case, self.device) > max(LEAST_SECONDS, planned_s):
            rows = "sampled"
        try:
            reference = compute(case, tensors, accuracy=accuracies, rows=rows)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            reference = compute(case, tensors, accuracy=accuracies, rows="sampled")
        self._store(reference, path)
        return reference

    def _store(self, reference: Reference, path: Path) -> None:
        """Write beside and rename, so that a worker killed meanwhile leaves no half file; a full disk is no failure."""
        partial = path.with_suffix(f".{os.getpid()}")
        try:
            torch.save(reference, partial)
            partial.replace(path)
        except (OSError, RuntimeError):  # RuntimeError: what torch's own writer raises on a full disk
            partial.unlink(missing_ok=True)

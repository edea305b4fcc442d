"""Marks and fixtures that every test shares."""

from __future__ import annotations

import gc
import os
import shutil

import pytest
from hypothesis import settings

# Tensors of tests are small: on a machine that runs two tests at once, more threads only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, and no deadline for a busy machine to miss; HYPOTHESIS_PROFILE=random looks further.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_finish() -> None:
    """Leave torch and the tests themselves out of what the collector looks through again and again: they stay."""
    gc.collect()
    gc.freeze()


LONGEST = (
    "test_proof.py", "test_cuda_compiled.py", "test_parity_command.py", "test_run.py", "test_triton_interpreted.py",
    "test_session.py", "test_output_files.py", "test_profile.py", "test_testing.py", "test_probe.py", "test_hostile.py",
    "test_ab.py", "test_cuda_emulated.py", "test_docs_tables.py", "test_calibration.py",
)  # fmt: skip
"""The files that take longest, in that order: a process that gets one last leaves the other without work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files. Skip what needs a GPU where there is none, and say so."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    if shutil.which("nvidia-smi") is not None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and nvidia-smi is not on the PATH"))

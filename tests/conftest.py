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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    if shutil.which("nvidia-smi") is not None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and nvidia-smi is not on the PATH"))

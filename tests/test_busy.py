"""A CPU that others keep at work is told of before anything is measured on it."""

from __future__ import annotations

import dataclasses

import pytest

from fabench.busy import warning
from fabench.device import Device
from fabench.probe import Probe
from fake_probe import CPU, H200, fake_probe


def probe(load: float | None, cores: int, threads: int, device: Device = CPU) -> Probe:
    made = fake_probe([], device=device)
    session = made.session.model_copy(update={"load_1min": load, "affinity": list(range(cores))})
    return dataclasses.replace(made, session=session, identity=made.identity.model_copy(update={"threads": threads}))


def test_a_load_of_all_the_cores_is_a_warning_with_what_to_do() -> None:
    assert warning(probe(3.14, 2, 2)) == (
        "Warning: the machine is busy (load 3.1 over the last minute on 2 cores, and 2 threads to measure with), so "
        "that times may come out many times too long; wait until it is idle, or set OMP_NUM_THREADS below 2"
    )


def test_one_thread_has_nothing_to_lower() -> None:
    assert (warning(probe(2.0, 2, 1)) or "").endswith("too long; wait until it is idle")


@pytest.mark.parametrize(
    "quiet", [probe(1.9, 2, 2), probe(None, 2, 2), probe(9.0, 0, 2), probe(9.0, 2, 2, H200)], ids=range(4)
)
def test_an_idle_cpu_an_unknown_load_and_a_gpu_are_no_warning(quiet: Probe) -> None:
    assert warning(quiet) is None

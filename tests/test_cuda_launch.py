"""A launch of an in-repo CUDA kernel: what the driver answers, and what is done about it. No GPU is needed."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from fabench_backends.cuda_flash.build import KernelError
from fabench_backends.cuda_flash.launch import Kernel

DONE, NO_CONTEXT, BAD = (SimpleNamespace(name=name) for name in ("SUCCESS", "INVALID_CONTEXT", "INVALID_VALUE"))


class Params(ctypes.Structure):
    """A kernel's parameters."""

    _fields_ = (("N", ctypes.c_int),)


class Driver:
    """Answers launches one after another, and notes whether the device's context had been made current before."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.current, self.seen = list(answers), False, list[bool]()

    def launch(self, *_: Any) -> tuple[Any]:
        self.seen.append(self.current)
        return (self.answers.pop(0),)

    def make_current(self) -> None:
        self.current = True


def kernel(driver: Driver) -> Kernel:
    made = object.__new__(Kernel)
    made.config = SimpleNamespace(name="flash bf16", smem_bytes=1024)  # type: ignore[assignment]
    made.device, made._function, made._threads, made._smem_bytes = 0, None, 128, 1024
    made._done, made._no_context = DONE, NO_CONTEXT
    made._launch, made._make_current, made._current_stream = driver.launch, driver.make_current, lambda device: 7
    return made


def test_a_thread_without_a_context_is_given_the_devices_and_the_launch_is_repeated() -> None:
    driver = Driver(NO_CONTEXT, DONE)

    kernel(driver)((4, 2, 1), Params())

    assert driver.seen == [False, True]


def test_a_launch_that_works_touches_no_context() -> None:
    driver = Driver(DONE)

    kernel(driver)((4, 2, 1), Params())

    assert (driver.seen, driver.current) == ([False], False)


def test_a_launch_that_fails_names_the_kernel_its_geometry_and_the_error() -> None:
    with pytest.raises(KernelError, match=r"'flash bf16' must launch grid \(4, 2, 1\), block 128 .* INVALID_VALUE"):
        kernel(Driver(NO_CONTEXT, BAD))((4, 2, 1), Params())

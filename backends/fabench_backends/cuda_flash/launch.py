"""Loaded kernels and their launches: on torch's current stream, by handle, with every result checked."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from fabench_backends.cuda_flash.build import KernelError, architecture, build
from fabench_backends.cuda_flash.configs import Config


class Kernel:
    """One kernel loaded for one device, ready to launch."""

    def __init__(self, config: Config, device: int) -> None:
        import torch
        from cuda.bindings import driver
        from cuda.core import Device, ObjectCode

        self.config, self.device, self._driver = config, device, driver
        built = build(config, architecture(torch.cuda.get_device_capability(device)))
        self._code = ObjectCode.from_cubin(built.cubin)  # keeps the library loaded
        handle = self._code.get_kernel(config.kernel).handle
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, config.smem_bytes, handle, driver.CUdevice(device))
        self._done, self._no_context = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
        self._make_current = Device(device).set_current
        self._check(status, "load")
        self._function = driver.CUfunction(int(handle))
        self._launch, self._threads, self._smem_bytes = driver.cuLaunchKernel, config.tile.threads, config.smem_bytes
        self._current_stream = torch._C._cuda_getCurrentRawStream  # the handle, without an object around it

    def __call__(self, grid: tuple[int, int, int], params: ctypes.Structure) -> None:
        """Launch on the device's current stream; torch's current device must be the kernel's."""
        address = ctypes.c_void_p(ctypes.addressof(params))
        arguments = (
            self._function, *grid, self._threads, 1, 1, self._smem_bytes, self._current_stream(self.device),
            ctypes.addressof(address), 0,
        )  # fmt: skip
        (status,) = self._launch(*arguments)
        if status == self._no_context:
            # autograd runs a backward in a thread of its own, which has no context before its first call of CUDA's
            # runtime; this launch can come before that
            self._make_current()
            (status,) = self._launch(*arguments)
        if status != self._done:
            self._check(status, f"launch grid {grid}, block {self._threads}")

    def _check(self, status: Any, doing: str) -> None:
        if status != self._done:
            raise KernelError(
                f"'{self.config.name}' must {doing} with {self.config.smem_bytes} bytes of shared memory a CTA "
                f"on device {self.device}, got {status.name}"
            )


@cache
def kernel(config: Config, device: int) -> Kernel:
    """The kernel, loaded once a process and device."""
    return Kernel(config, device)

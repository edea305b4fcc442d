"""What cuda-v1 and cuda-v2 have in common as backends. No torch at import time."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench_backends.cuda_flash import configs
from fabench_backends.cuda_flash.build import architecture, nvrtc_version


class CudaFlash(Backend):
    """Kernels compiled by NVRTC on first use."""

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Head dims that need more shared memory than the device has."""
        if device.capability is None or device.capability < (8, 0):
            return []
        arch, d = architecture(device.capability), max(case.d, case.dv)
        limit = configs.max_d(arch)
        if (self.facts.max_head_dim or 0) >= d > limit:
            return [f"d = {d} > {limit} with {configs.smem_limit(arch) >> 10} KiB of shared memory a CTA on {arch}"]
        return []

    def versions(self) -> dict[str, str]:
        """What compiles the kernels."""
        return {"nvrtc": nvrtc_version(), "cuda-core": version("cuda-core")}

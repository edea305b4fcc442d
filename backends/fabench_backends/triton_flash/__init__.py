"""triton: the FlashAttention-2 algorithm in Triton, forward and backward. No triton or torch at import time.

README.md holds its measured history.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output

SMALL_SHARED_MEMORY = ((8, 6), (8, 9), (12, 0), (12, 1))
"""Compute capabilities with 99 KiB of shared memory a block: fp32 tiles fit up to d = 128 there."""


class TritonFlash(Backend):
    """The Triton kernels of this package."""

    facts = Facts(
        name="triton",
        summary="FlashAttention-2 in Triton: this project's kernels",
        module="triton",
        install="pip install 'fabench[gpu]'",
        min_capability=(8, 0),
        max_head_dim=256,
        head_dim_multiple=8,
        window=True,
        softcap=True,
        returns_lse=True,
        accuracy="A",
        deterministic=("O", "LSE", "dQ", "dK", "dV"),
        kernels=(r"^triton_flash_(forward|backward_dq|backward_dkdv)$",),
        memory="flash",
    )

    def unavailable(self, device: Device) -> str | None:
        """On a CPU the kernels run in Triton's interpreter alone, which must be asked for before triton is imported."""
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            return "device cpu: only Triton's interpreter runs there; set TRITON_INTERPRET=1"
        return super().unavailable(device)

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """What depends on the dtype and the device together."""
        reasons = []
        if device.type == "cpu" and case.dtype == "bf16":
            reasons.append(
                "dtype bf16 on device cpu: Triton's interpreter multiplies bf16 tiles wrongly (seen with 3.6)"
            )
        d = max(case.d, case.dv)
        if case.dtype == "fp32" and device.capability in SMALL_SHARED_MEMORY and d > 128:
            reasons.append("fp32 with d = {} > 128 on compute capability {}.{}".format(d, *device.capability))
        return reasons

    def versions(self) -> dict[str, str]:
        """Triton's version."""
        import triton

        return {"triton": triton.__version__}

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale. The first launch compiles, and for a large problem times the candidates."""
        from fabench_backends.triton_flash import tuner
        from fabench_backends.triton_flash.api import attention

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return attention(
                q, k, v, case.causal, case.scale, case.window, case.softcap, case.alignment, return_lse=lse
            )  # fmt: skip

        def tuned() -> dict[str, Any] | None:
            return {kernel: config.label for kernel, config in tuner.last.items()} or None

        return Prepared(call, tuned=tuned)


triton = TritonFlash()


def stats(arch: str = "sm_90", only: str | None = None) -> list[dict[str, Any]]:
    """Registers, spills and shared memory of every declared configuration, compiled for `arch` without a GPU.

    See `resources.stats`.
    """
    return list(iter_stats(arch, only))


def iter_stats(arch: str = "sm_90", only: str | None = None) -> Iterator[dict[str, Any]]:
    """`stats`, one configuration at a time as it is compiled."""
    from fabench_backends.triton_flash.resources import stats as compiled

    return compiled(arch, only)

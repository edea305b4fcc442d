"""triton: the FlashAttention-2 algorithm in Triton, forward and backward. No triton or torch at import time.

README.md holds its measured history.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.errors import FabenchError

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output
    from fabench.tiling import Tiling

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
        keeps_compiled=True,
        matrices=(0, 0, 0),  # dQ is summed by a kernel of its own
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

    def tiling(self, case: Case, device: Device) -> Tiling | None:
        """The tiles it takes first; for a large problem it times the other declared ones too."""
        from fabench_backends.triton_flash.tiling import tiling

        return tiling(self.name, case, device)

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


def kernel_names(arch: str) -> list[str]:
    """Every declared configuration for `arch`, each with what else is compiled in; needs no triton."""
    from fabench_backends.triton_flash.configs import forms

    return [form.name for form in forms(arch)]


def kernel_stats(arch: str, name: str, *, fresh: bool = False) -> dict[str, Any]:
    """Registers, spills and shared memory of one of `kernel_names`, compiled for `arch` without a GPU.

    See `resources.stats`. Triton keeps a cache of its own, which `fresh` passes over. Raises FabenchError where it does
    not compile.
    """
    from fabench_backends.triton_flash.configs import KNOWN, forms, number

    if number(arch) not in KNOWN:  # with some others LLVM ends the process
        known = ", ".join(f"sm_{n}" for n in KNOWN)
        raise FabenchError(f"'{name}' must be compiled for a known architecture, got '{arch}'; known are {known}")
    try:
        from fabench_backends.triton_flash import resources
        from fabench_backends.triton_flash.interpreter import INTERPRETED
    except Exception as error:  # a broken installation raises what it likes
        hint = "pip install 'fabench[gpu]'"
        raise FabenchError(f"triton must be installed to compile '{name}', got {_said(error)}; {hint}") from error
    if INTERPRETED:
        raise FabenchError(f"'{name}' must be compiled without Triton's interpreter; unset TRITON_INTERPRET")
    form = next(form for form in forms(arch) if form.name == name)
    try:
        return resources.stats(form, arch, fresh=fresh)
    except OSError:
        raise  # of a cache that cannot be used; it names the file
    except Exception as error:  # of the compiler's passes, each its own
        raise FabenchError(f"'{name}' must compile for {arch}, got {_said(error)}") from error


def _said(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

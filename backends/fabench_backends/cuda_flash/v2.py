"""Backends cuda-v2 and cuda-v2-deterministic: FlashAttention-2. No torch at import time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fabench.backend import Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench_backends.cuda_flash.facts import CudaFlash
from fabench_backends.cuda_flash.tiling import tiling

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output
    from fabench.tiling import Tiling


class CudaV2(CudaFlash):
    """The loops of the 2023 paper: queries outside, keys inside, in the backward keys outside; tiles over the grid."""

    facts = Facts(
        name="cuda-v2",
        summary="FlashAttention-2 in CUDA: this project's kernels",
        module="cuda.core",
        install="pip install 'fabench[gpu]'",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=256,
        head_dim_multiple=8,
        window=True,
        softcap=True,
        returns_lse=True,
        deterministic=("O", "LSE", "dK", "dV"),
        keeps_compiled=True,
        kernels=(r"^flash_v2_(fwd|bwd)$",),
    )
    repeatable_dQ = False

    def tiling(self, case: Case, device: Device) -> Tiling | None:
        """The tiles of its kernels on `device`."""
        return tiling("v2", self.name, case, device)

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale; the first launch compiles what it needs, unless the cache has it."""
        from fabench_backends.cuda_flash.v2_ops import attention

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return attention(
                q, k, v, case.causal, case.scale, case.window, case.softcap, case.alignment,
                return_lse=lse, deterministic=self.repeatable_dQ,
            )  # fmt: skip

        return Prepared(call)


class CudaV2Deterministic(CudaV2):
    """The same, with the sums of dQ in a fixed order."""

    facts = replace(
        CudaV2.facts,
        name="cuda-v2-deterministic",
        summary="cuda-v2 with dQ summed in a fixed order: what repeatability costs",
        deterministic=("O", "LSE", "dQ", "dK", "dV"),
    )
    repeatable_dQ = True

    def tiling(self, case: Case, device: Device) -> Tiling | None:
        """None: it would say what cuda-v2 says."""
        return None


cuda_v2 = CudaV2()
cuda_v2_deterministic = CudaV2Deterministic()

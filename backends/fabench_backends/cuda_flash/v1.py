"""Backend cuda-v1: FlashAttention as published in 2022, kept for comparison. No torch at import time."""

from __future__ import annotations

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


class CudaV1(CudaFlash):
    """The loops of the 2022 paper: keys outside, queries inside, one CTA a head."""

    facts = Facts(
        name="cuda-v1",
        summary="FlashAttention (2022) in CUDA: this project's kernels, as published",
        module="cuda.core",
        install="pip install 'fabench[gpu]'",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=128,
        head_dim_multiple=8,
        returns_lse=True,
        deterministic=("O", "LSE", "dQ", "dK", "dV"),
        keeps_compiled=True,
        kernels=(r"^flash_v1_(fwd|bwd)$",),
        matrices=(1, 1, 0),  # O between the outer steps, and dQ
    )

    def tiling(self, case: Case, device: Device) -> Tiling | None:
        """The tiles of its kernels on `device`."""
        return tiling("v1", self.name, case, device)

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale; the first launch compiles what it needs, unless the cache has it."""
        from fabench_backends.cuda_flash.v1_ops import attention

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return attention(q, k, v, case.causal, case.scale, case.alignment, return_lse=lse)

        return Prepared(call)


cuda_v1 = CudaV1()

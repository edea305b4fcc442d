"""cuda-v1: FlashAttention as published in 2022 (arXiv 2205.14135, algorithms 1, 2 and 4), to be compared with v2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output


class CudaV1(Backend):
    """Outer loop over keys, one CTA a head; m, l and O travel through HBM between its steps."""

    facts = Facts(
        name="cuda-v1",
        summary="FlashAttention (2022) in CUDA: this project's kernels, to compare with",
        module="cuda.core",
        install="pip install 'fabench[gpu]'",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=128,
        head_dim_multiple=8,
        returns_lse=True,
        deterministic=("O", "LSE", "dQ", "dK", "dV"),
        kernels=(r"^flash_v1_(fwd|bwd)$",),
    )

    def versions(self) -> dict[str, str]:
        """NVRTC's, which compiles the kernels."""
        from fabench_backends.cuda_flash.build import nvrtc_version

        return {"nvrtc": nvrtc_version()}

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale; the first launch compiles, or finds the cubin in the cache."""
        from fabench_backends.cuda_flash.v1_ops import attention

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return attention(q, k, v, case.causal, case.scale, case.alignment, return_lse=lse)

        return Prepared(call)


cuda_v1 = CudaV1()

"""cuda-v2: FlashAttention-2 (2023, arXiv 2307.08691) on the tensor cores of Ampere and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench_backends.cuda_flash import configs

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output


class CudaV2(Backend):
    """Outer loop over queries, a grid over tiles, warps split over queries, one division at the end."""

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
        kernels=(r"^flash_v2_(fwd|bwd)$",),
    )

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """The head dims that fit the device's shared memory."""
        if device.capability is None:
            return ()
        limit = configs.max_d("sm_{}{}".format(*device.capability))
        return [
            f"{name} = {dim} > {limit} on compute capability {device.capability[0]}.{device.capability[1]}"
            for name, dim in dict.fromkeys([("d", case.d), ("dv", case.dv)])
            if limit < dim <= 256
        ]

    def versions(self) -> dict[str, str]:
        """NVRTC's, which compiles the kernels."""
        from fabench_backends.cuda_flash.build import nvrtc_version

        return {"nvrtc": nvrtc_version()}

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the case's mask and scale; the first launch compiles, or finds the cubin in the cache."""
        from fabench_backends.cuda_flash.v2_ops import attention

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            return attention(
                q, k, v, case.causal, case.scale, case.window, case.softcap, case.alignment, return_lse=lse
            )  # fmt: skip

        return Prepared(call)


cuda_v2 = CudaV2()

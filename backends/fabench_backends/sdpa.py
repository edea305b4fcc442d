"""torch.nn.functional.scaled_dot_product_attention, one backend for each of its kernels, each forced alone.

Its `is_causal` is aligned top-left. A bottom-right or windowed mask goes in as `attn_mask` where the kernel takes one
(math, efficient, cuDNN, and flash on a CPU) and is refused where not (flash on CUDA). What a kernel cannot do becomes a
refusal with torch's own reasons, never another kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.dtypes import DTYPES

if TYPE_CHECKING:
    import torch


class Sdpa(Backend):
    """One kernel of SDPA, or with `kernel` None whichever torch picks."""

    def __init__(self, kernel: str | None, facts: Facts, *, cpu: Facts | None = None) -> None:
        self.kernel = kernel
        """Name in torch.nn.attention.SDPBackend."""
        self.facts = facts
        self.cpu = cpu
        """The facts on a CPU, where they differ."""

    def facts_on(self, device: Device) -> Facts:
        """The facts on `device`: the CPU's kernels are others than CUDA's."""
        return self.cpu if self.cpu is not None and device.type == "cpu" else self.facts

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Build the mask, if one is needed, and choose the kernel."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        is_causal = case.causal and case.window is None and (case.Nq == case.Nk or case.alignment == "top_left")
        mask = None if is_causal or case.mask.is_full else visible(case, device)
        options: dict[str, Any] = {
            "attn_mask": mask,
            "is_causal": is_causal,
            "scale": case.scale,
            "enable_gqa": case.kv_heads != case.heads,
        }
        if self.kernel is None:
            return self._automatic(options)
        forced = [getattr(SDPBackend, self.kernel)]
        kernel = self.kernel

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            try:
                with sdpa_kernel(forced):
                    return scaled_dot_product_attention(q, k, v, **options)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    raise NotImplementedError(why_not(kernel, q, k, v, options)) from None
                raise

        return Prepared(call)

    def _automatic(self, options: dict[str, Any]) -> Prepared:
        import torch
        from torch.nn.attention import SDPBackend
        from torch.nn.functional import scaled_dot_product_attention

        resolved: list[str] = []

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if not resolved:
                choice = torch._fused_sdp_choice(
                    q,
                    k,
                    v,
                    options["attn_mask"],
                    0.0,
                    options["is_causal"],
                    scale=options["scale"],
                    enable_gqa=options["enable_gqa"],
                )
                resolved.append(SDPBackend(choice).name)
            return scaled_dot_product_attention(q, k, v, **options)

        return Prepared(call, tuned=lambda: {"resolved": resolved[0]} if resolved else None)


class Efficient(Sdpa):
    """Its GEMMs load 16 bytes at a time, so that the head dims it takes depend on the dtype."""

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """d and dv must be multiples of 8 in fp16 and bf16, of 4 in fp32."""
        step = 16 // DTYPES[case.dtype].bytes
        dims = {"d": case.d, "dv": case.dv} if case.dv != case.d else {"d": case.d}
        return [
            f"{name} = {dim} is not a multiple of {step} in {case.dtype}" for name, dim in dims.items() if dim % step
        ]


class Cudnn(Sdpa):
    """What torch checks before it hands a problem to cuDNN (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Head dims above 128 need compute capability 9.0, and one key is too few."""
        reasons = []
        if max(case.d, case.dv) > 128 and device.capability is not None and device.capability != (9, 0):
            found = "{}.{}".format(*device.capability)
            reasons.append(f"d = {max(case.d, case.dv)} > 128 on compute capability {found}, takes it on 9.0")
        if case.Nk == 1:
            reasons.append("Nk = 1 < 2")
        return reasons


class Overrideable(Sdpa):
    """The slot that torch keeps for devices outside its tree; CPU and CUDA never fill it."""

    def unavailable(self, device: Device) -> str | None:
        """Always: fabench measures CPU and CUDA."""
        return f"torch offers it to out-of-tree devices only (xpu, privateuseone), not to {device.type}"


def visible(case: Case, device: Device) -> torch.Tensor:
    """The mask as SDPA wants it: a boolean [Nq, Nk], True where a query sees a key."""
    import torch

    mask = case.mask
    diagonal = torch.arange(case.Nq, device=device.torch_name)[:, None] + mask.offset
    key = torch.arange(case.Nk, device=device.torch_name)
    seen = torch.ones(case.Nq, case.Nk, dtype=torch.bool, device=device.torch_name)
    if mask.right is not None:
        seen &= key <= diagonal + mask.right
    if mask.left is not None:
        seen &= key >= diagonal - mask.left
    return seen


def why_not(kernel: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> str:
    """Torch's own reasons for refusing a forced kernel, which it gives as warnings and only when asked."""
    from torch.backends import cuda

    checks = {
        "FLASH_ATTENTION": cuda.can_use_flash_attention,
        "EFFICIENT_ATTENTION": cuda.can_use_efficient_attention,
        "CUDNN_ATTENTION": cuda.can_use_cudnn_attention,
    }
    reasons: Sequence[str] = ()
    if q.is_cuda and kernel in checks:
        problem = cuda.SDPAParams(q, k, v, options["attn_mask"], 0.0, options["is_causal"], options["enable_gqa"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checks[kernel](problem, True)
        reasons = [" ".join(str(w.message).split(" (Triggered internally")[0].split()) for w in caught]
    return f"torch has no {kernel} kernel for this case" + "".join(f"; {reason}" for reason in reasons)


MATH = Sdpa(
    "MATH",
    Facts(
        name="sdpa-math",
        summary="SDPA's reference: PyTorch operators, in fp32 for half inputs",
        window=True,
        deterministic=("O", "dQ", "dK", "dV"),
        kernels=("(?i)gemm", "gemv", "nvjet", "cutlass", "(?i)softmax"),
        memory="standard",
        matrices=(5, 8.5, 0.5),  # of half inputs, whose S is fp32: twice as large
    ),
)
_FLASH = Facts(
    name="sdpa-flash",
    summary="SDPA's FlashAttention-2 on CUDA, its own flash kernel on a CPU",
    min_capability=(8, 0),
    dtypes=("fp16", "bf16"),
    max_head_dim=256,
    dv_differs=False,
    alignments=(),
    empty=False,
    deterministic=("O", "dK", "dV"),
    kernels=("flash_fwd", "flash_bwd"),
    matrices=(0, 2, 0),
)
FLASH = Sdpa(
    "FLASH_ATTENTION",
    _FLASH,
    cpu=replace(
        _FLASH,
        dtypes=("fp16", "bf16", "fp32"),
        max_head_dim=None,
        window=True,
        alignments=("bottom_right", "top_left"),
        deterministic=("O", "dQ", "dK", "dV"),
    ),
)
EFFICIENT = Efficient(
    "EFFICIENT_ATTENTION",
    Facts(
        name="sdpa-efficient",
        summary="SDPA's memory-efficient attention (CUTLASS)",
        devices=("cuda",),
        min_capability=(5, 0),
        window=True,
        gqa=False,
        empty=False,
        deterministic=("O",),
        kernels=("fmha_cutlass", "AttentionKernel", "AttentionBackwardKernel"),
        matrices=(0, 1.5, 0),
    ),
)
CUDNN = Cudnn(
    "CUDNN_ATTENTION",
    Facts(
        name="sdpa-cudnn",
        summary="SDPA's cuDNN attention",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=256,
        head_dim_multiple=8,
        window=True,
        empty=False,
        deterministic=("O",),
        kernels=("cudnn_generated_fort_native_sdpa", "cudnn.*(sdpa|fmha|flash)"),
    ),
)
AUTO = Sdpa(
    None,
    Facts(
        name="sdpa-auto",
        summary="SDPA as called plainly; records which kernel it resolved to",
        window=True,
        deterministic=("O",),
    ),
)


OVERRIDEABLE = Overrideable(
    "OVERRIDEABLE", Facts(name="sdpa-overrideable", summary="SDPA's slot for out-of-tree devices")
)

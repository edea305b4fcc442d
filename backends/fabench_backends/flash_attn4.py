"""FlashAttention-4, written in CuTe's Python DSL and compiled at the first call: `flash_attn.cute`.

Its package flash-attn-4 lies inside flash_attn's folder: the source distribution of flash-attn 2.8.3 brings an older
flash_attn/cute and overwrites it, so the two must not share an environment. Layout and alignment are those of
flash-attn 2; an unlimited side of a window is None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.dtypes import DTYPES

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output

KEEPS = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"
"""Set to 1, the library keeps what it has compiled on disk."""
UNEQUAL_ON_BLACKWELL = ((192, 128), (64, 512), (512, 512), (256, 256))
"""(d, dv) beyond 128 that its kernels for compute capability 10 take."""


class FlashAttention4(Backend):
    """Ampere to Blackwell in fp16 and bf16; backward from Hopper on. `prepare` compiles for the case."""

    facts = Facts(
        name="flash-attn-4",
        summary="FlashAttention-4 (CuTe DSL), compiled at the first call",
        module="flash_attn.cute",
        install="pip install 'fabench[fa4]'",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=512,
        head_dim_multiple=8,
        alignments=("bottom_right",),
        window=True,
        softcap=True,
        empty=False,
        returns_lse=True,
        deterministic=("O", "LSE"),
        kernels=("FlashAttention(Forward|Backward)", "flash_(fwd|bwd)", "kernel_cutlass"),
    )

    def facts_on(self, device: Device) -> Facts:
        """It keeps what it has compiled if it is told to."""
        return replace(self.facts, keeps_compiled=os.environ.get(KEEPS) == "1")

    def unavailable(self, device: Device) -> str | None:
        """Besides the usual reasons: the flash_attn/cute that is here may be the old one that flash-attn brings."""
        if why := super().unavailable(device):
            return why
        if "flash-attn-4" not in self.versions():
            return f"flash_attn.cute here is not of flash-attn-4; install it with `{self.facts.install}`"
        return None

    def versions(self) -> dict[str, str]:
        """The distributions whose versions must fit one another."""
        from importlib import metadata

        names = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")
        installed = {distribution.name for distribution in metadata.distributions()}
        return {name: metadata.version(name) for name in names if name in installed}

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Head dims and directions by compute capability."""
        if device.capability is None:
            return []
        major, found = device.capability[0], "{}.{}".format(*device.capability)
        reasons = []
        pair = f"d = {case.d}" if case.d == case.dv else f"d = {case.d} with dv = {case.dv}"
        if major in (10, 11):
            if max(case.d, case.dv) > 128 and (case.d, case.dv) not in UNEQUAL_ON_BLACKWELL:
                reasons.append(f"{pair} > 128 on compute capability {found}")
        elif max(case.d, case.dv) > 256:
            reasons.append(f"{pair} > 256 on compute capability {found}")
        if major < 9 and case.has_backward:
            reasons.append(f"direction {case.direction} on compute capability {found} < 9.0")
        if major < 9 and case.softcap:
            reasons.append(f"softcap {case.softcap:g} on compute capability {found} < 9.0")
        return reasons

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the arguments and compile by a first call on zeros, forward and, if asked for, backward."""
        import torch
        from flash_attn.cute import flash_attn_func

        left, right = case.window or (-1, -1)
        options: dict[str, Any] = {
            "softmax_scale": case.scale,
            "causal": case.causal,
            "window_size": (None if left < 0 else left, None if right < 0 else right),
            "softcap": case.softcap,
            "return_lse": lse,
        }

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
            O, LSE = out if isinstance(out, tuple) else (out, None)
            return (O.transpose(1, 2), LSE) if lse else O.transpose(1, 2)

        dtype = getattr(torch, DTYPES[case.dtype].torch_name)
        shapes = ((case.heads, case.Nq, case.d), (case.kv_heads, case.Nk, case.d), (case.kv_heads, case.Nk, case.dv))
        zeros = [
            torch.zeros(case.batch, *shape, dtype=dtype, device=device.torch_name, requires_grad=case.has_backward)
            for shape in shapes
        ]
        out = call(*zeros)
        if case.has_backward:
            O = out[0] if isinstance(out, tuple) else out
            torch.autograd.grad(O, zeros, torch.zeros_like(O))
        return Prepared(call)


FLASH_ATTN_4 = FlashAttention4()

"""xformers' memory_efficient_attention, which dispatches to the kernels it was built with or finds.

Layout batch, N, heads, d. GQA is its five-dimensional form [batch, N, kv_heads, group, d] with k and v expanded, for
the forward pass only. What none of its operators takes it refuses itself, with the reasons of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch


class Xformers(Backend):
    """The operator of xformers' own choice; the row's kernel names say which it was."""

    facts = Facts(
        name="xformers",
        summary="xformers.ops.memory_efficient_attention",
        module="xformers.ops",
        install="pip install xformers",
        devices=("cuda",),
        window=True,
        empty=False,
        deterministic=("O",),
        kernels=("fmha", "flash_(fwd|bwd)", "FlashAttn", "AttentionKernel", "AttentionBackwardKernel", "splitk"),
    )

    def versions(self) -> dict[str, str]:
        """The library's own version string."""
        import xformers

        return {"xformers": str(xformers.__version__)}

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """GQA is forward only, and windows are aligned bottom-right only."""
        reasons = []
        if case.kv_heads != case.heads and case.has_backward:
            reasons.append(f"kv_heads = {case.kv_heads} differs from heads = {case.heads} in {case.direction}")
        if case.window is not None and case.alignment == "top_left":
            reasons.append(
                f"window {case.window} with alignment top_left, Nq = {case.Nq} and Nk = {case.Nk}, "
                "takes windows bottom_right"
            )
        return reasons

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Make the attention bias object and bind the arguments."""
        from xformers.ops import memory_efficient_attention

        options: dict[str, Any] = {"attn_bias": bias(case), "scale": case.scale}
        groups = case.heads // case.kv_heads

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            Q, K, V = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if groups == 1:
                return memory_efficient_attention(Q, K, V, **options).transpose(1, 2)  # type: ignore[no-any-return]
            Q = Q.view(case.batch, case.Nq, case.kv_heads, groups, case.d)
            K, V = (x[:, :, :, None].expand(-1, -1, -1, groups, -1) for x in (K, V))
            O = memory_efficient_attention(Q, K, V, **options)
            return O.flatten(2, 3).transpose(1, 2)  # type: ignore[no-any-return]

        return Prepared(call)


def bias(case: Case) -> Any:
    """The attention bias object of xformers that stands for the case's mask; None for no mask."""
    from xformers.ops.fmha import attn_bias

    if case.window is None:
        if not case.causal:
            return None
        aligned = case.Nq == case.Nk or case.alignment == "top_left"
        return attn_bias.LowerTriangularMask() if aligned else attn_bias.LowerTriangularFromBottomRightMask()
    left, right = case.window
    if case.causal:  # its window_size counts the query's own key
        return attn_bias.LowerTriangularFromBottomRightLocalAttentionMask(left + 1)
    unlimited = case.Nq + case.Nk
    return attn_bias.LocalAttentionFromBottomRightMask(
        window_left=left if left >= 0 else unlimited, window_right=right if right >= 0 else unlimited
    )


XFORMERS = Xformers()

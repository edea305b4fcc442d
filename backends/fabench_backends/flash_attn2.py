"""flash-attn 2.x, the library of FlashAttention-2 (Dao 2023): `flash_attn_func`.

Layout batch, N, heads, d: our tensors go in as transposed views. Causal masks and windows are aligned bottom-right, and
windows are (left, right), inclusive, -1 for unlimited, as ours are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output


class FlashAttention2(Backend):
    """Forward and backward in fp16 and bf16. A build trimmed to some head dims raises, which is a refusal."""

    facts = Facts(
        name="flash-attn",
        summary="FlashAttention-2, the library",
        # Not `flash_attn`: with flash-attn-4 alone that is an empty namespace, which imports.
        module="flash_attn.flash_attn_interface",
        install="pip install flash-attn --no-build-isolation",
        devices=("cuda",),
        min_capability=(8, 0),
        dtypes=("fp16", "bf16"),
        max_head_dim=256,
        dv_differs=False,
        alignments=("bottom_right",),
        window=True,
        softcap=True,
        empty=False,
        returns_lse=True,
        deterministic=("O", "LSE", "dK", "dV"),
        kernels=("flash_fwd", "flash_bwd"),
    )

    def versions(self) -> dict[str, str]:
        """The library's own version string."""
        import flash_attn

        return {"flash-attn": str(flash_attn.__version__)}

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the arguments."""
        from flash_attn.flash_attn_interface import flash_attn_func

        options: dict[str, Any] = {
            "softmax_scale": case.scale,
            "causal": case.causal,
            "window_size": case.window or (-1, -1),
            "softcap": case.softcap,
        }

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            Q, K, V = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if not lse:
                return flash_attn_func(Q, K, V, **options).transpose(1, 2)  # type: ignore[no-any-return]
            # Without dropout the third value, P, is never written; asking for it is how one gets the LSE.
            O, LSE, _ = flash_attn_func(Q, K, V, return_attn_probs=True, **options)
            return O.transpose(1, 2), LSE

        return Prepared(call)


FLASH_ATTN = FlashAttention2()

"""torch's FlexAttention: a mask and a softcap as Python functions, compiled by Inductor into one Triton kernel.

Three ways in which it falls back without a word are closed (the third was seen: after 8 recompiles it ran eagerly, at
16 TFLOP/s where the kernel makes 450): it is compiled with `fullgraph`, so that what cannot be compiled raises; the
recompile limits are raised, since every shape is a compilation; and warnings about an unfused or eager path are errors.
The block mask is built, and the kernel compiled by a first call, in `prepare`.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case, Mask
from fabench.device import Device
from fabench.dtypes import DTYPES
from fabench.outcome import first_line

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from fabench.backend import Output

BLOCK = 128
"""Rows and keys of a block of the block mask, FlexAttention's own default."""
RECOMPILE_LIMIT = 1 << 16
FALLBACK = "(?i).*(flex_attention|unfused|eager|recompile|fall(s|ing)? ?back)"
"""Warnings that mean another path than the fused kernel."""
QUOTED = re.compile(r"NotImplementedError(: |\(['\"])(?P<message>.+?)(['\"]\))?$", re.MULTILINE)
"""A NotImplementedError that another error's text quotes: Inductor's `E: text`, or Dynamo's `E('text')`."""
FACTS = Facts(
    name="flex",
    summary="FlexAttention, compiled by Inductor into a Triton kernel",
    min_capability=(7, 5),
    max_head_dim=256,
    window=True,
    softcap=True,
    empty=False,
    returns_lse=True,
    fp32_accuracy="A-tf32",
    deterministic=("O", "LSE", "dQ", "dK", "dV"),
    kernels=("triton_tem", "flex_attention"),
    keeps_compiled=True,
    matrices=(0, 0, 0),  # dQ is summed by a kernel of its own
)


class Flex(Backend):
    """Forward and backward on CUDA, forward alone and without LSE on a CPU (C++ by Inductor)."""

    facts = FACTS

    def facts_on(self, device: Device) -> Facts:
        """A CPU has neither its backward pass nor its LSE, and no tf32."""
        if device.type == "cuda":
            return FACTS
        return replace(
            FACTS, summary="FlexAttention, compiled by Inductor into C++", directions=("forward",), returns_lse=False,
            fp32_accuracy=None,
        )  # fmt: skip

    def unavailable(self, device: Device) -> str | None:
        """On a CPU Inductor writes C++, and compiles it with what is on PATH."""
        compiler = os.environ.get("CXX", "g++")
        if device.type == "cpu" and not os.environ.get("TORCH_INDUCTOR_INSTALL_GXX") and shutil.which(compiler) is None:
            return f"no C++ compiler: '{compiler}' is not on PATH; install it, or name another in CXX"
        return super().unavailable(device)

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Triton's dot takes no dimension below 16."""
        if device.type == "cuda" and min(case.d, case.dv) < 16:
            return [f"{'d' if case.d < 16 else 'dv'} = {min(case.d, case.dv)} < 16"]
        return []

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Build the block mask and compile for the case by a first call, forward and, if asked for, backward."""
        import torch
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        configure_compiler()
        options: dict[str, Any] = {
            "score_mod": soft_capped(case.softcap) if case.softcap else None,
            "block_mask": block_mask(case.mask, device.torch_name),
            "scale": case.scale,
            "enable_gqa": case.kv_heads != case.heads,
        }
        if lse:
            options["return_aux"] = AuxRequest(lse=True)
        compiled: Any = torch.compile(flex_attention, fullgraph=True, dynamic=False)

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            out = compiled(q, k, v, **options)
            return (out[0], out[1].lse) if lse else out

        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=FALLBACK)
            try:
                first_call(call, case, device, backward=case.has_backward and not lse)
            except Exception as error:
                if refusal := refused(error):
                    raise NotImplementedError(refusal) from None
                raise
        return Prepared(call)


def configure_compiler() -> None:
    """Raise the limits past which Dynamo gives up compiling, and keep what the forward pass saved.

    A backward pass that may reuse saved tensors as scratch refuses to run twice on one graph, which timing it does.
    """
    from torch._dynamo import config
    from torch._functorch import config as autograd

    for name in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(config, name, max(RECOMPILE_LIMIT, getattr(config, name)))
    autograd.donated_buffer = False


def soft_capped(cap: float) -> Any:
    """score_mod for a softcap: the score is already scaled, and the mask comes after."""
    import torch

    def score_mod(score: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        return cap * torch.tanh(score / cap)

    return score_mod


def mask_mod(mask: Mask) -> Any:
    """The mask as FlexAttention asks it: query index and key index to True where the query sees the key."""
    # An unlimited side leaves no test behind in the kernel.
    right = None if mask.right is None else mask.offset + mask.right
    left = None if mask.left is None else mask.offset - mask.left

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        if left is None:
            return j <= i + right
        if right is None:
            return j >= i + left
        return (j <= i + right) & (j >= i + left)

    return seen


def block_mask(mask: Mask, device: str) -> BlockMask | None:
    """The block mask of a band, worked out block by block in O((N / 128)²); None for no mask.

    `create_block_mask` would evaluate the mask at all Nq·Nk places, which at N = 128k is more than a GPU holds.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    if mask.is_full:
        return None
    q_blocks, k_blocks = -(-mask.Nq // BLOCK), -(-mask.Nk // BLOCK)
    first_row = torch.arange(q_blocks, device=device)[:, None] * BLOCK
    first_key = torch.arange(k_blocks, device=device)[None, :] * BLOCK
    last_row = (first_row + BLOCK).clamp(max=mask.Nq) - 1
    last_key = (first_key + BLOCK).clamp(max=mask.Nk) - 1
    # Distance of a key from the query's diagonal: the extremes within a block are at two of its corners.
    highest, lowest = last_key - (first_row + mask.offset), first_key - (last_row + mask.offset)
    some = torch.ones(q_blocks, k_blocks, dtype=torch.bool, device=device)
    every = (first_row + BLOCK <= mask.Nq) & (first_key + BLOCK <= mask.Nk)
    if mask.right is not None:
        some, every = some & (lowest <= mask.right), every & (highest <= mask.right)
    if mask.left is not None:
        some, every = some & (highest >= -mask.left), every & (lowest >= -mask.left)
    partial = some & ~every

    def ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(how many, which first) of each row of blocks, as [1, 1, rows] and [1, 1, rows, columns]."""
        which = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
        return blocks.sum(-1).int()[None, None], which.int()[None, None].contiguous()

    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(every), BLOCK_SIZE=BLOCK, mask_mod=mask_mod(mask), seq_lengths=(mask.Nq, mask.Nk)
    )


def first_call(call: Any, case: Case, device: Device, *, backward: bool) -> None:
    """Compile: one call on zeros of the case's shapes and memory order, and its backward pass if that is asked for.

    Dynamo compiles anew for another grad mode, so a forward alone is called without gradients, as it will be later.
    """
    import torch

    dtype = getattr(torch, DTYPES[case.dtype].torch_name)

    def zeros(heads: int, N: int, width: int) -> torch.Tensor:
        if case.layout == "bhsd":
            return torch.zeros(case.batch, heads, N, width, dtype=dtype, device=device.torch_name)
        return torch.zeros(case.batch, N, heads, width, dtype=dtype, device=device.torch_name).transpose(1, 2)

    if case.layout == "packed":
        packed = torch.zeros(case.batch, case.Nq, 3, case.heads, case.d, dtype=dtype, device=device.torch_name)
        inputs = list(packed.transpose(1, 3).unbind(2))
    else:
        inputs = [
            zeros(case.heads, case.Nq, case.d), zeros(case.kv_heads, case.Nk, case.d),
            zeros(case.kv_heads, case.Nk, case.dv),
        ]  # fmt: skip
    for x in inputs:
        x.requires_grad_(backward)
    with torch.set_grad_enabled(backward):
        out = call(*inputs)
    if backward:
        O = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(O, inputs, torch.zeros_like(O))


def refused(error: BaseException | None) -> str | None:
    """The sentence of a NotImplementedError that the compiler wrapped in errors of its own, None if there is none."""
    while error is not None:
        if isinstance(error, NotImplementedError):
            return first_line(error)
        if quoted := QUOTED.search(str(error)):
            return quoted["message"]
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


FLEX = Flex()

"""What the kernels take, checked before any launch; and the problem as the numbers the kernels are given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fabench.attention_op import SMALLEST, Layout, check_numbers
from fabench_backends.triton_flash.interpreter import INTERPRETED

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
MAX_N = 2**30
SMALL_SHARED_MEMORY = ((8, 6), (8, 9), (12, 0), (12, 1))
"""Compute capabilities with 99 KiB of shared memory a block: fp32 tiles fit up to d = 128 there."""
BF16_INTERPRETED = "Triton's interpreter multiplies bf16 tiles wrongly (seen with 3.6)"

Window = tuple[int, int]


class Band(NamedTuple):
    """The mask: query i sees key j when i + offset - left <= j <= i + offset + right; -1 is unlimited."""

    offset: int
    left: int
    right: int


@dataclass(frozen=True)
class Factors:
    """How the scale and the cap reach the kernels; see `primitives.scores`."""

    score_scale: float
    exp2_scale: float
    rescale: bool
    softcap: bool


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_tensors(q: Layout, k: Layout, v: Layout) -> None:
    """Raise ValueError, naming both numbers, unless q, k [.., Nk, d] and v [.., Nk, dv] fit together."""
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        rank = len(tensor.shape)
        require(rank == 4, f"'{name}' must have 4 dimensions [batch, heads, N, d], got {rank}")
        require(
            tensor.dtype in DTYPES and tensor.dtype == q.dtype,
            f"'{name}' must be fp16, bf16 or fp32 like q, got {tensor.dtype} and q {q.dtype}",
        )
        require(tensor.device == q.device, f"'{name}' must be on the device of q, got {tensor.device} and q {q.device}")
        require(
            0 in tensor.shape or tensor.strides[3] == 1,
            f"'{name}' must have stride 1 in its last dimension, got {tensor.strides[3]}",
        )
        d = tensor.shape[3]
        require(
            8 <= d <= MAX_HEAD_DIM and d % 8 == 0,
            f"the head dim of '{name}' must be a multiple of 8 up to {MAX_HEAD_DIM}, got {d}",
        )
        require(tensor.shape[2] < MAX_N, f"'{name}' must have N < {MAX_N}, got {tensor.shape[2]}")
    require(q.shape[3] == k.shape[3], f"q and k must have one head dim, got {q.shape[3]} and {k.shape[3]}")
    require(k.shape[:3] == v.shape[:3], f"k and v must agree but in d, got {list(k.shape)} and {list(v.shape)}")
    require(q.shape[0] == k.shape[0], f"q and k must have one batch size, got {q.shape[0]} and {k.shape[0]}")
    heads, kv_heads = q.shape[1], k.shape[1]
    require(
        kv_heads > 0 and heads % kv_heads == 0,
        f"the heads of q must be a multiple of the heads of k, got {heads} and {kv_heads}",
    )


def check_device(q: Layout, d: int) -> None:
    """Raise ValueError unless the kernels run where `q` lies, for its dtype and the larger of its head dims."""
    if q.device.type == "cuda":
        require(not INTERPRETED, "the kernels were imported under TRITON_INTERPRET=1, which takes CPU tensors only")
        capability = torch.cuda.get_device_capability(q.device)
        found = "{}.{}".format(*capability)
        require(capability >= (8, 0), f"the device must have compute capability 8.0 or more, got {found}")
        require(
            q.dtype != torch.float32 or d <= 128 or capability not in SMALL_SHARED_MEMORY,
            f"fp32 on compute capability {found} must have d <= 128, got {d}",
        )
    else:
        require(
            q.device.type == "cpu" and INTERPRETED,
            f"'q' must be on a CUDA device (or on the CPU under TRITON_INTERPRET=1), got {q.device}",
        )
        require(q.dtype != torch.bfloat16, f"bf16 is refused on the CPU: {BF16_INTERPRETED}")


def band(Nq: int, Nk: int, causal: bool, window: Window | None, alignment: str) -> Band:
    """The mask as numbers. Raises ValueError on a window or an alignment that is none."""
    require(
        alignment in ("bottom_right", "top_left"), f"'alignment' must be bottom_right or top_left, got '{alignment}'"
    )
    left, right = (-1, -1) if window is None else window
    require(min(left, right) >= -1, f"'window' must be (left, right), each -1 (unlimited) or more, got {window}")
    offset = Nk - Nq if alignment == "bottom_right" else 0
    # A side that hides nothing is unlimited: the last query sees key 0, or the first the last key. This also keeps the
    # kernels' int32 sums of indices below Nq + Nk.
    left = -1 if left >= Nq - 1 + offset else left
    right = 0 if causal else -1 if right >= Nk - 1 - offset else right
    return Band(offset, left, right)


def factors(scale: float, softcap: float) -> Factors:
    """The scale and the cap as the kernels take them. Raises ValueError if float32 does not hold them, or cap < 0."""
    check_numbers(scale, softcap)
    log2e = math.log2(math.e)
    if softcap > 0:
        return Factors(scale / softcap, softcap * log2e, rescale=False, softcap=True)
    if scale >= SMALLEST:  # one that vanishes would turn the -inf of a hidden score into NaN
        return Factors(1.0, scale * log2e, rescale=False, softcap=False)
    return Factors(scale, log2e, rescale=True, softcap=False)

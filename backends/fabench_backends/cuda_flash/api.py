"""What both versions share on the host: the checks before any launch, the mask as a band, strides, loaded kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fabench.attention_op import Layout, layout
from fabench_backends.cuda_flash import configs
from fabench_backends.cuda_flash.build import architecture
from fabench_backends.cuda_flash.configs import Mask
from fabench_backends.cuda_flash.launch import Kernel, kernel

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
UNLIMITED = 1 << 30
"""`low` and `high` of a band whose side is not limited (band.cuh); also twice the longest sequence."""
MAX_GRID_X, MAX_GRID_Y = (1 << 31) - 1, 65535


def check(q: Layout, k: Layout, v: Layout, max_d: int) -> None:
    """Raise ValueError, naming both numbers, unless the kernels can take these tensors."""
    for name, t in {"q": q, "k": k, "v": v}.items():
        if len(t.shape) != 4:
            raise ValueError(f"{name} must have 4 dimensions [batch, heads, N, d], got {len(t.shape)}")
        if t.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16 or bfloat16, got {str(t.dtype).removeprefix('torch.')}")
        if t.dtype != q.dtype:
            raise ValueError(f"{name} must have q's dtype {q.dtype}, got {t.dtype}")
        if t.device.type != "cuda":
            raise ValueError(f"{name} must be on a CUDA device, got {t.device}")
        if t.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {t.device}")
        d = t.shape[3]
        if not 8 <= d <= max_d or d % 8:
            raise ValueError(f"the head dim of {name} must be a multiple of 8 from 8 to {max_d}, got {d}")
        if t.strides[3] != 1 and 0 not in t.shape:
            raise ValueError(f"{name} must have stride 1 in its last dimension, got {t.strides[3]}")
        if t.shape[2] > UNLIMITED // 2:
            raise ValueError(f"{name} must have at most {UNLIMITED // 2} rows, got {t.shape[2]}")
    for name, t in {"k": k, "v": v}.items():
        if t.shape[0] != q.shape[0]:
            raise ValueError(f"{name} must have q's batch {q.shape[0]}, got {t.shape[0]}")
    if v.shape[1:3] != k.shape[1:3]:
        raise ValueError(f"v must have k's heads and rows {tuple(k.shape[1:3])}, got {tuple(v.shape[1:3])}")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"k must have q's head dim {q.shape[3]}, got {k.shape[3]}")
    heads, kv_heads = q.shape[1], k.shape[1]
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"q's heads must be a multiple of k's heads, got {heads} and {kv_heads}")
    if q.shape[0] * heads > MAX_GRID_X:
        raise ValueError(f"batch times heads must be at most {MAX_GRID_X}, got {q.shape[0] * heads}")
    if (capability := torch.cuda.get_device_capability(q.device)) < (8, 0):
        raise ValueError("the device's compute capability must be at least 8.0, got {}.{}".format(*capability))
    arch, d = architecture(capability), max(q.shape[3], v.shape[3])
    if d > (limit := configs.max_d(arch)):
        raise ValueError(f"the head dims must be at most {limit} on {arch}, got {d}")


def band(Nq: int, Nk: int, causal: bool, window: Sequence[int] | None, alignment: str) -> tuple[int, int]:
    """(low, high): query i sees key j when i + low <= j <= i + high. Raises ValueError for a mask that is none."""
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"alignment must be bottom_right or top_left, got '{alignment}'")
    left, right = (-1, -1) if window is None else (int(window[0]), int(window[1]))
    if min(left, right) < -1:
        raise ValueError(f"window must be (left, right), each -1 (unlimited) or more, got ({left}, {right})")
    offset = Nk - Nq if alignment == "bottom_right" else 0
    right = 0 if causal else right
    low = -UNLIMITED if left < 0 else max(offset - left, -UNLIMITED)
    high = UNLIMITED if right < 0 else min(offset + right, UNLIMITED)
    return low, high


def mask_kind(low: int, high: int, softcap: float = 0.0) -> Mask:
    """The smallest compiled mask that covers this one."""
    if softcap:
        return "softcap"
    return "band" if low > -UNLIMITED or high < UNLIMITED else "none"


def is_aligned(t: Layout) -> bool:
    """True if the rows are contiguous and start at multiples of 16 bytes, as far as the strides decide."""
    steps = [stride for size, stride in zip(t.shape[:3], t.strides[:3], strict=True) if size > 1]
    return t.strides[3] == 1 and not any(stride % 8 for stride in steps)


def aligned(t: Tensor) -> Tensor:
    """`t`, or a contiguous copy if its rows are not contiguous or do not start at multiples of 16 bytes."""
    if t.data_ptr() % 16 == 0 and is_aligned(layout(t)):
        return t
    return t.clone(memory_format=torch.contiguous_format)


def loaded(name: str, t: Layout, d: int, mask: Mask) -> Kernel:
    """The kernel `name` for `t`'s device and dtype and for head dims up to `d`."""
    arch = architecture(torch.cuda.get_device_capability(t.device))
    return kernel(configs.config(name, d, DTYPES[t.dtype], mask, arch), t.device.index)


def helper(name: str, t: Layout) -> Kernel:
    """A kernel over rows for `t`'s device and dtype."""
    return kernel(configs.helper(name, DTYPES[t.dtype]), t.device.index)


def strides(**layouts: Layout) -> dict[str, int]:
    """Strides in elements, under the names the params have."""
    return {f"{n}_{a}": t.strides[i] for n, t in layouts.items() for i, a in enumerate(("batch", "head", "row"))}


def dense(t: Layout, *shape: int) -> Layout:
    """The layout of a new contiguous tensor of `t`'s dtype on its device."""
    size, steps = 1, []
    for extent in reversed(shape):
        steps.append(size)
        size *= extent
    return Layout(torch.Size(shape), tuple(reversed(steps)), t.dtype, t.device)


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)

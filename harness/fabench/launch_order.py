"""In which order the in-repo kernels' grids run over heads and tiles. No torch at import time."""

from __future__ import annotations

MOST_ROUNDS = 65535
"""CUDA's limit for grid.y and grid.z."""


def side_by_side(heads: int, group: int, streamed_bytes: int, l2_bytes: int) -> int:
    """How many of all heads a grid runs side by side: those whose streamed tensors fill half of L2.

    A tile stays in registers while a CTA streams `streamed_bytes` past it: K and V of a kv head, which `group` heads
    share, or Q and dO. What one CTA has read is then still in L2 for those of the head's other tiles. The heads of a
    group stay together, and the rounds of the grid are about equally wide.

    For tiles of equal work only: under a causal mask the long tiles of every head must come first, so that short ones
    fill the end; rounds of heads cost cuda-v2 6 to 9 % there (its README).
    """
    kv_heads = heads // group
    wide = min(kv_heads, max(1, l2_bytes // 2 // max(1, streamed_bytes)))
    rounds = min(-(-kv_heads // wide), MOST_ROUNDS)
    return -(-kv_heads // rounds) * group

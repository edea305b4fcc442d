"""Every compiled form of every kernel: which tile it uses, which macros it gets, how much shared memory it takes.

A configuration is (kernel, d bucket, dtype, mask kind). Tiles were chosen by measurement on an H200; README.md has the
history. An architecture with less shared memory than a tile needs takes the next, smaller tile of the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

Mask = Literal["none", "band", "softcap"]
"""What is compiled in: only the end of the keys; any band (causal, window); a band and a softcap."""

MASKS: tuple[Mask, ...] = ("none", "band", "softcap")
D_BUCKETS = (32, 64, 96, 128, 192, 256)
DTYPES = ("bf16", "fp16")

SMEM_LIMIT_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""Shared memory a CTA can have, by compute capability (CUDA programming guide, technical specifications)."""


def number(arch: str) -> int:
    """90 for 'sm_90a'."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def smem_limit(arch: str) -> int:
    """Bytes of shared memory a CTA can have on `arch`, e.g. 'sm_90a'; of one not listed, the smallest known."""
    return SMEM_LIMIT_KIB.get(number(arch), 99) * 1024


class Tile(Protocol):
    """How a kernel cuts its problem. Subclasses are plain numbers."""

    @property
    def threads(self) -> int:
        """Threads in a CTA."""

    def smem_bytes(self, d: int) -> int:
        """Dynamic shared memory of a CTA with head dim `d`. The source asserts the same number."""

    def macros(self) -> dict[str, int]:
        """What is passed by -D."""


@dataclass(frozen=True)
class ForwardTile:
    """v2 forward: a CTA owns warps * m_tiles * 16 queries and walks over block_kv keys at a time."""

    warps: int
    m_tiles: int
    """16-row mma tiles a warp owns: each fragment of K and V is used this often."""
    block_kv: int
    min_ctas: int
    """CTAs that must fit an SM: caps the registers."""
    q_in_registers: bool = False

    @property
    def threads(self) -> int:
        """Threads in a CTA."""
        return self.warps * 32

    @property
    def block_q(self) -> int:
        """Queries a CTA owns."""
        return self.warps * self.m_tiles * 16

    def smem_bytes(self, d: int) -> int:
        """Q, and two stages each of K and V."""
        return 2 * d * (self.block_q + 4 * self.block_kv)

    def macros(self) -> dict[str, int]:
        """What is passed by -D."""
        return {
            "WARPS": self.warps,
            "M_TILES": self.m_tiles,
            "BLOCK_KV": self.block_kv,
            "MIN_CTAS": self.min_ctas,
            "Q_IN_REGISTERS": int(self.q_in_registers),
        }


@dataclass(frozen=True)
class BackwardTile:
    """Backward: a CTA owns warps_kv * m_tiles * 16 keys and walks over block_q queries at a time."""

    warps: int
    warps_kv: int
    """Warps that share the keys; warps / warps_kv of them share queries, and columns of dK and dV."""
    m_tiles: int
    block_q: int
    min_ctas: int
    dq_warps_q: int
    """Warps that share the queries of a dQ tile; warps / dq_warps_q of them share its columns."""

    @property
    def threads(self) -> int:
        """Threads in a CTA."""
        return self.warps * 32

    @property
    def block_kv(self) -> int:
        """Keys a CTA owns."""
        return self.warps_kv * self.m_tiles * 16

    @property
    def p_in_registers(self) -> bool:
        """A warp's scores are of its own keys alone, so that P need not go through shared memory."""
        return self.warps == self.warps_kv

    @property
    def stages(self) -> int:
        """Buffers of Q, dO, LSE, delta: without P in registers, the step before still needs its own."""
        return 2 if self.p_in_registers else 3

    def smem_bytes(self, d: int) -> int:
        """K and V; two buffers of dS, and of P unless in registers; the stages of Q, dO, LSE, delta."""
        scores = (2 if self.p_in_registers else 4) * 2 * self.block_kv * self.block_q
        return 4 * d * self.block_kv + scores + self.stages * self.block_q * (4 * d + 8)

    def macros(self) -> dict[str, int]:
        """What is passed by -D."""
        return {
            "WARPS": self.warps,
            "WARPS_KV": self.warps_kv,
            "M_TILES": self.m_tiles,
            "BLOCK_Q": self.block_q,
            "MIN_CTAS": self.min_ctas,
            "DQ_WARPS_Q": self.dq_warps_q,
        }


@dataclass(frozen=True)
class V1ForwardTile:
    """v1 forward: a CTA owns a head; its inner step takes warps * 16 queries and block_kv keys."""

    warps: int
    block_kv: int

    @property
    def threads(self) -> int:
        """Threads in a CTA."""
        return self.warps * 32

    def smem_bytes(self, d: int) -> int:
        """K and V, and two stages of Q."""
        return 4 * d * (self.block_kv + self.warps * 16)

    def macros(self) -> dict[str, int]:
        """What is passed by -D."""
        return {"WARPS": self.warps, "BLOCK_KV": self.block_kv}


@dataclass(frozen=True)
class Rows:
    """A kernel that gives each warp a row and uses no shared memory."""

    warps: int = 8

    @property
    def threads(self) -> int:
        """Threads in a CTA."""
        return self.warps * 32

    def smem_bytes(self, d: int) -> int:
        """None."""
        return 0

    def macros(self) -> dict[str, int]:
        """What is passed by -D."""
        return {"WARPS": self.warps}


@dataclass(frozen=True)
class Config:
    """One compiled kernel. `d` 0 and mask 'none' where the kernel has no such choice."""

    kernel: str
    dtype: str
    tile: Tile
    d: int = 0
    mask: Mask = "none"
    extra: tuple[tuple[str, str], ...] = ()
    """More macros, for experiments."""

    @property
    def name(self) -> str:
        """'flash_v2_fwd d128 bf16 band'."""
        return f"{self.kernel} d{self.d} {self.dtype} {self.mask}" if self.d else f"{self.kernel} {self.dtype}"

    @property
    def source(self) -> str:
        """The .cu file that holds it."""
        return f"{self.kernel}.cu"

    @cached_property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        return self.tile.smem_bytes(self.d)

    @property
    def macros(self) -> dict[str, str]:
        """What is passed by -D."""
        macros = {"IS_BF16": int(self.dtype == "bf16"), **self.tile.macros()}
        if self.d:
            macros |= {"HEAD_DIM": self.d, "MASK": MASKS.index(self.mask), "SMEM": self.smem_bytes}
        return {name: str(value) for name, value in macros.items()} | dict(self.extra)


TILES: Mapping[str, Mapping[int, tuple[Tile, ...]]] = {
    "flash_v1_fwd": {
        32: (V1ForwardTile(8, 128),),
        64: (V1ForwardTile(8, 128),),
        96: (V1ForwardTile(8, 128),),
        128: (V1ForwardTile(8, 128), V1ForwardTile(4, 64)),
    },
    "flash_v1_bwd": {
        32: (BackwardTile(4, 4, 2, 32, 1, 2),),
        64: (BackwardTile(8, 4, 2, 64, 1, 2), BackwardTile(4, 2, 2, 32, 1, 2)),
        96: (BackwardTile(8, 4, 2, 64, 1, 4), BackwardTile(4, 2, 2, 64, 1, 4), BackwardTile(4, 2, 2, 32, 1, 2)),
        128: (BackwardTile(8, 4, 2, 32, 1, 2), BackwardTile(4, 4, 1, 32, 1, 2)),
    },
    "flash_v2_fwd": {
        32: (ForwardTile(4, 2, 64, 2, True),),
        64: (ForwardTile(4, 2, 64, 2, True),),
        96: (ForwardTile(4, 2, 64, 2),),
        128: (ForwardTile(4, 2, 64, 2),),
        192: (ForwardTile(4, 1, 64, 2),),
        256: (ForwardTile(4, 1, 64, 1),),
    },
    "flash_v2_bwd": {
        32: (BackwardTile(4, 4, 2, 32, 2, 2),),
        64: (BackwardTile(4, 4, 2, 32, 2, 2),),
        96: (BackwardTile(8, 4, 2, 64, 1, 4), BackwardTile(4, 2, 2, 64, 1, 4), BackwardTile(4, 2, 2, 32, 1, 2)),
        128: (BackwardTile(8, 4, 2, 64, 1, 2), BackwardTile(8, 4, 2, 32, 1, 2), BackwardTile(8, 4, 1, 32, 1, 2)),
        192: (BackwardTile(8, 4, 1, 32, 1, 2),),
        256: (BackwardTile(8, 4, 1, 32, 1, 2), BackwardTile(4, 2, 1, 32, 1, 1)),
    },
}
"""Kernel -> d bucket -> tiles in order of preference."""

SOFTCAP_TILES: Mapping[tuple[str, int], tuple[Tile, ...]] = {
    ("flash_v2_fwd", 128): (ForwardTile(4, 2, 32, 2),),
    ("flash_v2_bwd", 128): (BackwardTile(8, 4, 2, 32, 1, 2), BackwardTile(8, 4, 1, 32, 1, 2)),
}
"""Where tanh needs registers that the usual tile does not leave."""

HELPERS = ("flash_fwd_combine", "flash_bwd_prepare", "flash_bwd_finish")
"""Kernels over rows, whatever d and the mask."""


OTHER_TILES: Mapping[tuple[str, int], tuple[Tile, ...]] = {
    ("flash_v2_fwd", 128): (ForwardTile(4, 2, 32, 2),),
    ("flash_v2_bwd", 64): (BackwardTile(8, 8, 1, 32, 1, 2),),
    ("flash_v2_bwd", 128): (BackwardTile(8, 4, 2, 32, 1, 2), BackwardTile(8, 4, 1, 32, 1, 2)),
}
"""On other architectures than Hopper, where the measured tile would leave ptxas a few registers short."""


def max_d(arch: str) -> int:
    """The largest head dim on `arch`: 256, or 128 where a CTA has less than 100 KiB of shared memory."""
    return 256 if smem_limit(arch) > 99 * 1024 else 128


def bucket(d: int) -> int:
    """The smallest d bucket that holds `d` columns."""
    return next(b for b in D_BUCKETS if d <= b)


def config(kernel: str, d: int, dtype: str, mask: Mask, arch: str) -> Config:
    """The configuration that runs head dim `d` on `arch`: the first tile whose shared memory fits."""
    b = bucket(d)
    tiles = TILES[kernel][b]
    if mask == "softcap":
        tiles = SOFTCAP_TILES.get((kernel, b), tiles)
    if number(arch) != 90:
        tiles = OTHER_TILES.get((kernel, b), tiles)
        if (kernel, b, mask) == ("flash_v2_bwd", 256, "none") and number(arch) < 90:
            mask = "band"  # computes the same; ptxas spills in the narrower kernel only
    # 128 bytes are left for what the kernels declare statically.
    fitting = (tile for tile in tiles if tile.smem_bytes(b) + 128 <= smem_limit(arch))
    return Config(kernel, dtype, next(fitting), b, mask)


def choose_splits(ctas: int, kv_tiles: int, slots: int) -> int:
    """How many CTAs share the keys of a query tile: 1 where the grid fills the card, else the fewest that nearly do.

    `slots` is how many CTAs the card runs at once. Of the counts that leave each CTA at least 4 key tiles, the smallest
    whose waves are at least 85 % as full as those of the best count.
    """
    most = min(kv_tiles // 4, slots, 64)
    if ctas >= 0.8 * slots or most < 2:
        return 1
    fullness = [ctas * s / slots / -(-ctas * s // slots) for s in range(1, most + 1)]
    return next(s for s, full in enumerate(fullness, 1) if full >= 0.85 * max(fullness))


def helper(kernel: str, dtype: str) -> Config:
    """The configuration of a kernel over rows."""
    return Config(kernel, dtype, Rows())


def configs(arch: str) -> list[Config]:
    """Every configuration compiled for `arch`."""
    found = [
        config(kernel, d, dtype, mask, arch)
        for kernel, tiles in TILES.items()
        for d in tiles
        if d <= max_d(arch)
        for dtype in DTYPES
        for mask in (MASKS[:2] if kernel.startswith("flash_v1") else MASKS)
    ]
    return list(dict.fromkeys([*found, *(helper(kernel, dtype) for kernel in HELPERS for dtype in DTYPES)]))

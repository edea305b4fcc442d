"""The declared configurations of each kernel, best first, by architecture family and tile width. No torch here.

Every one of them is compiled for its architectures and run against fp64 by the tests; the tuner may pick any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kernel = Literal["forward", "backward_dq", "backward_dkdv"]
KERNELS: tuple[Kernel, ...] = ("forward", "backward_dq", "backward_dkdv")
Family = Literal["hopper", "ampere", "small"]
FAMILIES: tuple[Family, ...] = ("hopper", "ampere", "small")


@dataclass(frozen=True)
class Config:
    """Tile sizes, warps and pipeline depth; `tma` streams tiles through the copy engine where strides allow it.

    `maxnreg` caps the registers of a thread, so that one more program fits on a multiprocessor.
    """

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    tma: bool = False
    maxnreg: int | None = None

    @property
    def label(self) -> str:
        """As in the README's tables: 128x64 w8 s2 tma."""
        cap = "" if self.maxnreg is None else f" r{self.maxnreg}"
        return f"{self.BLOCK_M}x{self.BLOCK_N} w{self.num_warps} s{self.num_stages}{' tma' if self.tma else ''}{cap}"

    @property
    def options(self) -> dict[str, int]:
        """The launch options of Triton."""
        cap = {} if self.maxnreg is None else {"maxnreg": self.maxnreg}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **cap}


def family(arch: int) -> Family:
    """Which list an architecture takes: by wgmma and shared memory (227 KiB, 163 KiB or 99 KiB a block)."""
    if arch in (86, 89, 120, 121):
        return "small"
    return "hopper" if arch >= 90 else "ampere"


SHARED_LIMIT: dict[Family, int] = {"hopper": 227 * 1024, "ampere": 163 * 1024, "small": 99 * 1024}
"""Bytes of shared memory a block may take (CUDA C++ programming guide, technical specifications)."""


@dataclass(frozen=True)
class Form:
    """A configuration with what else decides what is compiled."""

    kernel: Kernel
    dtype: str
    width: int
    causal: bool
    config: Config
    tma: bool
    """False also for a configuration with the copy engine when strides are odd: its fallback, by pointers."""

    @property
    def name(self) -> str:
        """'triton forward bf16 d128 causal 128x128 w8 s2 tma'; the fallback's ends in 'pointers'."""
        mask = "causal" if self.causal else "full"
        path = " pointers" if self.config.tma and not self.tma else ""
        return f"triton {self.kernel} {self.dtype} d{self.width} {mask} {self.config.label}{path}"


WIDTHS = (16, 32, 64, 128, 256)
"""Tile widths: a head dim is padded to the next one."""


def width(d: int) -> int:
    """The tile width a head dim is padded to."""
    return next(w for w in WIDTHS if w >= d)


def declared(kernel: Kernel, family: Family, width: int, itemsize: int) -> tuple[Config, ...]:
    """The configurations of `kernel` in an architecture family, for tiles of `width` columns.

    `itemsize` is 2 for fp16 and bf16, 4 for fp32. `width` is the larger of the two padded head dims. Empty for what the
    backend refuses: fp32 tiles of 256 columns do not fit in 99 KiB.
    """
    if itemsize == 4:
        return () if family == "small" and width == 256 else FP32[kernel][width]
    return SIXTEEN_BIT[family][kernel][width]


def candidates(kernel: Kernel, arch: int, width: int, itemsize: int) -> tuple[Config, ...]:
    """`declared` for compute capability `arch` (90 for 9.0)."""
    return declared(kernel, family(arch), width, itemsize)


KNOWN = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""Architectures that Triton's compiler is asked for."""


def number(arch: str) -> int:
    """90 for 'sm_90' or 'sm_90a'. Raises ValueError below 80."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) < 80:
        raise ValueError(f"'arch' must be sm_80 or above, such as sm_90, got '{arch}'")
    return int(match[1])


def forms(arch: str) -> list[Form]:
    """All that is compiled for `arch`, e.g. 'sm_90', with bf16 for both 16-bit dtypes. Raises ValueError below 80."""
    return [
        Form(kernel, dtype, width, causal, config, tma)
        for kernel in KERNELS
        for dtype, itemsize in (("bf16", 2), ("fp32", 4))
        for width in WIDTHS
        for config in candidates(kernel, number(arch), width, itemsize)
        for causal in (False, True)
        for tma in ((True, False) if config.tma else (False,))
    ]


def _tma(BLOCK_M: int, BLOCK_N: int, num_warps: int, num_stages: int, maxnreg: int | None = None) -> Config:
    return Config(BLOCK_M, BLOCK_N, num_warps, num_stages, True, maxnreg)


Table = dict[Kernel, dict[int, tuple[Config, ...]]]

_HOPPER: Table = {
    "forward": {
        16: (_tma(128, 64, 4, 3),),
        32: (_tma(128, 64, 4, 3), _tma(64, 128, 4, 3)),
        64: (_tma(64, 128, 4, 2, 168), _tma(128, 64, 4, 3)),
        128: (_tma(128, 64, 4, 2), _tma(128, 128, 8, 2)),
        256: (_tma(128, 64, 8, 2), _tma(128, 32, 8, 3)),
    },
    "backward_dq": {
        16: (_tma(128, 64, 4, 3),),
        32: (_tma(128, 64, 4, 3),),
        64: (_tma(128, 64, 4, 3), _tma(64, 128, 4, 3)),
        128: (_tma(128, 64, 8, 3), _tma(128, 64, 8, 4)),
        256: (_tma(128, 32, 8, 2), _tma(64, 32, 4, 2)),
    },
    "backward_dkdv": {
        16: (_tma(128, 64, 4, 2),),
        32: (_tma(128, 64, 4, 2), _tma(64, 128, 4, 3)),
        64: (_tma(128, 64, 4, 2), _tma(32, 128, 4, 3)),
        128: (_tma(64, 64, 4, 2), _tma(32, 64, 4, 3)),
        256: (_tma(32, 64, 8, 2),),
    },
}

_AMPERE: Table = {
    "forward": {
        16: (Config(128, 64, 4, 3),),
        32: (Config(128, 64, 4, 3),),
        64: (Config(128, 64, 4, 3), Config(128, 128, 8, 2)),
        128: (Config(64, 64, 4, 3), Config(128, 64, 8, 2)),
        256: (Config(64, 64, 8, 2),),
    },
    "backward_dq": {
        16: (Config(64, 64, 4, 3),),
        32: (Config(64, 64, 4, 3),),
        64: (Config(128, 64, 8, 2), Config(64, 64, 4, 3)),
        128: (Config(64, 64, 4, 2), Config(64, 32, 4, 2)),
        256: (Config(64, 32, 8, 1),),
    },
    "backward_dkdv": {
        16: (Config(64, 64, 4, 3),),
        32: (Config(64, 64, 4, 3),),
        64: (Config(32, 64, 4, 3), Config(64, 128, 8, 2)),
        128: (Config(64, 64, 8, 2),),
        256: (Config(32, 32, 4, 1), Config(16, 64, 8, 1)),
    },
}

_SMALL: Table = {
    "forward": {
        16: (Config(128, 64, 4, 2),),
        32: (Config(128, 64, 4, 2),),
        64: (Config(128, 64, 4, 2), Config(64, 64, 4, 3)),
        128: (Config(128, 32, 8, 2), Config(64, 32, 4, 2)),
        256: (Config(64, 32, 8, 1),),
    },
    "backward_dq": {
        16: (Config(64, 64, 4, 2),),
        32: (Config(64, 64, 4, 2),),
        64: (Config(64, 64, 4, 2),),
        128: (Config(64, 32, 4, 2), Config(64, 64, 4, 1)),
        256: (Config(32, 32, 4, 1),),
    },
    "backward_dkdv": {
        16: (Config(64, 64, 4, 2),),
        32: (Config(64, 64, 4, 2),),
        64: (Config(32, 64, 4, 2),),
        128: (Config(32, 32, 4, 1), Config(16, 64, 4, 2)),
        256: (Config(16, 32, 8, 1),),
    },
}

SIXTEEN_BIT: dict[Family, Table] = {"hopper": _HOPPER, "ampere": _AMPERE, "small": _SMALL}

FP32: Table = {
    "forward": {
        **dict.fromkeys((16, 32, 64, 128), (Config(64, 32, 8, 1),)),
        256: (Config(32, 32, 8, 1),),
    },
    "backward_dq": {
        **dict.fromkeys((16, 32, 64), (Config(32, 32, 4, 1),)),
        128: (Config(32, 32, 8, 1),),
        256: (Config(32, 16, 8, 1),),
    },
    "backward_dkdv": {
        **dict.fromkeys((16, 32, 64), (Config(32, 32, 4, 1),)),
        128: (Config(32, 32, 8, 1),),
        256: (Config(16, 32, 8, 1),),
    },
}
"""fp32 runs on the plain ALUs, the same everywhere."""

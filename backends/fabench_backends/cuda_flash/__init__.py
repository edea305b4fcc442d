"""cuda-v1 and cuda-v2: FlashAttention and FlashAttention-2 in CUDA, compiled by NVRTC. No torch at import time.

README.md holds each kernel's measured history.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fabench_backends.cuda_flash.v1 import cuda_v1
from fabench_backends.cuda_flash.v2 import cuda_v2, cuda_v2_deterministic

__all__ = [
    "cache_folder",
    "cuda_v1",
    "cuda_v2",
    "cuda_v2_deterministic",
    "kernel_names",
    "kernel_stats",
    "launched_as",
]


def cache_folder() -> Path:
    """Where cubins are kept; that a package has one is what `fabench kernels build` goes by."""
    from fabench_backends.cuda_flash.build import cache_folder as folder

    return folder()


def launched_as(arch: str) -> str:
    """The architecture that a device of `arch` asks for: 'sm_90a' for 'sm_90'. What is not known stays as it is."""
    from fabench_backends.cuda_flash.build import architecture
    from fabench_backends.cuda_flash.configs import SMEM_LIMIT_KIB, number

    known = (n := number(arch)) in SMEM_LIMIT_KIB
    return architecture((n // 10, n % 10)) if known else arch


def kernel_names(arch: str) -> list[str]:
    """The configurations compiled for `arch`, e.g. 'flash_v2_fwd d128 bf16 band'."""
    from fabench_backends.cuda_flash.configs import configs

    return [config.name for config in configs(arch)]


def kernel_stats(arch: str, name: str, *, fresh: bool = False) -> dict[str, Any]:
    """What ptxas says of one configuration, compiled or found in the cache, with `fresh` compiled in any case.

    name, registers, stack and spills (bytes), shared_bytes, shared_limit, seconds (of compiling), warnings; `unkept`
    says why the cache could not keep it. Needs no GPU. Raises KernelError where it does not compile.
    """
    from fabench_backends.cuda_flash.build import build
    from fabench_backends.cuda_flash.configs import configs, smem_limit

    config = next(config for config in configs(arch) if config.name == name)
    built = build(config, arch, use_cache=not fresh)
    stats = built.stats
    return {
        "name": name,
        "registers": stats.registers,
        "stack": stats.stack_bytes,
        "spills": stats.spill_store_bytes + stats.spill_load_bytes,
        "shared_bytes": stats.smem_bytes,
        "shared_limit": smem_limit(arch),
        "seconds": stats.seconds,
        "warnings": list(stats.warnings),
        "unkept": built.unkept,
    }

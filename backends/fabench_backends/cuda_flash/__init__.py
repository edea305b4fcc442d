"""cuda-v1 and cuda-v2: FlashAttention and FlashAttention-2 in CUDA, compiled by NVRTC. No torch at import time.

README.md holds each kernel's measured history.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fabench_backends.cuda_flash.v1 import cuda_v1
from fabench_backends.cuda_flash.v2 import cuda_v2, cuda_v2_deterministic

__all__ = ["cuda_v1", "cuda_v2", "cuda_v2_deterministic", "iter_names", "iter_stats"]


def iter_names(arch: str) -> Iterator[str]:
    """The configurations compiled for `arch`, e.g. 'flash_v2_fwd d128 bf16 band'."""
    from fabench_backends.cuda_flash.configs import configs

    yield from (config.name for config in configs(arch))


def iter_stats(arch: str, only: str | None = None) -> Iterator[dict[str, Any]]:
    """What ptxas says of every configuration for `arch`, one at a time as it is compiled or found in the cache.

    name, registers, stack, spills, shared_bytes and shared_limit (bytes), seconds, warnings. `only` keeps the names
    that contain it. Needs no GPU. Raises KernelError where one does not compile.
    """
    from fabench_backends.cuda_flash.build import build
    from fabench_backends.cuda_flash.configs import configs, smem_limit

    for config in configs(arch):
        if only is None or only in config.name:
            stats = build(config, arch).stats
            yield {
                "name": config.name,
                "registers": stats.registers,
                "stack": stats.stack_bytes,
                "spills": stats.spill_store_bytes + stats.spill_load_bytes,
                "shared_bytes": stats.smem_bytes,
                "shared_limit": smem_limit(arch),
                "seconds": stats.seconds,
                "warnings": list(stats.warnings),
            }

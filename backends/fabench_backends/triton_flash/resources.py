"""What each declared configuration takes on an architecture: compiled without a GPU, read off the cubin."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fabench_backends.triton_flash.backward_dkdv import triton_flash_backward_dkdv
from fabench_backends.triton_flash.backward_dq import triton_flash_backward_dq
from fabench_backends.triton_flash.configs import KERNELS, SHARED_LIMIT, WIDTHS, Config, Kernel, candidates, family
from fabench_backends.triton_flash.forward import triton_flash_forward

FUNCTIONS = {
    "forward": (triton_flash_forward, ("K", "V")),
    "backward_dq": (triton_flash_backward_dq, ("K", "V")),
    "backward_dkdv": (triton_flash_backward_dkdv, ("Q", "DO")),
}
"""Each kernel and the arguments it streams through descriptors."""
MATRICES = ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV_OUT")
VECTORS = ("LSE", "DLSE", "DELTA")


def compile_one(kernel: Kernel, config: Config, arch: int, width: int, dtype: str, causal: bool, tma: bool) -> Any:
    """The compiled kernel for head dim `width`, dtype 'fp16' | 'bf16' | 'fp32'."""
    function, streamed = FUNCTIONS[kernel]
    rows = config.BLOCK_M if kernel == "backward_dkdv" else config.BLOCK_N
    constants = {
        "D": width,
        "DV": width,
        "BLOCK_M": config.BLOCK_M,
        "BLOCK_N": config.BLOCK_N,
        "BLOCK_D": width,
        "BLOCK_DV": width,
        "HAS_LEFT": False,
        "HAS_RIGHT": causal,
        "RESCALE": False,
        "SOFTCAP": False,
        "ALIGN": 4 if dtype == "fp32" else 8,
        "TMA": tma,
        "HAS_DLSE": False,
    }
    signature, attributes = {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif tma and name in streamed:
            signature[name] = f"tensordesc<{dtype}[1, 1, {rows}, {width}]>"
        elif name in MATRICES or name in VECTORS:
            signature[name] = f"*{dtype}" if name in MATRICES else "*fp32"
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if "scale" in name else "i32"
    used = {name: value for name, value in constants.items() if name in signature}
    source = ASTSource(function, signature, constexprs=used, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=config.options)


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack a thread, which is where spilled registers live."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"'cuobjdump --dump-resource-usage' must print REG and STACK, got: {usage[:200]}")
    return int(found[1]), int(found[2])


def stats(arch: str, only: str | None = None) -> Iterator[dict[str, Any]]:
    """One dict a configuration and variant: name, registers, spills (bytes), shared_bytes, shared_limit.

    `arch` is 'sm_90' or 'sm_90a'; `only` keeps the names that contain it. A name reads
    'triton forward bf16 d128 causal 128x128 w8 s2 tma'. Raises ValueError on an unknown architecture.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None or int(match[1]) < 80:
        raise ValueError(f"'arch' must be sm_80 or above, such as sm_90, got '{arch}'")
    number = int(match[1])
    for kernel in KERNELS:
        for dtype in ("bf16", "fp32"):
            for width in WIDTHS:
                for config in candidates(kernel, number, width, 4 if dtype == "fp32" else 2):
                    for causal in (False, True):
                        for tma in (True, False) if config.tma else (False,):
                            mask = "causal" if causal else "full"
                            path = " pointers" if config.tma and not tma else ""
                            name = f"triton {kernel} {dtype} d{width} {mask} {config.label}{path}"
                            if only is not None and only not in name:
                                continue
                            compiled = compile_one(kernel, config, number, width, dtype, causal, tma)
                            registers, stack = registers_and_stack(compiled.asm["cubin"])
                            yield {
                                "name": name,
                                "registers": registers,
                                "spills": stack,
                                "shared_bytes": compiled.metadata.shared,
                                "shared_limit": SHARED_LIMIT[family(number)],
                            }

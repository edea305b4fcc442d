"""What each declared configuration takes on an architecture: compiled without a GPU, read off the cubin."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fabench_backends.triton_flash.backward_dkdv import triton_flash_backward_dkdv
from fabench_backends.triton_flash.backward_dq import triton_flash_backward_dq
from fabench_backends.triton_flash.configs import SHARED_LIMIT, Form, family, number
from fabench_backends.triton_flash.forward import triton_flash_forward

FUNCTIONS = {
    "forward": (triton_flash_forward, ("K", "V")),
    "backward_dq": (triton_flash_backward_dq, ("K", "V")),
    "backward_dkdv": (triton_flash_backward_dkdv, ("Q", "DO")),
}
"""Each kernel and the arguments it streams through descriptors."""
MATRICES = ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV_OUT")
SPILL_LIMIT, FALLBACK_SPILL_LIMIT = 384, 640
"""Bytes of spilled registers a thread may have: Triton places them itself, for the most part outside the hot loops."""
VECTORS = ("LSE", "DLSE", "DELTA")


def compile_one(form: Form, arch: str) -> Any:
    """The compiled kernel."""
    kernel, config, width, dtype, causal, tma = (
        form.kernel, form.config, form.width, form.dtype, form.causal, form.tma,
    )  # fmt: skip
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
    return triton.compile(source, target=GPUTarget("cuda", number(arch), 32), options=config.options)


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


def stats(form: Form, arch: str, *, fresh: bool = False) -> dict[str, Any]:
    """name, registers, spills and spill_limit (bytes a thread), shared_bytes, shared_limit; with `fresh`, seconds.

    `fresh` compiles whatever Triton's own cache holds, and `seconds` is what that took.
    """
    began = time.perf_counter()
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile |= fresh
        compiled = compile_one(form, arch)
    seconds = time.perf_counter() - began
    registers, stack = registers_and_stack(compiled.asm["cubin"])
    return {
        "name": form.name,
        "registers": registers,
        "spills": stack,
        "spill_limit": SPILL_LIMIT if form.tma == form.config.tma else FALLBACK_SPILL_LIMIT,
        "shared_bytes": compiled.metadata.shared,
        "shared_limit": SHARED_LIMIT[family(number(arch))],
        "seconds": seconds if fresh else None,
    }

"""How exactly torch computes is put back, whichever of its words for it one backend has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fabench.precisions import PRECISIONS

CHANGES: dict[str, Callable[[], Any]] = {
    "the word for matmul": lambda: torch.set_float32_matmul_precision("medium"),
    "all libraries": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "oneDNN": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),
    "oneDNN's matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "cuBLAS": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "cuBLAS by its old name": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "cuDNN by its old name": lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
    "cuBLAS's accumulators": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    "SDPA's reductions": lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
    "numbers below the normal ones": lambda: torch.set_flush_denormal(True),
}


def as_read() -> list[Any]:
    """Every setting, or how torch refuses to read it."""

    def one(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except RuntimeError as error:
            return str(error)

    return [one(read) for read, _ in PRECISIONS]


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_precision_is_put_back_and_so_is_what_the_change_reached(what: str) -> None:
    from fabench.settings import Settings

    kept, before = Settings(), as_read()

    CHANGES[what]()
    changed = as_read()
    kept.restore()

    assert changed != before
    assert as_read() == before

"""How exactly torch computes, as settings to read and to put back: see `settings.py`.

torch keeps legacy words beside a precision for each library and operation, and a change of either reaches the others.
So the words are put back first, then each precision as it is stored, the general ones before those they stand in for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fabench.torch_internals import attribute, internal, pair

_STORED = (
    ("generic", "all"),
    *(("mkldnn", operation) for operation in ("all", "matmul", "conv", "rnn")),
    *(("cuda", operation) for operation in ("all", "matmul", "conv", "rnn")),
)
_SMALLEST = sys.float_info.min


_read, _write = internal("_get_fp32_precision_getter"), internal("_set_fp32_precision_setter")


def _flushes() -> bool:
    """True if the processor takes what is smaller than a normal number for zero. torch cannot be asked."""
    return _SMALLEST / 2 == 0.0


PRECISIONS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    attribute(torch.backends.cuda.matmul, "allow_tf32"),
    attribute(torch.backends.cudnn, "allow_tf32"),
    *((partial(_read, *place), partial(_write, *place)) for place in _STORED),
    attribute(torch.backends.cuda.matmul, "allow_fp16_accumulation"),
    attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    pair(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", "allow_fp16_bf16_reduction_math_sdp"),
    (_flushes, torch.set_flush_denormal),
)
"""How each is read and set."""

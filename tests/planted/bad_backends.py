"""Kernels that misbehave, each in one way, for `--backend-file`: what they become is in test_run.py."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch

import fabench


def right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


@fabench.backend(name="good")
def good(q, k, v, causal=False):
    print("a kernel may print what it likes")
    sys.stderr.write("and to stderr\n")
    return right(q, k, v, causal)


@fabench.backend(name="zeros")
def zeros(q, k, v, causal=False):
    return torch.zeros_like(q)


@fabench.backend(name="empty")
def empty(q, k, v, causal=False):
    return torch.empty_like(q)


@fabench.backend(name="unscaled")
def unscaled(q, k, v, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1.0)


@fabench.backend(name="aborts")
def aborts(q, k, v, causal=False):
    os.abort()


@fabench.backend(name="segfaults")
def segfaults(q, k, v, causal=False):
    ctypes.string_at(0)


@fabench.backend(name="exits")
def exits(q, k, v, causal=False):
    sys.exit(3)


@fabench.backend(name="leaves")
def leaves(q, k, v, causal=False):
    os._exit(0)


@fabench.backend(name="hangs")
def hangs(q, k, v, causal=False):
    time.sleep(1000)


@fabench.backend(name="refuses")
def refuses(q, k, v, causal=False):
    raise ValueError(f"N must be at most 16, got {q.shape[2]}")


@fabench.backend(name="raises")
def raises(q, k, v, causal=False):
    raise RuntimeError("something broke")


@fabench.backend(name="exhausts")
def exhausts(q, k, v, causal=False):
    return torch.empty(1 << 60, dtype=torch.uint8)


CACHE: dict[int, torch.Tensor] = {}


@fabench.backend(name="stale")
def stale(q, k, v, causal=False):
    """Remembers its answer by the address of its inputs."""
    if q.data_ptr() not in CACHE:
        CACHE[q.data_ptr()] = right(q, k, v, causal)
    return CACHE[q.data_ptr()].clone()


CALLS = [0]


@fabench.backend(name="turns_bad")
def turns_bad(q, k, v, causal=False):
    """Right while it is checked, wrong once it is timed."""
    CALLS[0] += 1
    out = right(q, k, v, causal)
    return out if CALLS[0] <= 8 else out * 1.5


@fabench.backend(name="wrong_shape")
def wrong_shape(q, k, v, causal=False):
    return right(q, k, v, causal)[..., :-1]


@fabench.backend(name="wrong_dtype")
def wrong_dtype(q, k, v, causal=False):
    return right(q, k, v, causal).double()

"""Kernels that look fast because they do not do the work that is timed, for `--backend-file` on a GPU."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

import fabench

_remembered: dict[tuple[object, ...], torch.Tensor] = {}
_side: list[torch.cuda.Stream] = []


@fabench.backend(name="stale_in_graph")
def stale_in_graph(q, k, v, causal=False):
    """Right when it is called; while a graph is captured, the answer of the last call."""
    key = (q.shape, q.dtype, causal)
    if q.is_cuda and torch.cuda.is_current_stream_capturing() and key in _remembered:
        return _remembered[key].add(0.0)
    out = scaled_dot_product_attention(q, k, v, is_causal=causal)
    _remembered[key] = out.clone()
    return out


@fabench.backend(name="on_a_side_stream")
def on_a_side_stream(q, k, v, causal=False):
    """The work is on a stream that nobody times, and nobody waits for."""
    if not q.is_cuda:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)
    if not _side:
        _side.append(torch.cuda.Stream())
    _side[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_side[0]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


@fabench.backend(name="reads_zeros")
def reads_zeros(q, k, v, causal=False):
    """Reads keys and values that are all zero, which costs less power and so runs at a higher clock."""
    return scaled_dot_product_attention(q, torch.zeros_like(k), torch.zeros_like(v), is_causal=causal)


@fabench.backend(name="honest")
def honest(q, k, v, causal=False):
    return scaled_dot_product_attention(q, k, v, is_causal=causal)

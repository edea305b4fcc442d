"""The xformers adapter against a stand-in that keeps the library's masks and five-dimensional GQA."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import fake_libraries
from fabench.case import Case
from fabench_backends.xformers_fmha import XFORMERS
from plain_attention import CASES, CPU, H100, SHAPE, WIDE, attention, check, tensors


class LowerTriangularMask: ...


class LowerTriangularFromBottomRightMask: ...


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask:
    _window_size: int

    def __post_init__(self) -> None:
        assert self._window_size > 0


@dataclass
class LocalAttentionFromBottomRightMask:
    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        assert min(self.window_left, self.window_right) >= 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, ...]]:
    seen: list[tuple[torch.Tensor, ...]] = []

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
        seen.append((query, key, value))
        if query.ndim == 5:
            B, M, G, H, K = query.shape
            assert key.shape[:4] == (B, key.shape[1], G, H)
            assert key.stride(3) == value.stride(3) == 0, "k and v are expanded, not copied"
            query = query.reshape(B, M, G * H, K)
            key, value = key[:, :, :, 0], value[:, :, :, 0]
            out = memory_efficient_attention(query, key, value, attn_bias, p, scale)
            return out.unflatten(2, (G, H))
        B, M, H, K = query.shape
        mask = {
            type(None): {},
            LowerTriangularMask: {"causal": True, "alignment": "top_left"},
            LowerTriangularFromBottomRightMask: {"causal": True},
        }.get(type(attn_bias))
        if isinstance(attn_bias, LowerTriangularFromBottomRightLocalAttentionMask):
            mask = {"causal": True, "window": (attn_bias._window_size - 1, 0)}
        elif isinstance(attn_bias, LocalAttentionFromBottomRightMask):
            mask = {"window": (attn_bias.window_left, attn_bias.window_right)}
        assert mask is not None
        case = Case(B, H, M, key.shape[1], K, key.shape[2], value.shape[3], scale=scale, **mask)
        O, _ = attention(*(x.transpose(1, 2).double() for x in (query, key, value)), case)
        return O.transpose(1, 2).to(query.dtype)

    biases = (
        LowerTriangularMask,
        LowerTriangularFromBottomRightMask,
        LowerTriangularFromBottomRightLocalAttentionMask,
        LocalAttentionFromBottomRightMask,
    )
    fake_libraries.install(monkeypatch, "xformers.ops", memory_efficient_attention=memory_efficient_attention)
    fake_libraries.install(
        monkeypatch, "xformers.ops.fmha", attn_bias=type("attn_bias", (), {b.__name__: b for b in biases})
    )
    return seen


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_what_the_adapter_takes_it_passes_on_rightly(
    library: list[tuple[torch.Tensor, ...]], name: str, direction: str
) -> None:
    case = replace(CASES[name], direction=direction)
    if reasons := XFORMERS.reasons(case, H100):
        pytest.skip(f"it refuses it: {reasons}")
    check(XFORMERS, case, device=CPU)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "packed"])
def test_no_layout_is_copied(library: list[tuple[torch.Tensor, ...]], layout: str) -> None:
    case = replace(SHAPE, layout=layout)
    q, k, v, _ = tensors(case)
    XFORMERS.prepare(case, CPU).call(q, k, v)
    assert [x.data_ptr() for x in library[-1]] == [x.data_ptr() for x in (q, k, v)]


@pytest.mark.parametrize(
    ("case", "reasons"),
    [
        (replace(SHAPE, kv_heads=2, direction="backward"), ["kv_heads = 2 differs from heads = 4 in backward"]),
        (
            replace(WIDE, window=(1, 2), alignment="top_left"),
            ["window (1, 2) with alignment top_left, Nq = 9 and Nk = 40, takes windows bottom_right"],
        ),
        (replace(SHAPE, softcap=3.0), ["softcap 3"]),
    ],
)
def test_refusals_carry_both_numbers(case: Case, reasons: list[str]) -> None:
    assert XFORMERS.reasons(case, H100) == reasons

"""What cuda-v1 and cuda-v2 take and refuse, decided on the host before any launch."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fabench.attention_op import Layout
from fabench.case import Mask
from fabench.device import Device
from fabench_backends.cuda_flash import (
    api,
    backward,
    configs,
    cuda_v1,
    cuda_v2,
    cuda_v2_deterministic,
    v1_ops,
    v2_ops,
)
from plain_attention import CPU, H100, SHAPE

A100 = Device("cuda", "NVIDIA A100", capability=(8, 0), sms=108)
RTX_4090 = Device("cuda", "NVIDIA GeForce RTX 4090", capability=(8, 9), sms=128)
V100 = Device("cuda", "NVIDIA V100", capability=(7, 0), sms=80)


def stub(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda:0", last: int = 1) -> Layout:
    """Of a CUDA tensor."""
    steps = tuple(last if i == 3 else shape[-1] for i in range(len(shape)))
    return Layout(torch.Size(shape), steps, dtype, torch.device(device))


GOOD = {"q": stub(2, 4, 33, 64), "k": stub(2, 2, 65, 64), "v": stub(2, 2, 65, 128)}


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": stub(4, 33, 64)}, "q must have 4 dimensions [batch, heads, N, d], got 3"),
        ({"k": stub(2, 2, 65, 64, dtype=torch.float32)}, "k must be float16 or bfloat16, got float32"),
        ({"v": stub(2, 2, 65, 64, dtype=torch.float16)}, "v must have q's dtype torch.bfloat16, got torch.float16"),
        ({"k": stub(2, 2, 65, 64, device="cpu")}, "k must be on a CUDA device, got cpu"),
        ({"k": stub(2, 2, 65, 64, device="cuda:1")}, "k must be on q's device cuda:0, got cuda:1"),
        ({"q": stub(2, 4, 33, 60)}, "the head dim of q must be a multiple of 8 from 8 to 256, got 60"),
        ({"v": stub(2, 2, 65, 264)}, "the head dim of v must be a multiple of 8 from 8 to 256, got 264"),
        ({"q": stub(2, 4, 33, 64, last=33)}, "q must have stride 1 in its last dimension, got 33"),
        ({"k": stub(3, 2, 65, 64)}, "k must have q's batch 2, got 3"),
        ({"v": stub(2, 2, 66, 64)}, "v must have k's heads and rows (2, 65), got (2, 66)"),
        ({"k": stub(2, 2, 65, 72)}, "k must have q's head dim 64, got 72"),
        ({"q": stub(2, 3, 33, 64)}, "q's heads must be a multiple of k's heads, got 3 and 2"),
        ({"q": stub(2, 4, 1 << 30, 64)}, "q must have at most 536870912 rows, got 1073741824"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_malformed_calls_are_refused_with_both_numbers(changes: dict[str, Any], message: str) -> None:
    api.check(**GOOD, max_d=256)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        api.check(**{**GOOD, **changes}, max_d=256)


def test_a_device_below_8_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"must be at least 8\.0, got 7\.5"):
        api.check(**GOOD, max_d=256)


@pytest.mark.parametrize("attention", [v1_ops.attention, v2_ops.attention])
def test_a_cpu_tensor_never_reaches_a_launch(attention: Any) -> None:
    q = torch.zeros(1, 1, 8, 16, dtype=torch.float16)
    with pytest.raises(ValueError, match="q must be on a CUDA device, got cpu"):
        attention(q, q, q)


def test_masks_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="alignment must be bottom_right or top_left, got 'middle'"):
        api.band(3, 3, True, None, "middle")
    with pytest.raises(
        ValueError, match=r"window must be \(left, right\), each -1 \(unlimited\) or more, got \(-2, 0\)"
    ):
        api.band(3, 3, False, (-2, 0), "top_left")


sizes = st.integers(0, 30)
windows = st.none() | st.tuples(st.integers(-1, 12), st.integers(-1, 12))


@given(sizes, sizes, st.booleans(), windows, st.sampled_from(["bottom_right", "top_left"]))
def test_the_band_is_the_mask_of_a_case(Nq: int, Nk: int, causal: bool, window: Any, alignment: Any) -> None:
    low, high = api.band(Nq, Nk, causal, window, alignment)
    mask = Mask(Nq, Nk, causal, alignment, window)
    for i in range(Nq):
        assert [j for j in range(Nk) if i + low <= j <= i + high] == list(mask.keys(i))
    assert (api.mask_kind(low, high) == "none") == (mask.left is None and mask.right is None)
    assert api.mask_kind(low, high, softcap=1.0) == "softcap"


@given(st.integers(1, 400), st.integers(1, 2000), st.integers(1, 300))
def test_splits_fill_the_card_and_leave_each_cta_four_key_tiles(ctas: int, kv_tiles: int, slots: int) -> None:
    splits = v2_ops.choose_splits(ctas, kv_tiles, slots)
    assert 1 <= splits <= 64
    if splits > 1:
        assert ctas < 0.8 * slots
        assert kv_tiles / splits >= 4
    if ctas >= 0.8 * slots:
        assert splits == 1


def test_one_query_of_a_long_context_is_spread_over_the_card() -> None:
    assert v2_ops.choose_splits(ctas=8, kv_tiles=1024, slots=264) >= 28


@pytest.mark.usefixtures("capability")
def test_more_tiles_than_a_grid_holds_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str, t: Layout, d: int, mask: Any) -> Any:
        return SimpleNamespace(config=configs.config(name, d, "bf16", mask, "sm_90a"))

    for module in (v2_ops, backward):
        monkeypatch.setattr(module, "loaded", loaded)
    monkeypatch.setattr(backward, "helper", lambda name, t: SimpleNamespace(config=configs.helper(name, "bf16")))
    short, long = stub(1, 1, 64, 64, last=1), stub(1, 1, 9_000_000, 64, last=1)
    numbers = (0.1, 0.0, -api.UNLIMITED, api.UNLIMITED)
    with pytest.raises(ValueError, match="q must have at most 8388480 rows with head dim 64, got 9000000"):
        v2_ops.plan(long, short, short, *numbers)
    with pytest.raises(ValueError, match="k must have at most 8388480 rows with head dim 64, got 9000000"):
        backward.plan("flash_v2_bwd", short, short, long, long, short, *numbers)
    assert backward.plan("flash_v1_bwd", short, short, long, long, short, *numbers).grids[1] == (1, 1, 1)


@pytest.mark.parametrize("shape", [(2, 3, 5, 16), (1, 1, 1, 8)])
def test_only_rows_that_need_it_are_copied(shape: tuple[int, ...]) -> None:
    t = torch.zeros(shape, dtype=torch.float16)
    assert api.aligned(t) is t
    assert api.aligned(t.transpose(1, 2)).data_ptr() == t.data_ptr()
    shifted = torch.zeros(t.numel() + 1, dtype=torch.float16)[1:].view(shape)
    assert api.aligned(shifted).data_ptr() % 16 == 0
    odd = torch.zeros(2, 3, 5, 17, dtype=torch.float16)[..., :16]
    assert api.aligned(odd).stride() == (240, 80, 16, 1)
    degenerate = torch.zeros(1, 1, 4, 16, dtype=torch.float16).as_strided((1, 1, 4, 16), (7, 3, 16, 1))
    assert api.aligned(degenerate) is degenerate


def test_operators_tell_torch_compile_the_shapes_they_return() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 4, 33, 64, dtype=torch.bfloat16, requires_grad=True)
        k = torch.empty(2, 2, 65, 64, dtype=torch.bfloat16, requires_grad=True)
        v = torch.empty(2, 2, 65, 128, dtype=torch.bfloat16, requires_grad=True)
        for O, LSE in (v1_ops.op(q, k, v, 1.0, 0, 0), v2_ops.op(q, k, v, 1.0, 0.0, 0, 0, False)):
            assert (O.shape, O.dtype, O.is_contiguous()) == ((2, 4, 33, 128), torch.bfloat16, True)
            assert (LSE.shape, LSE.dtype) == ((2, 4, 33), torch.float32)
            gradients = torch.autograd.grad(O, (q, k, v), torch.empty_like(O))
            assert [g.shape for g in gradients] == [t.shape for t in (q, k, v)]


def test_the_facts_refuse_with_both_numbers() -> None:
    from dataclasses import replace

    half = replace(SHAPE, dtype="bf16")
    assert cuda_v2.reasons(half, H100) == []
    assert cuda_v2.reasons(SHAPE, H100) == ["dtype fp32, takes fp16, bf16"]
    assert cuda_v2.reasons(replace(half, d=264, dv=264), H100) == ["d = 264 > 256"]
    assert cuda_v2.reasons(replace(half, d=20, dv=20), H100) == ["d = 20 is not a multiple of 8"]
    assert cuda_v1.reasons(replace(half, d=136, dv=136), A100) == ["d = 136 > 128"]
    assert cuda_v1.reasons(replace(half, window=(3, 3)), A100) == ["window (3, 3)"]
    assert cuda_v1.reasons(replace(half, softcap=2.0), A100) == ["softcap 2"]
    assert cuda_v2.reasons(half, V100) == ["compute capability 7.0 < 8.0"]
    assert cuda_v2.reasons(half, CPU) == ["device cpu, takes cuda"]
    wide = replace(half, d=192, dv=192)
    assert cuda_v2.reasons(wide, A100) == []
    assert cuda_v2.reasons(wide, RTX_4090) == ["d = 192 > 128 with 99 KiB of shared memory a CTA on sm_89"]


def test_the_deterministic_backend_declares_dQ_and_differs_in_nothing_else() -> None:
    assert "dQ" not in cuda_v2.facts.deterministic
    assert "dQ" in cuda_v2_deterministic.facts.deterministic
    assert cuda_v2_deterministic.facts.kernels == cuda_v2.facts.kernels

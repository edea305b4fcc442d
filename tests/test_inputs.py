"""Seeded inputs: reproducible values, right distributions, memory order, rotation and margins."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fabench import inputs
from fabench.case import Case
from fabench.names import INPUTS


def test_values_are_fixed_for_all_time() -> None:
    """Changing the generator changes every stored result: these numbers pin it."""
    t = inputs.make(Case(1, 1, 2, 2, 4, dtype="fp32", direction="backward", seed=7), "cpu")
    found = torch.cat([x.flatten()[:2] for _, x in t.items()]).tolist()
    assert found == pytest.approx(PINNED, abs=1e-6)


def test_normal_inputs_are_normal_and_independent() -> None:
    t = inputs.make(Case(1, 4, 512, 512, 64, dtype="fp32"), "cpu")
    for x in (t.q, t.k, t.v):
        assert stats.kstest(x.flatten()[::7].double().numpy(), "norm").pvalue > 1e-3
    assert abs(float(torch.corrcoef(torch.stack([t.q.flatten(), t.k.flatten()]))[0, 1])) < 0.01
    assert abs(float((t.q[..., 1:] * t.q[..., :-1]).mean())) < 0.01


def test_seeds_differ_and_layout_does_not_change_values() -> None:
    a = inputs.make(Case(2, 3, 5, 5, 8, dtype="fp32"), "cpu")
    assert not torch.equal(a.q, inputs.make(Case(2, 3, 5, 5, 8, dtype="fp32", seed=1), "cpu").q)
    for layout in ("bshd", "packed"):
        b = inputs.make(Case(2, 3, 5, 5, 8, dtype="fp32", layout=layout), "cpu")
        assert torch.equal(a.q, b.q)
        assert torch.equal(a.v, b.v)
        assert not b.q.is_contiguous()
    assert b.q.untyped_storage().data_ptr() == b.v.untyped_storage().data_ptr()


@pytest.mark.parametrize("distribution", INPUTS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_every_distribution_is_finite_in_every_dtype(distribution: str, dtype: str) -> None:
    t = inputs.make(
        Case(1, 2, 33, 40, 256, dtype=dtype, inputs=distribution, direction="backward"),  # type: ignore[arg-type]
        "cpu",
    )
    assert all(x.isfinite().all() for _, x in t.items())


def lse(case: Case) -> torch.Tensor:
    t = inputs.make(case, "cpu")
    return torch.logsumexp(t.q.double() @ t.k.double().transpose(-1, -2) * case.softmax_scale, -1)


def test_distributions_reach_the_scores_they_promise() -> None:
    assert float(lse(Case(1, 1, 64, 64, 64, inputs="neglse")).max()) < -100
    t = inputs.make(Case(1, 2, 8, 300, 64, dtype="fp32", inputs="padded"), "cpu")
    S = t.q @ t.k.transpose(-1, -2) / 8
    assert float(S[..., :128].max()) < -280
    assert float(S[..., 128:].min()) > -20
    sink = inputs.make(Case(1, 2, 8, 300, 64, dtype="fp32", inputs="sink"), "cpu")
    S = sink.q @ sink.k.transpose(-1, -2) / 8
    assert S[0, 0, :, 0].tolist() == pytest.approx([7.0] * 8, rel=1e-5)
    assert S[0, 1, :, 0].tolist() == pytest.approx([20.0] * 8, rel=1e-5)
    large = inputs.make(Case(1, 1, 64, 64, 64, dtype="fp16", inputs="near_overflow"), "cpu")
    assert float((large.q.double() @ large.k.double().transpose(-1, -2)).abs().max()) < 65504
    assert float(large.v.abs().max()) > 2e4
    ints = inputs.make(Case(1, 1, 400, 400, 64, inputs="sparse_ints"), "cpu")
    assert sorted(set(ints.q.flatten().tolist())) == [-2, -1, 0, 1, 2]
    assert float((ints.q == 0).double().mean()) == pytest.approx(0.8, abs=0.01)


def test_a_rotation_is_new_storage_in_the_same_memory_order() -> None:
    case = Case(2, 4, 5, 5, 8, kv_heads=2, layout="bshd", direction="backward")
    t = inputs.make(case, "cpu")
    for index in range(4):
        r = inputs.rotate(t, index)
        for (name, before), (_, after) in zip(t.items(), r.items(), strict=True):
            assert before.stride() == after.stride(), name
            assert before.untyped_storage().data_ptr() != after.untyped_storage().data_ptr(), name
    assert torch.equal(inputs.rotate(t, 1).v, -t.v)
    assert torch.equal(inputs.rotate(t, 2).q, t.q.roll(2, dims=1))
    assert torch.equal(inputs.rotate(t, 2).k, t.k.roll(1, dims=1))


def test_margins_surround_the_tensor_and_show_a_write() -> None:
    t = inputs.make(Case(1, 2, 5, 5, 8, layout="bshd"), "cpu")
    guarded = inputs.in_margins(t.q, math.nan)
    assert torch.equal(guarded, t.q)
    assert guarded.stride() == t.q.stride()
    before = inputs.margins(guarded)
    assert before.numel() == 2 * 256 * 8
    guarded.as_strided((1,), (1,), guarded.storage_offset() - 1).fill_(1.0)
    assert int((inputs.margins(guarded) != before).sum()) == 1


def test_a_guarded_empty_tensor_is_only_margins() -> None:
    guarded = inputs.in_margins(torch.empty(1, 1, 0, 8), 1e4)
    assert inputs.margins(guarded).numel() == 2 * 256 * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("distribution", INPUTS)
def test_a_gpu_draws_the_same_bits(distribution: str) -> None:
    case = Case(1, 4, 300, 500, 64, dtype="fp32", inputs=distribution, direction="backward")  # type: ignore[arg-type]
    for (name, x), (_, y) in zip(inputs.make(case, "cpu").items(), inputs.make(case, "cuda").items(), strict=True):
        assert torch.equal(x, y.cpu()), name


PINNED = [2.2081070, -0.3524904, 0.4897518, -1.9277067, -1.6214247, -0.9135437, -0.8035374, -1.2770386]

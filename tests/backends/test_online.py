"""The online backend against the definition of attention, at every split into tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fabench.case import Case
from fabench_backends.online import ONLINE, Online, Problem
from plain_attention import CASES, CPU, SHAPE, TALL, WIDE, check, expected, run, tensors

SMALL = Online("online-16x24", block_q=16, block_k=24)


@pytest.mark.parametrize("backend", [ONLINE, SMALL], ids=lambda b: b.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_online_computes_every_case(name: str, direction: str, backend: Online) -> None:
    case = replace(CASES[name], direction=direction)
    assert backend.reasons(case, CPU) == []
    check(backend, case, lse=True)


@pytest.mark.parametrize("blocks", [(1, 1), (1, 64), (64, 1), (7, 5), (33, 33)])
@pytest.mark.parametrize("case", [replace(TALL, causal=True, softcap=1.0), replace(WIDE, kv_heads=2, window=(3, 2))])
def test_the_tile_sizes_do_not_change_the_result(blocks: tuple[int, int], case: Case) -> None:
    check(Online("tiles", *blocks), replace(case, direction="backward"), lse=True)


@pytest.mark.parametrize("case", [c for c in CASES.values() if min(c.Nq, c.Nk) > 0], ids=Case.label)
def test_only_tiles_that_hold_a_visible_key_are_computed(case: Case) -> None:
    problem = Problem(case, 8, 8)
    for i in problem.q_blocks():
        seen = {j // 8 * 8 for q in range(i, min(i + 8, case.Nq)) for j in case.mask.keys(q)}
        assert set(problem.k_blocks(i)) == seen
        for j in problem.k_blocks(i):
            hidden = problem.hidden(i, j, torch.device("cpu"))
            keys = range(j, min(j + 8, case.Nk))
            want = [[key not in case.mask.keys(q) for key in keys] for q in range(i, min(i + 8, case.Nq))]
            assert (hidden.tolist() if hidden is not None else [[False] * len(row) for row in want]) == want
            assert (hidden is None) == (not any(map(any, want)))


def test_logits_far_below_zero_are_not_clamped() -> None:
    case = replace(SHAPE, Nq=5, Nk=70, direction="backward")
    q, k, v, dO = tensors(case)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = 1.0, -120.0 * case.d**0.5
    leaves = [x.requires_grad_() for x in (q, k, v)]
    O, LSE = SMALL.prepare(case, CPU, lse=True).call(*leaves)
    torch.testing.assert_close(O, v.mean(2, keepdim=True).expand_as(O), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(LSE, torch.full_like(LSE, -120.0 + torch.tensor(70.0).log().item()))
    assert all(g.isfinite().all() for g in torch.autograd.grad(O, leaves, dO))


def test_a_nan_in_a_query_stays_in_its_row() -> None:
    q, k, v, _ = tensors(SHAPE)
    q[0, 1, 20, 3] = float("nan")
    O = SMALL.prepare(SHAPE, CPU).call(q, k, v)
    assert isinstance(O, torch.Tensor)
    bad = torch.zeros(O.shape[:3], dtype=torch.bool)
    bad[0, 1, 20] = True
    assert torch.equal(O.isnan().all(-1), bad)
    assert torch.equal(O.isnan().any(-1), bad)


def test_memory_grows_with_n_not_its_square() -> None:
    def largest(N: int) -> int:
        case = Case(1, 1, N, N, 8, dtype="fp32")
        inputs = tensors(case)[:3]
        call = Online("small", 32, 32).prepare(case, CPU).call
        with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
            call(*inputs)
        return max(event.self_cpu_memory_usage // max(1, event.count) for event in profile.key_averages())

    assert largest(512) < 512 * 512 * 4 / 4


def test_the_gradient_of_an_expanded_output_gradient_is_right() -> None:
    case = replace(SHAPE, causal=True, direction="backward")
    q, k, v, _ = tensors(case)
    dO = torch.ones(1, 1, 1, 1).expand(case.batch, case.heads, case.Nq, case.dv)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(ONLINE.prepare(case, CPU).call(*leaves), leaves, dO)
    double = [x.detach().double().requires_grad_() for x in (q, k, v)]
    from plain_attention import attention

    want = torch.autograd.grad(attention(*double, case)[0], double, dO.double())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_rounding_p_costs_what_class_a_costs() -> None:
    case = replace(SHAPE, dtype="bf16", Nq=64, Nk=512)
    got, want = run(ONLINE.prepare(case, CPU).call, case).O.double(), expected(case).O
    relative = (got - want).norm() / want.norm()
    assert 1e-4 < relative < 4e-3


def test_the_gradient_through_a_saturated_softcap_keeps_its_digits() -> None:
    case = Case(1, 1, 40, 3, 16, dtype="fp32", softcap=0.2, direction="backward")
    got, want = run(ONLINE.prepare(case, CPU).call, case), expected(case)
    assert got.dQ is not None
    assert want.dQ is not None
    error = ((got.dQ.double() - want.dQ).norm(dim=-1) / want.dQ.norm(dim=-1)).max()
    assert error < 1e-4

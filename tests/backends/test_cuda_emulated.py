"""The CUDA kernels compute attention, on a CPU: emulated thread by thread, through the operators and autograd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from cuda_emulator import EmulatedKernel, emulated
from fabench.backend import Backend
from fabench.case import Case
from fabench_backends.cuda_flash import api, cuda_v1, cuda_v2, cuda_v2_deterministic, v2_ops
from plain_attention import CASES, SHAPE, check, expected, run, tensors

__all__ = ["emulated"]

FP16 = {
    name: replace(case, dtype="fp16" if case.dtype == "fp32" else case.dtype)
    for name, case in CASES.items()
    if case.d % 8 == 0 and case.dv % 8 == 0
}
SMALL = Case(batch=1, heads=2, kv_heads=1, Nq=75, Nk=130, d=64, dtype="bf16", causal=True, direction="forward_backward")
HEAD_DIMS = [
    (32, 32),
    (64, 64),
    (96, 96),
    (128, 128),
    (192, 192),
    (256, 256),
    (40, 40),
    (104, 104),
    (64, 128),
    (128, 64),
]


@pytest.fixture(autouse=True)
def kernels(emulated: type[EmulatedKernel]) -> Iterator[type[EmulatedKernel]]:
    """All tests here run emulated kernels; none may read shared memory with bank conflicts."""
    yield emulated
    assert emulated.bank_conflicts == 0


def both(case: Case) -> Case:
    """The case with its backward, unless its scores are so peaked that fp16 gradients miss the tolerance."""
    return case if case.scale == 1.0 else replace(case, direction="forward_backward")


@pytest.mark.parametrize("case", FP16.values(), ids=FP16)
def test_v2_computes_attention_and_its_gradients(case: Case) -> None:
    check(cuda_v2, both(case), lse=True)


@pytest.mark.parametrize("case", [c for c in FP16.values() if not cuda_v1.facts.case_reasons(c)], ids=str)
def test_v1_computes_attention_and_its_gradients(case: Case) -> None:
    check(cuda_v1, both(case), lse=True)


@pytest.mark.parametrize("name", ["gqa", "causal", "tall window, empty rows", "longer than a tile"])
def test_summing_dQ_in_turns_gives_the_same(name: str) -> None:
    check(cuda_v2_deterministic, both(FP16[name]), lse=True)


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_two_keyed_heads_of_64_and_a_causal_diagonal(backend: Backend) -> None:
    check(backend, SMALL, lse=True)


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2, cuda_v2_deterministic], ids=lambda b: b.name)
def test_wide_heads_whose_P_goes_through_shared_memory(backend: Backend) -> None:
    """From d = 96 on, the backward's warps share keys, and a step keeps three stages of queries."""
    check(backend, replace(SMALL, d=128, dv=128), lse=True)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"causal": False}, {"window": (20, 0)}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("d", HEAD_DIMS, ids=str)
@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2, cuda_v2_deterministic], ids=lambda b: b.name)
def test_every_head_dim_in_every_compiled_form(backend: Backend, d: tuple[int, int], changes: dict[str, Any]) -> None:
    case = replace(SMALL, d=d[0], dv=d[1], **changes)
    if reasons := backend.facts.case_reasons(case):
        pytest.skip("; ".join(reasons))
    check(backend, case, lse=True)


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_the_order_in_which_warps_run_changes_no_bit(backend: Backend, kernels: type[EmulatedKernel]) -> None:
    """A missing barrier would show: shared memory starts as NaNs and copies land only when waited for."""
    first = run(backend.prepare(SMALL, None, lse=True).call, SMALL)  # type: ignore[arg-type]
    kernels.descending = True
    second = run(backend.prepare(SMALL, None, lse=True).call, SMALL)  # type: ignore[arg-type]
    for name in ("O", "LSE", "dQ", "dK", "dV"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_keys_are_split_where_few_queries_would_leave_the_card_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    split = []
    choose = v2_ops.choose_splits
    monkeypatch.setattr(v2_ops, "choose_splits", lambda *a: split.append(choose(*a)) or split[-1])
    case = replace(SHAPE, batch=1, heads=2, kv_heads=2, Nq=3, Nk=1000, dtype="fp16", direction="forward")
    check(cuda_v2, case, lse=True)
    check(cuda_v2, replace(case, causal=True, window=(100, 0), Nq=130), lse=True)
    check(cuda_v2, replace(case, heads=4, d=40, dv=24, softcap=3.0, causal=True, alignment="top_left"), lse=True)
    assert max(split) > 1


@pytest.mark.parametrize(("causal", "grid"), [(False, (4, 2, 3)), (True, (10, 2, 1))])
def test_heads_go_side_by_side_as_far_as_l2_holds_their_keys_unless_tiles_differ_in_work(
    causal: bool, grid: tuple[int, int, int]
) -> None:
    """10 heads, K and V of four in half of 256 KiB, and a last round that is short."""
    case = replace(SMALL, batch=5, heads=2, kv_heads=1, Nq=130, Nk=200, causal=causal, direction="forward")
    q, k, v = (api.layout(t) for t in tensors(case)[:3])
    low, high = api.band(case.Nq, case.Nk, causal, None, "bottom_right")

    assert v2_ops.plan(q, k, v, 0.125, 0.0, low, high).grid == grid
    check(cuda_v2, case, lse=True)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1.0])
def test_a_scale_may_have_any_sign_also_under_a_softcap(scale: float) -> None:
    case = replace(SHAPE, dtype="fp16", causal=True, scale=scale, softcap=1.5, direction="forward_backward")
    check(cuda_v2, case, lse=True)


def test_a_saturated_softcap_still_has_its_tiny_slope() -> None:
    """1 - tanh(x)^2 in float32 is zero from x = 9 on; the slope is 4 e / (1 + e)^2 with e = exp(-2 |x|)."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, dO = (torch.randn(1, 1, 5, 32, generator=generator).to(torch.bfloat16) for _ in range(4))
    q, k = q.abs() * 3, k.abs() * 3  # scores / softcap of 9 to 20
    leaves = [x.requires_grad_() for x in (q, k, v)]
    case = replace(SHAPE, batch=1, heads=1, kv_heads=1, Nq=5, Nk=5, d=32, dv=32, dtype="bf16", softcap=2.0)
    O = cuda_v2.prepare(case, None).call(*leaves)  # type: ignore[arg-type]
    assert isinstance(O, torch.Tensor)
    dQ, _, _ = torch.autograd.grad(O, leaves, dO)
    exact_q, exact_k, exact_v = (x.detach().double() for x in leaves)
    x = exact_q @ exact_k.mT * case.softmax_scale / case.softcap
    assert x.min() > 9
    assert x.max() < 40
    P = torch.softmax(case.softcap * torch.tanh(x), -1)
    e = torch.exp(-2 * x.abs())
    dP = dO.double() @ exact_v.mT
    dS = P * (dP - (P * dP).sum(-1, keepdim=True)) * 4 * e / (1 + e).square()
    right = dS @ exact_k * case.softmax_scale
    assert ((dQ.double() - right).norm(dim=-1) <= 0.03 * right.norm(dim=-1)).all()


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
@pytest.mark.parametrize("N", [1, 33, 64, 65, 97])
def test_scores_far_below_zero_overflow_nothing_past_the_last_key(backend: Backend, N: int) -> None:
    """Keys that do not exist would weigh exp(0 - LSE) = infinity."""
    q, k, v = (torch.zeros(1, 1, N, 32, dtype=torch.bfloat16) for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120 * 32**0.5
    v.normal_(generator=torch.Generator().manual_seed(0))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    case = replace(SHAPE, batch=1, heads=1, kv_heads=1, Nq=N, Nk=N, d=32, dtype="bf16", direction="forward_backward")
    O, LSE = backend.prepare(case, None, lse=True).call(*leaves)  # type: ignore[arg-type]
    torch.testing.assert_close(
        LSE, torch.full_like(LSE, -120 + torch.log(torch.tensor(float(N))).item()), rtol=0, atol=0.5
    )
    for gradient in torch.autograd.grad(O, leaves, torch.ones_like(O)):
        assert torch.isfinite(gradient).all()


def test_gradients_flow_through_the_lse() -> None:
    case = both(FP16["causal"])
    q, k, v, _ = tensors(case)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    _, LSE = cuda_v2.prepare(case, None, lse=True).call(*leaves)  # type: ignore[arg-type,misc]
    dQ, dK, dV = torch.autograd.grad(LSE.sum(), leaves)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    S = (exact[0] @ exact[1].mT * case.softmax_scale).masked_fill(
        torch.ones(case.Nq, case.Nk, dtype=torch.bool).triu(1), -torch.inf
    )
    right = torch.autograd.grad(torch.logsumexp(S, -1).sum(), exact[:2])
    torch.testing.assert_close(dQ.double(), right[0], rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(dK.double(), right[1], rtol=4e-3, atol=4e-3)
    assert not dV.any()


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_a_gradient_of_the_lse_of_an_empty_row_is_as_good_as_none(backend: Backend) -> None:
    """Its P is 0: an infinite or undefined gradient there must not reach dQ, dK or dV."""
    case = both(FP16["tall causal bottom-right, empty rows"])
    q, k, v, dO = tensors(case)
    gradients = []
    for there in (torch.nan, 0.0):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        O, LSE = backend.prepare(case, None, lse=True).call(*leaves)  # type: ignore[arg-type,misc]
        empty = LSE.isneginf()
        assert empty.any()
        dLSE = torch.ones_like(LSE).masked_fill(empty, there)
        gradients.append(torch.autograd.grad((O, LSE), leaves, (dO, dLSE)))
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_rows_that_do_not_start_at_16_bytes_are_copied_first(backend: Backend) -> None:
    case = both(FP16["full"])
    q, k, v, dO = tensors(case)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x.new_full((1,), torch.nan), x.flatten()))[1:].view(x.shape)

    call = backend.prepare(case, None).call  # type: ignore[arg-type]
    leaves = [shifted(x).requires_grad_() for x in (q, k, v)]
    O = call(*leaves)
    assert isinstance(O, torch.Tensor)
    gradients = torch.autograd.grad(O, leaves, shifted(dO))
    right = expected(case)
    for got, want in zip((O, *gradients), (right.O, right.dQ, right.dK, right.dV), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("layout", ["expanded", "transposed"])
def test_the_gradient_of_O_may_have_any_strides(layout: str) -> None:
    case = both(FP16["full"])
    q, k, v, _ = tensors(case)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    O = cuda_v2.prepare(case, None).call(*leaves)  # type: ignore[arg-type]
    assert isinstance(O, torch.Tensor)
    dO = torch.ones((), dtype=O.dtype).expand(O.shape) if layout == "expanded" else torch.ones_like(O.mT).mT
    gradients = torch.autograd.grad(O, leaves, dO, retain_graph=True)
    for got, want in zip(gradients, torch.autograd.grad(O, leaves, torch.ones_like(O)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_nothing_outside_the_inputs_is_read_or_used() -> None:
    """Rows of a wider tensor, NaN everywhere around them: a key past the end or a column past d would poison O."""
    case = both(replace(SHAPE, d=24, dv=40, Nq=33, Nk=65, dtype="fp16"))
    q, k, v, dO = tensors(case)

    def framed(x: torch.Tensor) -> torch.Tensor:
        frame = x.new_full((x.shape[0], x.shape[1], x.shape[2] + 70, x.shape[3] + 8), torch.nan)
        frame[:, :, : x.shape[2], : x.shape[3]] = x
        return frame[:, :, : x.shape[2], : x.shape[3]]

    leaves = [framed(x).detach().requires_grad_() for x in (q, k, v)]
    O = cuda_v2.prepare(case, None).call(*leaves)  # type: ignore[arg-type]
    assert isinstance(O, torch.Tensor)
    right = expected(case)
    for got, want in zip(
        (O, *torch.autograd.grad(O, leaves, framed(dO))), (right.O, right.dQ, right.dK, right.dV), strict=True
    ):
        torch.testing.assert_close(got.double(), want, rtol=4e-3, atol=4e-3)

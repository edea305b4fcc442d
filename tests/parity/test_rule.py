"""The numeric rule passes what is right and fails what is wrong, and says where."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from fabench import inputs, reference
from fabench.case import Case
from fabench.parity.rule import Judgement, judge

CASE = Case(2, 4, 129, 129, 64, kv_heads=2, causal=True, direction="backward")


def sdpa(case: Case, t: inputs.Tensors, backend: SDPBackend) -> dict[str, torch.Tensor]:
    q, k, v = (x.detach().clone().requires_grad_() for x in (t.q, t.k, t.v))
    with sdpa_kernel([backend]):
        O = F.scaled_dot_product_attention(
            q, k, v, is_causal=case.causal, scale=case.scale, enable_gqa=case.heads != case.kv_heads
        )
    return {"O": O.detach(), **dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(O, (q, k, v), t.dO), strict=True))}


def naive(case: Case, t: inputs.Tensors) -> dict[str, torch.Tensor]:
    q, k, v = (x.detach().clone().requires_grad_() for x in (t.q, t.k, t.v))
    group = case.heads // case.kv_heads
    S = (q * case.softmax_scale) @ k.repeat_interleave(group, 1).transpose(-1, -2)
    if case.causal:
        S = S.masked_fill(torch.ones(case.Nq, case.Nk, dtype=torch.bool).triu(1), -torch.inf)
    O = S.softmax(-1) @ v.repeat_interleave(group, 1)
    return {"O": O.detach(), **dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(O, (q, k, v), t.dO), strict=True))}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("distribution", ["normal", "std6", "neglse", "one_hot", "constant_v", "outliers"])
def test_torchs_own_kernels_pass_forward_and_backward(dtype: str, distribution: str) -> None:
    for seed in range(2):
        case = dataclasses.replace(CASE, batch=1, dtype=dtype, inputs=distribution, seed=seed)  # type: ignore[arg-type]
        t = inputs.make(case, "cpu")
        expected = reference.compute(case, t)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
            found = judge(case, expected, sdpa(case, t, backend), "A")
            assert found.passed, found.message
        found = judge(case, expected, naive(case, t), "B")
        assert found.passed, found.message


def test_low_precision_math_is_class_b_and_fails_class_a() -> None:
    case = dataclasses.replace(CASE, inputs="std3")
    t = inputs.make(case, "cpu")
    expected, outputs = reference.compute(case, t), naive(case, t)
    assert judge(case, expected, outputs, "B").passed
    as_a = judge(case, expected, outputs, "A")
    assert not as_a.passed
    assert as_a.parity.O is not None
    assert (as_a.parity.O.max_rho or 0) > 8


@pytest.fixture(scope="module")
def right() -> tuple[Case, reference.Reference, dict[str, torch.Tensor]]:
    t = inputs.make(CASE, "cpu")
    expected = reference.compute(CASE, t)
    outputs = {name: e.value.to(torch.bfloat16) for name, e in expected.outputs.items() if name != "LSE"}
    return CASE, expected, outputs | {"LSE": expected["LSE"].value.float()}


Right = tuple[Case, reference.Reference, dict[str, torch.Tensor]]


def spoiled(right: Right, name: str, spoil: object) -> Judgement:
    case, expected, outputs = right
    changed = outputs[name].clone()
    return judge(case, expected, {**outputs, name: spoil(changed)}, "A")  # type: ignore[operator]


def put(x: torch.Tensor, at: tuple[int, ...], value: float) -> torch.Tensor:
    x[at] = value
    return x


def test_the_rounded_reference_itself_passes(right: Right) -> None:
    found = judge(*right[:2], right[2], "A")
    assert found.passed
    assert not found.warn
    assert found.parity.dK is not None
    assert 0 < (found.parity.dK.max_rho or 0) < 1


@pytest.mark.parametrize("name", ["O", "dQ", "dK", "dV"])
@pytest.mark.parametrize(
    ("what", "spoil"),
    {
        "zeros": torch.zeros_like,
        "a constant": lambda x: torch.full_like(x, 0.01),
        "noise": lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x.dtype),
        "five percent too large": lambda x: x * 1.05,
        "rows shifted by one": lambda x: x.roll(1, 2),
        "heads swapped": lambda x: x.roll(1, 1),
        "batch entry 0 for all": lambda x: x[:1].expand_as(x).contiguous(),
        "one NaN": lambda x: put(x, (1, 1, 77, 5), math.nan),
        "one inf": lambda x: put(x, (0, 0, 99, 0), math.inf),
    }.items(),
)
def test_a_wrong_tensor_fails_and_is_named(right: Right, name: str, what: str, spoil: object) -> None:
    found = spoiled(right, name, spoil)
    assert not found.passed, what
    assert list(found.failures) == [name]
    assert f"'{name}'" in found.message
    assert found.worst is not None
    assert found.worst["tensor"] == name


def test_a_wrong_fragment_at_long_N_fails_where_a_fixed_tolerance_passes() -> None:
    """8 rows x 16 columns, 10 % off: far below allclose's tolerance because outputs shrink as 1/sqrt(N)."""
    case = Case(1, 1, 2048, 2048, 64)
    t = inputs.make(case, "cpu")
    expected = reference.compute(case, t)
    O = expected["O"].value.to(torch.bfloat16)
    O[0, 0, 512:520, 16:32] *= 1.1
    assert torch.allclose(O.float(), expected["O"].value.float(), atol=1e-2, rtol=1e-2)
    found = judge(case, expected, {"O": O}, "A")
    assert not found.passed
    assert found.worst is not None
    assert 512 <= found.worst["row"] < 520


def test_a_nan_everywhere_is_not_hidden_by_comparisons_that_are_false(right: Right) -> None:
    assert not spoiled(right, "O", lambda x: x * math.nan).passed


def test_contract_zeros_are_required_and_nothing_else_may_replace_them() -> None:
    case = Case(1, 1, 9, 5, 8, causal=True, direction="backward")
    expected = reference.compute(case, inputs.make(case, "cpu"))
    right = {name: e.value.to(torch.bfloat16) for name, e in expected.outputs.items() if name != "LSE"}
    assert judge(case, expected, right, "A").passed
    for value in (1e-30, math.nan):
        O = right["O"].clone()
        O[0, 0, 0, 3] = value
        found = judge(case, expected, {**right, "O": O}, "A")
        assert not found.passed
    O = right["O"].clone()
    O[0, 0, 0, 3] = 1e-3
    assert "attend to no key" in judge(case, expected, {**right, "O": O}, "A").message


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda x: x / math.log(2), "base 2"),
        (lambda x: -x, "negated"),
        (lambda x: x + math.log(2), "= ln 2"),
        (lambda x: x.masked_fill(x == -math.inf, math.inf), "+inf for a query that attends to no key"),
        (lambda x: x.masked_fill(x == -math.inf, -1e30), "it must be -inf"),
        (lambda x: x * (1 + 1e-4), "off at"),
    ],
)
def test_a_wrong_lse_fails_with_its_cause(spoil: object, cause: str) -> None:
    case = Case(1, 2, 40, 30, 16, causal=True)
    expected = reference.compute(case, inputs.make(case, "cpu"))
    lse = expected["LSE"].value.float()
    assert judge(case, expected, {"LSE": lse}, "A").passed
    found = judge(case, expected, {"LSE": spoil(lse)}, "A")  # type: ignore[operator]
    assert not found.passed
    assert cause in found.message


@pytest.mark.parametrize(
    ("name", "output", "sentence"),
    [
        ("O", torch.zeros(2, 129, 4, 64, dtype=torch.bfloat16), "must have shape [2, 4, 129, 64], got [2, 129, 4, 64]"),
        ("O", torch.zeros(2, 4, 129, 64), "must have dtype bfloat16, got float32"),
        ("LSE", torch.zeros(2, 4, 129, dtype=torch.bfloat16), "must have dtype float32, got bfloat16"),
        ("O", None, "must be a plain torch.Tensor, got builtins.NoneType"),
        ("O", torch.nn.Parameter(torch.zeros(2, 4, 129, 64)), "must be a plain torch.Tensor"),
    ],
)
def test_a_wrong_form_is_a_failure_in_one_sentence(right: Right, name: str, output: object, sentence: str) -> None:
    case, expected, outputs = right
    found = judge(case, expected, {**outputs, name: output}, "A")  # type: ignore[dict-item]
    assert not found.passed
    assert sentence in found.message


def test_overflow_is_expected_where_the_reference_overflows() -> None:
    case = Case(1, 1, 1, 1, 8, dtype="fp16")
    t = inputs.make(case, "cpu")
    big = inputs.Tensors(t.q, t.k, torch.full((1, 1, 1, 8), 1e6, dtype=torch.float64))
    expected = reference.compute(case, big)
    assert judge(case, expected, {"O": torch.full((1, 1, 1, 8), math.inf, dtype=torch.float16)}, "A").passed
    assert not judge(case, expected, {"O": torch.full((1, 1, 1, 8), -math.inf, dtype=torch.float16)}, "A").passed
    assert not judge(case, expected, {"O": torch.full((1, 1, 1, 8), 65504.0, dtype=torch.float16)}, "A").passed


def test_an_empty_case_passes_with_empty_outputs() -> None:
    case = Case(1, 2, 0, 5, 8, direction="backward")
    expected = reference.compute(case, inputs.make(case, "cpu"))
    outputs = {n: e.value.to(torch.bfloat16) for n, e in expected.outputs.items() if n != "LSE"}
    assert judge(case, expected, {**outputs, "LSE": torch.zeros(1, 2, 0)}, "A").passed
    outputs["dV"] = outputs["dV"] + 1
    assert not judge(case, expected, outputs, "A").passed


def test_where_the_tolerance_is_zero_only_equality_passes() -> None:
    case = Case(1, 1, 4, 6, 8, dtype="fp32", scale=0.0, direction="backward")
    expected = reference.compute(case, inputs.make(case, "cpu"))
    assert expected["dQ"].tolerance["A"].eq(0).all()
    zeros = torch.zeros(1, 1, 4, 8)
    assert judge(case, expected, {"dQ": zeros}, "A").passed
    assert not judge(case, expected, {"dQ": zeros + 1e-30}, "A").passed


def test_the_usual_metrics_stand_beside_the_verdict(right: Right) -> None:
    case, expected, outputs = right
    found = judge(case, expected, outputs, "A").parity.O
    assert found is not None
    exact = expected["O"].value
    difference = outputs["O"].double() - exact
    assert found.max_abs == pytest.approx(float(difference.abs().max()))
    assert found.rmse == pytest.approx(float(difference.square().mean().sqrt()))
    assert found.cosine == pytest.approx(1.0, abs=1e-4)
    assert 0.2 < (found.ulp_p50 or 0) < 0.3
    assert (found.ulp_max or 9) <= 0.501  # fp64 -> fp32 -> bf16 rounds twice
    assert (found.two_x or 9) < 1


def test_a_sampled_judgement_compares_the_sampled_rows() -> None:
    case = Case(1, 2, 700, 700, 8, direction="backward")
    t = inputs.make(case, "cpu")
    expected = reference.compute(case, t, rows="sampled")
    full = reference.compute(case, t)
    outputs = {n: e.value.to(torch.bfloat16) for n, e in full.outputs.items() if n != "LSE"}
    found = judge(case, expected, outputs, "A")
    assert found.passed, found.message
    assert found.parity.rows_checked == 1024
    outputs["dV"][0, 1, 699] *= 2
    assert judge(case, expected, outputs, "A").worst["row"] == 699  # type: ignore[index]

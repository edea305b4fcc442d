"""The tiled fp64 reference against brute force, finite differences and itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import brute_force
from fabench import inputs, reference
from fabench.case import Case
from fabench.names import INPUTS
from fabench.parity.rule import judge
from fabench.reference import problem


def agree(case: Case, tolerance: float = 1e-12) -> None:
    tensors = inputs.make(case, "cpu")
    found, expected = reference.compute(case, tensors), brute_force(case, tensors)
    assert set(found.outputs) == set(expected)
    if tensors.q.numel() and tensors.k.numel():  # a score's own fp64 rounding grows with the score
        longest = float(tensors.q.double().norm(dim=-1).max() * tensors.k.double().norm(dim=-1).max())
        tolerance *= max(1.0, abs(case.softmax_scale) * longest / 100)
    for name, value in expected.items():
        got = found[name].value
        assert got.shape == value.shape, name
        assert torch.equal(got == -torch.inf, value == -torch.inf), name
        finite = torch.isfinite(value)
        if finite.any():
            scale = max(1.0, float(value[finite].abs().max()))
            assert float((got - value)[finite].abs().max()) <= tolerance * scale, name


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    side = st.integers(-1, 9)
    return Case(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        Nq=draw(st.integers(0, 20)),
        Nk=draw(st.integers(0, 20)),
        d=draw(st.sampled_from([1, 3, 8])),
        dv=draw(st.sampled_from([1, 4])),
        dtype=draw(st.sampled_from(["fp32", "bf16"])),
        causal=draw(st.booleans()),
        alignment=draw(st.sampled_from(["bottom_right", "top_left"])),
        window=draw(st.one_of(st.none(), st.tuples(side, side))),
        softcap=draw(st.sampled_from([0.0, 3.0])),
        scale=draw(st.sampled_from([None, 1.0, 0.0, -0.1])),
        direction=draw(st.sampled_from(["forward", "backward"])),
        inputs=draw(st.sampled_from(INPUTS)),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=150)
@given(small_cases())
def test_the_reference_is_brute_force_whatever_the_mask_shape_and_heads(case: Case) -> None:
    agree(case)


@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (70, 5), "alignment": "top_left"}])
def test_tiling_changes_nothing(mask: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "CPU_TILE", (16, 32))
    agree(Case(1, 4, 70, 133, 8, kv_heads=2, dv=5, dtype="fp16", direction="backward", **mask))  # type: ignore[arg-type]


def test_gradients_are_the_finite_differences_of_the_outputs() -> None:
    case = Case(1, 2, 5, 7, 4, kv_heads=1, dtype="fp32", causal=True, softcap=2.0, direction="backward")
    tensors = inputs.make(case, "cpu")
    exact = inputs.Tensors(**{name: x.double() for name, x in tensors.items()})
    gradients = reference.compute(case, exact)
    assert exact.dO is not None
    step = 1e-5
    for name, x in (("dQ", exact.q), ("dK", exact.k), ("dV", exact.v)):
        for at in [(0, 0, 0, 0), (0, 0, 4, 3), (0, 0, 2, 1)]:
            sides = []
            for sign in (1, -1):
                x[at] += sign * step
                sides.append(float((reference.compute(case, exact)["O"].value * exact.dO).sum()))
                x[at] -= sign * step
            difference = (sides[0] - sides[1]) / (2 * step)
            assert difference == pytest.approx(float(gradients[name].value[at]), rel=1e-6, abs=1e-8), (name, at)


def test_sampled_rows_are_the_same_numbers_as_the_full_reference() -> None:
    case = Case(1, 4, 600, 700, 8, kv_heads=2, causal=True, direction="backward", seed=3)
    tensors = inputs.make(case, "cpu")
    full, sampled = (reference.compute(case, tensors, rows=rows) for rows in ("full", "sampled"))
    assert sampled.sampled
    assert not full.sampled
    for name, part in sampled.outputs.items():
        assert part.rows is not None
        assert part.rows.shape[-1] == 512
        whole = full[name]
        picked = part.select(whole.value)
        assert torch.equal(torch.isfinite(picked), torch.isfinite(part.value))
        assert torch.allclose(picked, part.value, rtol=1e-9, atol=1e-12), name
        for accuracy, tolerance in part.tolerance.items():
            assert torch.allclose(part.select(whole.tolerance[accuracy]), tolerance, rtol=1e-6, atol=1e-12), name
        assert torch.equal(part.select(whole.empty).bool(), part.empty), name


def test_sampling_a_short_case_checks_every_row() -> None:
    case = Case(1, 1, 40, 40, 8)
    assert not reference.compute(case, inputs.make(case, "cpu"), rows="sampled").sampled


def test_contract_zeros_are_empty_queries_and_unattended_keys() -> None:
    case = Case(1, 1, 7, 3, 4, causal=True, direction="backward")
    found = reference.compute(case, inputs.make(case, "cpu"))
    assert found["O"].empty[0, 0].tolist() == [True] * 4 + [False] * 3
    assert found["LSE"].value[0, 0, :4].eq(-torch.inf).all()
    top_left = Case(1, 1, 3, 7, 4, causal=True, alignment="top_left", direction="backward")
    found = reference.compute(top_left, inputs.make(top_left, "cpu"))
    assert found["dV"].empty[0, 0].tolist() == [False] * 3 + [True] * 4
    assert found["dK"].tolerance["A"][0, 0, 3:].eq(0).all()


@pytest.mark.parametrize("index", [0, 1, 2, 3, 5])
def test_rotated_inputs_have_the_rotated_reference(index: int) -> None:
    case = Case(2, 6, 9, 11, 8, kv_heads=3, dtype="fp32", causal=True, direction="backward")
    tensors = inputs.make(case, "cpu")
    direct = reference.compute(case, inputs.rotate(tensors, index))
    derived = reference.compute(case, tensors).rotated(index)
    for name, expected in direct.outputs.items():
        assert torch.allclose(expected.value, derived[name].value, rtol=1e-12, atol=1e-13), name
        assert torch.allclose(expected.tolerance["A"], derived[name].tolerance["A"], rtol=1e-6), name


def test_the_estimate_grows_with_the_work_and_sampling_makes_long_cases_cheap() -> None:
    short, long = (Case(1, 16, N, N, 128, direction="backward") for N in (1024, 16384))
    assert reference.estimate_seconds(long, "cpu") > 100 * reference.estimate_seconds(short, "cpu")
    forward = Case(1, 16, 131072, 131072, 128)
    assert reference.estimate_seconds(forward, "cuda", rows="sampled") < 0.1 * reference.estimate_seconds(
        forward, "cuda"
    )


@pytest.mark.parametrize(("inputs_", "softcap"), [("near_overflow", 0.0), ("std3", 30.0), ("neglse", 30.0)])
def test_rounded_scores_are_within_class_b_however_large_they_are(inputs_: str, softcap: float) -> None:
    """Another draw of the roundings (the scale before the GEMM or after it) is as right as the emulated one."""
    case = Case(1, 2, 65, 65, 64, dtype="bf16", inputs=inputs_, softcap=softcap, direction="backward")  # type: ignore[arg-type]
    for seed in range(6):
        case = dataclasses.replace(case, seed=seed)
        t = inputs.make(case, "cpu")
        q, k, v = (x.detach().clone().requires_grad_() for x in (t.q, t.k, t.v))
        S = (q @ k.mT) * case.softmax_scale
        S = softcap * torch.tanh(S / softcap) if softcap else S
        O = torch.softmax(S, -1) @ v
        outputs = {
            "O": O.detach(),
            **dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(O, (q, k, v), t.dO), strict=True)),
        }
        found = judge(case, reference.compute(case, t, accuracy=("B",)), outputs, "B")
        assert found.passed, found.message

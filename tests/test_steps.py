"""HBM traffic by step: the formulas of the papers, and counting by brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_strategies import cases, masks
from fabench import cost, steps, tiled_steps
from fabench.case import Case, Mask
from fabench.visits import Visits, visits

blocks = st.integers(1, 9)


def head(N: int, d: int = 128, **more) -> Case:
    return Case(**{"batch": 1, "heads": 1, "Nq": N, "Nk": N, "d": d, "dtype": "fp16", **more})


def elements(algorithm: list[steps.Step]) -> tuple[int, int]:
    return sum(s.read_elements for s in algorithm), sum(s.written_elements for s in algorithm)


def test_standard_forward_moves_4_n_squared_and_4_nd():
    N, d = 4096, 128
    s, softmax, o = steps.standard_forward(head(N, d))
    assert (s.read_elements, s.written_elements) == (2 * N * d, N * N)
    assert (softmax.read_elements, softmax.written_elements) == (N * N, N * N)
    assert (o.read_elements, o.written_elements) == (N * N + N * d, N * d)


def test_standard_backward_reads_5_and_writes_2_n_squared():
    N, d = 4096, 128
    assert elements(steps.standard_backward(head(N, d))) == (5 * N * N + 5 * N * d, 2 * N * N + 3 * N * d)


def test_the_direction_chooses_the_steps():
    case = {way: head(64, direction=way) for way in ("forward", "backward", "forward_backward")}
    assert [len(steps.standard(c)) for c in case.values()] == [3, 5, 8]


def test_scores_written_and_read_twice_take_22_ms_of_an_a100():
    case = head(8192, dtype="fp32", heads=32)
    squares = [t for s in steps.standard_forward(case) for t in s.transfers if t.tensor in "SP"]
    moved = sum(t.bytes for t in squares)
    assert (len(squares), moved) == (4, 4 * 32 * 8192**2 * 4)
    assert moved == pytest.approx(34.4e9, rel=2e-3)
    assert moved / 1.55e12 == pytest.approx(22.2e-3, rel=2e-3)


@pytest.mark.parametrize(("N", "d", "expected"), [(8192, 128, 63.0), (2**30, 128, 64), (2**30, 64, 32)])
def test_intensity_of_standard_attention_tends_to_half_the_head_dim(N, d, expected):
    assert steps.total_intensity(steps.standard_forward(head(N, d))) == pytest.approx(expected, abs=0.05)


def test_intensity_of_the_first_product_of_a_square():
    product = steps.standard_forward(head(4096, 4096))[0]
    assert product.flops == pytest.approx(1.374e11, rel=1e-3)
    assert product.bytes == pytest.approx(1.007e8, rel=1e-3)
    assert product.intensity == pytest.approx(1365, abs=1)


def test_softmax_in_fp16_has_three_quarters_of_a_flop_a_byte():
    assert steps.standard_forward(head(1024))[1].intensity == 0.75


def test_what_ncu_saw_of_the_naive_kernels_on_an_h200():
    s, _, o = steps.standard_forward(head(4096, 128, dtype="bf16", heads=64))
    assert s.read_bytes == pytest.approx(0.134e9, rel=5e-3)
    assert s.written_bytes == pytest.approx(2.147e9, rel=1e-3)
    assert o.read_bytes == pytest.approx(2.214e9, rel=1e-3)
    for model, measured in ((s.read_bytes, 0.137e9), (s.written_bytes, 2.12e9), (o.read_bytes, 2.23e9)):
        assert model == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(("N", "Br", "Bc"), [(4096, 128, 64), (1000, 128, 96), (65, 64, 64)])
def test_tiled_algorithms_move_what_the_papers_say(N, Br, Bc):
    d = 64
    v2 = elements(tiled_steps.forward_v2(head(N, d), Br, Bc))
    assert v2 == (N * d + 2 * N * d * math.ceil(N / Br), N * d + N)
    outer = math.ceil(N / Bc)
    v1 = elements(tiled_steps.forward_v1(head(N, d), Br, Bc))
    assert v1 == (2 * N * d + outer * (2 * N * d + 2 * N), outer * (N * d + 2 * N))
    backward = elements(tiled_steps.backward(head(N, d), Br, Bc))
    assert backward == (2 * N * d + outer * (4 * N * d + N), outer * N * d + 2 * N * d)


def test_statistics_and_the_dq_accumulator_are_float32():
    transfers = {
        (t.tensor, t.way): t.element_bytes
        for algorithm in (tiled_steps.forward_v1, tiled_steps.forward_v2, tiled_steps.backward)
        for step in algorithm(head(256), 64, 64)
        for t in step.transfers
    }
    assert transfers["LSE", "write"] == transfers["m, l", "read"] == transfers["sums of dQ", "write"] == 4
    assert transfers["O", "write"] == transfers["K", "read"] == 2


def one_by_one(mask: Mask, Br: int, Bc: int) -> Visits:
    """The visits, by looking at every pair."""
    pairs = {(i // Br, j // Bc) for i in range(mask.Nq) for j in mask.keys(i)}
    keys = {j: min(Bc, mask.Nk - j * Bc) for _, j in pairs}
    queries = {i: min(Br, mask.Nq - i * Br) for i, _ in pairs}
    read, visited = sum(keys[j] for _, j in pairs), sum(queries[i] for i, _ in pairs)
    return Visits(len(pairs), read, visited, sum(keys.values()))


@given(masks, blocks, blocks)
def test_tiles_visited_are_those_that_hold_an_attended_pair(mask, Br, Bc):
    assert visits(mask, Br, Bc) == one_by_one(mask, Br, Bc)


def test_counting_the_tiles_of_a_huge_problem_takes_no_time():
    """A causal square of T tiles visits T(T + 1)/2 of them."""
    T = 10**9
    assert visits(Mask(128 * T, 128 * T, causal=True), 128, 128).pairs == T * (T + 1) // 2


@given(cases(), blocks, blocks)
def test_tiled_traffic_is_that_of_the_tiles_one_by_one(case, Br, Bc):
    mask, heads = case.mask, case.batch * case.heads
    pairs = {(i // Br, j // Bc) for i in range(mask.Nq) for j in mask.keys(i)}
    keys = {j: min(Bc, mask.Nk - j * Bc) for _, j in pairs}
    rows = {i: min(Br, mask.Nq - i * Br) for i, _ in pairs}
    both = case.d + case.dv
    v2 = sum(keys[j] for _, j in pairs) * both
    assert tiled_steps.forward_v2(case, Br, Bc)[0].read_elements == heads * (mask.Nq * case.d + v2)
    v1 = sum(rows[i] for i, _ in pairs) * (both + 2)
    assert tiled_steps.forward_v1(case, Br, Bc)[0].read_elements == heads * (sum(keys.values()) * both + v1)


@given(cases(), blocks, blocks)
def test_a_tiled_forward_never_moves_less_than_the_ideal(case, Br, Bc):
    if case.direction == "forward":
        ideal = cost.ideal_bytes(case)
        assert steps.total_bytes(tiled_steps.forward_v2(case, Br, Bc)) >= ideal
        assert steps.total_bytes(steps.standard_forward(case)) >= ideal


def test_a_causal_mask_skips_about_half_of_the_tiles_of_a_tiled_kernel_and_none_of_the_standard_one():
    full, causal = head(8192), head(8192, causal=True)
    ratio = tiled_steps.forward_v2(causal, 128, 128)[0].flops / tiled_steps.forward_v2(full, 128, 128)[0].flops
    assert ratio == pytest.approx(0.5 + 0.5 / 64)
    assert steps.standard_forward(causal) == steps.standard_forward(full)


def test_nothing_moves_for_an_empty_problem():
    empty = Case(batch=1, heads=1, Nq=0, Nk=0, d=64)
    assert steps.total_intensity(steps.standard_forward(empty)) == 0
    assert steps.standard_forward(empty)[0].intensity == 0


def moved(algorithm: list[steps.Step]) -> dict[tuple[str, str], int]:
    """Elements by tensor and way, over all steps."""
    total: dict[tuple[str, str], int] = {}
    for step in algorithm:
        for t in step.transfers:
            total[t.tensor, t.way] = total.get((t.tensor, t.way), 0) + t.elements
    return total


def test_a_v1_that_sums_in_float32_sets_its_sums_to_zero_before_and_rounds_them_after():
    N, d, Bc = 256, 64, 64
    before, loop, after = tiled_steps.forward_v1(head(N, d), 64, Bc, float_O=True)
    assert (before.read_bytes, before.written_bytes) == (0, (N * d + 2 * N) * 4)
    assert loop.read_bytes == 2 * N * d * 2 + N // Bc * (N * d * 2 + (N * d + 2 * N) * 4)
    assert loop.written_bytes == N // Bc * (N * d + 2 * N) * 4
    assert (after.read_bytes, after.written_bytes) == ((N * d + 2 * N) * 4, N * d * 2 + N * 4)


def test_splits_read_q_again_and_are_merged_from_float32():
    N, d, splits = 4096, 64, 3
    loop, merge = tiled_steps.forward_v2(head(N, d), 128, 64, splits=splits)
    alone = moved(tiled_steps.forward_v2(head(N, d), 128, 64))
    assert moved([loop])["Q", "read"] == splits * N * d
    assert moved([loop])["K", "read"] == alone["K", "read"]
    assert loop.written_bytes == merge.read_bytes == splits * (N * d + N) * 4
    assert merge.written_bytes == N * d * 2 + N * 4


def test_a_backward_with_delta_apart_reads_o_once_and_rounds_dq_at_the_end():
    N, d, outer = 1024, 64, 16
    apart = moved(tiled_steps.backward(head(N, d), 64, 64, apart=True))
    assert apart["O", "read"] == N * d
    assert apart["delta", "read"] == outer * N
    assert apart["sums of dQ", "write"] == (outer + 1) * N * d
    assert apart["sums of dQ", "read"] == (outer + 1) * N * d
    assert apart["dQ", "write"] == apart["dK", "write"] == apart["dV", "write"] == N * d


def test_a_backward_in_two_halves_sums_nothing_in_memory():
    N, d, Br, Bc = 1024, 64, 128, 64
    halves = [*tiled_steps.backward_dQ(head(N, d), Br, Bc), *tiled_steps.backward_dK_dV(head(N, d), Br, Bc)]
    total = moved(halves)
    assert not any(tensor.startswith("sums") for tensor, _ in total)
    assert total["K", "read"] == N * d * (N // Br + 1)
    assert total["Q", "read"] == N * d * (N // Bc + 1)
    assert [step.written_elements for step in halves] == [N * d + N, 2 * N * d]
    assert sum(step.flops for step in halves) == 2 * N * N * 7 * d  # S and dP are computed in both

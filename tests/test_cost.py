"""Pairs, FLOPs, bytes and memory of a case, against brute force and the figures of the papers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings

from case_strategies import cases, masks
from fabench import cost
from fabench.case import Case, Mask
from fabench.dtypes import DTYPES

MIB = 2**20


def head(N: int, d: int = 128, **more) -> Case:
    """One head of self-attention, in fp16 unless said."""
    return Case(**{"batch": 1, "heads": 1, "Nq": N, "Nk": N, "d": d, "dtype": "fp16", **more})


@settings(max_examples=500)
@given(masks)
def test_pairs_in_closed_form_are_those_counted_one_by_one(mask):
    assert cost.pairs(mask) == sum(len(mask.keys(query)) for query in range(mask.Nq))


@settings(max_examples=500)
@given(masks)
def test_attended_keys_and_attending_queries_are_those_found_one_by_one(mask):
    keys = {key for query in range(mask.Nq) for key in mask.keys(query)}
    queries = {query for query in range(mask.Nq) if mask.keys(query)}
    assert (set(cost.attended_keys(mask)), set(cost.attending_queries(mask))) == (keys, queries)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(131072, 131072), 131072**2),
        (Mask(131072, 131072, causal=True), 131072 * 131073 // 2),
        (Mask(1, 65536, causal=True), 65536),
        (Mask(1, 65536, causal=True, alignment="top_left"), 1),
        (Mask(1, 65536, causal=True, window=(1023, 0)), 1024),
        (Mask(131072, 131072, causal=True, window=(1023, 0)), 1024 * 131072 - 1023 * 1024 // 2),
    ],
)
def test_pairs_of_long_sequences(mask, expected):
    assert cost.pairs(mask) == expected


@given(cases())
def test_flops_are_two_for_each_multiply_add_of_the_products_over_attended_pairs(case):
    pairs = sum(len(case.mask.keys(i)) for i in range(case.Nq)) * case.batch * case.heads
    forward, backward = 2 * pairs * (case.d + case.dv), 2 * pairs * (3 * case.d + 2 * case.dv)
    expected = {"forward": forward, "backward": backward, "forward_backward": forward + backward}
    assert cost.cost(case).flops == expected[case.direction]


@given(cases())
def test_ideal_bytes_read_what_matters_once_and_write_every_result_once(case):
    seen_keys = {key for i in range(case.Nq) for key in case.mask.keys(i)}
    queries = sum(1 for i in range(case.Nq) if case.mask.keys(i))
    heads, kv = case.batch * case.heads, case.batch * case.kv_heads
    read = heads * queries * case.d + kv * len(seen_keys) * (case.d + case.dv)
    written = 0
    if case.direction != "backward":
        written += heads * case.Nq * case.dv
    if case.direction != "forward":
        read += heads * queries * case.dv
        written += heads * case.Nq * case.d + kv * case.Nk * (case.d + case.dv)
    assert cost.ideal_bytes(case) == (read + written) * DTYPES[case.dtype].bytes


def test_flops_of_the_usual_head():
    case = head(8192)
    assert cost.flops(case) == 4 * 8192**2 * 128 == pytest.approx(3.44e10, rel=2e-3)
    assert cost.flops(dataclasses.replace(case, heads=32, kv_heads=32)) == pytest.approx(1.10e12, rel=2e-3)


def test_papers_halve_the_square_so_their_causal_count_is_lower_by_one_part_in_n():
    case = head(1024, causal=True)
    assert cost.flops(case) / cost.paper_flops(case) == pytest.approx(1 + 1 / 1024)
    assert cost.paper_flops(head(1024)) == cost.flops(head(1024))
    assert cost.paper_flops(head(1024, direction="backward")) == cost.flops(head(1024, direction="backward"))
    assert cost.paper_flops(head(8, direction="forward_backward")) == cost.flops(head(8, direction="forward_backward"))


@pytest.mark.parametrize(("N", "mib"), [(1024, 4), (2048, 16), (4096, 64), (8192, 256), (16384, 1024), (32768, 4096)])
def test_scores_and_probabilities_of_a_head_in_fp16_grow_with_the_square(N, mib):
    assert cost.extra_memory_parts(head(N), "standard").workspace == mib * MIB


def test_eight_times_the_length_is_sixty_four_times_the_scores():
    assert cost.score_bytes(head(65536)) == 64 * cost.score_bytes(head(8192))


def test_scores_in_fp32_at_8192():
    case = head(8192, dtype="fp32")
    assert cost.score_bytes(case) == 268_435_456
    assert cost.score_bytes(dataclasses.replace(case, heads=32, kv_heads=32)) == pytest.approx(8.59e9, rel=1e-3)


def test_llama_2_7b_at_32k_would_keep_four_terabytes_of_scores():
    layers = head(32768, heads=32, batch=32)  # a batch entry for each layer
    assert cost.extra_memory_parts(layers, "standard").workspace == pytest.approx(4.398e12, rel=1e-3)


@pytest.mark.parametrize("direction", ["forward", "backward", "forward_backward"])
def test_standard_grows_with_the_square_and_flash_with_the_length(direction):
    short, long = head(8192, 64, direction=direction), head(16384, 64, direction=direction)
    assert cost.extra_memory(long, "flash") == 2 * cost.extra_memory(short, "flash")
    assert cost.extra_memory(long, "standard") / cost.extra_memory(short, "standard") == pytest.approx(4, rel=0.02)


def test_flash_keeps_lse_and_output_and_standard_keeps_p():
    case = head(1024, 64, batch=2, heads=4, kv_heads=4, direction="backward")
    o, lse, p = 2 * 4 * 1024 * 64 * 2, 2 * 4 * 1024 * 4, 2 * 4 * 1024**2 * 2
    assert (cost.saved_bytes(case, "flash"), cost.saved_bytes(case, "standard")) == (o + lse, o + p)
    assert cost.extra_memory_parts(case, "flash") == cost.ExtraMemory(3 * o, lse + 2 * o, o + lse)
    assert cost.extra_memory_parts(case, "standard") == cost.ExtraMemory(3 * o, 2 * p, o + p)
    both = dataclasses.replace(case, direction="forward_backward")
    assert cost.extra_memory_parts(both, "flash") == cost.ExtraMemory(4 * o, lse + 2 * o, lse)


def test_inputs_and_outputs_count_kv_heads_and_dv():
    case = Case(batch=2, heads=8, kv_heads=2, Nq=16, Nk=32, d=64, dv=128, dtype="fp32", direction="backward")
    q, k, v, o = 2 * 8 * 16 * 64 * 4, 2 * 2 * 32 * 64 * 4, 2 * 2 * 32 * 128 * 4, 2 * 8 * 16 * 128 * 4
    assert (cost.input_bytes(case), cost.output_bytes(case)) == (q + k + v + o, q + k + v)
    assert cost.input_bytes(dataclasses.replace(case, direction="forward")) == q + k + v


def test_intensity_is_flops_over_ideal_bytes_and_zero_for_an_empty_problem():
    assert cost.intensity(head(4096)) == pytest.approx(4 * 4096**2 * 128 / (4 * 4096 * 128 * 2))
    assert cost.intensity(Case(batch=1, heads=1, Nq=0, Nk=0, d=64)) == 0


def test_the_convention_is_named():
    assert cost.cost(head(8)).convention == "exact_pairs"

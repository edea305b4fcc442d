"""The flex adapter: its block masks, its closed fallbacks, and real compilations on a CPU."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from fabench import inputs
from fabench.case import Case, Mask
from fabench_backends import flex
from fabench_backends.flex import FLEX
from plain_attention import CASES, CPU, H100, SHAPE, TALL, check

MASKS = [
    Mask(300, 300, causal=True),
    Mask(256, 512, causal=True),
    Mask(512, 256, causal=True),
    Mask(137, 700, causal=True, alignment="top_left"),
    Mask(700, 137, causal=True, alignment="top_left"),
    Mask(640, 640, window=(128, 0)),
    Mask(640, 640, window=(127, 1)),
    Mask(640, 513, causal=True, window=(200, 0)),
    Mask(513, 640, window=(-1, 5)),
    Mask(513, 640, window=(5, -1), alignment="top_left"),
    Mask(1, 500, causal=True),
    Mask(500, 1, causal=True),
    Mask(384, 384, window=(400, 400)),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_the_block_mask_is_the_one_torch_would_make(mask: Mask) -> None:
    ours, theirs = (
        flex.block_mask(mask, "cpu"),
        create_block_mask(flex.mask_mod(mask), None, None, mask.Nq, mask.Nk, "cpu"),
    )
    assert ours is not None
    assert ours.shape == theirs.shape
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for counts, indices in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        n = getattr(theirs, counts)
        assert torch.equal(getattr(ours, counts), n), counts
        got, want = getattr(ours, indices), getattr(theirs, indices)
        assert got.dtype == want.dtype
        used = torch.arange(want.shape[-1]) < n[..., None]
        assert torch.equal(got[used], want[used]), indices


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_mask_mod_sees_the_keys_that_the_mask_says(mask: Mask) -> None:
    i, j = torch.arange(mask.Nq)[:, None], torch.arange(mask.Nk)
    seen = flex.mask_mod(mask)(None, None, i, j)
    want = torch.zeros(mask.Nq, mask.Nk, dtype=torch.bool)
    for row in range(mask.Nq):
        keys = mask.keys(row)
        want[row, keys.start : keys.stop] = True
    assert torch.equal(seen, want)


def test_a_block_mask_for_128k_needs_no_memory_to_speak_of() -> None:
    made = flex.block_mask(Mask(1 << 17, 1 << 17, causal=True), "cpu")
    assert made is not None
    assert made.kv_indices.numel() == 1024 * 1024
    assert made.full_kv_num_blocks is not None
    assert made.full_kv_num_blocks.flatten().tolist() == list(range(1024))


def test_a_full_mask_needs_no_block_mask() -> None:
    assert flex.block_mask(Mask(64, 64), "cpu") is None


def test_one_compiled_case_with_everything() -> None:
    check(FLEX, replace(TALL, kv_heads=2, causal=True, window=(5, 0), softcap=1.5, scale=0.3))


def test_preparing_a_forward_compiles_what_is_called_later_and_nothing_else() -> None:
    case = replace(SHAPE, direction="forward")
    prepared, tensors = FLEX.prepare(case, CPU), inputs.make(case, "cpu")
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    with torch.no_grad():
        prepared.call(tensors.q, tensors.k, tensors.v)

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_forward_case_it_takes_on_a_cpu_it_computes(name: str) -> None:
    if reasons := FLEX.reasons(CASES[name], CPU):
        pytest.skip(f"flex refuses it: {reasons}")
    check(FLEX, CASES[name])


def test_what_the_compiler_does_not_implement_is_a_refusal() -> None:
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        FLEX.prepare(replace(SHAPE, direction="backward"), CPU)


def test_refusals_are_found_inside_the_compilers_errors() -> None:
    inner = NotImplementedError("NYI: embedding dimension must be at least 16\nmore")
    wrapped = RuntimeError("backend='inductor' raised")
    wrapped.inner_exception = inner  # type: ignore[attr-defined]
    assert flex.refused(wrapped) == "NYI: embedding dimension must be at least 16"
    assert flex.refused(RuntimeError("LoweringException: NotImplementedError: not yet\n  target: x")) == "not yet"
    assert flex.refused(RuntimeError("out of shared memory")) is None


def test_a_warning_of_the_unfused_path_is_an_error() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    torch.nn.attention.flex_attention._WARNINGS_SHOWN.discard("flex_attention_performance")
    q = torch.randn(1, 1, 16, 16)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=flex.FALLBACK)
        with pytest.raises(UserWarning, match="unfused"):
            flex_attention(q, q, q)


def test_the_recompile_limits_are_raised_and_the_backward_pass_can_be_repeated() -> None:
    from torch._dynamo import config

    flex.configure_compiler()
    assert not torch._functorch.config.donated_buffer
    assert config.recompile_limit >= flex.RECOMPILE_LIMIT
    assert config.accumulated_recompile_limit >= flex.RECOMPILE_LIMIT


@pytest.mark.parametrize(
    ("case", "reasons"),
    [
        (replace(SHAPE, d=8, dv=8), ["d = 8 < 16"]),
        (replace(SHAPE, d=16, dv=8), ["dv = 8 < 16"]),
        (replace(SHAPE, d=512, dv=512), ["d = 512 > 256"]),
    ],
)
def test_refusals_carry_both_numbers(case: Case, reasons: list[str]) -> None:
    assert FLEX.reasons(case, H100) == reasons


def test_without_a_cpp_compiler_it_is_unavailable_on_a_cpu_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-here")

    assert FLEX.unavailable(CPU) == (
        "no C++ compiler: 'a-compiler-that-is-not-here' is not on PATH; install it, or name another in CXX"
    )
    assert FLEX.unavailable(H100) is None


def test_a_cpu_has_no_backward_pass_no_lse_and_no_tf32() -> None:
    facts = FLEX.facts_on(CPU)
    assert FLEX.reasons(replace(SHAPE, direction="backward"), CPU) == ["direction backward, takes forward"]
    assert not facts.returns_lse
    assert facts.accuracy_for("fp32") == "A"
    assert FLEX.facts_on(H100).accuracy_for("fp32") == "A-tf32"

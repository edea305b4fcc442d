"""The adapters of flash-attn 2, 3 and 4 against stand-ins that keep each library's convention."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import fake_libraries
from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench_backends.flash_attn2 import FLASH_ATTN
from fabench_backends.flash_attn3 import FLASH_ATTN_3
from fabench_backends.flash_attn4 import FLASH_ATTN_4
from plain_attention import CASES, CPU, H100, SHAPE, WIDE, check, tensors

UNEQUAL = "d in 129..192 with dv in 97..128, or d <= 64 with dv <= 512"
T4 = Device("cuda", "Tesla T4", capability=(7, 5))
A100 = Device("cuda", "NVIDIA A100", capability=(8, 0))
B200 = Device("cuda", "NVIDIA B200", capability=(10, 0))
H200 = Device("cuda", "NVIDIA H200", capability=(9, 0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every stand-in of the family; what they were called with."""
    seen: list[dict[str, Any]] = []

    def flash_attn_2(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        seen.append({"q": q, "k": k, "v": v})
        assert q.shape[-1] == v.shape[-1]
        assert min(window_size) >= -1
        O, LSE = fake_libraries.bottom_right(
            q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap
        )
        return (O, LSE, None) if return_attn_probs else O

    def flash_attn_3(
        q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
        sm_margin=0, return_attn_probs=False,
    ):  # fmt: skip
        seen.append({"q": q, "k": k, "v": v})
        O, LSE = fake_libraries.bottom_right(
            q, k, v, scale=softmax_scale, causal=causal, window=window_size, softcap=softcap
        )
        return (O, LSE) if return_attn_probs else O

    def flash_attn_4(
        q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None),
        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, return_lse=False,
    ):  # fmt: skip
        seen.append({"q": q, "k": k, "v": v})
        assert all(side is None or side >= 0 for side in window_size), "an unlimited side is None"
        window = tuple(-1 if side is None else side for side in window_size)
        O, LSE = fake_libraries.bottom_right(
            q, k, v, scale=softmax_scale, causal=causal, window=window, softcap=softcap
        )
        return O, LSE if return_lse else None

    fake_libraries.install(monkeypatch, "flash_attn.flash_attn_interface", flash_attn_func=flash_attn_2)
    fake_libraries.install(monkeypatch, "flash_attn.cute", flash_attn_func=flash_attn_4)
    fake_libraries.install(monkeypatch, "flash_attn_interface", flash_attn_func=flash_attn_3)
    return seen


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [FLASH_ATTN, FLASH_ATTN_3, FLASH_ATTN_4], ids=lambda b: b.name)
def test_what_an_adapter_takes_it_passes_on_rightly(
    calls: list[dict[str, Any]], backend: Backend, name: str, direction: str, dtype: str
) -> None:
    case = replace(CASES[name], dtype=dtype, direction=direction)
    if reasons := backend.reasons(case, H100):
        pytest.skip(f"{backend.name} refuses it: {reasons}")
    check(backend, case, device=CPU)
    check(backend, case, device=CPU, lse=True)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "packed"])
@pytest.mark.parametrize("backend", [FLASH_ATTN, FLASH_ATTN_3, FLASH_ATTN_4], ids=lambda b: b.name)
def test_no_layout_is_copied(calls: list[dict[str, Any]], backend: Backend, layout: str) -> None:
    case = replace(SHAPE, dtype="bf16", layout=layout)
    prepared = backend.prepare(case, CPU)
    q, k, v, _ = tensors(case)
    prepared.call(q, k, v)
    given = calls[-1]
    assert [given[name].data_ptr() for name in "qkv"] == [x.data_ptr() for x in (q, k, v)]
    assert given["q"].shape == (case.batch, case.Nq, case.heads, case.d)
    assert not prepared.copied


@pytest.mark.parametrize(
    ("backend", "device", "case", "reasons"),
    [
        (FLASH_ATTN, H100, replace(SHAPE), ["dtype fp32, takes fp16, bf16"]),
        (FLASH_ATTN, H100, replace(SHAPE, dtype="bf16", d=320, dv=320), ["d = 320 > 256"]),
        (FLASH_ATTN, H100, replace(SHAPE, dtype="bf16", dv=24), ["dv = 24 differs from d = 16"]),
        (FLASH_ATTN, H100, replace(SHAPE, dtype="bf16", Nk=0), ["empty sequence, Nq = 33 and Nk = 0"]),
        (
            FLASH_ATTN,
            H100,
            replace(WIDE, dtype="bf16", causal=True, alignment="top_left"),
            ["alignment top_left with Nq = 9 and Nk = 40, takes bottom_right"],
        ),
        (FLASH_ATTN, T4, replace(SHAPE, dtype="fp16"), ["compute capability 7.5 < 8.0"]),
        (FLASH_ATTN_3, A100, replace(SHAPE, dtype="bf16"), ["compute capability 8.0 < 9.0"]),
        (FLASH_ATTN_3, B200, replace(SHAPE, dtype="bf16"), ["compute capability 10.0 > 9.0"]),
        (FLASH_ATTN_3, H100, replace(SHAPE, dtype="bf16", d=20, dv=20), ["d = 20 is not a multiple of 8"]),
        (FLASH_ATTN_3, H100, replace(SHAPE, dtype="bf16", d=320, dv=320), ["d = 320 > 256"]),
        (
            FLASH_ATTN_3,
            H100,
            replace(SHAPE, dtype="bf16", d=128, dv=64),
            [f"d = 128 with dv = 64, takes them unequal only for {UNEQUAL}"],
        ),
        (FLASH_ATTN_3, H100, replace(SHAPE, dtype="bf16", d=192, dv=128), []),
        (FLASH_ATTN_3, H100, replace(SHAPE, dtype="bf16", d=64, dv=512), []),
        (FLASH_ATTN_4, H100, replace(SHAPE, dtype="bf16", d=256, dv=256), []),
        (FLASH_ATTN_4, H100, replace(SHAPE, dtype="bf16", d=512, dv=512), ["d = 512 > 256 on compute capability 9.0"]),
        (FLASH_ATTN_4, B200, replace(SHAPE, dtype="bf16", d=192, dv=192), ["d = 192 > 128 on compute capability 10.0"]),
        (FLASH_ATTN_4, B200, replace(SHAPE, dtype="bf16", d=192, dv=128), []),
        (
            FLASH_ATTN_4,
            A100,
            replace(SHAPE, dtype="bf16", direction="backward", softcap=2.0),
            ["direction backward on compute capability 8.0 < 9.0", "softcap 2 on compute capability 8.0 < 9.0"],
        ),
    ],
)  # fmt: skip
def test_refusals_carry_both_numbers(backend: Backend, device: Device, case: Case, reasons: list[str]) -> None:
    assert backend.reasons(case, device) == reasons


def test_a_build_without_a_head_dim_refuses_by_raising_not_by_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def trimmed(q, k, v, **options):
        raise ValueError("this build has head dims 64, 128 and 256, got 96")

    fake_libraries.install(monkeypatch, "flash_attn.flash_attn_interface", flash_attn_func=trimmed)
    case = replace(SHAPE, dtype="bf16", d=96, dv=96)
    assert FLASH_ATTN.reasons(case, H100) == []
    with pytest.raises(ValueError, match="head dims 64, 128 and 256"):
        FLASH_ATTN.prepare(case, CPU).call(*tensors(case)[:3])


def forward_only(monkeypatch: pytest.MonkeyPatch, attention: Any) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "flash_attn_interface" else find(name, *a)
    )
    fake_libraries.install(monkeypatch, "fa3_fwd_interface", flash_attn_func=attention)


def test_the_forward_only_wheel_narrows_the_facts_of_flash_attn_3(monkeypatch: pytest.MonkeyPatch) -> None:
    forward_only(monkeypatch, lambda q, k, v, **options: q)
    assert FLASH_ATTN_3.unavailable(H100) is None
    bf16 = replace(SHAPE, dtype="bf16")
    assert FLASH_ATTN_3.reasons(bf16, H100) == []
    assert FLASH_ATTN_3.reasons(replace(bf16, dtype="fp16"), H100) == ["dtype fp16, takes bf16"]
    assert FLASH_ATTN_3.reasons(replace(bf16, window=(3, 3)), H100) == ["window (3, 3)"]
    assert FLASH_ATTN_3.reasons(replace(bf16, direction="backward"), H100) == ["direction backward, takes forward"]


def test_what_a_build_of_flash_attn_3_leaves_out_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(q, k, v, **options):
        raise RuntimeError("This flash attention build does not support FP16.\nException raised from run_mha_fwd")

    forward_only(monkeypatch, without)
    with pytest.raises(NotImplementedError, match=r"^This flash attention build does not support FP16\.$"):
        FLASH_ATTN_3.prepare(SHAPE, CPU).call(*tensors(SHAPE)[:3])


def test_another_error_of_flash_attn_3_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(q, k, v, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    forward_only(monkeypatch, broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        FLASH_ATTN_3.prepare(SHAPE, CPU).call(*tensors(SHAPE)[:3])


def test_old_versions_of_flash_attn_3_always_return_the_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
        return fake_libraries.bottom_right(q, k, v, scale=softmax_scale, causal=causal, window=window_size)

    fake_libraries.install(monkeypatch, "flash_attn_interface", flash_attn_func=old)
    case = replace(SHAPE, dtype="bf16", causal=True)
    check(FLASH_ATTN_3, case)
    check(FLASH_ATTN_3, case, lse=True)


@pytest.mark.parametrize("backend", [FLASH_ATTN, FLASH_ATTN_3, FLASH_ATTN_4], ids=lambda b: b.name)
def test_a_library_that_is_not_there_says_what_to_install(backend: Backend) -> None:
    if backend.unavailable(H200) is None:
        pytest.skip("it is installed here")
    reason = backend.unavailable(H200)
    assert reason is not None
    assert re.match(r"cannot import .*: ModuleNotFoundError: No module named .*; install it with `pip install ", reason)
    assert backend.unavailable(CPU) == "device cpu, takes cuda"


def test_flash_attn_4_alone_does_not_make_flash_attn_2_available(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = fake_libraries.install(monkeypatch, "flash_attn")
    namespace.__path__ = []
    reason = FLASH_ATTN.unavailable(H200)
    assert reason is not None
    assert "cannot import flash_attn.flash_attn_interface" in reason


def test_the_old_cute_folder_of_flash_attn_2_is_not_flash_attn_4(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_libraries.install(monkeypatch, "flash_attn.cute")
    assert FLASH_ATTN_4.unavailable(H200) == (
        "flash_attn.cute here is not of flash-attn-4; install it with `pip install 'fabench[fa4]'`"
    )


def test_flash_attn_4_compiles_in_prepare(calls: list[dict[str, Any]]) -> None:
    FLASH_ATTN_4.prepare(replace(SHAPE, dtype="bf16", direction="backward"), CPU)
    assert len(calls) == 1
    assert calls[0]["q"].requires_grad
    assert calls[0]["q"].dtype == torch.bfloat16

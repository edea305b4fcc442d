"""What the Triton backend says of its tiles is what it launches first, and what it compiles to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench.gpus import named, slugs
from fabench_backends.triton_flash import kernel_stats, triton
from fabench_backends.triton_flash.configs import candidates
from plain_attention import tensors

AMPERE = Device("cuda", "a card", capability=(8, 0), sms=108)
"""The architecture whose list a CPU takes."""
H200 = named("nvidia-h200")
SQUARE = Case(batch=2, heads=4, kv_heads=2, Nq=300, Nk=200, d=64, direction="forward_backward")


@pytest.mark.parametrize(
    "case", [SQUARE, replace(SQUARE, d=40, dv=72, causal=True), replace(SQUARE, dtype="fp32", Nq=1)], ids=str
)
def test_the_grids_said_are_the_grids_launched(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabench.attention_op import layout
    from fabench_backends.triton_flash.checks import Band
    from fabench_backends.triton_flash.launch import Launch, Plan

    launched = {}

    def note(launch: Launch, tensors: Any) -> None:
        launched[launch.function.__name__] = (launch.config, launch.grid[0])

    monkeypatch.setattr(Launch, "__call__", note)
    q, k, v, *_ = tensors(case)
    plan = Plan(layout(q), layout(k), layout(v), Band(0, -1, 0 if case.causal else -1), 0.125, 0.0)
    o, lse = plan.forward(q, k, v)
    plan.backward(q, k, v, o, lse, o, None)

    tiling = triton.tiling(case, AMPERE)
    assert tiling is not None
    assert {launch.kernel for launch in tiling.launches} == launched.keys()
    for launch in tiling.launches:
        config, programs = launched[launch.kernel]
        assert launch.ctas == programs
        assert (launch.tile.Br, launch.tile.Bc) == (config.BLOCK_M, config.BLOCK_N)
        assert (launch.tile.threads, launch.tile.stages) == (32 * config.num_warps, config.num_stages)


@pytest.mark.parametrize(("kernel", "direction"), [("forward", "forward"), ("backward_dq", "backward"),
                                                   ("backward_dkdv", "backward")])  # fmt: skip
def test_shared_memory_is_what_the_compiler_lays_out(kernel: Any, direction: Any) -> None:
    tiling = triton.tiling(replace(SQUARE, d=128, dv=128, direction=direction), H200.device)
    assert tiling is not None
    (launch,) = [found for found in tiling.launches if found.kernel == f"triton_flash_{kernel}"]
    config = candidates(kernel, 90, 128, 2)[0]
    found = kernel_stats("sm_90", f"triton {kernel} bf16 d128 full {config.label}")
    assert 0 <= found["shared_bytes"] - launch.tile.shared_bytes <= 2048
    assert launch.tile.accumulator_registers <= found["registers"]


@pytest.mark.parametrize("slug", slugs())
def test_every_tile_fits_the_cards_of_the_table(slug: str) -> None:
    card = named(slug)
    for d in (16, 32, 64, 128, 256):
        for dtype in ("bf16", "fp32"):
            case = replace(SQUARE, d=d, dv=d, dtype=dtype)
            if not triton.reasons(case, card.device) and (tiling := triton.tiling(case, card.device)):
                for launch in tiling.launches:
                    assert card.shared_per_cta is not None
                    assert launch.tile.reasons(card.shared_per_cta) == []


def test_a_card_of_another_maker_and_an_empty_problem_get_no_tiling() -> None:
    assert triton.tiling(SQUARE, named("mi300x").device) is None
    assert triton.tiling(replace(SQUARE, Nq=0), H200.device) is None


def test_it_says_more_than_a_plain_backend() -> None:
    assert Backend().tiling(SQUARE, H200.device) is None

"""What cuda-v1 and cuda-v2 say of their tiles is what they launch and what they compile to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cuda_emulator import ARCH, SMS, EmulatedKernel, emulated
from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench.gpus import named
from fabench.tiling import Tiling
from fabench_backends.cuda_flash import configs, cuda_v1, cuda_v2, cuda_v2_deterministic
from fabench_backends.cuda_flash.build import architecture, build
from plain_attention import tensors

__all__ = ["emulated"]

CARD = Device("cuda", "a card of the emulator's size", capability=(9, 0), sms=SMS)
H200 = named("nvidia-h200").device
SQUARE = Case(batch=2, heads=4, kv_heads=2, Nq=300, Nk=300, d=64, direction="forward_backward")
CASES = {
    "square": SQUARE,
    "causal": replace(SQUARE, causal=True),
    "d 128": replace(SQUARE, d=128, dv=128),
    "padded d": replace(SQUARE, d=40, dv=72),
    "one head": replace(SQUARE, batch=1, heads=1, kv_heads=1, Nq=5, Nk=1500),
    "one query": replace(SQUARE, batch=1, heads=2, kv_heads=2, Nq=1, Nk=1000, direction="forward"),
}


def said(backend: Backend, case: Case, device: Device) -> Tiling:
    tiling = backend.tiling(case, device)
    assert tiling is not None
    return tiling


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_the_grids_said_are_the_grids_launched(
    backend: Backend, name: str, emulated: type[EmulatedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: dict[str, tuple[int, configs.Config]] = {}

    def note(self: EmulatedKernel, grid: tuple[int, int, int], params: Any) -> None:
        launched[self.config.kernel] = (grid[0] * grid[1] * grid[2], self.config)

    monkeypatch.setattr(EmulatedKernel, "__call__", note)
    case = CASES[name]
    leaves = [t.requires_grad_(case.has_backward) for t in tensors(case)[:3]]
    O = backend.prepare(case, CARD).call(*leaves)
    assert isinstance(O, torch.Tensor)
    if case.has_backward:
        torch.autograd.grad(O, leaves, torch.zeros_like(O))

    tiled = {kernel: found for kernel, found in launched.items() if kernel in configs.TILES}
    told = {launch.kernel: launch for launch in said(backend, case, CARD).launches}
    assert told.keys() == tiled.keys()
    for kernel, (ctas, config) in tiled.items():
        assert told[kernel].ctas == ctas, kernel
        assert told[kernel].tile.shared_bytes == config.smem_bytes
        assert told[kernel].tile.threads == config.tile.threads
    merged = any(step.name == "splits merged" for step in said(backend, case, CARD).steps)
    assert merged == ("flash_fwd_combine" in launched)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("backend", [cuda_v1, cuda_v2], ids=lambda b: b.name)
def test_as_many_ctas_fit_an_sm_as_is_said(backend: Backend, direction: str, d: int) -> None:
    """By the registers and the shared memory that the compiler reports, on an H200."""
    case = Case(batch=1, heads=16, Nq=4096, Nk=4096, d=d, direction=direction)  # type: ignore[arg-type]
    (launch,) = said(backend, case, H200).launches
    config = configs.config(launch.kernel, d, case.dtype, "none", ARCH)
    stats = build(config, ARCH).stats

    registers = -(-stats.registers // 8) * 8 * launch.tile.threads
    fitting = min(65536 // registers, 228 * 1024 // (stats.smem_bytes + 1024))
    assert launch.ctas_per_sm == fitting
    assert 0 <= stats.smem_bytes - launch.tile.shared_bytes <= 128
    assert launch.tile.accumulator_registers <= stats.registers


@pytest.mark.parametrize("slug", ["a100-40gb", "a100-80gb", "nvidia-h100-sxm", "nvidia-h200", "nvidia-b200", "rtx-4090",
                                  "nvidia-l40s"])  # fmt: skip
def test_every_tile_fits_the_cards_of_the_table(slug: str) -> None:
    card = named(slug)
    for d in (32, 64, 96, 128, 192, 256):
        case = Case(batch=1, heads=16, Nq=4096, Nk=4096, d=d, direction="forward_backward")
        for backend in (cuda_v1, cuda_v2):
            if not backend.reasons(case, card.device):
                for launch in said(backend, case, card.device).launches:
                    assert card.shared_per_cta is not None
                    assert launch.tile.reasons(card.shared_per_cta) == []


def test_a_card_of_another_maker_gets_no_tiling() -> None:
    assert cuda_v2.tiling(SQUARE, named("mi300x").device) is None
    assert architecture((9, 0)) == ARCH


def test_the_deterministic_form_repeats_nothing() -> None:
    assert cuda_v2_deterministic.tiling(SQUARE, H200) is None


def test_nothing_is_said_of_an_empty_problem() -> None:
    assert cuda_v2.tiling(replace(SQUARE, Nk=0), H200) is None

"""Declared configurations compile for their architectures without a GPU, and fit them."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from fabench_backends.triton_flash import kernel_names, kernel_stats


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_90a", "triton forward bf16 d128 causal 128x64 w4 s2 tma pointers"),
        ("sm_90", "triton backward_dkdv bf16 d128 full 64x64 w4 s2 tma"),
        ("sm_80", "triton backward_dq bf16 d64 causal 128x64 w8 s2"),
        ("sm_89", "triton forward fp32 d128 full 64x32 w8 s1"),
    ],
)
def test_a_configuration_compiles_and_fits(arch: str, name: str) -> None:
    row = kernel_stats(arch, name)
    assert row["name"] == name
    assert 0 < row["registers"] <= 255
    assert 0 < row["shared_bytes"] <= row["shared_limit"]
    # The pointers of a configuration for the copy engine are its fallback for odd strides: they may spill more.
    assert row["spills"] <= row["spill_limit"] == (640 if name.endswith("pointers") else 384)


def test_each_configuration_has_one_name_and_those_for_the_copy_engine_a_fallback() -> None:
    names = kernel_names("sm_90a")
    assert len(set(names)) == len(names)
    assert {f"{name} pointers" for name in names if name.endswith("tma")} <= set(names)
    assert not any("tma" in name for name in kernel_names("sm_80"))


def test_fresh_compiles_again_and_says_how_long_it_took() -> None:
    name = "triton forward fp32 d16 full 64x32 w8 s1"
    assert kernel_stats("sm_80", name)["seconds"] is None
    assert kernel_stats("sm_80", name, fresh=True)["seconds"] > 0.05


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="'arch' must be sm_80 or above, such as sm_90, got 'sm_75'"):
        kernel_names("sm_75")

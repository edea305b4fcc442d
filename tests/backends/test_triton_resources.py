"""Declared configurations compile for their architectures without a GPU, and fit them."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from fabench_backends.triton_flash import stats


@pytest.mark.parametrize(
    ("arch", "only"),
    [
        ("sm_90a", "forward bf16 d128 causal 128x64 w4 s2 tma pointers"),
        ("sm_90", "backward_dkdv bf16 d128 full 64x64 w4 s2 tma"),
        ("sm_80", "backward_dq bf16 d64 causal 128x64 w8 s2"),
        ("sm_89", "forward fp32 d128 full"),
    ],
)
def test_a_configuration_compiles_and_fits(arch: str, only: str) -> None:
    rows = stats(arch, only)
    assert rows, f"no configuration is named {only}"
    for row in rows:
        assert 0 < row["registers"] <= 255
        assert 0 < row["shared_bytes"] <= row["shared_limit"], row
        # The pointers of a configuration declared for the copy engine are its fallback for odd strides: they may spill.
        assert row["spills"] <= 256 or row["name"].endswith("pointers"), row


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_every_configuration_fits_its_architecture(arch: str) -> None:
    for row in stats(arch):
        assert row["shared_bytes"] <= row["shared_limit"], row


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="'arch' must be sm_80 or above, such as sm_90, got 'sm_75'"):
        stats("sm_75")

"""Bad input to the Triton kernels is a ValueError that names both numbers, before any launch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fabench.case import Mask

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fabench.attention_op import layout  # noqa: E402
from fabench_backends.triton_flash.checks import (  # noqa: E402
    MAX_N,
    Band,
    band,
    check_device,
    check_tensors,
    factors,
)


def tensors(
    q: tuple[int, ...] = (2, 8, 10, 64), k: tuple[int, ...] = (2, 4, 12, 64), v: tuple[int, ...] = (2, 4, 12, 64)
) -> list[Any]:
    return [torch.zeros(shape, dtype=torch.float16) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (tensors(q=(2, 8, 10, 60), k=(2, 4, 12, 60)), "multiple of 8 up to 256, got 60"),
        (tensors(q=(2, 8, 10, 264), k=(2, 4, 12, 264)), "multiple of 8 up to 256, got 264"),
        (tensors(v=(2, 4, 12, 4)), "head dim of 'v' must be a multiple of 8 up to 256, got 4"),
        (tensors(q=(2, 8, 10, 32)), "q and k must have one head dim, got 32 and 64"),
        (tensors(v=(2, 4, 13, 64)), r"k and v must agree but in d, got \[2, 4, 12, 64\] and \[2, 4, 13, 64\]"),
        (tensors(q=(3, 8, 10, 64)), "one batch size, got 3 and 2"),
        (tensors(q=(2, 6, 10, 64)), "multiple of the heads of k, got 6 and 4"),
        (tensors(q=(8, 10, 64)), r"'q' must have 4 dimensions \[batch, heads, N, d\], got 3"),
        ([t.double() for t in tensors()], "must be fp16, bf16 or fp32 like q, got torch.float64"),
        ([*tensors()[:2], tensors()[2].float()], "'v' must be .* got torch.float32 and q torch.float16"),
        ([tensors()[0].transpose(2, 3).contiguous().transpose(2, 3), *tensors()[1:]], "stride 1 .* got 10"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(bad: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_tensors(*map(layout, bad))


def test_a_device_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be on a CUDA device .* got cpu"):
        check_device(layout(tensors()[0]), 64)


def test_tensors_on_two_devices_are_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(ValueError, match="'k' must be on the device of q, got meta and q cpu"):
        check_tensors(*map(layout, (q, k.to("meta"), v)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10, 12, False, None, "bottom_right"), Band(2, -1, -1)),
        ((10, 12, True, None, "bottom_right"), Band(2, -1, 0)),
        ((10, 12, True, None, "top_left"), Band(0, -1, 0)),
        ((10, 12, True, (3, 7), "bottom_right"), Band(2, 3, 0)),
        ((10, 12, False, (10, 8), "bottom_right"), Band(2, 10, 8)),
        ((10, 12, False, (11, 2**40), "bottom_right"), Band(2, -1, -1)),
        ((10, 12, False, (8, 9), "bottom_right"), Band(2, 8, -1)),
        ((10, 12, False, (8, 10), "top_left"), Band(0, 8, 10)),
        ((10, 12, False, (9, 11), "top_left"), Band(0, -1, -1)),
    ],
)
def test_a_mask_becomes_a_band(arguments: tuple[Any, ...], expected: Band) -> None:
    assert band(*arguments) == expected


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
def test_a_band_is_the_mask_of_a_case_and_its_int32_sums_do_not_overflow(alignment: Any) -> None:
    """Every window of small problems; and the largest that is not unlimited, of the longest sequences."""
    for Nq, Nk, left, right in itertools.product(range(1, 5), range(1, 5), range(-1, 7), range(-1, 7)):
        offset, *sides = band(Nq, Nk, False, (left, right), alignment)
        mask = Mask(Nq, Nk, False, alignment, (left, right))
        for i in range(Nq):
            first, end = (
                (0 if sides[0] < 0 else i + offset - sides[0]),
                (Nk if sides[1] < 0 else i + offset + sides[1] + 1),
            )
            assert [j for j in range(Nk) if first <= j < end] == list(mask.keys(i))
    longest = MAX_N - 1
    for Nq, Nk in itertools.product((1, longest), repeat=2):
        for left, right in itertools.product((0, Nq - 2, Nk - 2, Nq + Nk, 2**40), repeat=2):
            found = band(Nq, Nk, False, (max(left, 0), max(right, 0)), alignment)
            sums = (
                Nq + found.offset + found.right,
                Nk - found.offset + found.left,
                Nk - found.offset,
                Nq + found.offset,
            )
            assert max(map(abs, sums)) < 2**31


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 12, False, (-2, 0), "bottom_right"), r"'window' .* got \(-2, 0\)"),
        ((10, 12, True, None, "centre"), "'alignment' must be bottom_right or top_left, got 'centre'"),
    ],
)
def test_a_mask_that_is_none_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        band(*arguments)


@pytest.mark.parametrize(
    ("scale", "softcap"), [(0.3, 0.0), (-0.3, 0.0), (0.0, 0.0), (1e-50, 0.0), (0.3, 5.0), (-0.3, 5.0)]
)
def test_the_exponent_factor_is_never_negative_and_the_product_is_the_score(scale: float, softcap: float) -> None:
    import math

    found, raw = factors(scale, softcap), 7.0
    assert found.exp2_scale > 0
    inner = math.tanh(raw * found.score_scale) if found.softcap else raw * found.score_scale
    wanted = softcap * math.tanh(scale * raw / softcap) if softcap else scale * raw
    assert inner * found.exp2_scale == pytest.approx(wanted * math.log2(math.e))

"""The usual error metrics, shown beside the verdict so that papers can be compared. None of them decides anything."""

from __future__ import annotations

import math

import numpy as np
import torch

from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.records import TensorError

MOST_FOR_QUANTILES = 1 << 20


def describe(case: Case, got: torch.Tensor, exact: torch.Tensor, yardstick: float | None) -> TensorError:
    """Metrics of fp64 `got` against fp64 `exact`, over the elements finite in both.

    `yardstick` is max |error| of plain low-precision math: `two_x` is max |error| over twice that, and the tests of
    flash-attention (tests/test_flash_attn.py) ask that it be at most 1.
    """
    both = torch.isfinite(got) & torch.isfinite(exact)
    whole = bool(both.all())
    g, e = (got.flatten(), exact.flatten()) if whole else (got[both], exact[both])
    if g.numel() == 0:
        return TensorError()
    difference = g - e
    max_abs = float(difference.abs().max())
    norm_e, norm_g, norm = float(e.norm()), float(g.norm()), float(difference.norm())
    ulps = (difference.abs() / _ulp(e, case.dtype)).flatten()
    if ulps.numel() > MOST_FOR_QUANTILES:
        ulps_sample = ulps[:: math.ceil(ulps.numel() / MOST_FOR_QUANTILES)]
    else:
        ulps_sample = ulps
    p50, p999 = _quantiles(ulps_sample, (0.5, 0.999))
    values = {
        "max_abs": max_abs,
        "rmse": norm / math.sqrt(g.numel()),
        "relative_frobenius": norm / norm_e if norm_e else None,
        "cosine": float(g @ e) / (norm_g * norm_e) if norm_g * norm_e else None,
        "bias": float(difference.mean()),
        "ulp_p50": p50,
        "ulp_p999": p999,
        "ulp_max": float(ulps.max()),
        "two_x": max_abs / (2 * yardstick) if yardstick else None,
    }
    return TensorError(**{k: v if v is not None and math.isfinite(v) else None for k, v in values.items()})


def _ulp(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Spacing of the dtype's numbers at |x|: 2u·2^floor(log2 |x|), never below the smallest subnormal."""
    info = torch.finfo(getattr(torch, DTYPES[dtype].torch_name))
    exponent = torch.frexp(x.abs().clamp(min=info.smallest_normal)).exponent - 1
    return torch.ldexp(torch.full_like(x, 2 * DTYPES[dtype].unit), exponent)


def _quantiles(x: torch.Tensor, at: tuple[float, ...]) -> list[float]:
    """As torch.quantile has them; on a CPU without sorting it all, which took as long as the rest of a verdict."""
    values: list[float] = (
        np.quantile(x.numpy(), at) if x.device.type == "cpu" else torch.quantile(x, x.new_tensor(at))
    ).tolist()
    return values

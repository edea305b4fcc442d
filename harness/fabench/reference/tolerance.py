"""How far a kernel may be off the exact values: N_r of the rule, from what the passes have summed (docs/parity.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from fabench.names import Accuracy
from fabench.reference.result import Expected
from fabench.reference.rounding import EXACT, Model

FP32_UNIT = 2.0**-24
"""A sum of n terms in fp32 wanders by sqrt(n) times this; one of n equal terms drifts by up to n / 2 times it."""
FP32_SCORE_ERROR = 8 * FP32_UNIT
"""gS: error of one fp32 score, relative to |q||k|."""
EXP_FLUSH = 2.0**-126
"""Where the exp of a kernel flushes to zero, whatever the dtype: P lacks as much, and dS |dP - delta| times that."""
LSE_ROUNDING = 2.0**-20
SLOPE_ERROR = 4 * FP32_UNIT
"""Of the softcap's slope 1 - tanh² in fp32, which has no digits left where tanh is near 1."""


def expected(
    models: Sequence[Model],
    values: dict[Model, torch.Tensor],
    squares: torch.Tensor,
    weighted: torch.Tensor,
    count: torch.Tensor,
    noise: torch.Tensor,
    heads: tuple[int, int],
    rows: torch.Tensor | None,
    delta_error: torch.Tensor | float = 0.0,
    slope: torch.Tensor | float = 0.0,
    late: Mapping[Model, torch.Tensor] = MappingProxyType({}),
    copies: float = 1.0,
) -> Expected:
    """N_r = |T^m - T*| + u/2 |T*| + u/4 A + u/2 delta's error + fp32 sums + noise, a row; 0 for contract zeros.

    Class B adds u/2 (Σ P²S²|V|²)^½ (`weighted`), for its scores are off by u|S|, and u (Σ W²K²)^½ without the
    softcap's slope (`slope`), for that is off by 2u: one emulated draw of either may be small by chance. `late` is
    |T^m - T*| of an O whose P is rounded after the division. `squares` is A² by channel; `count` how many terms the
    row sums, 0 making it a contract zero; `noise` the underflow and what fp32 scores and LSE are off by; `copies` how
    often a term occurs at most, which A² counts as often.
    """
    exact = values[EXACT]
    length, A, empty = exact.norm(dim=-1), length_of(squares), count == 0
    alike = copies**0.5 * length.square() / torch.where(A > 0, A, 1.0)  # sqrt(n) |T*| if all terms are equal
    drift = length + torch.minimum(alike, count.sqrt() * length) / 8
    noise = noise + FP32_UNIT * count.sqrt() * drift + SLOPE_ERROR * slope
    tolerance: dict[Accuracy, torch.Tensor] = {}
    errors: dict[Accuracy, float] = {}
    for m in models:
        difference = values[m] - exact
        emulated = torch.maximum(difference.norm(dim=-1), late[m]) if m in late else difference.norm(dim=-1)
        N = emulated + m.unit / 2 * (length + delta_error) + m.unit / 4 * A + noise
        assert m.accuracy is not None
        if m.accuracy == "B":
            N = N + m.unit / 2 * weighted + m.unit * slope
        tolerance[m.accuracy] = torch.where(empty, 0.0, N).view(*heads, -1)
        errors[m.accuracy] = float(difference.abs().max()) if difference.numel() else 0.0
    even = exact.shape[-1] ** -0.5
    share = squares.sqrt_().div_(torch.where(A > 0, A, 1.0)[..., None]).clamp_(min=even)
    return Expected(
        exact.view(*heads, -1, exact.shape[-1]),
        tolerance,
        empty.reshape(*heads, -1),
        share.to(torch.float32).view(*heads, -1, exact.shape[-1]),
        errors,
        None if rows is None else rows.view(*heads, -1),
    )


def norm_of(x: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of the last dim, in fp64."""
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
    return norm


def longest_of(x: torch.Tensor) -> torch.Tensor:
    """Norm of the longest row of each head [heads]; 0 where there is none."""
    return (
        torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).amax(-1)
        if x.shape[1]
        else x.new_zeros(x.shape[0], dtype=torch.float64)
    )


def length_of(squares: torch.Tensor) -> torch.Tensor:
    """Norm of rows given by the squares of their elements."""
    return squares.sum(-1).sqrt()

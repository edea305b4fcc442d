"""Where in an output the error lies, in words: which heads, rows, channels; and what the wrong values look like."""

from __future__ import annotations

import torch

from fabench.reference import Expected

TILES = (64, 128)
MOST_LISTED = 6
MOST_CHANNELS = 0.75
"""Where more of the channels than this are wrong, they are no mark of the error."""


def bad_rows(
    expected: Expected, got: torch.Tensor, tolerance: torch.Tensor, limits: tuple[float, float]
) -> torch.Tensor:
    """Rows further off than a right kernel's: above the first of `thresholds.row_limits` if any is, else the second."""
    rho = row_rho(got, expected.value, tolerance)
    most, together = limits
    return rho > (most if rho.numel() and float(rho.max()) > most else together)


def row_rho(got: torch.Tensor, right: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    """|got - right| / tolerance a row; NaN and inf in the same places count as equal, elsewhere as infinite."""
    same = (got == right) | (torch.isnan(got) & torch.isnan(right))
    difference = torch.where(same, 0.0, got - right)
    error = difference.norm(dim=-1) if got.dim() == 4 else difference.abs()
    rho = torch.where(error == 0, 0.0, error / tolerance)
    return torch.where(torch.isnan(rho), torch.inf, rho)


def place(bad: torch.Tensor, what: str = "row") -> str:
    """Which of [batch, heads, rows] are True: 'rows >= 128 of heads 1, 3'."""
    parts = [_span(bad.flatten(0, 1).any(0), what)]
    heads, batch = bad.any(2).any(0), bad.any(2).any(1)
    if not bool(heads.all()):
        parts.append("of " + _span(heads, "head"))
    if not bool(batch.all()):
        parts.append("of " + _span(batch, "batch entry", "batch entries"))
    return " ".join(parts)


def _span(mask: torch.Tensor, one: str, many: str = "") -> str:
    many = many or one + "s"
    index = mask.nonzero().flatten().tolist()
    n = len(mask)
    if len(index) == n:
        return f"every {one}"
    if len(index) == 1:
        return f"{one} {index[0]}"
    first, last = index[0], index[-1]
    if last - first + 1 == len(index):
        if last == n - 1:
            return f"{many} >= {first}"
        return f"{many} <= {last}" if first == 0 else f"{many} {first} to {last}"
    if len(index) <= MOST_LISTED:
        return f"{many} {', '.join(map(str, index))}"
    return f"{len(index)} of {n} {many}, from {first} to {last}"


def tiles(row: int) -> str:
    """The coordinates of a row in the usual tiles."""
    return ", ".join(f"tile {row // t} of {t} (row {row % t} in it)" for t in TILES)


def looks(got: torch.Tensor, right: torch.Tensor, bad: torch.Tensor) -> list[str]:
    """What stands out in the wrong rows: zeros, one constant, NaN, a ratio, few channels, few elements."""
    g, r = got[bad], right[bad]
    if g.numel() == 0 or g.dim() < 2:
        return []
    found = []
    nan = torch.isnan(g)
    if bool(nan.any()):
        found.append("NaN throughout" if bool(nan.all()) else f"NaN in {int(nan.sum())} of {nan.numel()} elements")
    elif not bool(g.any()):
        found.append("0 throughout")
    elif bool((g == g.flatten()[0]).all()):
        found.append(f"the constant {float(g.flatten()[0]):.4g}")
    else:
        found += _ratio(g, r)
    found += _channels(g, r)
    return found


def _ratio(g: torch.Tensor, r: torch.Tensor) -> list[str]:
    """'1.1 times the right value' if the elements that are off are that, and agree on it much better than on 1."""
    large = r.abs() > 0.25 * r.abs().mean()
    off = large & ((g - r).abs() > 0.02 * r.abs())
    for chosen in (off, large):
        if int(chosen.sum()) < 8:
            continue
        ratios = g[chosen] / r[chosen]
        middle = float(ratios.median())
        spread = float((ratios - middle).abs().median())
        if spread < 0.02 * abs(middle) and abs(middle - 1.0) > 3 * spread + 1e-3:
            return [f"{middle:.4g} times the right value"]
    return []


def _channels(g: torch.Tensor, r: torch.Tensor) -> list[str]:
    """Which channels carry the error, if not all do."""
    error = (g - r).abs().nan_to_num(nan=torch.inf)
    scale = r.abs().mean().clamp(min=1e-300)
    off = error > torch.maximum(0.03 * r.abs(), 0.03 * scale)
    some, share = off.any(0), float(off.double().mean())
    if not bool(some.any()):
        return []
    if float(some.double().mean()) <= MOST_CHANNELS:
        return ["wrong in " + _span(some, "channel")]
    return [f"wrong in scattered elements, {share:.1%} of them"] if share < 0.2 else []

"""Maps of where an output is wrong: rows x channels (or queries x keys), pooled to a few cells; text and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHADES = " .:-=+*#%@"
ROWS, COLUMNS = 24, 48
BINS = 12
LARGEST = 1e30
"""What stands for NaN and infinity."""
BRIGHTEST = 1e4
"""The image's scale ends here: how much larger an error is says nothing more."""


def pooled(values: Any, rows: int = ROWS, columns: int = COLUMNS) -> list[list[float]]:
    """The largest of each cell of a torch matrix, in at most rows x columns cells."""
    import torch

    n, m = values.shape
    if not n or not m:
        return []
    grid = values.double().nan_to_num(nan=LARGEST, posinf=LARGEST).clamp(max=LARGEST)[None, None]
    small = torch.nn.functional.adaptive_max_pool2d(grid, (min(rows, n), min(columns, m)))
    cells: list[list[float]] = small[0, 0].tolist()
    return cells


def row_bins(rho: Any) -> list[list[float]]:
    """[first row, last row, largest rho] of about a dozen blocks of rows, over all heads."""
    worst = rho.flatten(0, 1).amax(0)
    n = len(worst)
    width = max(1, -(-n // BINS))
    return [[i, min(i + width, n) - 1, min(float(worst[i : i + width].max()), LARGEST)] for i in range(0, n, width)]


def text(heat: dict[str, Any]) -> str:
    """The map as characters: blank is what rounding explains (rho 1), @ is 100 times that or more."""
    import math

    def shade(value: float) -> str:
        if value <= 1.0:
            return SHADES[0]
        return SHADES[min(len(SHADES) - 1, 1 + int(math.log10(value) * (len(SHADES) - 2) / 2))]

    cells: Sequence[Sequence[float]] = heat["cells"]
    height = heat["rows"] / max(1, len(cells))
    lines = [f"{heat['title']}  (blank: what rounding explains; @: 100 times that)"]
    for i, row in enumerate(cells):
        lines.append(f"{int(i * height):>7} |{''.join(map(shade, row))}|")
    lines.append(f"{'':>8} 0{'':<{max(0, len(cells[0]) - 2) if cells else 0}}{heat['columns'] - 1}")
    return "\n".join(lines)


def png(heat: dict[str, Any], path: Path) -> None:
    """The map as an image, error on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm

    figure, axes = pyplot.subplots(figsize=(8, 5))
    cells = [[min(max(v, 1e-3), BRIGHTEST) for v in row] for row in heat["cells"]]
    image = axes.imshow(
        cells,
        aspect="auto",
        norm=LogNorm(vmin=0.1, vmax=BRIGHTEST),
        extent=(0.0, float(heat["columns"]), float(heat["rows"]), 0.0),
        cmap="inferno",
    )
    axes.set_xlabel(heat["across"])
    axes.set_ylabel(heat["down"])
    axes.set_title(heat["title"])
    figure.colorbar(image, label="error / what rounding explains", extend="max")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

"""Speed-up over the baseline as a heat map: problems down, backends across, words where there is no number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabench.names import SKIPPED
from fabench.views.axes import axis_text, key_of, shape_of, sort_key, varies
from fabench.views.outcomes import Outcome
from fabench.views.plots.panel import ALL, Panel
from fabench.views.plots.style import Theme, length_text
from fabench.views.values import VALUES, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

SPREAD = 4.0
"""Speed-ups of this and of its inverse have the deepest colours."""


def panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """A panel for each device and file in which some backend is compared with a baseline.

    A backend that was skipped everywhere has no column, a problem that was launched on no backend no row.
    """
    found = []
    for place, group in _places(outcomes):
        if not _compared(group):
            continue
        baseline = next(o.baseline.backend for o in group if o.baseline)
        title = ", ".join([*place, f"over {baseline}"])
        launched = [outcome for outcome in group if outcome.status not in SKIPPED]
        rows, columns = {o.case for o in launched}, list(dict.fromkeys(o.backend for o in launched))
        draw = partial(_draw, outcomes=[o for o in group if o.case in rows], columns=columns)
        found.append(Panel(title, draw, width=2.2 + 0.85 * len(columns), height=1.5 + 0.24 * len(rows)))
    return found


def left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """The devices and files that have speeds and nothing to compare them with."""
    groups = _places(outcomes)
    return [
        ", ".join(place) or ALL
        for place, group in groups
        if any(outcome.time_ns for outcome in group) and not _compared(group)
    ]


def _places(outcomes: Sequence[Outcome]) -> list[tuple[list[str], list[Outcome]]]:
    """(words that tell it from the others, outcomes) of each device and file that was measured."""
    ours = [outcome for outcome in outcomes if outcome.ours]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in ours:
        groups.setdefault((outcome.device, outcome.file), []).append(outcome)
    by_file = len(groups) > len({device for device, _ in groups})
    return [
        ([*([device] if varies("device", ours) else []), *([file] if by_file else [])], group)
        for (device, file), group in groups.items()
    ]


def _compared(group: Sequence[Outcome]) -> bool:
    return any(VALUES["speedup"].of(outcome) for outcome in group)


def _draw(axes: Axes, theme: Theme, *, outcomes: list[Outcome], columns: list[str]) -> None:
    from matplotlib import colormaps

    names = shape_of(outcomes).varying
    keys = sorted({key_of(outcome, names) for outcome in outcomes}, key=sort_key)
    cells = {(key_of(outcome, names), outcome.backend): outcome for outcome in outcomes}
    shades = colormaps["RdBu"]
    for y, key in enumerate(keys):
        for x, backend in enumerate(columns):
            outcome = cells.get((key, backend))
            value = VALUES["speedup"].of(outcome) if outcome else None
            if value:
                shade = 0.5 + 0.4 * max(-1.0, min(1.0, math.log(value) / math.log(SPREAD)))
                axes.add_patch(_square(x, y, shades(shade)))
                ink = "#111111" if 0.2 < shade < 0.8 else "#ffffff"
                axes.text(x, y, _factor(value), ha="center", va="center", fontsize=7, color=ink)
            else:
                text = "" if outcome is None else outcome.status if outcome.status != "ok" else "-"
                axes.text(x, y, text.replace("_", "\n"), ha="center", va="center", fontsize=5.5, color=theme.faint)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(keys) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right")
    axes.set_yticks(range(len(keys)), [_row_text(names, key) for key in keys])
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _factor(value: float) -> str:
    """1.43, and of a backend far behind 0.0035: none is so slow as to be 0.00 times as fast."""
    return f"{value:.2f}" if value >= 0.1 else significant(value, 2)


def _square(x: int, y: int, shade: tuple[float, float, float, float]) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=shade, edgecolor="none")


def _row_text(names: Sequence[str], key: Sequence[object]) -> str:
    words = []
    for name, value in zip(names, key, strict=True):
        if name == "causal":
            words.append("causal" if value else "full")
        else:
            text = length_text(value) if name in ("N", "Nq", "Nk") and isinstance(value, int) else axis_text(value)
            words.append(text if name in ("direction", "dtype") else f"{name} {text}")
    return " ".join(words) or "all"

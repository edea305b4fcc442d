"""The accuracy league: every row's largest rho and RMSE, a line a backend, the best on top."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabench.parity.thresholds import MAX_RHO, RIGHT
from fabench.views.outcomes import Outcome
from fabench.views.plots.panel import Names, Panel, names_of
from fabench.views.plots.style import Theme, colour
from fabench.views.values import VALUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RHO_TITLE = "largest rho"
LEAST = 1e-12
"""An error of 0 is drawn here: a logarithmic axis has no 0."""
SHORT = 50
"""An axis whose ends differ by less than this factor has ticks between the powers of ten."""


def panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """One panel for rho, one for RMSE, of each device; none of a number that no row has."""
    names = names_of(outcomes)
    devices: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        devices.setdefault(outcome.device, []).append(outcome)
    found = []
    for device, group in devices.items():
        for name, title in (("rho", RHO_TITLE), ("rmse", "RMSE against float64")):
            league = _league(names.lines(group), name)
            if league:
                height, whole = 1.1 + 0.3 * len(league), f"{device}, {title}" if len(devices) > 1 else title
                limit = MAX_RHO if name == "rho" else None
                draw = partial(_draw, league=league, names=names, limit=limit)
                found.append(Panel(whole, draw, height=max(2.2, height)))
    return found


def _league(lines: dict[str, list[Outcome]], name: str) -> dict[str, list[float]]:
    """Label -> the numbers of its rows, the smallest worst first."""
    found = {
        label: [max(value, LEAST) for o in group if (value := VALUES[name].of(o)) is not None]
        for label, group in lines.items()
    }
    return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: max(item[1])))


def _draw(axes: Axes, theme: Theme, *, league: dict[str, list[float]], names: Names, limit: float | None) -> None:
    for place, (label, values) in enumerate(league.items()):
        worst = max(values)
        axes.plot(
            values, [place] * len(values), linestyle="none", marker="|", color=colour(names.index[label]), alpha=0.7
        )
        axes.plot([worst], [place], marker="o", color=colour(names.index[label]))
        axes.annotate(
            f"{worst:.2g}", (worst, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=7,
            bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_yticks(range(len(league)), [f"{label}, n = {len(values)}" for label, values in league.items()])
    axes.set_ylim(len(league) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if limit is not None:
        axes.axvline(limit, color=theme.ink, linewidth=1, linestyle="--")
        axes.set_xlabel(RIGHT, fontsize=7)
    _ticks(axes)


def _ticks(axes: Axes) -> None:
    """A tick a power of ten, and at 2 and 5 times it on an axis too short for several; the others have no label."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < SHORT * low else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())

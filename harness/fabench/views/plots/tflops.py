"""TFLOP/s against N, a panel for each head dim, mask, dtype and direction, a line a backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabench.names import SKIPPED
from fabench.views.outcomes import Outcome
from fabench.views.plots.panel import Names, Panel, facets, length, names_of, single_lengths
from fabench.views.plots.roofs import measured_gemm
from fabench.views.plots.style import Theme, colour, length_ticks, marker
from fabench.views.values import VALUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERA = 1e-12


def panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """A panel for each problem but for its length, if two lengths or more have a speed: one is a column of a table."""
    names = names_of(outcomes)
    return [
        Panel(f.title, partial(_draw, outcomes=f.outcomes, axis=f.axis, names=names))
        for f in facets(outcomes)
        if f.lengths(lambda outcome: outcome.time_ns) > 1
    ]


def left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """The titles of the panels that have one length with a speed."""
    return single_lengths(outcomes, lambda outcome: outcome.time_ns)


def _draw(axes: Axes, theme: Theme, *, outcomes: list[Outcome], axis: str, names: Names) -> None:
    speed, top = VALUES["tflops"], 0.0
    crossed = False
    for label, group in names.lines(outcomes).items():
        found = sorted(group, key=lambda o: length(o, axis))
        fast = [(length(o, axis), value * TERA, _half_widths(o, value)) for o in found if (value := speed.of(o))]
        index, ours = names.index[label], group[0].ours
        if fast:
            x, y, errors = zip(*fast, strict=True)
            bars = list(zip(*errors, strict=True)) if any(map(any, errors)) else None  # a published figure has none
            axes.errorbar(
                x, y, yerr=bars, label=label, color=colour(index), marker=marker(index), capsize=2, elinewidth=0.9,
                linestyle="-" if ours else "--", markerfacecolor=None if ours else "none",
            )  # fmt: skip
            top = max(top, *(value + min(up, value / 2) for value, (_, up) in zip(y, errors, strict=True)))
        failed = [length(o, axis) for o in found if o.status != "ok"]
        if failed and (fast or any(o.status not in SKIPPED for o in found)):  # what was skipped throughout is no news
            crossed = True
            axes.plot(failed, [0.0] * len(failed), linestyle="none", marker="x", color=colour(index), clip_on=False,
                      label=None if fast else label)  # fmt: skip
    axes.set_ylim(0, top * 1.12)
    length_ticks(axes, [length(o, axis) for o in outcomes], axis)
    axes.set_ylabel("TFLOP/s")
    _roof(axes, theme, outcomes, top)
    if crossed:
        axes.plot([], [], linestyle="none", marker="x", color=theme.faint, label="no speed here")


def _half_widths(outcome: Outcome, value: float) -> tuple[float, float]:
    """How far the interval of the time reaches below and above the speed, in TFLOP/s."""
    if outcome.interval_ns is None or not outcome.time_ns:
        return 0.0, 0.0
    low, high = outcome.interval_ns
    flops = value * outcome.time_ns
    return max(0.0, value - flops / high) * TERA, max(0.0, flops / low - value) * TERA


def _roof(axes: Axes, theme: Theme, outcomes: Sequence[Outcome], top: float) -> None:
    """The measured GEMM as a line, where it is not far above everything."""
    if (gemm := measured_gemm(outcomes)) is None or gemm * TERA > 2.2 * top:
        return
    axes.axhline(gemm * TERA, color=theme.faint, linewidth=1, linestyle=":")
    axes.set_ylim(0, max(top, gemm * TERA) * 1.12)
    axes.annotate(
        "measured GEMM", (1, gemm * TERA), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        fontsize=7, color=theme.faint,
    )  # fmt: skip

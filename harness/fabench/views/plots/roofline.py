"""The roofline: each row at its FLOPs per ideal byte, under the datasheet's roof and the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabench.views.axes import common_text, key_of, varies
from fabench.views.outcomes import Outcome
from fabench.views.plots.panel import ALL, Names, Panel, names_of
from fabench.views.plots.roofs import datasheet, measured_copy, measured_gemm
from fabench.views.plots.style import Theme, colour, marker
from fabench.views.values import VALUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERA = 1e-12


def panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """A panel for each device and dtype: these have a roof of their own."""
    names = [name for name in ("device", "dtype") if varies(name, outcomes)]
    lines = names_of(outcomes)
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.ours and VALUES["tflops"].of(outcome) and VALUES["gbs"].of(outcome):
            groups.setdefault(key_of(outcome, names), []).append(outcome)
    return [
        Panel(title, partial(_draw, outcomes=group, names=lines), width=7.0, height=4.6)
        for group in groups.values()
        if (title := ", ".join(common_text(name, group[0]) for name in names) or ALL)
    ]


def _draw(axes: Axes, theme: Theme, *, outcomes: list[Outcome], names: Names) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    points: list[tuple[float, float]] = []
    for label, group in names.lines(outcomes).items():
        xy = [(_intensity(o), (VALUES["tflops"].of(o) or 0.0) * TERA) for o in group]
        points += xy
        x, y = zip(*xy, strict=True)
        index = names.index[label]
        axes.plot(x, y, linestyle="none", marker=marker(index), color=colour(index), alpha=0.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    roofs = [
        (label, peak, bandwidth, style)
        for label, (peak, bandwidth), style in (
            ("datasheet", datasheet(outcomes), "-"),
            ("measured", (measured_gemm(outcomes), measured_copy(outcomes)), "--"),
        )
        if peak and bandwidth
    ]
    around = [*(x for x, _ in points), *(peak / bandwidth for _, peak, bandwidth, _ in roofs)]
    for label, peak, bandwidth, style in roofs:
        bends = [min(around) / 2, peak / bandwidth, max(around) * 2]
        roof = [min(peak, value * bandwidth) * TERA for value in bends]
        axes.plot(bends, roof, color=theme.ink, linewidth=1.1, linestyle=style, label=f"{label} roof")
    axes.set_xlabel("FLOPs per ideal byte")
    axes.set_ylabel("TFLOP/s")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _intensity(outcome: Outcome) -> float:
    return (VALUES["tflops"].of(outcome) or 0.0) / (VALUES["gbs"].of(outcome) or 1.0)

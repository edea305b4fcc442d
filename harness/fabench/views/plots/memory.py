"""Memory against N on logarithmic axes, with guides of slope 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fabench.views.outcomes import Outcome
from fabench.views.plots.panel import Names, Panel, facets, length, names_of, single_lengths
from fabench.views.plots.style import Theme, colour, length_ticks, marker
from fabench.views.values import VALUES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """A panel for each problem but for its length, where at least two lengths have a measured peak."""
    names = names_of(outcomes)
    return [
        Panel(f.title, partial(_draw, outcomes=f.outcomes, axis=f.axis, names=names))
        for f in facets(outcomes)
        if f.lengths(_bytes) > 1
    ]


def left_out(outcomes: Sequence[Outcome]) -> list[str]:
    """The titles of the panels that have one length with a measured peak."""
    return single_lengths(outcomes, _bytes)


def _bytes(outcome: Outcome) -> float | None:
    """Peak beyond the inputs of one batch·head: lengths with other batches stay comparable."""
    peak = VALUES["peak"].of(outcome)
    return peak / (outcome.case.batch * outcome.case.heads) if peak else None


def _draw(axes: Axes, theme: Theme, *, outcomes: list[Outcome], axis: str, names: Names) -> None:
    from matplotlib.ticker import FuncFormatter

    smallest: list[tuple[float, float]] = []
    largest = 0.0
    for label, group in names.lines(outcomes).items():
        points = sorted((length(o, axis), value) for o in group if (value := _bytes(o)))
        if not points:
            continue
        x, y = zip(*points, strict=True)
        index, ours = names.index[label], group[0].ours
        axes.plot(
            x, y, label=label, color=colour(index), marker=marker(index), linestyle="-" if ours else "--",
            markerfacecolor=None if ours else "none",
        )  # fmt: skip
        smallest.append(points[0])
        largest = max(largest, x[-1])
    axes.set_yscale("log", base=2)
    length_ticks(axes, [length(o, axis) for o in outcomes if _bytes(o)], axis)
    start = min(x for x, _ in smallest)
    for slope, anchor in ((1, min(y for _, y in smallest)), (2, max(y for _, y in smallest))):
        ends = [start, largest]
        axes.plot(ends, [anchor * (x / start) ** slope for x in ends], color=theme.faint, linestyle=":", linewidth=1.2)
        axes.annotate(f"slope {slope}", (ends[1], anchor * (ends[1] / start) ** slope), color=theme.faint, fontsize=7,
                      ha="right", va="top" if slope == 1 else "bottom", xytext=(0, -4 if slope == 1 else 0),
                      textcoords="offset points")  # fmt: skip
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes_text(value)))
    axes.set_ylabel("peak memory of a batch·head")


def _bytes_text(value: float) -> str:
    from fabench.text import bytes_text

    return bytes_text(value).replace(".00", "").replace(".0 ", " ")

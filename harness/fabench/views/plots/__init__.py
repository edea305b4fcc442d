"""Plots of outcomes, by name. Each kind is made of panels; `figure` lays them out in one picture.

A kind is one module with a `panels(outcomes) -> list[Panel]`; adding one is that file and a line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabench.errors import UsageError
from fabench.parity.thresholds import RIGHT
from fabench.stats import FEWEST
from fabench.text import counted, did_you_mean
from fabench.views.outcomes import Outcome
from fabench.views.plots import accuracy, memory, roofline, speedup, tflops
from fabench.views.plots.caption import caption
from fabench.views.plots.panel import ALL, Panel
from fabench.views.plots.style import Theme, broken, head, legend, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Kind:
    """One kind of plot."""

    name: str
    title: str
    about: str
    """What a reader should see in it, one sentence."""
    panels: Callable[[Sequence[Outcome]], list[Panel]]
    left_out: Callable[[Sequence[Outcome]], list[str]] = lambda _: []
    """The titles of panels that are not drawn, and might be looked for."""
    lacking: str = ""
    """Why they are not."""
    mixed: bool = False
    """A panel holds problems of several kinds, and no axis tells which: the caption does."""

    def caption(self, outcomes: Sequence[Outcome]) -> list[str]:
        """What a picture of it says below its title."""
        return caption(outcomes, mixed=self.mixed)


TITLES = 3
"""Panels that a line about what is not drawn names; the rest are counted."""

ALIKE = 1.5
"""Panels side by side are as high as each other: none gets more than this times what it asks for."""

SINGLE = "of a single length"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("tflops", "TFLOP/s against N",
             f"Median with its 95 % interval (of fewer than {FEWEST} rounds or samples, their range); "
             "a cross at the foot is a backend without a speed there.", tflops.panels,
             tflops.left_out, SINGLE),
        Kind("roofline", "Roofline",
             "Each row at its FLOPs per ideal byte, under the datasheet's roof and the measured one.", roofline.panels,
             mixed=True),
        Kind("memory", "Memory against N",
             "Peak memory of one call beyond its inputs, a batch·head; slope 1 is O(N), slope 2 is O(N²); "
             "backends that need the same lie on one line.",
             memory.panels, memory.left_out, SINGLE),
        Kind("accuracy", "Accuracy league",
             f"Largest rho ({RIGHT}) and RMSE of each backend's n rows; the dot is its worst.",
             accuracy.panels, mixed=True),
        Kind("speedup", "Speed-up over the baseline",
             "The baseline's time over the backend's; words are statuses, a dash is a row without a baseline, a blank "
             "no row.", speedup.panels, speedup.left_out,
             "without the baseline"),
    )
}  # fmt: skip


def kind_named(name: str) -> Kind:
    """The kind, or UsageError with the nearest name."""
    if name not in KINDS:
        raise UsageError(f"unknown plot '{name}'{did_you_mean(name, KINDS) or f'; known: {_known()}'}")
    return KINDS[name]


def _known() -> str:
    return ", ".join(KINDS)


def omission(kind: Kind, outcomes: Sequence[Outcome]) -> str:
    """A line about the panels of a kind that are not drawn; empty if all are."""
    if not (titles := kind.left_out(outcomes)):
        return ""
    more = f"; and {len(titles) - TITLES} more" if len(titles) > TITLES else ""
    return f"{counted(len(titles), 'panel')} {kind.lacking} left out: {'; '.join(titles[:TITLES])}{more}"


def figure(kind: Kind, outcomes: Sequence[Outcome], theme: Theme) -> Figure | None:
    """All panels of a kind in one picture, or None if the outcomes hold nothing to plot."""
    found = kind.panels(outcomes)
    if not found:
        return None
    columns = min(len(found), 1 if found[0].width > 8 else 2)
    if any(max(row) > ALIKE * min(row) for row in _heights(found, columns)):
        columns = 1
    width = max(panel.width for panel in found)
    heights = [max(row) for row in _heights(found, columns)]
    with styled(theme):
        from matplotlib.figure import Figure

        picture = Figure(figsize=(width * columns, sum(heights) + 0.5), layout="constrained")
        places = picture.add_gridspec(len(heights), columns, height_ratios=heights)
        for index, panel in enumerate(found):
            axes = picture.add_subplot(places[index // columns, index % columns])
            panel.draw(axes, theme)
            # the picture's own title says that all rows are there
            axes.set_title("" if panel.title == ALL else broken(panel.title, panel.width))
        legend(picture)
        head(picture, kind.title, kind.caption(outcomes))
    return picture


def _heights(panels: Sequence[Panel], columns: int) -> list[list[float]]:
    """Inches that the panels of each row ask for."""
    return [[p.height for p in panels[start : start + columns]] for start in range(0, len(panels), columns)]


def panel_figure(panel: Panel, theme: Theme) -> Figure:
    """One panel as a picture of its own."""
    with styled(theme):
        from matplotlib.figure import Figure

        picture = Figure(figsize=(panel.width, panel.height), layout="constrained")
        axes = picture.add_subplot()
        panel.draw(axes, theme)
        axes.set_title(broken(panel.title, panel.width))
        legend(picture)
    return picture

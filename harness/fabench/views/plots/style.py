"""How plots look: colours that tell backends apart for everyone, light and dark, ticks in the papers' words."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Theme:
    """The colours that depend on the page."""

    ink: str
    """Text and axes."""
    faint: str
    """Grid, guides and notes."""
    paper: str


LIGHT = Theme("#1f2328", "#8c959f", "#ffffff")
DARK = Theme("#e6edf3", "#7d8590", "#0d1117")
THEMES = {"light": LIGHT, "dark": DARK}

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8a63d2", "#a0522d", "#5f9e3f", "#e07b91",
    "#b5179e", "#17becf", "#7f8790", "#c1121f", "#3d52d5",
)  # fmt: skip
"""The palette of Okabe and Ito (2008), its yellow darkened for white paper, then ten more of like weight:
as many as a full run has backends."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")


def colour(index: int) -> str:
    """The colour of the index-th backend."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Its marker: with the colour it stays unlike the others for more backends than there are colours."""
    return MARKERS[index % len(MARKERS)]


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """matplotlib's settings for the theme, inside the block only."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "figure.facecolor": theme.paper, "axes.facecolor": theme.paper, "savefig.facecolor": theme.paper,
        "text.color": theme.ink, "axes.labelcolor": theme.ink, "axes.edgecolor": theme.faint, "xtick.color": theme.ink,
        "ytick.color": theme.ink, "grid.color": theme.faint, "grid.alpha": 0.35, "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9,
        "axes.titlesize": 10, "legend.fontsize": 8, "legend.frameon": False, "figure.titlesize": 12,
        "svg.fonttype": "none", "svg.hashsalt": "fabench", "font.family": "DejaVu Sans", "lines.linewidth": 1.5,
        "lines.markersize": 4.5,
    }  # fmt: skip
    with mpl.rc_context(settings):
        yield


def length_text(length: float) -> str:
    """512, 1k, 16k, 1500."""
    whole = round(length)
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else str(whole)


def length_ticks(axes: Axes, lengths: Iterable[int], name: str) -> None:
    """A logarithmic length axis, a tick at each length that is there (every other one where they would touch)."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ticks = sorted(set(lengths))
    step = 1 + len(ticks) // 12
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks[::step]))
    axes.xaxis.set_major_formatter(FixedFormatter([length_text(tick) for tick in ticks[::step]]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(name)


LEGEND_LINE = 0.17
"""Inches that a line of a legend takes."""


def legend(figure: Figure) -> None:
    """One legend under all panels of a picture, which grows by it; a label of several panels stands there once.

    Lines with error bars come first: what has none beside them is a note, or a backend without a number.
    """
    from matplotlib.container import Container

    found: dict[str, Any] = {}
    pairs = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    for handle, label in sorted(pairs, key=lambda pair: not isinstance(pair[0], Container)):
        found.setdefault(label, handle)
    if found:
        width = figure.get_figwidth()
        columns = max(2, min(len(found), int(width / 1.6)))
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(found) // columns))
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, handlelength=1.8)


TITLE_LINE, CAPTION_LINE = 0.2, 0.15
"""Inches that a line of a picture's title takes (12 points at 1.2), and one of its caption (8 points, and air)."""
CAPTION_LETTERS = 15
"""Letters of the caption in an inch."""
_BLANK, _KEPT = "\N{NO-BREAK SPACE}", re.compile("(?<![,;:]) ")
"""What stands for a blank at which a caption is not broken: 'batch = 16384/N' stays together."""


TITLE_LETTERS = 12
"""Letters of a panel's title in an inch."""
BESIDE_TITLE = 1.2
"""Inches of a panel that its title, centred above the axes, must leave free."""


def broken(text: str, inches: float) -> str:
    """The title of a panel that is so wide, in as many lines as that takes."""
    return "\n".join(_wrapped(text, max(16, int((inches - BESIDE_TITLE) * TITLE_LETTERS))))


def _wrapped(text: str, width: int) -> list[str]:
    return [part.replace(_BLANK, " ") for part in textwrap.wrap(_KEPT.sub(_BLANK, text), width)]


def head(figure: Figure, title: str, caption: Iterable[str]) -> None:
    """The picture's title, and below it in smaller letters its caption; the picture grows by it."""
    width = int(figure.get_figwidth() * CAPTION_LETTERS)
    lines = [part for line in caption for part in _wrapped(line, width)]
    kept = math.ceil(len(lines) * CAPTION_LINE / TITLE_LINE)
    figure.set_figheight(figure.get_figheight() + kept * TITLE_LINE)
    figure.suptitle("\n".join([title, *([" "] * kept)]))  # the layout keeps what the title takes free
    top = 1 - (TITLE_LINE + 0.08) / figure.get_figheight()
    for place, line in enumerate(lines):
        y = top - place * CAPTION_LINE / figure.get_figheight()
        figure.text(0.5, y, line, ha="center", va="top", fontsize=8)

"""What a plot is made of: panels, and the outcomes split by what a panel holds constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fabench.names import SKIPPED
from fabench.views.axes import Key, common_text, key_of, shape_of, sort_key, varies
from fabench.views.outcomes import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fabench.views.plots.style import Theme


ALL = "all rows"
"""The title of a panel that nothing tells from others."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, which stands above it, its size in inches and how it is drawn."""

    title: str
    draw: Callable[[Axes, Theme], None]
    width: float = 4.8
    height: float = 3.2


def length_axis(outcomes: Sequence[Outcome]) -> str:
    """The axis to plot against: N, or whichever of Nq and Nk varies."""
    if all(outcome.case.Nq == outcome.case.Nk for outcome in outcomes):
        return "N"
    return "Nk" if varies("Nk", outcomes) or not varies("Nq", outcomes) else "Nq"


def length(outcome: Outcome, axis: str) -> int:
    """The outcome's place on a length axis."""
    return outcome.case.Nq if axis in ("N", "Nq") else outcome.case.Nk


@dataclass(frozen=True)
class Facet:
    """The outcomes of one pair of axes against a length."""

    title: str
    axis: str
    """N, Nq or Nk."""
    outcomes: list[Outcome]

    def lengths(self, has: Callable[[Outcome], object]) -> int:
        """How many lengths have what is plotted."""
        return len({length(outcome, self.axis) for outcome in self.outcomes if has(outcome)})


def facets(outcomes: Sequence[Outcome]) -> list[Facet]:
    """One for each setting of what varies besides the length, device first.

    Suites stay apart: what follows from the length in one, such as batch = 16384/N, need not in another.
    """
    suites: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        suites.setdefault(outcome.suite, []).append(outcome)
    return [
        Facet(", ".join(filter(None, (name if len(suites) > 1 else "", title))) or ALL, axis, group)
        for name, of_suite in suites.items()
        for axis in [length_axis(of_suite)]
        for title, group in _settings(of_suite, axis)
    ]


def _settings(outcomes: Sequence[Outcome], axis: str) -> list[tuple[str, list[Outcome]]]:
    names = [name for name in ("device",) if varies(name, outcomes)]
    names += [name for name in shape_of(outcomes).varying if name != axis]
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key_of(outcome, names), []).append(outcome)
    return [
        (", ".join(filter(None, (common_text(name, group[0]) for name in names))), group)
        for _, group in sorted(groups.items(), key=lambda item: sort_key(item[0]))
    ]


def single_lengths(outcomes: Sequence[Outcome], has: Callable[[Outcome], object]) -> list[str]:
    """The titles of the facets of which one length alone has what is plotted: a point, and no line."""
    return [facet.title for facet in facets(outcomes) if facet.lengths(has) == 1]


@dataclass(frozen=True)
class Names:
    """What the lines of all panels of a plot are called, and their colours: the same in every panel."""

    twice: frozenset[str]
    """Suites of which two files hold the same row: their lines are told apart by the file."""
    index: dict[str, int]
    """Label -> the index of its colour; last is what was skipped throughout and not drawn."""

    def label(self, outcome: Outcome) -> str:
        """The backend, with the file where two files hold the same row."""
        told = outcome.ours and outcome.suite in self.twice
        return f"{outcome.backend} ({outcome.file})" if told else outcome.backend

    def lines(self, outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
        """The outcomes of each line of a panel, by its label."""
        found: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            found.setdefault(self.label(outcome), []).append(outcome)
        return found


def names_of(outcomes: Sequence[Outcome]) -> Names:
    """The names of the lines of a plot of these outcomes.

    Files of several suites may share a problem and need no telling apart: a panel against a length holds one suite, and
    in the others a backend is one line whatever suite its rows are of.
    """
    rows = Counter((o.suite, o.device, o.case, o.backend) for o in outcomes if o.ours)
    names = Names(frozenset(suite for (suite, *_), count in rows.items() if count > 1), {})
    found = names.lines(outcomes)
    shown = [label for label, group in found.items() if any(outcome.status not in SKIPPED for outcome in group)]
    return replace(names, index={label: place for place, label in enumerate(dict.fromkeys([*shown, *found]))})

"""What a plot is made of: panels, and the outcomes split by what a panel holds constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """One pair of axes: its title, its size in inches and how it is drawn."""

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


def lines(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of each line of a panel by its label: the backend, with the file where two hold the same row."""
    twice = len({(o.device, o.case, o.backend) for o in outcomes}) < len(outcomes)
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        label = f"{outcome.backend} ({outcome.file})" if twice and outcome.ours else outcome.backend
        found.setdefault(label, []).append(outcome)
    return found


def indices(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Label -> the index of its colour, the same in every panel; last is what was skipped throughout and not drawn."""
    found = lines(outcomes)
    shown = [label for label, group in found.items() if any(outcome.status not in SKIPPED for outcome in group)]
    return {label: index for index, label in enumerate(dict.fromkeys([*shown, *found]))}

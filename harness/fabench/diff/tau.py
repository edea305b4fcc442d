"""The variance between sessions, or between cards of one model, of the rows of one class, and how well it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class _Numbers(Protocol):
    """What is read of a row in a session: see `noise.RowNoise`."""

    @property
    def mean_ln_ns(self) -> float: ...
    @property
    def variance(self) -> float: ...
    @property
    def rounds(self) -> int: ...


Observation = tuple[str, str, int, _Numbers]
"""(row, card, session number, numbers)."""


@dataclass(frozen=True)
class Tau:
    """A class's variance of ln t between sessions (or cards)."""

    tau2: float
    nu: float
    """Degrees of freedom of tau2."""
    groups: int
    """Sessions (or cards) it was estimated from."""
    rows: int

    @property
    def tau(self) -> float:
        """The standard deviation, as a fraction of t."""
        return math.sqrt(self.tau2)


def between_sessions(observations: Sequence[Observation]) -> Tau | None:
    """Variance between sessions of one card; None unless a row was measured in two.

    Of each row on each card, the variance of its session means less the part that its rounds explain (variance/rounds),
    averaged over rows; not below 0.
    """
    units: dict[tuple[str, str], dict[int, _Numbers]] = {}
    for row, card, session, numbers in observations:
        units.setdefault((row, card), {})[session] = numbers
    units = {key: sessions for key, sessions in units.items() if len(sessions) > 1}
    if not units:
        return None
    noise = [n.variance / n.rounds for sessions in units.values() for n in sessions.values()]
    cards = {card for _, card in units}
    blocks = [
        _deviations([{s: n.mean_ln_ns for s, n in sessions.items()} for (_, c), sessions in units.items() if c == card])
        for card in sorted(cards)
    ]
    variance, nu = pooled(blocks)
    groups = sum(block.shape[1] for block in blocks)
    return Tau(max(0.0, variance - float(np.mean(noise))), nu, groups, len({row for row, _ in units}))


def between_cards(observations: Sequence[Observation], session: Tau) -> Tau | None:
    """Variance between cards of one model, `session`'s included; None unless a row was measured on two.

    A row's value on a card is its mean over the sessions there. What their scatter owes to sessions and rounds is not
    subtracted: with a handful of cards, erring to the wide side costs little.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for row, card, _, numbers in observations:
        values.setdefault(row, {}).setdefault(card, []).append(numbers.mean_ln_ns)
    names = {card: index for index, card in enumerate(sorted({card for _, card, _, _ in observations}))}
    units = [{names[c]: sum(v) / len(v) for c, v in cards.items()} for cards in values.values() if len(cards) > 1]
    if not units:
        return None
    block = _deviations(units)
    variance, nu = pooled([block])
    return Tau(variance + session.tau2, min(nu, session.nu), block.shape[1], len(units))


def _deviations(units: Sequence[Mapping[int, float]]) -> Floats:
    """[units, groups]: each unit's deviations from its mean over sqrt(groups it has - 1), 0 where it has none.

    The squares of a row of the result add up to the unit's variance.
    """
    column = {group: index for index, group in enumerate(sorted({g for unit in units for g in unit}))}
    out = np.zeros((len(units), len(column)))
    for index, unit in enumerate(units):
        mean = sum(unit.values()) / len(unit)
        for group, value in unit.items():
            out[index, column[group]] = (value - mean) / math.sqrt(len(unit) - 1)
    return out


def pooled(blocks: Sequence[Floats]) -> tuple[float, float]:
    """The units' mean variance, and its degrees of freedom (Satterthwaite 1946) when units may move together.

    If every row moved by itself, m rows in n + 1 sessions would give m n degrees of freedom; if all move as one, n.
    The truth is n tr(C)^2 / tr(C^2), with C the covariance of rows between sessions. tr(C^2) is estimated without bias
    from far fewer sessions than rows as n^2 / ((n - 1)(n + 2)) (tr(S^2) - tr(S)^2 / n) (Bai & Saranadasa 1996, §3),
    and tr(C)^2 as tr(S)^2 less 2 tr(C^2) / n.
    """
    units = sum(len(block) for block in blocks)
    total = sum(float((block**2).sum()) for block in blocks)
    least = sum(block.shape[1] - 1 for block in blocks)
    most = sum(int((block != 0).sum(axis=1).clip(min=2).sum()) - len(block) for block in blocks)
    spread = sum(_trace_of_square(block) / (block.shape[1] - 1) for block in blocks)
    square = total**2 - 2.0 * spread  # E tr(S)^2 exceeds tr(C)^2 by its variance
    nu = square / spread if spread > 0 else math.inf
    return total / units, float(min(max(nu, least), most))


def _trace_of_square(block: Floats) -> float:
    n = block.shape[1] - 1
    trace = float((block**2).sum())
    if n < 2:
        return trace**2  # two sessions cannot show that rows move apart
    square = float(((block.T @ block) ** 2).sum())
    return float(max(n**2 / ((n - 1) * (n + 2)) * (square - trace**2 / n), 0.0))

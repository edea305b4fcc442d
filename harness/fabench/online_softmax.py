"""The state of an online softmax and its merge, on plain numbers: the algebra every tiled kernel rests on.

A state (m, l, O~) stands for a set of scores: m is their maximum, l the sum of e^(s - m), O~ the sum of e^(s - m)·v.
States of disjoint sets merge to the state of the union, in any order and any split; O = O~/l and LSE = m + ln l. The
empty set is m = -inf, l = 0. Source: Milakov and Gimelshein 2018, arXiv 1805.02867, §3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    """The running maximum m, the sum l and the unnormalised output O~ (one entry a column of V)."""

    m: float = -math.inf
    l: float = 0.0  # the papers' name
    O: tuple[float, ...] = ()

    @classmethod
    def of(cls, scores: Sequence[float], values: Sequence[Sequence[float]] = ()) -> State:
        """The state of some scores, with one row of V for each (or no V at all)."""
        if not scores:
            return cls(O=(0.0,) * len(values[0]) if values else ())
        m = max(scores)
        weights = [_factor(score, m) for score in scores]
        columns = zip(*values, strict=True) if values else ()
        return cls(m, sum(weights), tuple(sum(w * v for w, v in zip(weights, col, strict=True)) for col in columns))

    def merge(self, other: State) -> State:
        """The state of both sets together."""
        m = max(self.m, other.m)
        mine, theirs = _factor(self.m, m), _factor(other.m, m)
        width = max(len(self.O), len(other.O))
        a, b = self.O or (0.0,) * width, other.O or (0.0,) * width
        return State(
            m, self.l * mine + other.l * theirs, tuple(x * mine + y * theirs for x, y in zip(a, b, strict=True))
        )

    @property
    def output(self) -> tuple[float, ...]:
        """O = O~/l; zeros for the empty set, as for a query that attends to no key."""
        return tuple(o / self.l if self.l else 0.0 for o in self.O)

    @property
    def lse(self) -> float:
        """m + ln l, -inf for the empty set."""
        return self.m + math.log(self.l) if self.l else -math.inf


def _factor(old: float, new: float) -> float:
    """e^(old - new), by which a state is rescaled when the maximum grows; an empty state weighs nothing."""
    return 0.0 if old == -math.inf else math.exp(old - new)

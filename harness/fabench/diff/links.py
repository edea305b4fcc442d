"""What links the two measurements of a row: hardware, session, regime, canaries, method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fabench.diff.canaries import Bound, Roofline, move, roofline, select
from fabench.diff.estimates import Floats, Rounds
from fabench.diff.evidence import Context, timer_floor
from fabench.diff.noise import Noise
from fabench.diff.pairs import Pair
from fabench.diff.relation import Relation, relate
from fabench.diff.side import Side
from fabench.diff.tau import Tau
from fabench.diff.thresholds import Thresholds
from fabench.diff.verdicts import Verdict
from fabench.names import Regime

TIMER_QUANTUM_NS = {"cuda_event": 500.0, "perf_counter": 100.0}
"""Step of each timer: CUDA events tick at about 0.5 us, perf_counter_ns well below 0.1 us."""

Margin = Literal["interleaved", "calibrated", "uncalibrated"]


@dataclass(frozen=True)
class Link:
    """What one row's two measurements have to do with each other."""

    relation: Relation
    regime: Regime | None
    old: Roofline
    new: Roofline
    """The canaries of the row's sessions."""
    bound: Bound | None
    move: float | None
    """ln of how much slower the canary of its bound class is in new; None if it cannot be told."""
    margin: Margin
    tau: Tau | None
    barred: tuple[Verdict, str] | None
    """Why its times must not be judged."""


class Linker:
    """Links pairs; envs that were looked at once are not looked at again."""

    def __init__(self, old: Side, new: Side, limits: Thresholds, noise: Noise | None, *, cross_gpu: bool) -> None:
        self.old, self.new, self.limits, self.noise, self.cross_gpu = old, new, limits, noise, cross_gpu
        self.relations: dict[tuple[frozenset[str], frozenset[str]], Relation] = {}
        self.rooflines: dict[tuple[frozenset[str], frozenset[str], Regime | None], tuple[Roofline, Roofline]] = {}
        self.ns = old.median_ns, new.median_ns

    def link(self, pair: Pair) -> Link:
        """The link of a pair that is ok in both files."""
        a, b = pair.places
        envs = self.old.envs[a], self.new.envs[b]
        relation, regime = self._relation(envs), self.new.regime(b)
        before, after = self._rooflines(envs, regime)
        cost = self.new.rows[b].cost or self.old.rows[a].cost
        bound = before.bound(cost, pair.case.dtype) if cost else None
        moved = move(before, after, bound, pair.case.dtype)
        tau = self._tau(relation, regime, math.sqrt(self.ns[0][a] * self.ns[1][b]))
        margin: Margin = "interleaved" if relation.kind == "interleaved" else "calibrated" if tau else "uncalibrated"
        barred = self._barred(pair, relation, moved)
        return Link(relation, regime, before, after, bound, moved, margin, tau, barred)

    def _relation(self, envs: tuple[frozenset[str], frozenset[str]]) -> Relation:
        if envs not in self.relations:
            old = [self.old.file.envs[env] for env in sorted(envs[0])]
            self.relations[envs] = relate(old, [self.new.file.envs[env] for env in sorted(envs[1])])
        return self.relations[envs]

    def _rooflines(
        self, envs: tuple[frozenset[str], frozenset[str]], regime: Regime | None
    ) -> tuple[Roofline, Roofline]:
        """Canaries of the row's regime if both files have them, else all of them."""
        place = (*envs, regime)
        if place not in self.rooflines:
            files = ((self.old.file.canaries, envs[0]), (self.new.file.canaries, envs[1]))
            chosen = [select(canaries, names, regime) for canaries, names in files]
            if not all(chosen):
                chosen = [select(canaries, names, None) for canaries, names in files]
            self.rooflines[place] = roofline(chosen[0]), roofline(chosen[1])
        return self.rooflines[place]

    def _tau(self, relation: Relation, regime: Regime | None, ns: float) -> Tau | None:
        if relation.kind == "interleaved" or self.noise is None or math.isnan(ns):
            return None
        return self.noise.tau(relation.kind, regime, ns)

    def _barred(self, pair: Pair, relation: Relation, moved: float | None) -> tuple[Verdict, str] | None:
        a, b = pair.places
        if self.old.rows[a].published or self.new.rows[b].published:
            return "PUBLISHED", "a published figure has no rounds and no environment"
        if self.cross_gpu:
            return "SHOWN", method_difference(self.old, self.new, a, b) or ""
        if relation.difference:
            return "NOT_COMPARABLE", f"other hardware: {relation.difference}; compare two cards with --cross-gpu"
        if reason := method_difference(self.old, self.new, a, b):
            return "NOT_COMPARABLE", reason
        if moved is not None and math.expm1(abs(moved)) > self.limits.canary_shift:
            return (
                "ENV_SHIFT",
                f"its canary takes {math.expm1(moved):+.1%} in new (limit {self.limits.canary_shift:.0%})",
            )
        slowed = [
            name for name, flags in (("old", self.old.flags[a]), ("new", self.new.flags[b])) if "throttled" in flags
        ]
        if slowed:
            return "ENV_SHIFT", f"the card throttled (heat or power brake) in {' and '.join(slowed)}"
        return None


def method_difference(old: Side, new: Side, a: int, b: int) -> str | None:
    """How the methods of two timed rows differ, or None if both were measured by one."""
    before, after = old.methods[a], new.methods[b]
    if not before or not after or (len(before) == len(after) == 1 and before == after):
        return None
    if len(before) > 1 or len(after) > 1:
        return "its rounds were measured by different methods"
    was, is_ = min(before), min(after)
    one, other = old.method.get(was), new.method.get(is_)
    if one is None or other is None:
        return f"method_id {was} -> {is_}"
    fields = [f"{name} {value} -> {getattr(other, name)}" for name, value in one if value != getattr(other, name)]
    return f"measured by other rules: {', '.join(fields) or f'method_id {was} -> {is_}'}"


def context(old: Side, new: Side, pairs: list[Pair], links: list[Link], limits: Thresholds) -> Context:
    """What the evidence needs to know of the pairs beside their rounds."""
    margins = {
        "interleaved": limits.margin_interleaved,
        "calibrated": limits.margin_calibrated,
        "uncalibrated": limits.margin_uncalibrated,
    }
    floors = np.maximum(
        _floor(old, [pair.places[0] for pair in pairs]), _floor(new, [pair.places[1] for pair in pairs])
    )
    rounds = [min(old.times.count[pair.places[0]], new.times.count[pair.places[1]]) for pair in pairs]
    return Context(
        margin=np.array([margins[link.margin] for link in links], dtype=np.float64),
        equivalence=np.array(
            [
                max(margins[link.margin], 0.0 if link.margin == "interleaved" else limits.equivalence_cross_session)
                for link in links
            ],
            dtype=np.float64,
        ),
        shift=np.array([abs(link.move or 0.0) for link in links], dtype=np.float64),
        tau2=np.array([link.tau.tau2 if link.tau else 0.0 for link in links], dtype=np.float64),
        tau_nu=np.array([link.tau.nu if link.tau else math.inf for link in links], dtype=np.float64),
        floor=floors,
        tested=np.array(
            [link.barred is None and count >= limits.min_rounds for link, count in zip(links, rounds, strict=True)],
            dtype=bool,
        ),
    )


def _floor(side: Side, rows: list[int]) -> Floats:
    timers = [next((side.method[m].timer for m in side.methods[row] if m in side.method), None) for row in rows]
    quantum = np.array([TIMER_QUANTUM_NS.get(timer or "", 0.0) for timer in timers])
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(timer_floor(quantum, side.calls[rows], side.median_ns[rows]))


def rounds_of(side: Side, rows: list[int]) -> Rounds:
    """The log-times of some rows."""
    return side.times.take(np.array(rows, dtype=np.int64))

"""Two sides, one verdict a row: statuses first, then what makes times comparable, then the times."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from fabench.diff.estimates import hodges_lehmann
from fabench.diff.evidence import Context, Evidence, Floats, rounds_needed, weigh
from fabench.diff.filters import excludes
from fabench.diff.links import Link, Linker, context, rounds_of
from fabench.diff.noise import Noise
from fabench.diff.pairs import Pair, both_ok, pair_up
from fabench.diff.side import Side
from fabench.diff.thresholds import GATEABLE, Thresholds
from fabench.diff.verdicts import GATES, Verdict, by_status
from fabench.diff.waivers import Waiver
from fabench.names import Status
from fabench.text import counted
from fabench.where import Condition


@dataclass(frozen=True)
class Options:
    """What was asked of a comparison."""

    limits: Thresholds = field(default_factory=Thresholds)
    fail_on: frozenset[str] = frozenset(GATEABLE)
    cross_gpu: bool = False
    gate_efficiency: float | None = None
    """Across GPUs: the largest fall in efficiency that passes, a fraction of 1."""
    anchor: str | None = None
    """Across GPUs: the backend that ratios are taken to; the suite's baseline unless named."""
    where: Condition | None = None
    waivers: tuple[Waiver, ...] = ()
    noise: Noise | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class RowDiff:
    """The outcome of one row."""

    pair: Pair
    verdict: Verdict
    reason: str
    """Why, in words; empty where the numbers say it."""
    old_status: Status | None
    new_status: Status | None
    at: int | None = None
    """Its place in the evidence; None where no times were weighed."""
    needed: int | None = None
    """Rounds a side that an INCONCLUSIVE row needs; None: more rounds cannot decide, or not known."""
    waiver: Waiver | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that was found; `links` and the arrays of `evidence` and `context` are by `RowDiff.at`."""

    old: Side
    new: Side
    options: Options
    rows: tuple[RowDiff, ...]
    links: tuple[Link, ...]
    evidence: Evidence
    context: Context

    def counts(self) -> Counter[Verdict]:
        """Rows by verdict."""
        return Counter(row.verdict for row in self.rows)

    def ratio(self, row: RowDiff) -> tuple[float, float | None, float | None] | None:
        """new/old of time and its 95 % interval (None: too few rounds); None where nothing was timed."""
        if row.at is None or not math.isfinite(self.evidence.d[row.at]):
            return None
        d, low, high = (float(x[row.at]) for x in (self.evidence.d, self.evidence.low, self.evidence.high))
        return math.exp(d), _exp(low), _exp(high)


def _exp(x: float) -> float | None:
    return math.exp(min(x, 700.0)) if math.isfinite(x) else None


def compare_files(old: Side, new: Side, options: Options) -> Comparison:
    """Compare two files. Raises UsageError if they have no row in common."""
    pairs = pair_up(old, new, options.where)
    timed = [pair for pair in pairs if both_ok(old, new, pair)]
    linker = Linker(old, new, options.limits, options.noise, cross_gpu=options.cross_gpu)
    links = [linker.link(pair) for pair in timed]
    known = context(old, new, timed, links, options.limits)
    before = rounds_of(old, [pair.places[0] for pair in timed])
    after = rounds_of(new, [pair.places[1] for pair in timed])
    evidence = weigh(before, after, known, options.limits)
    judge = _Judge(old, new, links, evidence, known, options.limits)
    judged = {(pair.old, pair.new): judge.row(pair, at) for at, pair in enumerate(timed)}

    excluded = excludes(new, old)
    rows = [judged.get((pair.old, pair.new)) or _by_status(old, new, pair, excluded(pair)) for pair in pairs]
    found = Comparison(old, new, options, tuple(rows), tuple(links), evidence, known)
    return replace(found, rows=tuple(waive(found, row) for row in rows))


def _by_status(old: Side, new: Side, pair: Pair, excluded: bool) -> RowDiff:
    was = None if pair.old is None else old.status[pair.old]
    is_ = None if pair.new is None else new.status[pair.new]
    verdict = by_status(was, is_, excluded)
    assert verdict is not None  # pairs ok in both have been judged
    if (pair.old is not None and old.rows[pair.old].published) or (
        pair.new is not None and new.rows[pair.new].published
    ):
        return RowDiff(pair, "PUBLISHED", "a published figure: shown, never judged", was, is_)
    reason = new.messages.get(pair.new, "") if pair.new is not None else ""
    if pair.new is None:
        reason = "left out by what narrowed the new run" if excluded else "no such row in the new file"
    elif verdict in ("FIXED", "NEW") and pair.old is not None:
        reason = old.messages.get(pair.old, "")
    return RowDiff(pair, verdict, reason, was, is_)


class _Judge:
    """The verdicts on time."""

    def __init__(
        self, old: Side, new: Side, links: list[Link], evidence: Evidence, known: Context, limits: Thresholds
    ) -> None:
        self.old, self.new, self.links, self.evidence, self.known = old, new, links, evidence, known
        self.limits = limits
        self.needed = rounds_needed(evidence, known, limits)

    def row(self, pair: Pair, at: int) -> RowDiff:
        """The verdict of one pair that is ok in both files."""
        verdict, reason, needed = self._verdict(pair, at)
        return RowDiff(pair, verdict, reason, "ok", "ok", at, needed)

    def _verdict(self, pair: Pair, at: int) -> tuple[Verdict, str, int | None]:
        link, evidence = self.links[at], self.evidence
        if link.barred:
            return *link.barred, None
        if not self.known.tested[at]:
            return "INCONCLUSIVE", self._too_few(pair), self.limits.min_rounds
        if evidence.slow[at] or evidence.fast[at]:
            if reason := self._clock(pair, at):
                return "ENV_SHIFT", reason, None
            return "REGRESSED" if evidence.slow[at] else "IMPROVED", "", None
        if evidence.same[at]:
            return "SAME", "", None
        return "INCONCLUSIVE", *self._needs(at)

    def _needs(self, at: int) -> tuple[str, int | None]:
        """What would decide an INCONCLUSIVE row."""
        rounds, effect, margin = self.needed[at], self.limits.effect, self.known.margin[at]
        if not math.isnan(rounds):
            hint = ": the machine is too noisy" if rounds > self.limits.most_rounds else ""
            return f"needs {rounds:.0f} rounds a side to find {effect:+.0%}{hint}", int(rounds)
        if effect <= margin:
            return f"no number of rounds finds {effect:+.0%} with a margin of {margin:.0%}; see 'Which margin'", None
        return f"more rounds cannot decide: sessions differ by {math.sqrt(self.known.tau2[at]):.2%}", None

    def _too_few(self, pair: Pair) -> str:
        counts = self.old.times.count[pair.places[0]], self.new.times.count[pair.places[1]]
        if min(counts) == 0:
            return "no time was recorded"
        old = counted(counts[0], "round")
        return f"{old} in old and {counts[1]} in new; a verdict needs {self.limits.min_rounds} in each"

    def _clock(self, pair: Pair, at: int) -> str | None:
        """Why a move in time is the clock's and not the kernel's: compute-bound work that takes the same cycles.

        Not asked within one session: there both sides shared the card's state, and if one of them runs at a lower
        clock, it is because its kernel draws more power.
        """
        link = self.links[at]
        if link.relation.kind == "interleaved" or link.bound != "compute":
            return None
        shift = cycles(self.old, self.new, pair)
        if shift is None or abs(shift) > math.log1p(self.known.margin[at]):
            return None
        time = math.expm1(float(self.evidence.d[at]))
        return f"{time:+.1%} in time and {math.expm1(shift):+.1%} in clock cycles: the clock moved, not the kernel"


def cycles(old: Side, new: Side, pair: Pair) -> float | None:
    """Hodges-Lehmann shift of ln of clock cycles; None where a round has no clock."""
    a, b = pair.places
    before, after = old.cycles.count[a], new.cycles.count[b]
    if not before or not after:
        return None
    shift: Floats = hodges_lehmann(old.cycles.y[a : a + 1, :before], new.cycles.y[b : b + 1, :after])
    return float(shift[0])


def waive(found: Comparison, row: RowDiff, fall: float | None = None) -> RowDiff:
    """The row with the waiver that excuses it, if one does.

    A waiver's bound is held against the slowdown, and for a row that is LESS_EFFICIENT against `fall`, the share of its
    efficiency that it lost: times of two cards say nothing.
    """
    if row.verdict not in GATES:
        return row
    ratio, pair = found.ratio(row), row.pair
    slowdown = fall if fall is not None else None if ratio is None else ratio[0] - 1.0
    for waiver in found.options.waivers:
        if not waiver.expired(found.options.now.date()) and waiver.covers(
            pair.row_id, pair.case, pair.backend, row.verdict, slowdown
        ):
            return replace(row, waiver=waiver)
    return row


def reruns(found: Comparison) -> list[RowDiff]:
    """Rows that a second, fresh measurement should settle: REGRESSED, or INCONCLUSIVE and past half the threshold."""
    evidence = found.evidence
    return [
        row
        for row in found.rows
        if row.verdict == "REGRESSED"
        or (
            row.verdict == "INCONCLUSIVE" and row.at is not None and evidence.d[row.at] > evidence.threshold[row.at] / 2
        )
    ]

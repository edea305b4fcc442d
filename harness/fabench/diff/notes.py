"""What a reader of the verdicts must know beside them: environments, margins, calibration, waivers, damage."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from fabench.diff.compare import Comparison
from fabench.diff.evidence import least_guard_p
from fabench.diff.links import Margin
from fabench.diff.relation import changes
from fabench.diff.side import Side
from fabench.diff.thresholds import percent
from fabench.text import counted

CLOCK_NOTE = 0.005
"""A change of the mean clock by more than this share is worth a note."""


def footnotes(found: Comparison) -> list[str]:
    """Sentences for under the table, most important first, each in one line whatever the files hold."""
    return [" ".join(line.split()) for line in _sentences(found)]


def _sentences(found: Comparison) -> list[str]:
    return [
        *found.old.file.warnings,
        *found.new.file.warnings,
        *_unfinished(found),
        *_copies(found),
        *_suites(found),
        *_swapped(found),
        *_unchecked(found),
        *_margins(found),
        *_rounds(found),
        *_calibration(found),
        *_environment(found),
        *_canaries(found),
        *_waivers(found),
    ]


def _unfinished(found: Comparison) -> list[str]:
    return [
        f"{side.path}: the run was stopped before its last row; what it lacks is {verdict}"
        for side, verdict in ((found.old, "NEW"), (found.new, "MISSING"))
        if side.file.footer is not None and not side.file.footer.complete
    ]


def _copies(found: Comparison) -> list[str]:
    """A file compared with itself always passes: a name typed twice must not look like a gate."""
    old, new = found.old, found.new
    shared = [(a, new.index[row_id]) for row_id, a in old.index.items() if row_id in new.index]
    timed = [(a, b) for a, b in shared if old.times.count[a] or new.times.count[b]]
    cells = sum(int(old.times.count[a]) for a, _ in timed)
    if cells < 2 or not all(np.array_equal(_times(old, a), _times(new, b)) for a, b in timed):
        return []
    return ["old and new hold the same times, round by round: copies of one run, which say nothing about a change"]


def _times(side: Side, row: int) -> np.ndarray:
    times: np.ndarray = side.times.y[row]
    return np.asarray(times[~np.isnan(times)])


def _suites(found: Comparison) -> list[str]:
    old, new = found.old.file.header, found.new.file.header
    if old.suite_hash == new.suite_hash:
        return []
    return [
        f"the suites differ: '{old.suite.get('name')}' {old.suite_hash} and '{new.suite.get('name')}' {new.suite_hash}"
    ]


def _swapped(found: Comparison) -> list[str]:
    if (found.old.file.header.ab_side, found.new.file.header.ab_side) == ("b", "a"):
        return ["old is side b and new is side a of an --ab run: name the files the other way round for b against a"]
    return []


def _unchecked(found: Comparison) -> list[str]:
    counts = [sum("unchecked" in flags for flags in side.flags) for side in (found.old, found.new)]
    return [
        f"{counted(count, 'unchecked row')} in {side.path}: a wrong result would go unseen"
        for count, side in zip(counts, (found.old, found.new), strict=True)
        if count
    ]


def _margins(found: Comparison) -> list[str]:
    """Which margin was used, for how many rows, and why."""
    if found.options.cross_gpu:
        return []
    limits, counts = found.options.limits, Counter(link.margin for link in found.links if link.barred is None)
    kinds = {link.relation.kind for link in found.links}
    apart = "on two cards of one model" if "device" in kinds else "in two sessions"
    known: dict[Margin, str] = {
        "interleaved": f"margin {percent(limits.margin_interleaved)}: measured interleaved, in one session",
        "calibrated": f"margin {percent(limits.margin_calibrated)}: measured {apart} whose noise is calibrated",
        "uncalibrated": (
            f"UNCALIBRATED, margin {percent(limits.margin_uncalibrated)}: measured {apart} of unknown noise; "
            "`fabench run --ab` interleaves, `fabench calibrate --noise` calibrates"
        ),
    }
    return [f"{text} ({counted(counts[kind], 'row')})" for kind, text in known.items() if counts[kind]]


def _rounds(found: Comparison) -> list[str]:
    """The least p that the guard can reach, where it is a limit."""
    few = [
        (int(found.old.times.count[row.pair.places[0]]), int(found.new.times.count[row.pair.places[1]]))
        for row in found.rows
        if row.at is not None and found.links[row.at].barred is None
    ]
    few = [counts for counts in few if 0 < min(counts) < 8]
    if not few:
        return []
    old, new = min(few)
    return [
        (
            f"with {counted(old, 'round')} in old and {new} in new the smallest Mann-Whitney p is "
            f"{least_guard_p(old, new):.2g}; 10 rounds to gate"
        )
    ]


def _calibration(found: Comparison) -> list[str]:
    noise = found.options.noise
    if noise is None or not any(link.margin != "interleaved" for link in found.links):
        return []
    drivers = {env.software.driver for env in found.new.file.envs.values() if env.software.driver}
    measured = f"{counted(noise.sessions, 'session')} on {counted(noise.cards, 'card')}, newest {noise.newest:%Y-%m-%d}"
    used = f"noise calibration {noise.path}: {measured}"
    limits = found.options.limits
    if noise.sessions < limits.calibration_sessions:
        used += f"; too few to calibrate, which takes {limits.calibration_sessions}"
    return [used, *noise.warnings(found.options.now, min(drivers, default=None), limits.calibration_days)]


def _environment(found: Comparison) -> list[str]:
    if _published(found):
        return []
    out = changes(found.old.file.envs.values(), found.new.file.envs.values())
    old, new = found.old.file.header.harness, found.new.file.header.harness
    if old.version != new.version:
        out.append(f"changed: fabench {old.version} -> {new.version}")
    clocks = [_clock(found, side, which) for which, side in enumerate((found.old, found.new))]
    if clocks[0] and clocks[1] and abs(math.log(clocks[1] / clocks[0])) > CLOCK_NOTE:
        out.append(f"changed: SM clock while timing {clocks[0]:.0f} -> {clocks[1]:.0f} MHz, median over rows")
    return out


def _published(found: Comparison) -> bool:
    """True if one of the files holds figures: they have no environment to differ from."""
    return all(row.verdict == "PUBLISHED" for row in found.rows)


def _clock(found: Comparison, side: Side, which: int) -> float | None:
    """Median over the timed rows of their mean SM clock in MHz."""
    rows = [row.pair.places[which] for row in found.rows if row.at is not None]
    rows = [row for row in rows if side.cycles.count[row]]
    if not rows:
        return None
    clocks = np.exp(np.nanmean(side.cycles.y[rows] - side.times.y[rows], axis=1))
    return float(np.median(clocks))


def _canaries(found: Comparison) -> list[str]:
    if (
        found.options.cross_gpu
        or _published(found)
        or not found.links
        or any(link.move is not None for link in found.links)
    ):
        return []
    return ["no canary was recorded in both files: a shift of the card would go unseen"]


def _waivers(found: Comparison) -> list[str]:
    used = Counter(row.waiver.place for row in found.rows if row.waiver)
    today, out = found.options.now.date(), []
    for waiver in found.options.waivers:
        state = f"excuses {counted(used[waiver.place], 'row')}" if used[waiver.place] else "excuses no row"
        if not any(waiver.names(row.pair.row_id, row.pair.case, row.pair.backend) for row in found.rows):
            state = "matches no row"
        if waiver.expired(today):
            state = "EXPIRED, excuses nothing"
        out.append(f"waiver {waiver.text()} ({state})")
    return out

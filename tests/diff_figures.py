"""Prints the figures of docs/diff.md: `python tests/diff_figures.py [--diffs 300]` (some minutes on one core).

Synthetic tables of 200 rows with the noise of `noise_model`: between rounds an sd that is log-normal over rows (median
0.4 %, sd of its log 0.5), within a round an exponential excess of 0.7 % over 61 samples, between sessions and in spikes
what each line says. Seeds are fixed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from scipy.stats import mannwhitneyu
from tabulate import tabulate

from fabench.diff import estimates, winsor
from fabench.diff.evidence import weigh
from fabench.diff.thresholds import Thresholds
from noise_model import Design, Machine, Noise, tally, upper_bound

Floats = np.ndarray
ROWS = 200


def false_rates(diffs: int) -> None:
    """Per-row false rate of rules in use elsewhere, on unchanged rows, beside whole diffs by fabench's."""
    lines = []
    for what, session, interleaved in (("one session", 0.0, True), ("two sessions, 0.5 %", 0.005, False)):
        noise, rng = Noise(session=session), np.random.default_rng(1)
        counts = np.zeros(3)
        tables = max(4, diffs // 20)
        for _ in range(tables):
            machine = Machine.draw(rng, ROWS, noise)
            offset = machine.session(rng)
            old = machine.samples(rng, 10, offset)
            new = machine.samples(rng, 10, offset if interleaved else machine.session(rng))
            counts += pooled_samples(old, new), rounds_only(old, new), point_against_noise(old, new)
        pooled, by_round, point = counts / tables
        design = Design(noise=noise, interleaved=interleaved, tau2=session**2)
        ours = tally(design, diffs, seed=2)
        any_false = f"{ours.any_slow + ours.any_fast} of {diffs} (at most {upper_bound(ours.any_slow, diffs):.1%})"
        lines.append((what, f"{pooled:.0%}", f"{by_round:.1%}", f"{point:.1%}", any_false))
    show(
        "Unchanged rows called changed, 10 rounds; the last column: diffs of 200 rows with any (95 % bound for slower)",
        ("A/A", "pooled samples, MWU p<.05", "rounds, MWU p<.05", "change > smaller sd", "fabench, whole diffs"),
        lines,
    )


def pooled_samples(old: Floats, new: Floats) -> float:
    """All samples of all rounds in one Mann-Whitney test."""
    return float((mannwhitneyu(flat(new), flat(old), axis=1, method="asymptotic").pvalue < 0.05).mean())


def rounds_only(old: Floats, new: Floats) -> float:
    """Medians of rounds in a Mann-Whitney test, uncorrected, without a margin."""
    a, b = np.median(old, axis=2), np.median(new, axis=2)
    return float((mannwhitneyu(b, a, axis=1, method="exact").pvalue < 0.05).mean())


def point_against_noise(old: Floats, new: Floats) -> float:
    """A change of the mean is real if it exceeds the smaller relative sd of the samples."""
    a, b = np.exp(flat(old)), np.exp(flat(new))
    noise = np.minimum(a.std(axis=1) / a.mean(axis=1), b.std(axis=1) / b.mean(axis=1))
    return float((np.abs(b.mean(axis=1) / a.mean(axis=1) - 1) > noise).mean())


def flat(samples: Floats) -> Floats:
    return samples.reshape(len(samples), -1)


def power(diffs: int) -> None:
    """Share of slowed rows found, one in 200."""
    lines = []
    for rounds in (5, 7, 10):
        for what, noise in (("", Noise()), ("spikes", Noise(spike_share=0.05))):
            found = [tally(Design(rounds, noise=noise, effect=e, changed=1), diffs, 3) for e in (0.02, 0.03, 0.05)]
            lines.append(("interleaved", rounds, what, "1 %", *(f"{t.power:.2f}" for t in found)))
    for session in (0.003, 0.005):
        for what, share in (("", 0.0), ("spikes", 0.05)):
            noise = Noise(session=session, spike_share=share)
            base = Design(noise=noise, interleaved=False, tau2=session**2, changed=1)
            found = [tally(replace(base, effect=e), diffs, 4) for e in (0.02, 0.03, 0.05)]
            label = f"sessions {session:.1%}, tau known"
            lines.append((label, 10, what, "1 %", *(f"{t.power:.2f}" for t in found)))
    show("Slowdowns found, one row of 200", ("", "rounds", "", "margin", "+2 %", "+3 %", "+5 %"), lines)


def uncalibrated(diffs: int) -> None:
    """Across sessions of unknown noise: false rows and power at the wide margin, and at a narrow one."""
    lines = []
    for session in (0.003, 0.005, 0.008, 0.012):
        base = Design(noise=Noise(session=session), interleaved=False, margin=0.05)
        wide = tally(base, diffs, 5)
        narrow = tally(replace(base, margin=0.01), diffs, 5)
        found = [tally(replace(base, effect=e, changed=1), diffs, 6).power for e in (0.07, 0.08, 0.10)]
        lines.append(
            (
                f"{session:.1%}",
                f"{wide.any_slow / diffs:.1%}",
                *(f"{p:.2f}" for p in found),
                f"{narrow.any_slow / diffs:.0%}",
            )
        )
    heads = ("session sd", "diffs with a false row", "+7 %", "+8 %", "+10 %", "the same at margin 1 %")
    show("Sessions of unknown noise, 10 rounds, margin 5 %", heads, lines)


def left_open(diffs: int) -> None:
    """Unchanged rows: SAME, and left open."""
    lines = []
    for what, design in (
        ("interleaved, 5 rounds", Design(5)),
        ("interleaved, 7 rounds", Design(7)),
        ("interleaved, 10 rounds", Design(10)),
        (
            "sessions 0.5 %, tau known, SAME within 5 %",
            Design(noise=Noise(session=0.005), interleaved=False, tau2=0.005**2),
        ),
    ):
        found = tally(design, diffs, 7)
        lines.append((what, f"{found.same:.1%}", f"{found.inconclusive:.1%}"))
    with patch.object(Thresholds, "__init__", _narrow_equivalence):
        found = tally(Design(noise=Noise(session=0.005), interleaved=False, tau2=0.005**2), diffs, 7)
    lines.append(("sessions 0.5 %, tau known, SAME within 1 %", f"{found.same:.1%}", f"{found.inconclusive:.1%}"))
    show("Unchanged rows", ("", "SAME", "INCONCLUSIVE"), lines)


def _narrow_equivalence(self: Thresholds) -> None:
    for name, default in Thresholds.__dataclass_fields__.items():
        object.__setattr__(self, name, default.default)
    object.__setattr__(self, "equivalence_cross_session", 0.01)


@contextmanager
def uncorrected() -> Iterator[None]:
    """Winsorised variance and Hodges-Lehmann shift without their small-sample corrections."""
    with (
        patch.object(winsor, "factors", lambda rounds: (1.0, rounds - 1.0)),
        patch.object(estimates, "shift_scale", lambda a, b: 1.0 / a + 1.0 / b),
    ):
        yield


@contextmanager
def corrected() -> Iterator[None]:
    yield


def calibration(diffs: int) -> None:
    """p values of rows slower by exactly the margin, which should be uniform."""
    lines = []
    for rounds in (5, 7, 10, 20):
        row: list[object] = [rounds]
        for how in (corrected, uncorrected):
            with how():
                p, any_false = edge(rounds, diffs)
            row += [f"{(p < x).mean():.4f}" for x in (0.05, 0.01, 0.001)] + [f"{any_false:.1%}"]
        lines.append(row)
    heads = (
        "rounds",
        *(f"{h}{w}" for w in ("", " (uncorrected)") for h in ("p<.05", "p<.01", "p<.001", "diffs with any")),
    )
    show(
        "Every row slower by exactly the margin: p should be below x with probability x, and any of 200 at most 5 %",
        heads,
        lines,
    )


def edge(rounds: int, diffs: int) -> tuple[Floats, float]:
    design = Design(rounds, effect=0.01, changed=ROWS)
    rng, limits = np.random.default_rng(8), Thresholds()
    context, out, false = design.context(limits), [], 0
    for _ in range(diffs):
        evidence = weigh(*design.pair(rng), context, limits)
        out.append(evidence.p_slow)
        false += bool(evidence.slow.any())
    return np.concatenate(out), false / diffs


def measured_tau(diffs: int) -> None:
    """Tau from A/A sessions: how well it serves, when rows move apart and when all move as one."""
    from diff_sessions import calibrated_diffs

    lines = []
    for what, noise in (("rows apart, sd 0.5 %", Noise(session=0.005)), ("all as one, sd 0.5 %", Noise(common=0.005))):
        for sessions in (6, 12):
            slow, found, nu = calibrated_diffs(noise, sessions, max(20, diffs // 5), effect=0.06)
            lines.append((what, sessions, f"{nu:.0f}", f"{slow:.1%}", f"{found:.2f}"))
    heads = ("sessions differ", "calibrated in", "degrees of freedom", "diffs with a false row", "+6 % found")
    show("Tau measured in A/A sessions, then used in a diff of 200 rows", heads, lines)


def geomean_coverage(diffs: int) -> None:
    """How often the geomean's 95 % interval covers the truth: rows apart, and rounds that are slow for all rows."""
    from types import SimpleNamespace

    from fabench.diff.estimates import Rounds, hodges_lehmann
    from fabench.diff.geomean import _bootstrap

    rng, lines, rows = np.random.default_rng(11), [], 20
    pairs = [SimpleNamespace(pair=SimpleNamespace(places=(i, i))) for i in range(rows)]
    for rounds in (5, 7, 10):
        hits = []
        for common in (0.0, 0.004):
            covered = 0
            for _ in range(diffs):
                sides = []
                for _ in range(2):
                    y = common * rng.standard_normal(rounds) + 0.004 * rng.standard_normal((rows, rounds))
                    numbers = np.tile(np.arange(rounds), (rows, 1))
                    sides.append(SimpleNamespace(times=Rounds.dense(y), numbers=numbers))
                low, high = _bootstrap(SimpleNamespace(old=sides[0], new=sides[1]), pairs, 500)
                mean = hodges_lehmann(sides[0].times.y, sides[1].times.y).mean()
                covered += mean + low <= 0.0 <= mean + high
            hits.append(f"{covered / diffs:.1%}")
        lines.append((rounds, *hits))
    show(
        "Geomean of 20 unchanged rows: how often its 95 % interval covers 1",
        ("rounds", "rows apart", "rounds slow for all"),
        lines,
    )


def show(caption: str, heads: tuple[str, ...], lines: list) -> None:
    print(f"{caption}\n\n{tabulate(lines, heads, 'github', disable_numparse=True)}\n", flush=True)


FIGURES: tuple[Callable[[int], None], ...] = (
    false_rates, power, uncalibrated, left_open, calibration, measured_tau, geomean_coverage,
)  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diffs", type=int, default=300)
    parser.add_argument("--only", help="one of " + ", ".join(f.__name__ for f in FIGURES))
    arguments = parser.parse_args()
    for figure in FIGURES:
        if arguments.only in (None, figure.__name__):
            figure(arguments.diffs)

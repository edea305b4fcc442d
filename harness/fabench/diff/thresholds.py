"""Every number the comparison decides by, in one place; each report prints them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from fabench.errors import UsageError


@dataclass(frozen=True)
class Thresholds:
    """Named limits of a comparison. A share or a margin is a fraction of 1."""

    margin_interleaved: float = 0.01
    """A change this small is no regression when both files were measured interleaved in one session."""
    margin_calibrated: float = 0.01
    """The same across sessions, where the session-to-session variance is known and enters the standard error."""
    margin_uncalibrated: float = 0.05
    """The same across sessions of unknown variance: wide enough to hold it (docs/diff.md, 'Which margin')."""
    equivalence_cross_session: float = 0.05
    """Across sessions, calibrated or not, SAME means no change larger than this; interleaved, than the margin."""
    q: float = 0.05
    """False discovery rate over rows (Benjamini & Hochberg 1995), for slowdowns and for speedups alike."""
    guard_p: float = 0.025
    """One-sided Mann-Whitney p a single row must reach as well, uncorrected."""
    confidence: float = 0.95
    """Of the interval shown beside each ratio."""
    equivalence_confidence: float = 0.90
    """Of the interval that must lie within the margin for SAME: two one-sided tests at 5 % each."""
    prior_rows: int = 20
    """From this many rows on, rows lend each other knowledge of the variance."""
    canary_shift: float = 0.02
    """A canary that moved by more makes the rows it stands for ENV_SHIFT."""
    min_rounds: int = 5
    """With fewer rounds a row cannot gate."""
    inconclusive_share: float = 0.20
    """More INCONCLUSIVE rows than this share of those compared: no gate decision."""
    effect: float = 0.05
    """The slowdown an INCONCLUSIVE row's needed rounds are computed for."""
    power: float = 0.80
    """Probability of finding it that those rounds give."""
    most_rounds: int = 100
    """A row that needs more is told that the machine is too noisy."""
    bootstrap_draws: int = 2000
    """Resamples of rounds behind the geomean's interval."""
    calibration_sessions: int = 6
    """Sessions a noise file must hold before its variance is believed."""
    calibration_cards: int = 3
    """Cards of a model before the variance between cards is believed."""
    calibration_days: int = 30
    """Age of a noise file that draws a warning."""
    launch_bound: float = 10.0
    """A row faster than this many empty launches has no efficiency."""

    def __post_init__(self) -> None:
        for name in ("margin_interleaved", "margin_calibrated", "margin_uncalibrated", "effect"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise UsageError(f"'{name}' must be between 0 and 100 %, got {getattr(self, name):.4g}")
        if self.effect <= max(self.margin_interleaved, self.margin_calibrated):
            raise UsageError(
                f"'effect' must be larger than the margin, got {self.effect:.4g} and "
                f"{max(self.margin_interleaved, self.margin_calibrated):.4g}: no number of rounds finds a change "
                "inside the margin"
            )

    def as_dict(self) -> dict[str, float | int]:
        """Name -> value, for reports."""
        from fabench.diff.winsor import CLIP

        return {**asdict(self), "winsor_mads": CLIP}


GATEABLE = ("regressed", "broken", "missing", "coverage_lost")
"""What `--fail-on` can name, all of them by default."""


def fraction(text: str, name: str) -> float:
    """0.05 for '5%' or '0.05'. Raises UsageError unless it is between 0 and 100 %."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1.0:
        raise UsageError(f"'{name}' must be a share between 0 and 100 %, such as '5%', got '{text}'")
    return value


def percent(share: float) -> str:
    """'1 %' for 0.01, to three digits."""
    return f"{100.0 * share:.3g} %"

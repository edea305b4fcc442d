"""`fabench calibrate --noise`: how much the same rows move between sessions on this card, added to its noise file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabench.cli.stdout import say
from fabench.cli.targets import check_targets
from fabench.errors import UsageError
from fabench.text import counted

if TYPE_CHECKING:
    from fabench.diff.noise import Noise


def calibrate_noise(
    files: Sequence[str] = (),
    *,
    suite: str = "smoke",
    rounds: int = 10,
    device: str = "auto",
    where: str | None = None,
    out: Path | None = None,
) -> None:
    """Add a session to the card's noise file, and print what the file now knows.

    The session is one run of `suite` in `rounds` rounds, kept under results/<gpu>; or `files`, result files that are
    there already, each of one session. `out` is results/<gpu>/calibration-noise.json unless named. Raises UsageError.
    """
    from fabench.diff import Thresholds, load, noise

    limits = Thresholds()
    if out is not None:
        check_targets([out], list(map(Path, files)))
        if out.exists():
            noise.read(out)  # it is added to: a file that is none is refused before the work
    paths = files or [str(_measure(suite, rounds, device, where))]
    sides = [load(path, allow_partial=None) for path in paths]
    identities = [env.identity for side in sides for env in side.file.envs.values()]
    if not identities:
        raise UsageError(f"'{sides[0].path}' must hold the env of its session, and has none")
    path = out or noise.default_path(identities[0])
    noise.append(path, sides)
    say(describe(noise.load(path, limits.calibration_sessions, limits.calibration_cards)))


def describe(found: Noise) -> str:
    """The noise file in words: what is calibrated, and what it takes to calibrate the rest."""
    from fabench.diff import Thresholds, noise

    limits = Thresholds()
    measured = f"{counted(found.sessions, 'session')} on {counted(found.cards, 'card')}, newest {found.newest:%Y-%m-%d}"
    names = dict(noise.BUCKETS_NS)
    lines = [
        f"  between {'sessions' if kind == 'session' else 'cards'}, {regime}, {bucket}: tau {tau.tau:.3%}, "
        f"{tau.nu:.0f} degrees of freedom, from {counted(tau.groups, 'session' if kind == 'session' else 'card')} "
        f"of {counted(tau.rows, 'row')}"
        for (kind, regime, bucket), tau in sorted(
            found.classes.items(), key=lambda one: (one[0][0] != "session", one[0][1], [*names].index(one[0][2]))
        )
    ]
    if not lines:
        needs = f"needs {limits.calibration_sessions} sessions that a boot or an hour lies between"
        lines = [f"  UNCALIBRATED: {needs}; `fabench diff` uses its wide margin until then"]
    return "\n".join([f"{found.path}: {found.model}, {measured}", *lines])


def _measure(suite: str, rounds: int, device: str, where: str | None) -> Path:
    """One session, run here and now. Raises UsageError if it could not be finished."""
    from fabench import runner
    from fabench.request import Request, prepare

    request = Request(suite=suite, rounds=rounds, device=device, where=where, argv=("fabench", "calibrate"))
    (outcome,) = runner.execute([prepare(request)], lambda text: click.echo(text, err=True))
    if outcome.interrupted:
        raise UsageError(f"the session was interrupted; '{outcome.path}' holds what was measured and is not used")
    click.echo(str(outcome.path), err=True)
    return outcome.path

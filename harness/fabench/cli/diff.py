"""`fabench diff`: compare two result files and decide."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabench.cli.stdout import say
from fabench.cli.targets import check_regular, check_targets
from fabench.cli.words import parse_words
from fabench.errors import UsageError
from fabench.output_files import write_text

if TYPE_CHECKING:
    from fabench.diff import Options, Report, Side, Thresholds
    from fabench.diff.noise import Noise

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "--fail-on",
    default="regressed,broken,missing,coverage_lost",
    show_default=True,
    help="Verdicts that make the exit code 1, or none.",
)
@click.option("--cross-gpu", is_flag=True, help="Two different cards: times side by side, verdicts and coverage gate.")
@click.option("--gate-efficiency", metavar="5%", help="With --cross-gpu: gate on a fall in efficiency by more.")
@click.option("--anchor", metavar="BACKEND", help="With --cross-gpu: ratios to it. [default: the suite's baseline]")
@click.option(
    "--waivers", type=_PATH, metavar="FILE.toml", help="Known bad rows, with a bound, an expiry and a reason."
)
@click.option("--where", metavar="COND", help="Only rows that match, e.g. 'd=128,N>=4096,backend=sdpa-*'.")
@click.option("--margin", metavar="1%", help="Largest change that is no regression, whatever the sessions.")
@click.option(
    "--effect",
    metavar="5%",
    help="The slowdown that needed rounds are computed for. [default: 5%, or twice a larger --margin]",
)
@click.option(
    "--calibration", type=_PATH, metavar="FILE", help="Noise file. [default: results/<gpu>/calibration-noise.json]"
)
@click.option("--row", default="", help="Axes of a table of ratios, comma-separated, e.g. N,d.")
@click.option("--col", default="", help="Its columns, e.g. backend.")
@click.option("--all", "all_rows", is_flag=True, help="Print every row, the unchanged too.")
@click.option("--explain", "explained", metavar="ROW_ID", help="Print every number behind one verdict.")
@click.option("--rerun", type=_PATH, metavar="FILE", help="Write the rows to measure again: `run --rows FILE --ab`.")
@click.option("--json", "json_", type=_PATH, metavar="FILE", help="Write every number, threshold and version.")
@click.option("--markdown", type=_PATH, metavar="FILE", help="Write the table as Markdown.")
@click.option("--junit", type=_PATH, metavar="FILE", help="Write JUnit XML.")
@click.option("--csv", "csv_", type=_PATH, metavar="FILE", help="Write one line a row.")
@click.option("--annotations", is_flag=True, help="Print GitHub annotations, and fill the step's summary.")
@click.option("--allow-partial", is_flag=True, help="Read what is there of a file that was cut off.")
def command(
    old: str,
    new: str,
    row: str,
    col: str,
    all_rows: bool,
    explained: str | None,
    rerun: Path | None,
    json_: Path | None,
    markdown: Path | None,
    junit: Path | None,
    csv_: Path | None,
    annotations: bool,
    allow_partial: bool,
    **asked: object,
) -> None:
    """Compare NEW with OLD, row by row. A row is a case and a backend; ratios are new/old of time.

    Exit code 0: rows were compared and nothing is bad; 1: a verdict that --fail-on names; 2: usage, a
    damaged file, or no row in common; 3: no decision (other hardware or methods, a shifted environment, too few
    rounds, too many INCONCLUSIVE rows, or none ok in both files). The code is never a count.
    """
    from fabench import diff
    from fabench.diff.side import load_both
    from fabench.views.axes import axis_names
    from fabench.views.diff_explain import explain
    from fabench.views.diff_table import pivot, text
    from fabench.views.show import terminal_width

    by_row, by_col = _axes(axis_names(row, "--row")), _axes(axis_names(col, "--col"))
    if both := set(by_row) & set(by_col):
        raise UsageError(f"'{min(both)}' must be in --row or in --col, got it in both")
    writers = ((json_, _json), (markdown, _markdown), (junit, _junit), (csv_, _csv), (rerun, rerun_file))
    targets = [(path, write) for path, write in writers if path is not None]
    files = _file(old), _file(new)
    inputs = [*files, *(asked[name] for name in ("waivers", "calibration") if asked[name])]
    check_targets([path for path, _ in targets], inputs)  # type: ignore[arg-type]  # options that are paths
    if explained is not None:
        check_regular(files)  # for the samples of its row
    sides = load_both(*files, allow_partial=allow_partial)
    report = diff.judge(*sides, options(*sides, **asked))  # type: ignore[arg-type]  # click has checked them

    if explained is not None:
        shown = explain(report, explained)
    elif by_row or by_col:
        shown = pivot(report, by_row, by_col, width=terminal_width())
    else:
        shown = text(report, all_rows=all_rows, width=terminal_width())
    for path, write in targets:
        write_text(path, write(report))
    say(shown)
    if annotations:
        from fabench.views import github

        say(github.commands(report))
        github.write_summary(report)
    sys.exit(report.gate.code)


def options(
    old: Side,
    new: Side,
    *,
    fail_on: str,
    cross_gpu: bool,
    gate_efficiency: str | None,
    anchor: str | None,
    waivers: Path | None,
    where: str | None,
    margin: str | None,
    effect: str | None,
    calibration: Path | None,
) -> Options:
    """The options of a comparison, checked. Raises UsageError."""
    from fabench.diff import Options
    from fabench.diff.thresholds import fraction
    from fabench.diff.waivers import load
    from fabench.where import Condition

    if not cross_gpu:
        for name, given in (("--gate-efficiency", gate_efficiency), ("--anchor", anchor)):
            if given is not None:
                raise UsageError(f"'{name}' goes with --cross-gpu: within one device times themselves are judged")
    limits = thresholds(margin, effect)
    backends = {row.backend for side in (old, new) for row in side.rows}
    if anchor is not None and anchor not in backends:
        from fabench.text import did_you_mean

        raise UsageError(f"'--anchor' must be a backend of the files, got '{anchor}'{did_you_mean(anchor, backends)}")
    return Options(
        limits=limits,
        fail_on=parse_fail_on(fail_on),
        cross_gpu=cross_gpu,
        gate_efficiency=None if gate_efficiency is None else fraction(gate_efficiency, "--gate-efficiency"),
        anchor=anchor,
        where=None if where is None else Condition.parse(where),
        waivers=() if waivers is None else load(waivers),
        noise=None if cross_gpu else _noise(new, calibration, limits),
    )


def thresholds(margin: str | None, effect: str | None) -> Thresholds:
    """The thresholds with what was asked for in place of the defaults. Raises UsageError."""
    from fabench.diff.thresholds import Thresholds, fraction

    given: dict[str, float] = {}
    if margin is not None:
        share = fraction(margin, "--margin")
        given = dict.fromkeys(("margin_interleaved", "margin_calibrated", "margin_uncalibrated"), share)
        given["effect"] = max(Thresholds.effect, min(2 * share, 0.99))
    if effect is not None:
        given["effect"] = fraction(effect, "--effect")
    return replace(Thresholds(), **given)  # type: ignore[arg-type]  # the fields given are floats


def parse_fail_on(text: str) -> frozenset[str]:
    """The words of --fail-on. Raises UsageError on an unknown one."""
    from fabench.diff.thresholds import GATEABLE

    return parse_words("--fail-on", text, "verdicts", GATEABLE)


def _noise(new: Side, given: Path | None, limits: Thresholds) -> Noise | None:
    """The noise calibration named, or the card's own if there is one. Raises UsageError if it is another card's."""
    from fabench.diff import noise

    envs = list(new.file.envs.values())
    path = given or (noise.find(envs[0].identity) if envs else None)
    if path is None:
        return None
    found = noise.load(path, limits.calibration_sessions, limits.calibration_cards)
    models = {env.identity.model for env in envs}
    if given is not None and models != {found.model}:
        raise UsageError(f"'--calibration' must be of {', '.join(sorted(models))}, got '{path}' of {found.model}")
    return found if models == {found.model} else None


def _axes(names: tuple[str, ...]) -> tuple[str, ...]:
    if absent := [name for name in names if name in ("device", "file", "regime")]:
        raise UsageError(f"'{absent[0]}' is no axis of a comparison; two cards stand side by side with --cross-gpu")
    return names


def _file(name: str) -> Path:
    """A result file, or a shipped set of published figures such as published/fa3_h100."""
    from fabench.views.published import shipped

    path = Path(name)
    return path if path.exists() else shipped().get(name, path)


def rerun_file(report: Report) -> str:
    """One row_id a line, what it is after a '#': what `fabench run --rows` reads."""
    from fabench.diff.compare import reruns

    rows = reruns(report.found)
    lines = [f"{row.pair.row_id}  # {row.verdict} {row.pair.backend} {row.pair.case.label()}\n" for row in rows]
    return "".join(["# rows to measure again, fresh, by `fabench run SUITE --rows FILE --ab A B`\n", *lines])


def _json(report: Report) -> str:
    import json

    from fabench.diff import as_json

    return json.dumps(as_json(report), indent=1, allow_nan=False) + "\n"


def _markdown(report: Report) -> str:
    from fabench.views.diff_table import text

    return text(report, "github") + "\n"


def _junit(report: Report) -> str:
    from fabench.views.junit import as_junit

    return as_junit(report)


def _csv(report: Report) -> str:
    from fabench.views.diff_csv import as_csv

    return as_csv(report)

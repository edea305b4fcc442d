"""`fabench calibrate`: measure this device once, so that later verdicts have something to stand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fabench.cli.stdout import say
from fabench.errors import UsageError
from fabench.output_files import check
from fabench.text import counted

MOST_FAILURES = 12
"""Failures that are printed; the rest is counted."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--parity", "what", flag_value="parity", default="parity", help="How exact each backend is. [default]")
@click.option(
    "--noise", "what", flag_value="noise", help="How much equal runs differ (of FILES, or of a run made now)."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:<i>.")
@click.option("--backend", "backends", multiple=True, metavar="GLOB", help="Parity: only these. Repeatable.")
@click.option("--seeds", default=2, show_default=True, type=click.IntRange(1), help="Parity: of each case.")
@click.option("--lengths", metavar="LIST", help="Parity: sequence lengths, e.g. 512,4096.")
@click.option("--budget", metavar="TIME", help="Parity: stop after e.g. 5m; what is there then is a fair sample.")
@click.option("--suite", default="smoke", show_default=True, help="Noise: the suite to run.")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(2), help="Noise: rounds of that run.")
@click.option("--where", metavar="COND", help="Noise: only these rows.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="[default: results/<device>/calibration-*.json]"
)
def command(
    files: tuple[str, ...],
    what: str,
    device: str,
    backends: tuple[str, ...],
    seeds: int,
    lengths: str | None,
    budget: str | None,
    suite: str,
    rounds: int,
    where: str | None,
    out: Path | None,
) -> None:
    """Write results/<device>/calibration-parity.json: max rho per backend, dtype, direction and N.

    Given such a file, prints it, and runs nothing. With --noise, calibration-noise.json: what `fabench diff` takes for
    noise.
    """
    if what == "noise":
        from fabench.cli.calibrate_noise import calibrate_noise

        calibrate_noise(files, suite=suite, rounds=rounds, device=device, where=where, out=out)
        return
    if files:
        for file in files:
            say(kept(Path(file)))
        return
    calibrate_parity(device, backends, seeds, parse_lengths(lengths), budget, out)


def calibrate_parity(
    device: str, backends: tuple[str, ...], seeds: int, lengths: tuple[int, ...], budget: str | None, out: Path | None
) -> None:
    """Run the grid over the backends that can run here, write the file, print a table."""
    from fabench import probe
    from fabench.cli.parity import parse_budget
    from fabench.interrupts import interrupts
    from fabench.parity import calibration_file, calibrator
    from fabench.parity.calibrate_grid import grid
    from fabench.parity.progress import calibrating

    seconds = parse_budget(budget)
    if out is not None:
        check(out)
    found = probe.ask(device, [], [], list(backends) or None)
    names = calibrator.able(found, list(found.backends))
    if not names:
        raise UsageError("no backend can run here; `fabench list backends` says why")
    path = out or calibration_file.default_path(found.device)
    known = calibration_file.earlier(path, found.device)
    check(path)
    cases = list(grid(found.device.type, seeds, lengths))
    size = f"{counted(len(cases), 'case')} x {counted(len(names), 'backend')}"
    click.echo(f"{size} on {found.device.name}: {', '.join(names)}", err=True)
    work = calibrator.Calibrator(found, names)
    with interrupts():
        with calibrating(len(cases)) as work.watcher:
            work.run(cases, seconds)
        if work.interrupted and not work.readings:
            raise KeyboardInterrupt
        data = calibration_file.write(work, path, known)
    say(table(calibration_file.entries(work.readings)))
    own = data | {
        "failures": [f for f in data["failures"] if f["backend"] in names],
        "left_out": [group for group in data["left_out"] if set(group["backends"]) <= set(names)],
        "earlier": {},
    }
    for line in [*endings(own), *calibration_file.fewer(work, known)]:
        say(line)
    click.echo(str(path), err=True)
    if work.interrupted:
        raise KeyboardInterrupt


def endings(data: dict[str, Any]) -> list[str]:
    """What failed, what was left out and what is older, as sentences."""
    from fabench.parity.calibration_file import cases_by_backend, earlier_lines, left_out_lines

    failures = data["failures"]
    lines = [f"fails: {f['backend']} on {f['case']}: {f['reason'].split('; ')[0]}" for f in failures[:MOST_FAILURES]]
    if len(failures) > MOST_FAILURES:
        lines.append(f"... and {len(failures) - MOST_FAILURES} more, in the file")
    lines += left_out_lines(data["left_out"], list(cases_by_backend(data["entries"])))
    return lines + earlier_lines(data.get("earlier", {}))


def kept(path: Path) -> str:
    """What a file of parity's calibration says. Raises UsageError on any other file."""
    from fabench.input_files import read_small
    from fabench.parity.calibration import SCHEMA
    from fabench.parity.calibration_file import TENSORS, cases_by_backend

    try:
        data = json.loads(read_small(path))
        if data["schema"] != SCHEMA:
            raise ValueError(data["schema"])
        entries, cases = data["entries"], cases_by_backend(data["entries"])
        by_tensor = {t: [e for e in entries if e["tensor"] == t] for t in TENSORS}
        worst = {t: max(found, key=lambda e: e["max_rho"]) for t, found in by_tensor.items() if found}
        where = f"{data['made'][:10]} on {data['device']}, torch {data['software']['torch']}"
        lines = [
            f"calibrated {where}, up to {counted(max(cases.values(), default=0), 'case')} each",
            "",
            table(entries),
            "",
            *(
                f"largest of {tensor}: {e['max_rho']:.2f}, {e['backend']} on {e['worst_case']}"
                for tensor, e in worst.items()
            ),
            "largest of all: rms rho {:.2f}, el {:.1f}".format(
                *(max((e[k] for e in entries), default=0.0) for k in ("rms_rho", "max_el"))
            ),
            *endings(data),
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"'{path}' must be a calibration that 'fabench calibrate' has written, got another file; "
            "a result file is something which only --noise takes"
        ) from error
    return "\n".join(lines)


def table(entries: list[dict[str, object]]) -> str:
    """Max rho (rms rho) by backend and dtype over all N, a column a tensor."""
    from tabulate import tabulate

    from fabench.parity.calibration_file import TENSORS

    rows: dict[tuple[object, object, object], dict[object, tuple[float, float]]] = {}
    for entry in entries:
        row = rows.setdefault((entry["backend"], entry["class"], entry["dtype"]), {})
        rho, rms = row.get(entry["tensor"], (0.0, 0.0))
        row[entry["tensor"]] = (max(rho, float(str(entry["max_rho"]))), max(rms, float(str(entry["rms_rho"]))))
    body = [
        [*key, *(f"{row[t][0]:.2f} ({row[t][1]:.2f})" if t in row else "" for t in TENSORS)]
        for key, row in sorted(rows.items(), key=str)
    ]
    headers = ["backend", "class", "dtype", *(f"{t}: max rho (rms)" for t in TENSORS)]
    return tabulate(body, headers=headers, tablefmt="simple", disable_numparse=True)


def parse_lengths(text: str | None) -> tuple[int, ...]:
    """The lengths of --lengths; raises UsageError unless they are whole numbers above 0."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--lengths must list sequence lengths such as 512,4096, got '{text}'")
    return tuple(map(int, parts))

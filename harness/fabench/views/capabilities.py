"""`fabench list`: the capability matrix of the backends, and tables of suites and devices, fitted to the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from fabench.backend import Facts
from fabench.device import Device

if TYPE_CHECKING:
    from fabench.probe import Probe
    from fabench.suite import Suite

Rows = Sequence[Mapping[str, str]]
WIDE = 1000
"""Columns of a file: nothing is wrapped in one."""


def columns(facts: Facts, unavailable: str | None) -> dict[str, str]:
    """One backend's row of the matrix: what it takes, in the words of suites."""
    return {
        "backend": facts.name,
        "here": "yes" if unavailable is None else "no",
        "dtype": " ".join(facts.dtypes),
        "d": head_dims(facts),
        "dv": "any" if facts.dv_differs else "= d",
        "causal": causal(facts),
        "window": mark(facts.window),
        "softcap": mark(facts.softcap),
        "GQA": mark(facts.gqa),
        "backward": mark("backward" in facts.directions),
        "LSE": mark(facts.returns_lse),
        "class": facts.accuracy + (f" (fp32 {facts.fp32_accuracy})" if facts.fp32_accuracy else ""),
    }


def mark(supported: bool) -> str:
    """`yes` or `-`."""
    return "yes" if supported else "-"


def head_dims(facts: Facts) -> str:
    """Which head dims it takes: `64 128`, `<= 256`, `by 8`, `any`."""
    if facts.head_dims is not None:
        return " ".join(map(str, facts.head_dims))
    limit = "" if facts.max_head_dim is None else f"<= {facts.max_head_dim}"
    step = "" if facts.head_dim_multiple == 1 else f"by {facts.head_dim_multiple}"
    return " ".join(part for part in (limit, step) if part) or "any"


def causal(facts: Facts) -> str:
    """Which causal alignments it computes where Nq and Nk differ."""
    if not facts.causal:
        return "-"
    if not facts.alignments:
        return "Nq = Nk"
    return "both" if len(facts.alignments) == 2 else facts.alignments[0]


def backends(probe: Probe, width: int, style: str = "simple") -> str:
    """The matrix, then why each backend that cannot run here cannot."""
    matrix = [columns(report.facts, report.unavailable) for report in probe.backends.values()]
    summaries = {name: report.facts.summary for name, report in probe.backends.items()}
    missing = {name: r.unavailable for name, r in probe.backends.items() if r.unavailable is not None}
    title = f"Backends on {probe.device.torch_name} ({probe.device.name})"
    parts = [title, fit(matrix, width, style, summaries, droppable=True)]
    if missing:
        width = width if style == "simple" else WIDE
        parts += ["Not available here:", "\n".join(reason(name, why, width) for name, why in missing.items())]
    return "\n\n".join(parts)


def reason(name: str, why: str, width: int) -> str:
    """`  name: why`, wrapped."""
    return wrap(f"{name}: {' '.join(why.split())}", width, "    ")


def wrap(text: str, width: int, hanging: str = "  ") -> str:
    """Indented by two, and to the width, broken at blanks only: a command with a hyphen stays whole."""
    return textwrap.fill(text, max(20, width), initial_indent="  ", subsequent_indent=hanging, break_on_hyphens=False)


def suites(loaded: Mapping[str, Suite], width: int, style: str = "simple") -> str:
    """Each shipped suite: its size, and its one line."""
    rows = [
        {"suite": name, "cases": str(len(suite.cases)), "backends": " ".join(suite.backends)}
        for name, suite in loaded.items()
    ]
    return "Suites\n\n" + fit(rows, width, style, {name: suite.description for name, suite in loaded.items()})


def devices(found: Sequence[Device], width: int, style: str = "simple") -> str:
    """Each device and its facts."""

    def row(device: Device) -> dict[str, str]:
        gib = 2**30
        return {
            "device": device.torch_name,
            "name": device.name,
            "capability": "{}.{}".format(*device.capability) if device.capability else "-",
            "SMs": str(device.sms or "-"),
            "memory": f"{device.memory_bytes / gib:.0f} GiB",
            "free": f"{device.free_bytes / gib:.0f} GiB",
            "L2": f"{device.l2_bytes / 2**20:.0f} MiB" if device.l2_bytes else "-",
            "max clock": f"{device.max_sm_clock_hz / 1e6:.0f} MHz" if device.max_sm_clock_hz else "-",
        }

    return "Devices\n\n" + fit([row(device) for device in found], width, style, {})


def fit(rows: Rows, width: int, style: str, summaries: Mapping[str, str], *, droppable: bool = False) -> str:
    """A table if it fits the terminal, else a short paragraph a row. The first column names the row.

    `summaries` are a row's one line: beside the table (or left out to make it fit, if `droppable`), below the name in
    a paragraph. A style other than simple is for a file, and always a table.
    """
    if not rows:
        return "none"
    first = next(iter(rows[0]))
    full = [{**row, "": summaries[row[first]]} for row in rows] if summaries else rows
    for candidate in (full, rows) if droppable else (full,):
        table = tabulate(candidate, headers="keys", tablefmt=style, disable_numparse=True)
        if style != "simple" or max(map(len, table.splitlines())) <= width:
            return table
    return "\n\n".join(paragraph(row, width, summaries.get(row[first], "")) for row in rows)


def paragraph(row: Mapping[str, str], width: int, summary: str) -> str:
    """A row for a narrow terminal: its name, its line, then `column value; column value`, wrapped."""
    name, *values = row.items()
    # A value stays in one piece where it fits a line: then only the blanks after `;` are places to break.
    parts = [f"{column} {value}" for column, value in values if value != "-"]
    body = "; ".join(part.replace(" ", "\0") if len(part) + len("  ;") <= max(20, width) else part for part in parts)
    lines = [name[1], *([wrap(summary, width)] if summary else []), wrap(body, width).replace("\0", " ")]
    return "\n".join(lines)


def load_suites(paths: Mapping[str, Path]) -> dict[str, Suite]:
    """Each shipped suite, loaded. Raises SuiteError if one is broken."""
    from fabench.suite import load

    return {name: load(str(path)) for name, path in paths.items()}

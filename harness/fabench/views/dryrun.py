"""What `fabench run --dry-run` prints: the size of the sweep, the suite as resolved, every row, and what is skipped."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from tabulate import tabulate

from fabench.plan import Plan, PlannedRow
from fabench.suite import Suite
from fabench.text import bytes_text, counted, seconds_text
from fabench.views.axes import AXES, axis_text, shape_of

REASONS = 3
"""Reasons shown for one status and backend; each case may have a reason of its own."""


def render(suite: Suite, plan: Plan) -> str:
    """The whole text, without a newline at its end."""
    blocks = [_head(suite, plan), _resolved(suite), _rows(plan), _skipped(plan), _notes(suite, plan)]
    return "\n\n".join(block for block in blocks if block)


def product(suite: Suite, plan: Plan) -> str:
    """The size of the sweep: '2 N x 2 d x 2 causal = 8 cases x 5 backends = 40 rows x 1 round'."""
    sizes = [f"{len(values)} {name}" for name, values in suite.axes.items() if len(values) > 1]
    cases, backends = len(suite.cases), len(plan.backends)
    text = f"{' x '.join(sizes)} = " if sizes else ""
    if suite.combinations > cases:
        text += f"{suite.combinations} combinations, merged to "
    text += f"{counted(cases, 'case')} x {counted(backends, 'backend')} = {counted(cases * backends, 'row')}"
    left_out = [f"{n} {what}" for n, what in ((plan.excluded, "excluded"), (plan.filtered, "filtered out")) if n]
    if left_out:
        text += f", less {' and '.join(left_out)} = {counted(len(plan.rows), 'row')}"
    return f"{text} x {counted(suite.measure.rounds, 'round')}"


def _head(suite: Suite, plan: Plan) -> str:
    device, running = plan.device, len(plan.to_run)
    free = f", {bytes_text(device.free_bytes)} free" if device.free_bytes else ""
    spent = seconds_text(plan.seconds(suite.measure.rounds))
    return "\n".join(
        [
            f"{suite.name}: {suite.description}" if suite.description else suite.name,
            product(suite, plan),
            f"on {device.torch_name} ({device.name}{free})",
            f"{counted(running, 'row')} to run, {len(plan.rows) - running} skipped; about {spent} without compiling",
        ]
    )


def _resolved(suite: Suite) -> str:
    """The suite as it was understood, a key a line, the keys that its file does not set marked as defaults."""
    lines = []
    for key, value in suite.resolved.items():
        if key in ("name", "description"):
            continue
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [_line(f"  {name}", part, f"{key}.{name}" in suite.given) for name, part in value.items()]
        else:
            lines.append(_line(key, value, key in suite.given))
    return "\n".join(lines)


def _line(name: str, value: Any, given: bool) -> str:
    alone = isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list)
    return f"{name}: {_yaml(value[0] if alone else value)}{'' if given else '  # default'}"


def _yaml(value: Any) -> str:
    """A value as a suite could hold it: JSON is YAML, and plain words need no quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value)
    return str(value) if plain else json.dumps(value)


def _rows(plan: Plan) -> str:
    """A line a row: what varies of the case, the backend, predicted memory and time, and what will be done."""
    if not plan.rows:
        return ""
    shape = shape_of(plan.rows)
    table = [[row.row_id, *(axis_text(AXES[name](row)) for name in shape.varying), *_ends(row)] for row in plan.rows]
    headings = ["row", *shape.varying, "backend", "extra memory", "time", "plan"]
    numbers = [all(isinstance(AXES[name](row), int | float) for row in plan.rows) for name in shape.varying]
    numbers = [number and name != "causal" for number, name in zip(numbers, shape.varying, strict=True)]
    align = ["left", *("right" if number else "left" for number in numbers), "left", "right", "right", "left"]
    text = tabulate(table, headings, tablefmt="simple", colalign=align, disable_numparse=True)
    return "\n".join(line.rstrip() for line in (", ".join(shape.fixed), *text.splitlines()) if line)


def _ends(row: PlannedRow) -> list[str]:
    spent = "-" if row.status else seconds_text(row.predicted_s)
    return [row.backend, bytes_text(row.predicted_bytes), spent, row.status or "run"]


def _skipped(plan: Plan) -> str:
    """Why rows are skipped: for each status and backend its reasons, with the number of rows of each."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for row in plan.rows:
        if row.status is not None:
            groups.setdefault((row.status, row.backend), Counter())[row.detail or ""] += 1
    lines = ["Skipped:"]
    for (status, name), reasons in groups.items():
        shown = list(reasons.items())[:REASONS]
        lines += [f"  {status} {name} ({counted(n, 'row')}): {why}" for why, n in shown]
        if more := reasons.total() - sum(n for _, n in shown):
            others = counted(len(reasons) - REASONS, "more reason")
            lines.append(f"  {status} {name} ({counted(more, 'row')}): {others} like these")
    return "\n".join(lines) if groups else ""


def _notes(suite: Suite, plan: Plan) -> str:
    notes = [*suite.notes, *plan.notes]
    return "\n".join(["Notes:", *(f"  {note}" for note in notes)]) if notes else ""

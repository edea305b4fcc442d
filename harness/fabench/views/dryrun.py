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
from fabench.views.render import wrapped

REASONS = 3
"""Reasons shown for one status and backend; each case may have a reason of its own."""


def render(suite: Suite, plan: Plan, width: int | None = None) -> str:
    """The whole text, without a newline at its end; `width` is the terminal's, and None breaks no line.

    The resolved suite is never broken: it is there to be copied.
    """
    about = [_head(suite, plan), _skipped(plan), _notes(suite, plan)]
    head, skipped, notes = ("\n".join(_broken(line, width) for line in text.splitlines()) for text in about)
    blocks = [head, _resolved(suite), _rows(plan, width), skipped, notes]
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


def _broken(line: str, width: int | None) -> str:
    """A line and its own indent, broken at blanks to fit the terminal."""
    text = line.lstrip()
    if width is None or not text:
        return line
    indent = line[: len(line) - len(text)]
    return indent + wrapped(text, width - len(indent), "  ").replace("\n", f"\n{indent}")


def _rows(plan: Plan, width: int | None) -> str:
    """A line a row: what varies of the case, the backend, predicted memory and time, and what will be done."""
    if not plan.rows:
        return ""
    shape = shape_of(plan.rows)
    table = [[row.row_id, *(axis_text(AXES[name](row)) for name in shape.varying), *_ends(row)] for row in plan.rows]
    headings = ["row", *shape.varying, "backend", "extra memory", "time", "plan"]
    numbers = [all(isinstance(AXES[name](row), int | float) for row in plan.rows) for name in shape.varying]
    numbers = [number and name != "causal" for number, name in zip(numbers, shape.varying, strict=True)]
    align = ["left", *("right" if number else "left" for number in numbers), "left", "right", "right", "left"]
    texts = [
        tabulate(
            [[row[i] for i in part] for row in table],
            [headings[i] for i in part],
            tablefmt="simple",
            colalign=[align[i] for i in part],
            disable_numparse=True,
        )
        for part in _parts([headings, *table], width)
    ]
    fixed = _broken(", ".join(shape.fixed), width)
    lines = [*fixed.splitlines(), *"\n\n".join(texts).splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def _parts(table: list[list[str]], width: int | None) -> list[list[int]]:
    """Columns in groups that fit the terminal, each after the first, which names the row."""
    # What tabulate adds: two blanks to a heading, two between columns.
    drawn = [max(len(names[0]) + 2, *map(len, names[1:])) + 2 for names in zip(*table, strict=True)]
    parts, used = [[0]], drawn[0]
    for column, own in enumerate(drawn[1:], 1):
        if width is not None and len(parts[-1]) > 1 and used + own - 2 > width:
            parts.append([0])
            used = drawn[0]
        parts[-1].append(column)
        used += own
    return parts


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

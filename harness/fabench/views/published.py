"""Published figures: where the shipped files are, by name, and what they state of no single problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabench.errors import UsageError
from fabench.records import Published
from fabench.resultfile import ResultFile, read
from fabench.text import did_you_mean

NOT_STATED = "not stated"
"""What the env of a published figure says of software that its source does not name."""


def folder() -> Path:
    """Where the published figures lie: in the wheel under fabench/data, in a checkout under results/."""
    package = Path(__file__).resolve().parent.parent
    return next(
        (path for path in (package / "data" / "published", package.parents[1] / "results" / "published")
         if path.is_dir()),
        package / "data" / "published",
    )  # fmt: skip


def shipped() -> dict[str, Path]:
    """Name -> file of every shipped set, e.g. 'published/fa3_h100'."""
    return {f"published/{path.stem}": path for path in sorted(folder().glob("*.jsonl"))}


def find(name: str) -> Path:
    """The file that `--against` names: a path, or a shipped name with or without 'published/'. Raises UsageError."""
    known = shipped()
    for candidate in (name, f"published/{name}"):
        if candidate in known:
            return known[candidate]
    if Path(name).is_file():
        return Path(name)
    hint = did_you_mean(name, known) or f"; shipped: {', '.join(known) or 'none'}"
    raise UsageError(f"'{name}' must be a result file or a shipped set of published figures{hint}")


def read_against(names: Sequence[str], allow_partial: bool) -> list[ResultFile]:
    """The files that `--against` names. Raises UsageError or RecordError."""
    return [read(find(name), allow_partial=allow_partial, samples=False) for name in names]


def claims(result: ResultFile) -> list[tuple[str, Published]]:
    """(what, figure) of each statement that a source makes of no single problem: 'fastest fp16 forward of FA3'.

    They are kept in the header's suite under `claims`, each a `Published` record with a `what`.
    """
    listed = result.header.suite.get("claims")
    return [found for claim in listed if (found := _claim(claim))] if isinstance(listed, list) else []


def is_published(result: ResultFile) -> bool:
    """True of a file that holds published figures, or statements, and no measurement."""
    return all(row.published for row in result.rows) and bool(result.rows or claims(result))


def claim_text(what: str, figure: Published) -> str:
    """One line: the statement, its number, its source."""
    number = "" if figure.value is None else f": {'about ' if figure.approximate else ''}{figure.value:g} {figure.unit}"
    note = f" ({figure.note})" if figure.note else ""
    return f"{what}{number}{note}; {figure.paper}, {figure.place}; {figure.gpu}"


def _claim(data: Any) -> tuple[str, Published] | None:
    if not isinstance(data, dict) or not isinstance(what := data.get("what"), str):
        return None
    try:
        return what, Published.model_validate({name: value for name, value in data.items() if name != "what"})
    except ValidationError:
        return None

"""A finished table: cells with numbered footnotes. What all cells say is said once, and empty columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fabench.views.notes import Notes


@dataclass(frozen=True)
class Cell:
    """What stands in one place, and the numbers of its footnotes."""

    text: str
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A cell before its footnotes have numbers."""

    text: str
    notes: tuple[str, ...] = ()
    skipped: bool = False
    """The row was never launched: `text` is its status."""


NOTHING = Draft("-")
"""A place for which the files hold no row."""

Line = tuple[tuple[str, ...], list[Draft]]
"""The labels and cells of a row."""


@dataclass(frozen=True)
class Table:
    """One table: labels left of the values, a caption above, footnotes below."""

    caption: tuple[str, ...]
    """Lines: what each number is, what holds for all of them, what all of them carry."""
    labels: tuple[str, ...]
    """Headings of the label columns."""
    headings: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Cell, ...]], ...]
    """(labels, cells) of each row."""
    notes: tuple[str, ...]
    asides: tuple[str, ...] = ()
    """Columns that held nothing but one reason for skipping, in words."""


MOST_NAMED = 6
"""Columns that an aside names; more are counted."""


def finish(
    caption: Sequence[str],
    labels: Sequence[str],
    headings: Sequence[str],
    lines: Sequence[Line],
    *,
    names: Sequence[str] | None = None,
    backends: Sequence[str] | None = None,
) -> Table:
    """Number the footnotes in the order in which they are met, row by row.

    A column in which every row was skipped for one and the same reason becomes an aside, unless nothing else would be
    left: by `names`, which need no heading. Where backends are rows, `backends` says of each row whose it is, and the
    aside whose reason it was. A row of which nothing is left then goes too. A footnote that every number carries goes
    into the caption and marks none of them.
    """
    empty = _skipped_columns(len(headings), lines)
    kept = [index for index in range(len(headings)) if index not in empty]
    aside = _asides(lines, empty, names or headings, backends)
    lines = [line for line in lines if any(line[1][index] != NOTHING for index in kept)]
    said = [draft for _, cells in lines for index in kept if (draft := cells[index]).text != NOTHING.text]
    common = _common(said)
    notes = Notes()
    rows = tuple((names, tuple(_numbered(cells[index], common, notes) for index in kept)) for names, cells in lines)
    return Table(
        (*caption, *(f"all: {text}" for text in common)),
        tuple(labels),
        tuple(headings[index] for index in kept),
        rows,
        tuple(notes.texts),
        aside,
    )


def _skipped_columns(count: int, lines: Sequence[Line]) -> dict[int, Draft]:
    """Column -> what all its cells are, where that is one reason for skipping."""
    found = {}
    for index in range(count):
        cells = {cells[index] for _, cells in lines} - {NOTHING}
        if len(cells) == 1 and (draft := cells.pop()).skipped:
            found[index] = draft
    return found if len(found) < count else {}


def _common(said: Sequence[Draft]) -> list[str]:
    if len(said) < 2:
        return []
    return [text for text in said[0].notes if all(text in draft.notes for draft in said)]


def _numbered(draft: Draft, common: Sequence[str], notes: Notes) -> Cell:
    return Cell(draft.text, tuple(notes.number(text) for text in draft.notes if text not in common))


def _asides(
    lines: Sequence[Line], empty: dict[int, Draft], names: Sequence[str], backends: Sequence[str] | None
) -> tuple[str, ...]:
    """One line for each reason, with the columns it took."""
    groups: dict[tuple[Draft, str], list[str]] = {}
    for index, draft in empty.items():
        there = [cells[index] != NOTHING for _, cells in lines]
        alone = dict.fromkeys(name for name, is_there in zip(backends or (), there, strict=False) if is_there)
        only = (
            "" if all(there) or not alone else f": only {', '.join(alone)} {'is' if len(alone) == 1 else 'are'} there"
        )
        groups.setdefault((draft, only), []).append(names[index])
    return tuple(
        f"left out: {', '.join(columns) if len(columns) <= MOST_NAMED else f'{len(columns)} columns'}{only} "
        f"({'; '.join(draft.notes) or draft.text})"
        for (draft, only), columns in groups.items()
    )

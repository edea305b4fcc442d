"""A table as text: simple, github, latex and html, drawn by tabulate. Footnote marks are each format's own."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from fabench.views.grid import Cell, Table
from fabench.views.notes import superscript

GAP = 2
"""Blanks between columns of the simple format."""
PADDING = 2
"""Blanks that tabulate adds to a heading."""
PAGE = 120
"""Characters of a Markdown table that a page on GitHub shows without scrolling, about."""


def render(table: Table, style: str, width: int | None = None) -> str:
    """The table with its caption and footnotes. `width` breaks simple and github into blocks that fit a terminal."""
    return STYLES[style](table, width)


def listed(lines: Sequence[str], style: str, width: int | None = None) -> str:
    """Sentences under one another: a Markdown list, or plain lines that fit a terminal."""
    return "\n".join(f"- {escaped(line)}" if style == "github" else wrapped(line, width, "  ") for line in lines)


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """The text broken to fit a terminal of `width` columns."""
    if width is None:
        return text
    return textwrap.fill(text, max(20, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def escaped(text: str) -> str:
    """The text so that Markdown shows its characters and obeys none of them."""
    return re.sub(r"([|\\`*_<>\[\]])", r"\\\1", text)


def table_width(table: Table) -> int:
    """Columns that the simple format needs to draw the table in one block."""
    drawn = _draw(table, _PLAIN, "simple", _PLAIN.columns(table))
    return max(len(line.rstrip()) for line in drawn.splitlines())


def plain_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, *, labels: int = 1
) -> str:
    """Rows of text in the simple format: the first columns are labels, the others numbers or words, to the right."""
    lines = tuple((tuple(row[:labels]), tuple(map(Cell, row[labels:]))) for row in rows)
    return _simple(Table((), tuple(names[:labels]), tuple(names[labels:]), lines, ()), width)


@dataclass(frozen=True)
class _Marks:
    """How a format writes text and footnote marks."""

    escape: Callable[[str], str]
    mark: Callable[[Sequence[int]], str]
    aligned: bool = False
    """Numbers stay in line: a cell without a mark is filled up by the width of the column's widest mark."""

    def column(self, heading: str, cells: Sequence[Cell]) -> list[str]:
        """The heading and cells of one column."""
        marks = [self.mark(cell.notes) if cell.notes else "" for cell in cells]
        width = max(map(len, marks), default=0) if self.aligned else 0
        texts = [self.escape(cell.text) + mark.ljust(width) for cell, mark in zip(cells, marks, strict=True)]
        name = self.escape(heading)
        free = max(map(len, texts), default=0) - len(name)
        return [name + " " * max(0, min(width, free)), *texts]

    def columns(self, table: Table) -> list[list[str]]:
        """Every column of values."""
        return [
            self.column(heading, [cells[index] for _, cells in table.rows])
            for index, heading in enumerate(table.headings)
        ]


def _draw(table: Table, marks: _Marks, style: str, columns: Sequence[list[str]]) -> str:
    labels = [
        [marks.escape(name), *(marks.escape(row[index]) for row, _ in table.rows)]
        for index, name in enumerate(table.labels)
    ]
    sides = ["right" if all(map(_is_number, texts[1:])) else "left" for texts in labels]
    headings, *rows = zip(*labels, *columns, strict=True)
    return tabulate(
        rows, headings, style, disable_numparse=True, preserve_whitespace=True,
        colalign=[*sides, *(["right"] * len(columns))],
    )  # fmt: skip


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text == "-"


def _plain_marks(numbers: Sequence[int]) -> str:
    return " " + ",".join(map(superscript, numbers))


_PLAIN = _Marks(str, _plain_marks, aligned=True)


def _simple(table: Table, width: int | None) -> str:
    blocks = [_draw(table, _PLAIN, "simple", columns) for columns in _blocks(table, _PLAIN.columns(table), width)]
    blocks = ["\n".join(line.rstrip() for line in block.splitlines()) for block in blocks]
    text = [wrapped(line, width) for line in table.caption]
    below = [*table.asides, *(f"{superscript(i)} {note}" for i, note in enumerate(table.notes, 1))]
    notes = [wrapped(line, width, "  ") for line in below]
    return "\n".join([*text, *([""] if text else []), "\n\n".join(blocks), *([""] if notes else []), *notes])


def _blocks(table: Table, columns: list[list[str]], width: int | None) -> list[list[list[str]]]:
    """The columns in groups, each as many as fit `width` beside the labels, one at the least."""
    if width is None:
        return [columns]
    labels = [[name, *(row[i] for row, _ in table.rows)] for i, name in enumerate(table.labels)]
    left = sum(_drawn_width(texts) + GAP for texts in labels)
    blocks: list[list[list[str]]] = [[]]
    used = left
    for column in columns:
        own = _drawn_width(column)
        if blocks[-1] and used + own > width:
            blocks.append([])
            used = left
        blocks[-1].append(column)
        used += own + GAP
    return blocks


def _drawn_width(texts: Sequence[str]) -> int:
    return max([len(texts[0]) + PADDING, *map(len, texts[1:])])


def _github(table: Table, width: int | None) -> str:
    marks = _Marks(escaped, _plain_marks)
    notes = [*map(marks.escape, table.asides)]
    notes += [f"{superscript(i)} {marks.escape(note)}" for i, note in enumerate(table.notes, 1)]
    caption = "  \n".join(map(marks.escape, table.caption))
    blocks = [_draw(table, marks, "github", columns) for columns in _blocks(table, marks.columns(table), width)]
    return "\n\n".join(part for part in (caption, *blocks, "  \n".join(notes)) if part)


_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
          "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "²": r"\textsuperscript{2}",
          "<": r"\textless{}", ">": r"\textgreater{}"}  # fmt: skip


def _latex(table: Table, width: int | None) -> str:
    def escape(text: str) -> str:
        return "".join(_LATEX.get(character, character) for character in text)

    marks = _Marks(escape, lambda numbers: rf"\textsuperscript{{{','.join(map(str, numbers))}}}")
    caption = [f"% {line}" for line in table.caption]
    notes = [rf"{escape(aside)}\\" for aside in table.asides]
    notes += [rf"\textsuperscript{{{i}}} {escape(note)}\\" for i, note in enumerate(table.notes, 1)]
    return "\n".join([*caption, _draw(table, marks, "latex_raw", marks.columns(table)), *notes])


def _html(table: Table, width: int | None) -> str:
    marks = _Marks(html.escape, lambda numbers: f"<sup>{','.join(map(str, numbers))}</sup>")
    caption = "".join(f"<p>{html.escape(line)}</p>\n" for line in table.caption)
    asides = "".join(f"\n<p>{html.escape(aside)}</p>" for aside in table.asides)
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in table.notes)
    drawn = _draw(table, marks, "unsafehtml", marks.columns(table))
    return caption + drawn + asides + (f"\n<ol>\n{notes}</ol>" if notes else "")


STYLES: dict[str, Callable[[Table, int | None], str]] = {
    "simple": _simple,
    "github": _github,
    "latex": _latex,
    "html": _html,
}
"""The drawn formats. csv and json are not drawn: see `flat.py`."""

"""Small things about words and units that several messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'dtype'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def counted(count: int, one: str, many: str = "") -> str:
    """'1 row', '2 rows'; `many` where the plural is more than an s: counted(n, "row is", "rows are")."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """The text with what a terminal would obey, or UTF-8 cannot say, written as an escape."""
    kept = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
    return kept.encode(errors="backslashreplace").decode()


def bytes_text(count: float) -> str:
    """Bytes scaled for reading, three digits and a binary unit: '512 B', '1.50 KiB', '139 GiB'."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    step = 0
    while count >= 999.5 and step < len(units) - 1:
        count /= 1024
        step += 1
    if step == 0:
        return f"{count:.0f} B"
    return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f} {units[step]}"


def seconds_text(seconds: float) -> str:
    """Seconds scaled for reading: '12 ms', '3.4 s', '5.1 min', '2.0 h'."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5997 else f"{seconds / 3600:.1f} h"

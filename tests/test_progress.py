"""What a run shows while it goes on: two lines that keep their numbers on a terminal of any width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fabench.case import Case
from fabench.progress import live_bar
from fabench.records import Row

CASE = Case(batch=2, heads=16, Nq=16384, Nk=16384, d=128, causal=True)


def row(status: str, message: str) -> Row:
    return Row(
        row_id="1", round=0, attempt=0, key=CASE.key, env_id="e", backend="naive", status=status,
        detail={"message": message}, rerun="fabench run x --row-id 1 --in-process", time="2025-01-01T00:00:00+00:00",
    )  # fmt: skip


def drawn(width: int) -> list[str]:
    """The last drawing of the bar on a terminal of `width` columns, after three rows of 120."""
    screen = io.StringIO()
    console = Console(width=width, file=screen, force_terminal=True, color_system=None)
    with live_bar(console, 120) as bar:
        for status in ("predicted_oom", "crashed", "unsupported"):
            bar.row(row(status, "a reason"))
        bar.working("sdpa-cudnn", CASE)
        bar.bar.refresh()
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", screen.getvalue())
    lines = re.split(r"[\r\n]+", re.sub(r"\d:\d\d:\d\d", "-:--:--", text))
    start = max(index for index, line in enumerate(lines) if "3/120" in line)
    return lines[start : start + 2]


def test_at_40_columns_the_count_and_what_needs_attention_are_whole() -> None:
    assert drawn(40) == [
        "  3/120        -:--:-- crashed 1 predic…",
        "sdpa-cudnn · N=16384 d=128 causal bf16 …",
    ]


def test_at_80_columns_there_is_room_for_all_of_it() -> None:
    assert drawn(80) == [
        "  3/120 ╸                    -:--:-- crashed 1 predicted_oom 1 unsupported 1 ",
        "sdpa-cudnn · N=16384 d=128 causal bf16 batch=2 heads=16 forward",
    ]


@pytest.mark.parametrize("width", [30, 50, 60, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in drawn(width))

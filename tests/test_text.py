"""Words and units as messages show them."""

from __future__ import annotations

import pytest

from fabench.text import bytes_text, did_you_mean, printable, seconds_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (102_300, "99.9 KiB"),
        (512 << 20, "512 MiB"),
        (1000 << 20, "0.98 GiB"),
        (149_000_000_000, "139 GiB"),
        (4096 << 40, "4.00 PiB"),
        (5000 << 60, "5000 EiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.2834, "283 ms"), (0.9996, "1.0 s"), (7.04, "7.0 s"), (99.96, "1.7 min"), (7200, "2.0 h")],
)
def test_seconds_have_the_unit_that_suits_them(seconds, text):
    assert seconds_text(seconds) == text


def test_the_nearest_word_is_offered_and_nothing_far_off():
    assert did_you_mean("dtpye", ["dtype", "direction"]) == "; did you mean 'dtype'?"
    assert did_you_mean("zzz", ["dtype", "direction"]) == ""


def test_what_a_terminal_would_obey_or_utf8_cannot_say_is_escaped() -> None:
    assert printable("rho ≤ 8\n\x1b[31m\x00\udcff") == "rho ≤ 8\n\\x1b[31m\\x00\\udcff"

"""Big files: time and memory grow with them, and no faster."""

from __future__ import annotations

import pytest

from diff_speed import compare


@pytest.mark.slow
def test_ten_thousand_rows_of_ten_rounds_take_seconds_and_half_a_gigabyte_at_most(tmp_path):
    """In CPU seconds, so that a busy machine does not fail it: on two free cores the larger is the time to wait."""
    small, large = compare(tmp_path, 2000), compare(tmp_path, 10_000)
    assert max(large.cpu_s) < 10
    assert sum(large.peak_mb) < 500
    assert sum(large.cpu_s) < 6.5 * sum(small.cpu_s)
    assert "10000 rows: " in large.last_line


def test_a_thousand_records_are_compared_in_a_few_seconds(tmp_path):
    spent = compare(tmp_path, 100)
    assert sum(spent.cpu_s) < 6
    assert spent.last_line.endswith("exit code 0")

"""Acceptance test T6: a backend that does not do the work that is timed gets no speed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fabench.cli import main
from fabench.resultfile import read

LIARS = Path(__file__).parent / "planted" / "lying_backends.py"
SUITE = """name: lies
axes: {{dtype: {dtype}, d: 64, batch: 2, heads: 8, causal: [false, true], N: {N}}}
backends: [honest, {liar}]
measure: {{rounds: 1, seconds: 0.05}}
"""


def run(tmp_path, liar, *options, dtype="bf16", N=2048):
    """The rows of an honest backend and of `liar`, side by side."""
    suite, out = tmp_path / "lies.yaml", tmp_path / "out.jsonl"
    suite.write_text(SUITE.format(dtype=dtype, N=N, liar=liar))
    words = ["run", str(suite), "--backend-file", str(LIARS), "--out", str(out), *options]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    rows = read(out).rows
    assert {row.status for row in rows if row.backend == "honest"} == {"ok"}, done.output
    assert done.exit_code == 1
    return [row for row in rows if row.backend == liar]


def test_a_backend_that_reads_zeros_is_caught_without_a_gpu(tmp_path):
    rows = run(tmp_path, "reads_zeros", "--device", "cpu", dtype="fp32", N=64)
    assert {row.status for row in rows} == {"wrong_result"}
    assert all(row.samples_ns is None for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("liar", "options", "statuses"),
    [
        ("stale_in_graph", ("--regime", "graph"), {"wrong_result"}),
        ("on_a_side_stream", (), {"error", "wrong_result"}),
        ("reads_zeros", (), {"wrong_result"}),
    ],
)
def test_each_lie_is_caught_and_has_no_speed(tmp_path, liar, options, statuses):
    rows = run(tmp_path, liar, *options)
    assert len(rows) == 2
    assert {row.status for row in rows} <= statuses
    assert all(row.samples_ns is None and row.quantiles is None for row in rows)

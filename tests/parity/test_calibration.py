"""Calibration: the grid, the file, the table, and the warning when a backend has drifted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabench.case import Case
from fabench.cli import main
from fabench.parity import calibration
from fabench.parity.calibrator import Reading, entries, grid
from fabench.parity.verdict import Accuracy
from proof import CPU


def reading(backend: str, rho: float, N: int = 64, dtype: str = "bf16") -> Reading:
    numbers = {"max_rho": rho, "rms_rho": rho / 3, "max_el": 5.0}
    parity = {"class": "A", "O": numbers, "dQ": None, "dK": None, "dV": None}
    return Reading(backend, Case(1, 1, N, N, 64, dtype=dtype, seed=int(10 * rho)), parity, True)


def test_entries_hold_the_worst_of_each_backend_dtype_and_length() -> None:
    found = entries([reading("a", 0.4), reading("a", 0.9), reading("a", 0.5, N=128), reading("b", 0.1)])
    assert [(e["backend"], e["N"], e["max_rho"], e["cases"]) for e in found] == [
        ("a", 64, 0.9, 2),
        ("a", 128, 0.5, 1),
        ("b", 64, 0.1, 1),
    ]
    assert found[0]["direction"] == "forward"


def test_a_prefix_of_the_grid_has_every_dtype_and_distribution() -> None:
    cases = list(grid("cuda", 2))
    assert len(cases) == len(set(cases))
    first = cases[: len(cases) // 2]
    assert {c.dtype for c in first} == {"bf16", "fp16", "fp32"}
    assert {c.inputs for c in first} == {"normal", "std3", "std6", "outliers"}
    assert {c.seed for c in first} == {0}


def test_a_backend_that_is_less_exact_than_calibrated_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "cpu" / calibration.NAME
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": calibration.SCHEMA, "entries": entries([reading("a", 0.6)])}))
    calm, drifted = (Accuracy("O", "bf16", "A", max_rho=r) for r in (1.3, 1.5))
    assert calibration.drift("a", CPU, [calm]) == []
    (sentence,) = calibration.drift("a", CPU, [drifted])
    assert "max rho of O in bf16 is 1.50, calibrated at 0.60" in sentence
    assert calibration.drift("b", CPU, [drifted]) == []


def test_the_command_writes_a_file_and_keeps_what_it_did_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "calibration.json"
    out.write_text(json.dumps({"schema": calibration.SCHEMA, "entries": entries([reading("other", 0.6)])}))
    arguments = ["calibrate", "--device", "cpu", "--backend", "sdpa-math", "--lengths", "32", "--seeds", "1"]
    done = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    data = json.loads(out.read_text())
    assert {e["backend"] for e in data["entries"]} == {"other", "sdpa-math"}
    assert data["failures"] == []
    assert all(e["max_rho"] < 2 for e in data["entries"])
    assert "sdpa-math" in done.output


def test_a_file_that_was_kept_is_printed_and_any_other_refused(tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    arguments = ["calibrate", "--device", "cpu", "--backend", "sdpa-math", "--lengths", "32", "--seeds", "1"]
    made = CliRunner().invoke(main, [*arguments, "--out", str(out)])
    printed = CliRunner().invoke(main, ["calibrate", str(out)])
    assert printed.exit_code == 0, printed.output
    assert set(made.stdout.strip().splitlines()) <= set(printed.stdout.splitlines())
    assert "largest of dK: 0." in printed.stdout
    for text in ("{}", "[]", "x", json.dumps({"schema": calibration.SCHEMA, "entries": [{"tensor": "O"}]})):
        out.write_text(text)
        refused = CliRunner().invoke(main, ["calibrate", str(out)])
        assert refused.exit_code == 2
        assert "must be a calibration" in refused.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lengths", "x"], "--lengths must list sequence lengths"),
        (["--budget", "x"], "--budget must be a time"),
        (["--backend", "nothing*"], "must match a backend"),
    ],
)
def test_usage_errors_are_one_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["calibrate", "--device", "cpu", *arguments])
    assert done.exit_code == 2
    assert sentence in done.output

"""What a record cannot say: counts, times, bytes and rates below what there can be, and numbers that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError

import resultfiles as make
from fabench.cli import main
from fabench.diff.noise import RowNoise
from fabench.errors import RecordError
from fabench.measure.memory import CpuMeter
from fabench.measure.telemetry import Poll, summary
from fabench.profiling.kernel import Kernel
from fabench.profiling.stored import read as read_profile
from fabench.resultfile import read

ROOT = Path(__file__).parents[1]
AT_LEAST_1, AT_LEAST_0 = "input should be greater than or equal to 1", "input should be greater than or equal to 0"
ABOVE_0, FINITE = "input should be greater than 0", "input should be a finite number"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    row = make.row(make.case(), telemetry={"polls": 1}, spent={"total_s": 1.0}, derived={"rotation": 2})
    return make.build(tmp_path / "run.jsonl", [row])


def put(path: Path, place: str, value: str) -> None:
    """Write JSON text `value` at 'row.cost.flops' of the first record of that kind."""
    rec, *parents, last = place.split(".")

    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        at = next(line for line in lines if line["rec"] == rec)
        for parent in parents:
            at = at[parent]
        at[last] = "HERE"
        return lines

    make.mutate(path, change)
    path.write_text(path.read_text().replace('"HERE"', value))


@pytest.mark.parametrize("command", ["validate", "diff"])
@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("header.rounds", "0", AT_LEAST_1),
        ("header.planned_rows", "-1", AT_LEAST_0),
        ("env.identity.sms", "0", AT_LEAST_1),
        ("env.identity.memory_bytes", "-8", AT_LEAST_0),
        ("env.peaks.bandwidth", "0", ABOVE_0),
        ("env.peaks.flops.bf16", "-1.0", ABOVE_0),
        ("canary.copy_bandwidth", "-1.0", ABOVE_0),
        ("canary.gemm_flops.bf16", "0", ABOVE_0),
        ("canary.null_ns", "-1", AT_LEAST_0),
        ("canary.round", "-1", AT_LEAST_0),
        ("row.n", "-3", AT_LEAST_1),
        ("row.K", "-1", AT_LEAST_1),
        ("row.K", "0", AT_LEAST_1),
        ("row.attempt", "-1", AT_LEAST_0),
        ("row.order", "-1", AT_LEAST_0),
        ("row.compile_s", "-0.5", AT_LEAST_0),
        ("row.t_host_ns", "-1", AT_LEAST_0),
        ("row.samples_ns", "[1.0, 0.0]", ABOVE_0),
        ("row.samples_ns", "[1.0, 1e999]", FINITE),
        ("row.quantiles.median", "-1.0", ABOVE_0),
        ("row.quantiles.ci_low", "0", ABOVE_0),
        ("row.quantiles.p10", "1e999", FINITE),
        ("row.cost.flops", "-1", AT_LEAST_0),
        ("row.cost.pairs", "-1", AT_LEAST_0),
        ("row.memory.peak_bytes", "-1", AT_LEAST_0),
        ("row.utilization.mfu", "-0.1", AT_LEAST_0),
        ("row.parity.O.max_rho", "-0.1", AT_LEAST_0),
        ("row.parity.O.rmse", "1e999", FINITE),
        ("row.derived.rotation", "0", AT_LEAST_1),
        ("row.telemetry.polls", "-1", AT_LEAST_0),
        ("row.spent.total_s", "-1", AT_LEAST_0),
        ("footer.rows_written", "-1", AT_LEAST_0),
        ("footer.status_counts.ok", "-1", AT_LEAST_0),
        ("row.n", '"3"', "input should be a valid integer"),
        ("row.n", "true", "input should be a valid integer"),
        ("row.samples_ns", '["1.0"]', "input should be a valid number"),
        ("row.quantiles.median", '"NaN"', "input should be a valid number"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_line_and_field(
    path: Path, command: str, place: str, value: str, says: str
) -> None:
    put(path, place, value)

    result = CliRunner().invoke(main, [command, str(path), *([str(path)] if command == "diff" else [])])

    assert result.exit_code == 2, result.output
    assert f"'{place}" in result.output
    assert says in result.output


def test_a_bias_and_a_temperature_may_be_below_zero(tmp_path: Path) -> None:
    parity = {"class": "A", "O": {"bias": -1e-6, "cosine": -1.0}}
    row = make.row(make.case(), parity=parity, telemetry={"temperature_c_max": -5.0})

    assert read(make.build(tmp_path / "run.jsonl", [row])).rows == [row]


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*.jsonl")), ids=lambda path: path.stem)
def test_every_file_in_results_is_within_the_bounds(path: Path) -> None:
    assert CliRunner().invoke(main, ["validate", "--allow-partial", str(path)]).exit_code == 0


def test_the_schema_shows_the_bounds() -> None:
    models = json.loads(CliRunner().invoke(main, ["schema", "record"]).stdout)["$defs"]

    assert models["Header"]["properties"]["rounds"]["minimum"] == 1
    assert models["Row"]["properties"]["n"]["anyOf"][0]["minimum"] == 1
    assert models["Row"]["properties"]["samples_ns"]["anyOf"][0]["items"]["exclusiveMinimum"] == 0
    assert models["Spent"]["properties"]["total_s"]["minimum"] == 0


def test_a_counter_that_was_set_back_while_a_row_ran_is_not_known() -> None:
    polls = [Poll(at=float(at), power_w=300.0, energy_j=energy) for at, energy in enumerate((900.0, 3.0))]

    telemetry, _ = summary([polls])

    assert telemetry.energy_j is None


def test_a_call_that_frees_what_was_there_before_it_holds_nothing_of_its_own() -> None:
    cache = [torch.ones(1 << 16)]

    _, peak, held = CpuMeter().watch(cache.clear)

    assert (peak, held) == (0, 0)


def test_a_problem_that_no_card_can_run_still_has_a_cost_record() -> None:
    case = make.case(1 << 34)

    assert make.row(case, status="predicted_oom", detail="too large", cost=make.row(case).cost).cost is not None


def test_noise_and_profile_files_have_bounds_too(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        RowNoise(row_id="r", regime="burst", mean_ln_ns=1.0, variance=-0.1, rounds=3)
    stored = json.loads((ROOT / "results/cpu-amd-epyc/profile.json").read_text())
    stored["profiles"][0]["kernels"][0]["time_ns"] = -1.0
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(stored))

    with pytest.raises(RecordError, match=r"greater than or equal to 0 at 'profiles.0.kernels.0.time_ns'"):
        read_profile(file)
    assert Kernel("k", 1, 1.0).dram_read_bytes is None

"""`fabench validate` and `fabench schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.cost import cost
from fabench.records import ADAPTER, CostRecord
from show_files import sweep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sweep(tmp_path / "sweep.jsonl")


def validate(*arguments: object, code: int) -> str:
    result = CliRunner().invoke(main, ["validate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def change(path: Path, backend: str, **fields: Any) -> None:
    """Set fields of the first row of a backend, nested ones by a path such as 'cost.flops'."""

    def apply(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        row = next(line for line in lines if line.get("backend") == backend)
        for name, value in fields.items():
            *parents, last = name.split("__")
            place = row
            for parent in parents:
                place = place[parent]
            place[last] = value
        return lines

    make.mutate(path, apply)


def test_a_sound_file_is_summed_up_in_a_line(path: Path) -> None:
    assert validate(path, code=0) == (
        f"{path}: sound, complete: 30 rows (19 ok, 6 unavailable, 3 wrong_result, 2 predicted_oom)\n"
    )


def test_every_file_is_looked_at_and_one_bad_one_is_exit_code_2(path: Path, tmp_path: Path) -> None:
    text = validate(tmp_path / "none.jsonl", path, code=2)

    assert "no such file exists" in text
    assert f"{path}: sound" in text


@pytest.mark.parametrize(
    ("backend", "fields", "sentence"),
    [
        ("sdpa-flash", {"row_id": "other"}, "its id must be '"),
        ("sdpa-flash", {"n": 2}, "n must count the samples, got 2 for 3"),
        ("sdpa-flash", {"quantiles__median": 1.0}, "quantiles.median must be"),
        ("sdpa-flash", {"samples_ns": None, "n": None}, "a row that is ok must have samples_ns"),
        ("sdpa-flash", {"samples_ns": []}, "a row that is ok must have samples_ns"),
        ("sdpa-flash", {"quantiles__p90": 1.0}, "'quantiles' must have a median and not fall from min to max, got"),
        ("sdpa-flash", {"parity": None}, "a row that is ok must have a parity, or the flag 'unchecked'"),
        ("sdpa-flash", {"method": None}, "a row that is ok must have a method"),
        ("sdpa-flash", {"cost__flops": 1, "cost__convention": "exact_pairs"}, "cost.flops must be 137438953472 for"),
        ("mine_v1", {"status": "crashed"}, "a row that is crashed must have no speed"),
        ("xformers", {"detail": None}, "a row that is unavailable must have a detail that says why"),
        (
            "xformers",
            {"status": "unsupported"},
            "and the rows are 19 ok, 2 predicted_oom, 5 unavailable",
        ),
    ],
)
def test_what_contradicts_itself_is_named(path: Path, backend: str, fields: dict[str, Any], sentence: str) -> None:
    change(path, backend, **fields)

    assert sentence in validate(path, code=2)


def test_complete_with_rows_missing_is_a_contradiction(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case())], head=make.header(planned_rows=9))

    assert "the footer says complete, and 1 of 9 rows are there" in validate(path, code=2)


def test_a_part_is_refused_unless_allowed(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))

    assert "the file is truncated: it has no footer" in validate(path, code=2)
    assert "sound, a part of its run: 30 rows" in validate(path, "--allow-partial", code=0)


def test_many_problems_are_counted_not_listed(path: Path) -> None:
    make.mutate(path, lambda lines: [{**line, "n": 9} if line.get("status") == "ok" else line for line in lines])
    make.mutate(
        path, lambda lines: [{**line, "parity": None} if line.get("status") == "ok" else line for line in lines]
    )

    text = validate(path, code=2)

    assert text.count("Error: ") == 21
    assert "and 18 more problems" in text


def test_a_cost_as_fabench_counts_it_is_sound(tmp_path: Path) -> None:
    case = make.case(causal=True, direction="backward")
    counted = CostRecord.model_validate(vars(cost(case)))

    assert "sound" in validate(make.build(tmp_path / "run.jsonl", [make.row(case, cost=counted)]), code=0)


@pytest.mark.parametrize("what", ["suite", "record"])
def test_a_schema_is_json_schema(what: str) -> None:
    result = CliRunner().invoke(main, ["schema", what])

    schema = json.loads(result.stdout)
    assert result.exit_code == 0
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_record_schema_names_every_field_that_is_written() -> None:
    schema = json.loads(CliRunner().invoke(main, ["schema", "record"]).stdout)

    for record in make.records([make.row(make.case())]):
        model = schema["$defs"][type(record).__name__]
        assert set(json.loads(make._text(record))) <= set(model["properties"])
    assert schema["discriminator"]["propertyName"] == "rec"
    assert ADAPTER.json_schema()["$defs"].keys() == schema["$defs"].keys()


def test_an_unknown_schema_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["schema", "table"]).exit_code == 2

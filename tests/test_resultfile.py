"""Reading result files: what counts, and what is damage."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest

import resultfiles as make
from fabench.errors import RecordError
from fabench.records import Footer, Header, Row
from fabench.resultfile import iter_records, read

CASES = [make.case(N) for N in (1024, 2048, 4096)]
NOT_TEXT = "run.jsonl:1: not UTF-8 text at byte 0 of the line; is this a file that fabench wrote?"
NO_HEADER = "run.jsonl:1: a result file must begin with a header record; is this a file that fabench wrote?"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file of three rows."""
    return make.build(tmp_path / "run.jsonl", [make.row(case) for case in CASES])


def refusal(path: Path, **options: Any) -> str:
    """The sentence a file is refused with, its path shortened to the file's name."""
    with pytest.raises(RecordError) as caught:
        read(path, **options)
    return str(caught.value).replace(f"{path.parent}/", "")


def replace_line(path: Path, number: int, old: str, new: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new)
    path.write_text("".join(lines))


def test_a_sound_file_reads_back_as_what_was_written(path: Path) -> None:
    result = read(path)

    assert result.rows == [make.row(case) for case in CASES]
    assert result.header.planned_rows == 3
    assert result.env_of(result.rows[0]) == make.env()
    assert result.canaries == [make.canary()]
    assert result.complete
    assert result.warnings == []


def test_without_samples_everything_else_is_the_same(path: Path) -> None:
    light = read(path, samples=False)

    assert all(row.samples_ns is None for row in light.rows)
    assert [row.quantiles for row in light.rows] == [row.quantiles for row in read(path).rows]


def test_without_samples_the_samples_are_still_validated(path: Path) -> None:
    replace_line(path, 5, "1000000.0", '"fast"')

    assert "samples_ns[1]" in refusal(path, samples=False)


def test_the_highest_attempt_counts_in_the_place_of_the_first(tmp_path: Path) -> None:
    first, second = CASES[:2]
    rows = [make.row(first, status="timeout"), make.row(second), make.row(first, attempt=2), make.row(first, attempt=1)]

    result = read(make.build(tmp_path / "run.jsonl", rows))

    assert [(row.key["Nq"], row.attempt, row.status) for row in result.rows] == [(1024, 2, "ok"), (2048, 0, "ok")]
    assert result.rows_written == 4


def test_rounds_are_rows_of_their_own(tmp_path: Path) -> None:
    rows = [make.row(CASES[0], round=r) for r in range(3)]

    assert [row.round for row in read(make.build(tmp_path / "run.jsonl", rows)).rows] == [0, 1, 2]


@pytest.mark.parametrize("attempts", [(0, 0), (0, 1, 0), (1, 0, 1), (0, 1, 2, 1)])
def test_a_second_row_of_one_id_round_and_attempt_is_refused(tmp_path: Path, attempts: tuple[int, ...]) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(CASES[0], attempt=a) for a in attempts])

    assert f"run.jsonl:{len(attempts) + 3}: " in refusal(path)
    assert "must be unique, and is here a second time" in refusal(path)


def test_one_row_id_for_two_cases_is_refused(tmp_path: Path) -> None:
    rows = [make.row(CASES[0], row_id="same"), make.row(CASES[1], row_id="same", round=1)]

    assert "row_id 'same' must mean one case and backend" in refusal(make.build(tmp_path / "run.jsonl", rows))


def test_the_last_footer_counts(tmp_path: Path) -> None:
    first, second = make.row(CASES[0]), make.row(CASES[1])
    stopped = Footer(rows_written=1, status_counts={"ok": 1}, complete=False, ended="2026-01-02")
    ended = Footer(rows_written=2, status_counts={"ok": 2}, complete=True, ended="2026-01-03")
    path = make.write(tmp_path / "run.jsonl", [make.header(planned_rows=2), make.env(), first, stopped, second, ended])

    assert read(path).footer == ended
    assert read(path).complete


def test_a_stopped_run_is_not_truncated(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(CASES[0])], head=make.header(planned_rows=9), complete=False)

    result = read(path)

    assert (result.truncated, result.complete, result.warnings) == (None, False, [])


def _no_footer(lines: list[Any]) -> list[Any]:
    return lines[:-1]


def _row_after_footer(lines: list[Any]) -> list[Any]:
    return [*lines, {**lines[-2], "round": 1}]


def _row_missing(lines: list[Any]) -> list[Any]:
    return lines[:-2] + lines[-1:]


@pytest.mark.parametrize(
    ("change", "why", "rows"),
    [
        (_no_footer, "it has no footer after 3 rows", 3),
        (_row_after_footer, "1 record follows its last footer", 4),
        (_row_missing, "its footer counts 3 rows, and it has 2", 2),
    ],
)
def test_a_truncated_file_is_refused_unless_a_part_is_allowed(path: Path, change: Any, why: str, rows: int) -> None:
    make.mutate(path, change)

    assert refusal(path) == f"run.jsonl: the file is truncated: {why}; read what is there with --allow-partial"

    part = read(path, allow_partial=True)
    assert len(part.rows) == rows
    assert not part.complete
    assert part.warnings == [f"{path}: the file is truncated: {why}; what is missing is not shown"]


def test_a_torn_last_line_is_truncation(path: Path) -> None:
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (1, 20, len(lines[-1]) - 2):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])

        assert "run.jsonl:7: the file is truncated: its last line is torn (not JSON: EOF" in refusal(path)
        part = read(path, allow_partial=True)
        assert (len(part.rows), part.torn_bytes) == (3, cut)


def test_a_last_line_that_only_lacks_its_newline_is_whole(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])

    assert read(path).complete


def test_a_torn_line_in_the_middle_is_damage_even_where_a_part_is_allowed(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:100]
    path.write_text("\n".join(lines) + "\n")

    assert refusal(path, allow_partial=True).startswith("run.jsonl:5: not JSON: EOF while parsing")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("field", ['"median":1000000.0', '"heads":16'])
def test_a_token_that_is_not_json_is_refused(path: Path, token: str, field: str) -> None:
    replace_line(path, 5, field, f"{field.split(':')[0]}:{token}")

    assert refusal(path) == (f"run.jsonl:5: '{token}' is not JSON; a number that is not known must be null")


def test_a_number_too_big_for_a_float_is_refused(path: Path) -> None:
    replace_line(path, 5, '"median":1000000.0', '"median":1e999')

    assert "run.jsonl:5: 'row.quantiles.median': input should be a finite number" in refusal(path)


def test_the_word_nan_in_a_message_is_only_a_word(tmp_path: Path) -> None:
    row = make.row(CASES[0], status="wrong_result", detail="O[0, 0] is NaN, LSE is -Infinity")

    assert read(make.build(tmp_path / "run.jsonl", [row])).rows == [row]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "run.jsonl: the file is empty; a result file must begin with a header record"),
        (b"\n", "run.jsonl:1: an empty line; each line must be one JSON record"),
        (b"\xff\xfe\x00\x01\n", NOT_TEXT),
        (b"{]\n", "run.jsonl:1: not JSON: key must be a string at column 2; is this a file that fabench wrote?"),
        (b"{", "run.jsonl:1: not JSON: EOF while parsing an object at column 1; is this a file that fabench wrote?"),
        (b"[1]\n", NO_HEADER),
        (b'{"rec":"row"}\n', NO_HEADER),
        (b'{"rec":"header"}\n', "run.jsonl:1: 'schema' must be fabench/1.0, got null"),
        (b'{"rec":"header","schema":"other/1.0"}\n', "run.jsonl:1: 'schema' must be fabench/1.0, got 'other/1.0'"),
        (b'{"rec":"header","schema":"fabench/1"}\n', "run.jsonl:1: 'schema' must be fabench/1.0, got 'fabench/1'"),
    ],
)  # fmt: skip
def test_what_is_not_a_result_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)

    assert refusal(path) == sentence
    assert refusal(path, allow_partial=True) == sentence


@pytest.mark.parametrize(
    ("line", "old", "new", "sentence"),
    [
        (5, '"round":0,', "", "run.jsonl:5: 'row.round' is missing"),
        (5, '"round":0', '"round":"first"', "run.jsonl:5: 'row.round': input should be a valid integer"),
        (5, '"round":0', '"round":0,"size":1', "run.jsonl:5: 'row.size' is not a field of schema fabench/1.0"),
        (5, '"status":"ok"', '"status":"fine"', "run.jsonl:5: 'row.status': input should be 'ok', 'wrong_result'"),
        (5, '"rec":"row"', '"rec":"line"', "'rec' must be one of header, env, row, canary, footer, got 'line'"),
        (5, '"rec":"row"', '"wreck":"row"', "'rec' must be one of header, env, row, canary, footer, and is missing"),
        (5, '"env_id":"env0"', '"env_id":"env9"', "run.jsonl:5: env_id 'env9' must name an env record above"),
        (5, '"heads":16', '"heads":"many"', "run.jsonl:5: row '"),
        (5, '"heads":16', '"heads":16,"sinks":1', "must hold the fields of a case, got the unknown field 'sinks'"),
        (5, '"kv_heads":16', '"kv_heads":5', "'heads' must be a multiple of 'kv_heads', got 16 and 5"),
        (5, '"dv":128', '"dv":null', "'key' must be a case in its canonical form"),
        (3, '"env_id":"env0"', '"env_id":"env9"', "run.jsonl:3: env_id 'env9' must name an env record above this line"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_validate_is_named(path: Path, line: int, old: str, new: str, sentence: str) -> None:
    replace_line(path, line, old, new)

    assert sentence in refusal(path)


def test_an_empty_line_between_records_is_damage(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "", *lines[3:]]) + "\n")

    assert refusal(path) == "run.jsonl:4: an empty line; each line must be one JSON record"


def test_a_second_header_is_refused(path: Path) -> None:
    make.mutate(path, lambda lines: [*lines[:3], lines[0], *lines[3:]])

    assert refusal(path) == "run.jsonl:4: a result file must have one header; join two files with 'fabench merge'"


def test_two_different_envs_of_one_id_are_refused_and_two_equal_ones_are_not(tmp_path: Path) -> None:
    def file(*envs: Any) -> Path:
        return make.build(tmp_path / "run.jsonl", [make.row(CASES[0])], envs=envs)

    assert len(read(file(make.env(), make.env())).envs) == 1
    assert "env_id 'env0' must name one env record" in refusal(file(make.env(), make.env(model="NVIDIA A100")))


def test_another_major_schema_is_refused(path: Path) -> None:
    replace_line(path, 1, "fabench/1.0", "fabench/2.0")

    assert refusal(path, allow_partial=True) == (
        "run.jsonl:1: schema 'fabench/2.0' has major version 2, this fabench reads 1; "
        "read it with the fabench that wrote it"
    )


def test_a_newer_minor_schema_warns_and_what_it_adds_is_ignored(path: Path) -> None:
    def newer(lines: list[Any]) -> list[Any]:
        lines[0]["schema"] = "fabench/1.7"
        lines[3]["colour"] = "blue"
        lines[3]["parity"]["O"]["mood"] = 1
        lines[4]["colour"] = "red"
        return [*lines[:2], {"rec": "weather", "env_id": "env0"}, *lines[2:]]

    make.mutate(path, newer)
    result = read(path)

    assert result.rows == [make.row(case) for case in CASES]
    ignored = "records of kind 'weather', row.colour, row.parity.O.mood"
    assert result.warnings == [f"{path}: schema fabench/1.7 is newer than fabench/1.0; ignored: {ignored}"]


def test_a_newer_minor_schema_does_not_excuse_damage(path: Path) -> None:
    replace_line(path, 1, "fabench/1.0", "fabench/1.7")
    replace_line(path, 5, '"round":0', '"round":"first","size":1')

    assert "run.jsonl:5: 'row.round'" in refusal(path)


def test_a_path_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.jsonl") == (
        f"'{tmp_path}/none.jsonl' must be a result file, and no such file exists".replace(f"{tmp_path}/", "")
    )
    with pytest.raises(RecordError, match="must be a result file, and is a folder"):
        read(tmp_path)


def test_records_stream_with_superseded_attempts(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(CASES[0], attempt=a) for a in (0, 1)])

    kinds = [record.rec for record in iter_records(path)]

    assert kinds == ["header", "env", "canary", "row", "row", "footer"]


def test_streaming_stops_at_a_torn_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    stream = iter_records(path)

    assert [type(next(stream)) for _ in range(6)][-1] is Row
    with pytest.raises(RecordError, match=r"run\.jsonl:7: not JSON"):
        next(stream)


def test_a_published_row_needs_no_samples_and_may_have_a_dtype_not_yet_measured(tmp_path: Path) -> None:
    source = {
        "paper": "Shah et al., FlashAttention-3", "place": "Figure 5", "gpu": "H100 SXM5", "convention": "4NNd",
        "mark": "paper", "value": 1008.0,
    }  # fmt: skip
    key = {**make.case(16384).key, "dtype": "fp8_e4m3"}
    row = make.row(CASES[0], key=key, published=source, rerun="", quantiles={"median": 1e6}, samples_ns=None, n=None)

    assert read(make.build(tmp_path / "fa3.jsonl", [row])).rows[0].published == row.published


def test_reading_keeps_up_with_a_hundred_thousand_rows(tmp_path: Path) -> None:
    lines = [make._text(make.row(case)) for case in CASES]
    path = tmp_path / "big.jsonl"
    with path.open("w") as stream:
        stream.write(make._text(make.header(planned_rows=20_000, rounds=10)) + "\n" + make._text(make.env()) + "\n")
        for index in range(2000):
            data = json.loads(lines[index % 3])
            for number in range(10):
                stream.write(json.dumps({**data, "row_id": f"row{index}-{index % 3}", "round": number}) + "\n")
        stream.write('{"rec":"footer","rows_written":20000,"status_counts":{"ok":20000},"complete":true,"ended":""}\n')

    begin = time.process_time()
    result = read(path, samples=False)
    seconds = time.process_time() - begin

    assert len(result.rows) == 20_000
    assert seconds < 3.0  # 0.6 s here; five times as many rows are to be read in less than 15 s on a slow machine


def test_reading_leaves_the_garbage_collector_as_it_was(path: Path) -> None:
    damaged = path.with_name("damaged.jsonl")
    damaged.write_text(path.read_text() + "{\n")
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        read(path)
        with pytest.raises(RecordError):
            read(damaged)
        assert gc.isenabled() == before


def test_a_header_is_what_read_starts_from(path: Path) -> None:
    assert isinstance(next(iter_records(path)), Header)

"""`fabench show`: every format against a golden file, and what tables must never do."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.names import FLAGS
from fabench.records import Memory
from fabench.resultfile import read
from fabench.views import notes
from fabench.views import show as views_show
from fabench.views.values import VALUES, significant
from golden_files import assert_golden
from show_files import sweep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sweep(tmp_path / "sweep.jsonl")


def show(*arguments: object, code: int = 0) -> str:
    """What `fabench show` prints (its error if `code` is not 0), as a pipe sees it."""
    result = CliRunner().invoke(main, ["show", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def body(text: str) -> list[list[str]]:
    """The words of each row under the line of dashes, footnotes left out."""
    table = text[text.index("\n--") + 1 :].split("\n\n")[0]
    return [line.split() for line in table.splitlines()[1:]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("show_simple.txt", []),
        ("show_github.md", ["--format", "github"]),
        ("show_latex.tex", ["--format", "latex"]),
        ("show_html.html", ["--format", "html"]),
        ("show_csv.csv", ["--format", "csv"]),
        ("show_json.json", ["--format", "json", "--where", "N=4096,causal=true"]),
        ("show_times_with_intervals.txt", ["--value", "ms", "--interval"]),
        ("show_split_by_mask.txt", ["--row", "N", "--sort", "-N"]),
        ("show_one_problem.txt", ["--where", "N=4096,causal=true"]),
        ("show_values_as_columns.txt", ["--where", "causal=false", "--row", "backend,N", "--col", "value",
                                        "--value", "tflops,ms,gbs,peak,mfu,roofline,rho,speedup"]),
    ],
)  # fmt: skip
def test_a_table_looks_like_its_golden_file(path: Path, name: str, options: list[str]) -> None:
    assert_golden(name, show(path, *options))


def test_the_table_breaks_into_blocks_in_a_narrow_terminal(path: Path) -> None:
    """On a real terminal of 60 columns no line is longer, and every backend is there."""
    parent, child = pty.openpty()
    env = {**os.environ, "COLUMNS": "60", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from fabench.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, "show", str(path)], stdout=child, env=env) as process:
        os.close(child)
        output = b""
        while True:
            try:
                output += os.read(parent, 65536)
            except OSError:  # the terminal is closed
                break
    os.close(parent)
    text = output.decode().replace("\r\n", "\n")

    assert process.returncode == 0
    assert max(map(len, text.splitlines())) <= 60
    assert_golden("show_60_columns.txt", text)


def test_thirteen_backends_fit_80_columns_in_three_blocks_and_a_page_in_two(tmp_path: Path) -> None:
    """Each as wide as its heading or its longest cell, marks too: a heading may stand above marks. A pipe has one."""
    names = ["naive", "online", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "flash-attn", "flash-attn-3",
             "flash-attn-4", "flex", "triton", "cuda-v1", "cuda-v2"]  # fmt: skip
    flags = ["unstable", "hot", "sampled"]
    rows = [make.row(make.case(N, d=d), name, flags=flags[: N // 2048])
            for N in (2048, 4096, 6144) for d in (64, 128) for name in names]  # fmt: skip
    path = make.build(tmp_path / "run.jsonl", rows)

    narrow = views_show.show([read(path)], width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    heads = [line.split() for line in narrow.splitlines() if line.split()[:2] == ["d", "N"]]
    assert len(heads) == 3
    assert [name for head in heads for name in head[2:]] == names
    page = [line.strip("| ").split() for line in show(path, "--format", "github").splitlines() if line[:7] == "|   d |"]
    assert [name for head in page for name in head if name not in ("|", "d", "N")] == names
    assert len(page) == 2
    assert sum(line.split()[:2] == ["d", "N"] for line in show(path).splitlines()) == 1


@pytest.mark.parametrize("style", ["simple", "github", "latex", "html"])
def test_every_status_flag_and_reason_is_in_the_drawn_table(path: Path, style: str) -> None:
    text = show(path, "--format", style).replace("\\", "")

    for word in ("predicted_oom", "unavailable", "wrong_result", "throttled", "hot", "short", "no such module",
                 "68.7 GB", "rho 37.2"):  # fmt: skip
        assert word in text


def test_a_failure_has_no_speed_in_any_format(tmp_path: Path) -> None:
    statuses = ["wrong_result", "unsupported", "unavailable", "predicted_oom", "oom", "timeout", "crashed", "error"]
    rows = [make.row(make.case(), status, status=status, detail="why") for status in statuses]
    path = make.build(tmp_path / "run.jsonl", rows)

    assert body(show(path)) == [[status, status, "¹²³⁴⁵⁶⁷⁸"[i]] for i, status in enumerate(statuses)]
    for record in json.loads(show(path, "--format", "json")):
        assert record["time_ns"] is None
        assert record["flops_per_s"] is None
    for record in csv.DictReader(io.StringIO(show(path, "--format", "csv"))):
        assert record["time_ns"] == record["flops_per_s"] == ""


def test_a_wrong_result_shows_how_wrong_it_is(path: Path) -> None:
    rows = body(show(path, "--value", "rho", "--where", "causal=true,N=1024", "--row", "backend"))

    assert ["mine_v1", "37.2", "wrong_result"] in [row[:3] for row in rows]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("tflops", "400"), ("ms", "5.498"), ("us", "5498"), ("gbs", "195"), ("interval", "0.50%"), ("peak", "48.0"),
        ("mfu", "40.4%"), ("gemm", "50.0%"), ("hbm", "4.54%"), ("roofline", "50.0%"), ("rho", "0.250"),
        ("rmse", "0.00100"), ("max_abs", "0.00200"), ("speedup", "1.00x"), ("compile", "12.5"), ("workspace", "32.0"),
        ("saved", "0.500"),
    ],
)  # fmt: skip
def test_each_value_is_scaled_once_from_base_units(tmp_path: Path, value: str, text: str) -> None:
    """One row whose numbers are known: 2.199e12 FLOP in 5.498 ms is 400 TFLOP/s."""
    case = make.case(4096, batch=16)
    memory = Memory(peak_bytes=48 * 2**20, workspace_bytes=32 * 2**20, saved_bytes=2**19)
    row = make.row(case, "sdpa-flash", 5497558.13888, compile_s=12.5, memory=memory)
    path = make.build(tmp_path / "run.jsonl", [row])

    assert body(show(path, "--value", value)) == [["sdpa-flash", text]]


def test_every_value_is_tested_above() -> None:
    tested = test_each_value_is_scaled_once_from_base_units.pytestmark[0].args[1]  # type: ignore[attr-defined]

    assert {value for value, _ in tested} == set(VALUES)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1234.5, "1234"), (999.6, "1000"), (412.34, "412"), (41.234, "41.2"), (9.996, "10.0"), (1, "1.00"),
     (0.99951, "1.00"), (0.0412, "0.0412"), (4.123e-7, "4.12e-07"), (-41.234, "-41.2"), (123456789.0, "123456789")],
)  # fmt: skip
def test_numbers_have_three_significant_digits_and_no_exponent_while_they_fit(number: float, text: str) -> None:
    assert significant(number) == text


def test_every_flag_has_an_explanation() -> None:
    assert tuple(notes.FLAGS) == FLAGS


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_a_footnote_of_the_number_it_stands_beside(tmp_path: Path, flag: str) -> None:
    rows = [make.row(make.case(1024), flags=[flag]), make.row(make.case(4096))]
    path = make.build(tmp_path / "run.jsonl", rows)

    assert body(show(path))[0][-1] == "¹"
    assert f"¹ {flag}: {notes.FLAGS[flag]}" in show(path)
    record, plain = json.loads(show(path, "--format", "json"))
    assert (record["flags"], plain["flags"]) == ([flag], [])


def test_rounds_are_shown_as_their_median_with_the_worst_status(tmp_path: Path) -> None:
    case = make.case()
    rows = [make.row(case, "steady", time * 1e6, round=r) for r, time in enumerate((3, 1, 2))]
    rows += [make.row(case, "shaky", 1e6, round=r) for r in range(2)]
    rows += [make.row(case, "shaky", status="crashed", detail="signal 11", round=2)]

    text = show(make.build(tmp_path / "run.jsonl", rows), "--value", "ms", "--interval")

    assert body(text) == [["steady", "2.000", "±50%"], ["shaky", "crashed", "¹"]]
    assert "¹ crashed in 1 of 3 rounds: signal 11" in text
    assert ", 3 rounds" in text


def test_a_retried_row_is_shown_as_its_last_attempt(tmp_path: Path) -> None:
    rows = [make.row(make.case(), status="timeout", detail="slow"), make.row(make.case(), attempt=1)]

    assert "timeout" not in show(make.build(tmp_path / "run.jsonl", rows))


def test_devices_are_never_mixed_in_one_table(tmp_path: Path) -> None:
    files = [
        make.build(tmp_path / f"{model}.jsonl", [make.row(make.case(), median_ns=time)], envs=[make.env(model=model)])
        for model, time in (("H100", 2e6), ("H200", 1e6))
    ]

    text = show(*files, "--value", "ms")

    assert text.count("sdpa-flash") == 2
    assert "\nH100, burst" in text
    assert "\nH200, burst" in text
    assert body(show(*files, "--value", "ms", "--col", "device"))[0][-2:] == ["2.000", "1.000"]


def test_two_files_with_the_same_rows_get_a_table_each(tmp_path: Path) -> None:
    files = [
        make.build(tmp_path / day / "smoke.jsonl", [make.row(make.case(), median_ns=time)])
        for day, time in (("monday", 1e6), ("tuesday", 2e6))
    ]

    text = show(*files, "--value", "ms")

    assert "file monday/smoke" in text
    assert "file tuesday/smoke" in text
    assert body(show(*files, "--value", "ms", "--row", "backend", "--col", "file")) == [
        ["sdpa-flash", "1.000", "2.000"]
    ]


def test_shards_of_one_run_are_one_table(tmp_path: Path) -> None:
    files = [make.build(tmp_path / f"{N}.jsonl", [make.row(make.case(N))]) for N in (1024, 2048)]

    assert [row[0] for row in body(show(*files))] == ["1024", "2048"]


def test_files_of_other_suites_get_a_table_each_with_the_axes_that_vary_in_it(tmp_path: Path) -> None:
    tokens = [make.row(make.case(N, batch=16384 // N)) for N in (1024, 2048)]
    decode = [make.row(make.case(N, Nq=1, Nk=N, causal=causal)) for N in (512, 1024) for causal in (False, True)]
    files = [
        make.build(tmp_path / f"{name}.jsonl", rows, head=make.header(suite={"name": name}))
        for name, rows in (("tokens", tokens), ("decode", decode))
    ]

    first, second = show(*files, "--sort", "-causal").split("TFLOP/s: ")[1:]

    assert "batch = 16384/N, file tokens" in first
    assert [line[0] for line in body(first)] == ["1024", "2048"]
    assert "Nq 1, file decode" in second
    assert [line[:2] for line in body(second)] == [["yes", "512"], ["yes", "1024"], ["no", "512"], ["no", "1024"]]


def test_a_baseline_need_not_be_shown_to_be_divided_by(path: Path) -> None:
    text = show(path, "--value", "speedup", "--where", "backend=sdpa-cudnn,N=4096,causal=false")

    assert body(text) == [["sdpa-cudnn", "1.43x"]]


def test_another_baseline_can_be_chosen(path: Path) -> None:
    where = ["--where", "backend=sdpa-flash|naive,N=4096,causal=false"]

    rows = body(show(path, "--value", "speedup", "--baseline", "naive", *where))

    assert [row[:2] for row in rows] == [["sdpa-flash", "5.00x"], ["naive", "1.00x"]]


def test_a_baseline_that_no_row_is_of_is_a_sentence(path: Path) -> None:
    assert "'--baseline' must be a backend of the files, got 'naiv'; did you mean 'naive'?" in show(
        path, "--baseline", "naiv", code=2
    )


def test_a_failed_baseline_is_a_footnote_not_a_number(tmp_path: Path) -> None:
    rows = [make.row(make.case(), status="crashed", detail="signal 11"), make.row(make.case(), "mine")]

    text = show(make.build(tmp_path / "run.jsonl", rows), "--value", "speedup")

    assert ["mine", "-", "²"] in body(text)
    assert "² the baseline sdpa-flash is crashed here" in text


def test_memory_that_could_not_be_measured_says_why(tmp_path: Path) -> None:
    row = make.row(make.case(), memory=Memory(note="the profiler gave no memory events"))

    text = show(make.build(tmp_path / "run.jsonl", [row]), "--value", "peak")

    assert body(text) == [["sdpa-flash", "-", "¹"]]
    assert "¹ the profiler gave no memory events" in text


def test_what_nq_and_nk_tell_apart_is_shown(tmp_path: Path) -> None:
    rows = [make.row(make.case(1024)), make.row(make.case(1024, Nq=1))]

    text = show(make.build(tmp_path / "run.jsonl", rows))

    assert [row[0] for row in body(text)] == ["1", "1024"]
    assert "Nk 1024" in text


def test_a_window_and_gqa_are_shown(tmp_path: Path) -> None:
    rows = [make.row(make.case(kv_heads=4, window=window, causal=True)) for window in (None, (256, 0))]

    text = show(make.build(tmp_path / "run.jsonl", rows))

    assert [row[0] for row in body(text)] == ["-", "256:0"]
    assert "kv_heads 4" in text


def test_problems_without_a_regime_bring_no_column_of_it(tmp_path: Path) -> None:
    rows = [
        make.row(make.case(1024)),
        *(make.row(make.case(1 << n), status="predicted_oom", detail="too much") for n in (20, 21)),
    ]

    text = show(make.build(tmp_path / "run.jsonl", rows))

    assert "regime" not in text
    assert "NVIDIA H200, burst, forward, bf16" in text
    assert re.search(r"^ +1024 +\d", text, re.M)


def test_problems_without_a_regime_are_in_the_table_that_is_asked_for(tmp_path: Path) -> None:
    graph = {"regime": "graph", "cache": "warm", "timer": "cuda_event", "inputs": "x", "rules": "1"}
    rows = [
        make.row(make.case(1024, causal=True), method=graph),
        make.row(make.case(1024), status="predicted_oom", detail="too much"),
        make.row(make.case(2048, causal=True)),
        make.row(make.case(2048)),
    ]

    text = show(make.build(tmp_path / "run.jsonl", rows), "--row", "N", "--col", "backend")

    assert text.count("TFLOP/s:") == 2  # causal and not


def test_a_regime_that_differs_between_problems_is_a_column(tmp_path: Path) -> None:
    graph = {"regime": "graph", "cache": "warm", "timer": "cuda_event", "inputs": "x", "rules": "1"}
    short = make.case(512)
    rows = [make.row(short, method=graph), make.row(short, "xformers", status="unavailable", detail="no")]
    rows += [make.row(make.case(4096))]

    assert [row[:2] for row in body(show(make.build(tmp_path / "run.jsonl", rows)))] == [
        ["burst", "4096"],
        ["graph", "512"],
    ]


def test_rows_sort_by_a_column_failures_last(path: Path) -> None:
    text = show(path, "--where", "N=4096,causal=true", "--row", "backend", "--col", "value", "--sort", "-TFLOP/s")

    assert [row[0] for row in body(text)] == ["sdpa-cudnn", "sdpa-flash", "naive", "mine_v1", "xformers"]


def test_html_and_latex_escape_what_a_backend_says(tmp_path: Path) -> None:
    rows = [make.row(make.case(), "a_b<c>&d", status="error", detail="50% of <script> & {x}_y")]
    path = make.build(tmp_path / "run.jsonl", rows)

    web, latex = show(path, "--format", "html"), show(path, "--format", "latex")

    assert "<script>" not in web
    assert "a_b&lt;c&gt;&amp;d" in web
    assert r"a\_b\textless{}c\textgreater{}\&d" in latex
    assert r"50\% of \textless{}script\textgreater{} \& \{x\}\_y" in latex


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--value", "tflop"], "unknown value 'tflop'; did you mean 'tflops'?"),
        (["--value", "quality"], "unknown value 'quality'; known: tflops, ms, us, gbs"),
        (["--row", "heds"], "unknown axis 'heds' in --row; did you mean 'heads'?"),
        (["--col", "size"], "unknown axis 'size' in --col; known: device, file"),
        (["--row", "value"], "'value' must be in --col, got it in --row"),
        (["--where", "N>"], "a comparison must be KEY=VALUE"),
        (["--where", "N=7"], "no row is left to show; widen --where"),
        (["--sort", "color"], "'--sort' must be an axis of the rows (causal, N) or a column (sdpa-flash, naive, "),
        (["--format", "csv", "--row", "N", "--interval"], "'--row', '--interval' shapes a table, and csv has one"),
        (["--against", "published/nothing"], "'published/nothing' must be a result file or a shipped set"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_a_sentence_and_exit_code_2(path: Path, options: list[str], sentence: str) -> None:
    assert sentence in show(path, *options, code=2)


def test_damage_is_refused_with_its_line(path: Path) -> None:
    path.write_text(path.read_text().replace('"median":', '"median":NaN,"x":', 1))

    assert f"Error: {path}:4: 'NaN' is not JSON" in show(path, code=2)


def test_a_part_of_a_file_is_shown_as_a_part(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))

    assert "it has no footer after 28 rows; read what is there with --allow-partial" in show(path, code=2)
    assert "28 of 30 rows are there" in show(path, "--allow-partial")


def test_a_run_on_a_busy_cpu_says_so_beside_its_numbers(tmp_path: Path) -> None:
    env = make.env()
    busy = env.model_copy(
        update={
            "identity": env.identity.model_copy(update={"device_type": "cpu", "threads": 2}),
            "session": env.session.model_copy(update={"load_1min": 5.04, "affinity": [0, 1]}),
        }
    )
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case())], envs=[busy])

    assert show(path).endswith(
        f"\n\n{path}: the machine was busy when the run began (load 5.0 over the last minute on 2 cores, and 2 threads "
        "to measure with): its times may be many times too long\n"
    )


@pytest.mark.parametrize("command", ["show", "plot", "report"])
def test_a_file_that_is_named_twice_is_not_counted_twice(path: Path, command: str) -> None:
    other = path.with_name("link.jsonl")
    other.symlink_to(path)
    out = [] if command == "show" else ["--out", str(path.with_name("out"))]

    result = CliRunner().invoke(main, [command, str(path), str(other), *out])

    assert result.exit_code == 2
    assert f"'{other}' must be given once, and is given twice, as '{path}' too; leave one of them out" in result.stderr


def test_a_stopped_run_says_how_much_is_missing(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case())], head=make.header(planned_rows=9), complete=False)

    assert f"{path}: the run was stopped; 1 of 9 rows are there" in show(path)


def test_what_is_said_of_a_stopped_run_fits_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make.build(tmp_path / "run.jsonl", [make.row(make.case())], head=make.header(planned_rows=9), complete=False)

    text = views_show.show([read("run.jsonl")], width=40)

    assert text.endswith("\nrun.jsonl: the run was stopped; 1 of 9\n  rows are there")


def test_a_run_stopped_before_its_first_row_has_no_table(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [], head=make.header(planned_rows=9), complete=False)

    assert show(path) == f"no rows\n\n{path}: the run was stopped; 0 of 9 rows are there\n"
    assert show(path, "--format", "json") == "[]\n"


def test_json_holds_only_base_units_and_no_nan(path: Path) -> None:
    records: list[dict[str, Any]] = json.loads(show(path, "--format", "json"))

    assert len(records) == 30
    first = records[0]
    assert first["flops_per_s"] == pytest.approx(400e12)
    assert first["peak_bytes"] == 48 * 2**20
    assert set(json.loads(show(path, "--format", "json", "--value", "ms"))[0]) < set(first)


def test_a_column_skipped_for_one_reason_is_left_out_in_words(tmp_path: Path) -> None:
    cases = [make.case(N) for N in (1024, 2048)]
    rows = [make.row(case, "mine") for case in cases]
    rows += [make.row(case, name, status="unavailable", detail="no card") for case in cases for name in ("a", "b")]
    rows += [make.row(case, "c", status="unsupported", detail=f"N = {case.Nq}") for case in cases]

    text = show(make.build(tmp_path / "run.jsonl", rows))

    assert "left out: a, b (unavailable: no card)\n" in text
    assert text.splitlines()[3].split() == ["N", "mine", "c"]  # two reasons stay a column
    assert len(json.loads(show(tmp_path / "run.jsonl", "--format", "json"))) == 8


def test_what_is_left_out_is_named_as_what_it_is_and_whose_reason_it_was(tmp_path: Path) -> None:
    """Columns may be lengths: that a backend is not installed is no word about 4096, where it alone has a row."""
    rows = [make.row(make.case(1024), "mine"), make.row(make.case(1024), "a", status="unavailable", detail="no card")]
    rows += [make.row(make.case(N), "a", status="unavailable", detail="no card") for N in (2048, 4096)]
    rows += [make.row(make.case(N, d=256), "mine", status="unsupported", detail="d = 256 > 128") for N in (1024, 2048)]
    path = make.build(tmp_path / "run.jsonl", rows)

    def left_out(*options: object) -> list[str]:
        return [line for line in show(path, *options).splitlines() if line.startswith("left out")]

    by_length = ("--where", "d=128", "--row", "backend")
    assert left_out(*by_length, "--col", "N") == ["left out: N 2048, N 4096: only a is there (unavailable: no card)"]
    assert "unavailable ¹" in show(path, *by_length, "--col", "N")
    assert left_out("--where", "N=1024", "--row", "backend", "--col", "d") == [
        "left out: d 256: only mine is there (unsupported: d = 256 > 128)"
    ]
    assert left_out("--where", "backend=mine", "--row", "N", "--col", "d") == [
        "left out: d 256 (unsupported: d = 256 > 128)"
    ]
    assert left_out("--where", "d=128", "--col", "backend") == ["left out: a (unavailable: no card)"]


def test_a_row_of_which_only_what_is_left_out_was_there_is_left_out_too(tmp_path: Path) -> None:
    rows = [make.row(make.case(N), "a", status="unavailable", detail="no card") for N in (1024, 2048)]
    rows += [make.row(make.case(1024), "mine"), make.row(make.case(4096), "mine", status="oom", detail="no room")]

    text = show(make.build(tmp_path / "run.jsonl", rows))

    assert [row[0] for row in body(text)] == ["1024", "4096"]
    assert "left out: a (unavailable: no card)" in text


def test_many_columns_that_are_left_out_are_counted(tmp_path: Path) -> None:
    lengths = range(1024, 9 * 1024, 1024)
    rows = [make.row(make.case(N), "a", status="unavailable", detail="no card") for N in lengths]
    path = make.build(tmp_path / "run.jsonl", [*rows, make.row(make.case(1024), "mine")])

    text = show(path, "--row", "backend", "--col", "N")

    assert "left out: 7 columns: only a is there (unavailable: no card)\n" in text


def test_columns_stay_where_nothing_else_would_be_left(tmp_path: Path) -> None:
    rows = [make.row(make.case(N), "mine", status="unavailable", detail="no card") for N in (1024, 2048)]

    assert [row[1] for row in body(show(make.build(tmp_path / "run.jsonl", rows)))] == ["unavailable"] * 2


def test_columns_stand_in_the_order_of_the_suite(tmp_path: Path) -> None:
    """A run shuffles its cases, so the order of rows says nothing."""
    names = ["sdpa-flash", "mine", "naive", "sdpa-cudnn"]
    suite = {"name": "example", "backends": ["naive", "sdpa-*"]}
    rows = [make.row(make.case(N), name) for N in (1024, 2048) for name in names]
    path = make.build(tmp_path / "run.jsonl", rows, head=make.header(planned_rows=8, suite=suite))

    assert show(path).splitlines()[3].split() == ["N", "naive", "sdpa-cudnn", "sdpa-flash", "mine"]

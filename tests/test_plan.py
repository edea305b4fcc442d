"""The plan: which rows run, which are skipped and why, and how filters and shards cut it."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import pytest

from fabench import plan, suite
from fabench.case import row_id
from fabench.cost import extra_memory, input_bytes
from fabench.errors import BackendError, InternalError, SuiteError, UsageError
from fabench.reference_time import estimate_seconds
from fabench.where import Condition
from fake_probe import ALL_BACKENDS, CPU, CPU_BACKENDS, H200, fake_probe, report

SMALL = """
name: small
axes: {N: [64, 128], causal: [false, true], d: 16, dtype: fp32, heads: 2}
backends: [naive, "sdpa-*"]
"""


def read(text: str) -> suite.Suite:
    return suite.from_bytes(text.encode(), "suite.yaml")


def make(text: str = SMALL, backends=CPU_BACKENDS, device=CPU, **options) -> plan.Plan:
    loaded = read(text)
    return plan.make(loaded, fake_probe(loaded.cases, backends, device), **options)


def names(made: plan.Plan) -> list[str]:
    return list(dict.fromkeys(row.backend for row in made.rows))


def test_rows_are_cases_times_backends_case_by_case_in_the_order_of_the_suite():
    made = make()
    cases = read(SMALL).cases
    assert [(row.case, row.backend) for row in made.rows] == list(
        itertools.product(cases, ("naive", "sdpa-math", "sdpa-flash", "sdpa-auto"))
    )
    assert all(row.row_id == row_id(row.case, row.backend) for row in made.rows)
    assert all((row.status, row.detail) == (None, None) and row.predicted_s > 0 for row in made.rows)
    assert (made.excluded, made.filtered, made.notes) == (0, 0, ())


def test_backends_of_the_command_line_replace_the_suites_list_and_those_of_files_come_on_top():
    mine = ("mine", report("mine", file="mine.py"))
    listed = ["naive", "sdpa-math", "sdpa-flash", "sdpa-auto"]
    loaded = read(SMALL)
    probe = fake_probe(loaded.cases, [mine, *CPU_BACKENDS])
    assert names(plan.make(loaded, probe)) == [*listed, "mine"]
    assert names(plan.make(loaded, probe, backends=["online", "n*"])) == ["online", "naive", "mine"]
    assert names(plan.make(loaded, probe, backends=["all"])) == ["mine", *CPU_BACKENDS]


def test_all_is_every_backend():
    assert names(make(SMALL.replace('[naive, "sdpa-*"]', "all"))) == list(CPU_BACKENDS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("backends: [naive, sdpa-flsh]", "suite.yaml:2: backends[1]: 'sdpa-flsh' must be a backend"),
        ("backends: ['cuda-*']", "suite.yaml:2: backends[0]: 'cuda-*' must match a backend"),
        (
            "backends: naive\nbaseline: naiv",
            "suite.yaml:3: baseline: must be a backend, got 'naiv'; did you mean 'naive'?",
        ),
        ("baseline: zzz", "suite.yaml:2: baseline: must be a backend, got 'zzz'; known: naive, online, sdpa-auto"),
    ],
)
def test_a_backend_that_is_not_there_is_an_error_on_its_line(line, message):
    with pytest.raises(SuiteError) as caught:
        make(f"name: x\n{line}")
    assert str(caught.value).startswith(message)


def test_an_unknown_backend_on_the_command_line_is_an_error_too():
    with pytest.raises(BackendError, match=r"'naiv' must be a backend, .*did you mean 'naive'"):
        plan.make(read(SMALL), fake_probe(()), backends=["naiv"])


def test_a_baseline_that_is_not_chosen_is_noted():
    assert make(SMALL + "baseline: online\n").notes == (
        "the baseline 'online' is not among the backends chosen: no speed-ups",
    )


def test_excluded_rows_are_no_rows_and_a_rule_that_matches_none_is_noted():
    made = make(SMALL + "exclude: ['backend=naive,N>64', 'causal=true,backend=sdpa-auto', 'N>1000']\n")
    assert (len(made.rows), made.excluded) == (12, 4)
    assert not any(row.backend == "naive" and row.case.Nq > 64 for row in made.rows)
    assert made.notes == ("exclude 'N>1000' matches no row",)


def test_an_excluded_backend_that_is_not_chosen_is_not_worth_a_note():
    loaded = read(SMALL + "exclude: ['backend=naive,N>64']\n")
    made = plan.make(loaded, fake_probe(loaded.cases), backends=["sdpa-math"])
    assert (made.excluded, made.notes) == (0, ())


def test_unavailable_comes_before_unsupported_and_both_keep_their_reasons():
    text = "name: x\naxes: {dtype: [fp32, bf16], d: [64, 512]}\nbackends: [flash-attn, broken]"
    broken = ("broken", report("flash-attn", unavailable="cannot import broken"))
    made = make(text, ["flash-attn", broken], H200)
    seen = {(r.case.dtype, r.case.d, r.backend): (r.status, r.detail, r.predicted_s > 0) for r in made.rows}
    assert seen["fp32", 512, "flash-attn"] == ("unsupported", "dtype fp32, takes fp16, bf16; d = 512 > 256", False)
    assert seen["bf16", 64, "flash-attn"] == (None, None, True)
    assert {seen[d, n, "broken"] for d in ("fp32", "bf16") for n in (64, 512)} == {
        ("unavailable", "cannot import broken", False)
    }


def test_a_case_that_does_not_fit_is_predicted_oom_with_both_numbers():
    loaded = suite.load("long_context")
    probe = fake_probe(loaded.cases, ALL_BACKENDS, H200)
    rows = {(r.case.Nq, r.case.d, r.backend): r for r in plan.make(loaded, probe).rows if not r.case.causal}

    naive = rows[131072, 128, "naive"]
    assert (naive.status, naive.predicted_s) == ("predicted_oom", 0)
    assert naive.detail == (
        "needs 1.00 TiB (2 input sets 3.00 GiB, outputs 512 MiB, workspace 1.00 TiB) > 139 GiB free; "
        "--try-oom launches it"
    )
    assert naive.predicted_bytes == extra_memory(naive.case, "standard")
    assert naive.needed_bytes == naive.predicted_bytes + 2 * input_bytes(naive.case)
    assert rows[131072, 128, "sdpa-flash"].status is None
    assert rows[16384, 128, "naive"].status is None


def test_try_oom_runs_what_is_predicted_not_to_fit():
    text = "name: x\naxes: {N: 131072}\nbackends: naive"
    assert make(text).rows[0].status == "predicted_oom"
    tried = make(text, try_oom=True).rows[0]
    assert (tried.status, tried.detail) == (None, None)
    assert tried.predicted_bytes > CPU.free_bytes


def test_a_device_whose_free_memory_is_unknown_predicts_no_oom():
    unknown = dataclasses.replace(CPU, free_bytes=0)
    (row,) = make("name: x\naxes: {N: 131072}\nbackends: naive", device=unknown).rows
    assert row.status is None


def test_memory_saved_for_the_backward_is_told_apart():
    made = make("name: x\naxes: {N: 131072, direction: backward}\nbackends: naive")
    assert "saved 512 GiB" in made.rows[0].detail


def test_where_keeps_the_rows_that_match():
    made = make(where=Condition.parse("N=64,backend=sdpa-*"))
    assert {(row.case.Nq, row.backend) for row in made.rows} == {
        (64, name) for name in ("sdpa-math", "sdpa-flash", "sdpa-auto")
    }
    assert made.filtered == 16 - 6


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_shards_are_the_whole_and_do_not_overlap_and_keep_a_case_together(n):
    whole = make().rows
    shards = [make(shard=(i, n)).rows for i in range(1, n + 1)]
    assert sorted(row.row_id for rows in shards for row in rows) == sorted(row.row_id for row in whole)
    assert len({row.case for rows in shards for row in rows}) == sum(len({row.case for row in rows}) for rows in shards)
    assert make(shard=(1, n), where=Condition.parse("N=128")).rows[0].case.Nq == 128


@pytest.mark.parametrize("shard", [(0, 2), (3, 2)])
def test_a_shard_that_does_not_exist_is_an_error(shard):
    with pytest.raises(UsageError, match=r"a shard must be i/n with 1 <= i <= n, got \d/2"):
        make(shard=shard)


def test_a_row_id_selects_its_row_even_if_it_is_excluded_or_its_backend_not_listed():
    text = SMALL + "exclude: ['backend=naive']\n"
    case = read(text).cases[3]
    wanted = {row_id(case, "naive"), row_id(case, "online")}
    made = make(text, row_ids=wanted)
    assert {row.row_id for row in made.rows} == wanted
    assert (made.excluded, made.notes) == (0, ())


def test_an_unknown_row_id_is_a_usage_error():
    known = row_id(read(SMALL).cases[0], "naive")
    with pytest.raises(UsageError) as caught:
        make(row_ids={known, known[:-1] + "?"})
    assert str(caught.value) == (
        f"'{known[:-1]}?' must be the id of a row of suite 'small', got none of its 20; did you mean '{known}'?; "
        "ids are in the rows of its result files"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": Condition.parse("N=7")},
            "--where 'N=7' must leave a row to run, got none of 16 rows of suite 'small'",
        ),
        ({"shard": (9, 9)}, "--shard 9/9 must leave a row to run, got none of 16 rows of suite 'small'"),
        (
            {"where": Condition.parse("N=64"), "shard": (9, 9)},
            "--where 'N=64' and --shard 9/9 must leave a row to run, got none of 16 rows of suite 'small'",
        ),
    ],
)
def test_a_filter_that_leaves_nothing_is_an_error(options, message):
    with pytest.raises(UsageError) as caught:
        make(**options)
    assert str(caught.value) == message


def test_a_suite_that_excludes_all_of_itself_is_an_error():
    with pytest.raises(UsageError, match="'small' must leave a row to run, got all 16 of them excluded by its own"):
        make(SMALL + "exclude: ['backend=*']\n")


def test_a_pair_that_the_probe_was_not_asked_about_is_a_bug():
    with pytest.raises(InternalError, match="the probe was not asked whether 'naive' takes the case N=64"):
        plan.make(read(SMALL), fake_probe(()))


def test_time_adds_up_over_rounds_and_counts_references_once():
    made = make()
    rows = sum(row.predicted_s for row in made.rows)
    assert made.seconds(2) - made.seconds(1) == pytest.approx(rows + 6.0)
    assert made.seconds(1) == pytest.approx(made.reference_s + rows + 6.0)
    assert made.reference_s > 0


def test_a_reference_is_sampled_where_a_full_one_would_take_longer_than_the_rows_it_judges():
    text = "name: x\naxes: {N: 131072, batch: 16}\nbackends: sdpa-flash\n"
    auto, full, sampled = (
        make(f"{text}parity: {{reference: {mode}}}", ALL_BACKENDS, H200) for mode in ("auto", "full", "sampled")
    )
    assert auto.reference_s == sampled.reference_s < auto.rows[0].predicted_s < full.reference_s
    short = make("name: x\naxes: {N: 64}\nbackends: sdpa-flash", ALL_BACKENDS, H200)
    assert short.reference_s == estimate_seconds(short.rows[0].case, H200)


def test_nothing_to_run_takes_no_time():
    made = make("name: x\naxes: {N: 131072}\nbackends: naive")
    assert (made.to_run, made.seconds(3), made.reference_s) == ([], 0, 0)


SHARDS = {"training": 3, "fa2_paper": 2, "fa3_paper": 2}
"""Suites whose opening comment says to split them, and into how many."""


@pytest.mark.parametrize("name", suite.shipped())
def test_a_shipped_suite_is_predicted_to_end_in_8_minutes_on_an_h200_with_every_backend(name):
    loaded = suite.load(name)
    probe = fake_probe(loaded.cases, ALL_BACKENDS, H200)
    parts = SHARDS.get(name, 1)
    for i in range(1, parts + 1):
        assert plan.make(loaded, probe, shard=(i, parts)).seconds(1) < 480
    assert (parts > 1) == (f"--shard {parts}/{parts}" in suite.shipped()[name].read_text())
    assert not plan.make(loaded, probe).notes


def test_smoke_is_predicted_to_end_in_a_minute_on_two_cores():
    loaded = suite.load("smoke")
    made = plan.make(loaded, fake_probe(loaded.cases, ALL_BACKENDS, CPU), backends=CPU_BACKENDS)
    assert {row.status for row in made.rows} == {None}
    assert {row.case.direction for row in made.rows} == {"forward", "backward"}
    assert made.seconds(1) < 40


def test_planning_imports_no_torch():
    code = "import sys; import fabench.plan, fabench.views.dryrun; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_backend_that_declares_that_it_cannot_be_captured_is_unsupported_where_calls_are_replayed() -> None:
    plain = report("eager")
    eager = ("eager", dataclasses.replace(plain, facts=dataclasses.replace(plain.facts, cuda_graphs=False)))
    text = SMALL.replace('[naive, "sdpa-*"]', "[naive, eager]").replace("fp32", "bf16")

    on_gpu, on_cpu = (make(text, ("naive", eager), device) for device in (H200, CPU))

    assert {(row.backend, row.status) for row in on_gpu.rows} == {("naive", None), ("eager", "unsupported")}
    assert on_gpu.rows[1].detail == "regime graph, and its calls cannot be captured in a CUDA graph"
    assert all(row.status is None for row in on_cpu.rows)

"""What becomes of the exit code when one thing in a result file is changed: acceptance test T5, and its neighbours."""

from __future__ import annotations

import json

import pytest

import resultfiles as rf
from diff_files import BACKENDS, CASES, diff, failing, rounds, table, write
from fabench.case import row_id

KEY = row_id(CASES[0], "sdpa-flash")


@pytest.fixture
def files(tmp_path):
    """Two files of one session that differ by noise alone."""
    return write(tmp_path / "old.jsonl", table(1)), write(tmp_path / "new.jsonl", table(2))


def rows_of(lines, key=None):
    return [line for line in lines if line["rec"] == "row" and key in (None, line["row_id"])]


def check(files, code, *says):
    result = diff(*files)
    assert result.exit_code == code, result.output
    for text in says:
        assert text in result.output
    return result


def mend(lines):
    """Set the footer right after a change to the rows."""
    latest = {(r["row_id"], r["round"]): r["status"] for r in rows_of(lines)}
    lines[-1]["rows_written"] = len(rows_of(lines))
    lines[-1]["status_counts"] = {s: list(latest.values()).count(s) for s in set(latest.values())}
    return lines


def test_files_that_differ_by_noise_pass(files):
    check(files, 0, "passed: 24 rows: 24 SAME; exit code 0")


def test_a_file_is_the_same_as_itself(files):
    check((files[0], files[0]), 0, "24 SAME")


def test_a_case_taken_out_is_missing(files):
    rf.mutate(files[1], lambda lines: mend([x for x in lines if x.get("key") != CASES[0].key]))
    check(files, 1, "failed (3 MISSING)", "no such row in the new file")


def test_a_case_only_in_new_is_no_failure(files):
    rf.mutate(files[0], lambda lines: mend([x for x in lines if x.get("key") != CASES[0].key]))
    check(files, 0, "21 SAME", "3 NEW")


def test_a_file_without_a_footer_is_refused(files):
    rf.mutate(files[1], lambda lines: lines[:-1])
    check(files, 2, "new.jsonl", "no footer")


def test_a_torn_last_line_is_refused(files):
    files[1].write_bytes(files[1].read_bytes()[:-20])
    check(files, 2, "new.jsonl:", "truncated")


def test_a_footer_that_counts_other_rows_is_refused(files):
    rf.mutate(files[1], lambda lines: [x for x in lines if x.get("row_id") != KEY])
    check(files, 2, "truncated", "its footer counts 240 rows, and it has 230")


def test_a_truncated_file_may_be_read_on_request_and_what_it_lacks_is_missing(files):
    rf.mutate(files[1], lambda lines: [x for x in lines if x.get("row_id") != KEY])
    result = diff(*files, "--allow-partial")
    assert result.exit_code == 1
    assert "truncated" in result.output
    assert "1 MISSING" in result.output


@pytest.mark.parametrize("status", ["wrong_result", "crashed", "timeout", "error", "oom"])
def test_a_row_that_was_ok_and_now_fails_is_broken(tmp_path, files, status):
    rows = [r for r in table(2) if r.row_id != KEY] + failing(CASES[0], "sdpa-flash", status, message="max rho 3.2 > 1")
    check((files[0], write(tmp_path / "n", rows)), 1, "1 BROKEN", status, "max rho 3.2 > 1")


def test_one_failed_round_of_ten_is_enough_to_break_a_row(tmp_path, files):
    rows = [r for r in table(2) if (r.row_id, r.round) != (KEY, 7)]
    rows.append(rf.row(CASES[0], "sdpa-flash", round=7, status="timeout", detail="120 s"))
    check((files[0], write(tmp_path / "n", rows)), 1, "1 BROKEN", "timeout")


@pytest.mark.parametrize("status", ["unsupported", "unavailable", "predicted_oom"])
def test_a_row_that_was_ok_and_is_now_skipped_loses_coverage(tmp_path, files, status):
    rows = [r for r in table(2) if r.row_id != KEY] + failing(CASES[0], "sdpa-flash", status, message="d = 128 > 64")
    check((files[0], write(tmp_path / "n", rows)), 1, "1 COVERAGE_LOST", "d = 128 > 64")


def test_a_broken_row_is_broken_even_on_other_hardware(tmp_path, files):
    rows = [r for r in table(2) if r.row_id != KEY] + failing(CASES[0], "sdpa-flash", "wrong_result")
    check((files[0], write(tmp_path / "n", rows, model="NVIDIA H100")), 1, "1 BROKEN", "23 NOT_COMPARABLE")


def test_another_gpu_leaves_no_decision(files):
    def swap(lines):
        lines[1]["identity"]["model"] = "NVIDIA H100 80GB HBM3"
        return lines

    rf.mutate(files[1], swap)
    check(files, 3, "24 NOT_COMPARABLE", "model NVIDIA H200 -> NVIDIA H100 80GB HBM3", "--cross-gpu")


@pytest.mark.parametrize(
    ("field", "value"), [("power_limit_w", 500.0), ("ecc", False), ("sms", 114), ("capability", [9, 1]), ("mig", True)]
)
def test_any_other_identity_leaves_no_decision(files, field, value):
    def change(lines):
        lines[1]["identity"][field] = value
        return lines

    rf.mutate(files[1], change)
    check(files, 3, "NOT_COMPARABLE", field)


def test_a_driver_that_keeps_a_little_memory_is_the_same_card(files):
    def memory(amount):
        def change(lines):
            lines[1]["identity"]["memory_bytes"] = amount
            return lines

        return change

    rf.mutate(files[0], memory(150_000_000_000))
    rf.mutate(files[1], memory(149_900_000_000))
    check(files, 0, "24 SAME", "changed: memory_bytes 150000000000 -> 149900000000")


def test_another_method_leaves_no_decision(files):
    def change(lines):
        for row in rows_of(lines):
            row["method_id"] = "sustained0"
            row["method"]["regime"] = "sustained"
        return lines

    rf.mutate(files[1], change)
    check(files, 3, "24 NOT_COMPARABLE", "regime burst -> sustained")


def test_rounds_measured_by_two_methods_leave_no_decision(files):
    def change(lines):
        rows_of(lines, KEY)[0]["method_id"] = "other"
        return lines

    rf.mutate(files[1], change)
    check(files, 3, "1 NOT_COMPARABLE", "its rounds were measured by different methods")


def test_fewer_rounds_in_one_file_are_compared_as_they_are(tmp_path, files):
    rows = [row for row in table(2) if row.round < 6]
    result = check((files[0], write(tmp_path / "n", rows)), 0)
    assert "with 10 rounds in old and 6 in new the smallest Mann-Whitney p is 0.00012" in result.output
    slow = table(2, factors={(CASES[0], "sdpa-flash"): 1.08})
    slow = [row for row in slow if row.round < 6]
    check((files[0], write(tmp_path / "s", slow)), 1, "1 REGRESSED")


def test_too_few_rounds_leave_no_decision(tmp_path, files):
    rows = [row for row in table(2) if row.round < 4]
    check((files[0], write(tmp_path / "n", rows)), 3, "24 of 24 rows with fewer than 5 rounds", "needs 5 in each")


def test_one_round_leaves_no_decision_and_no_interval(tmp_path):
    files = [write(tmp_path / f"{s}.jsonl", [r for r in table(s) if r.round == 0]) for s in (1, 2)]
    check(files, 3, "24 INCONCLUSIVE", "1 round in old and 1 in new")


def test_identical_samples_everywhere_pass(tmp_path):
    files = [write(tmp_path / f"{s}.jsonl", table(s, noise=0.0)) for s in (1, 2)]
    check(files, 0, "24 SAME")


def test_identical_samples_that_moved_by_more_than_the_timers_step_regress(tmp_path):
    old = write(tmp_path / "old.jsonl", table(1, noise=0.0))
    new = write(tmp_path / "new.jsonl", table(2, noise=0.0, factors={(CASES[0], "sdpa-flash"): 1.03}))
    check((old, new), 1, "1 REGRESSED", "23 SAME")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_a_nan_token_is_refused_with_its_line(files, token):
    lines = files[1].read_text().splitlines()
    row = json.loads(lines[7])
    row["quantiles"]["median"] = 123456789.5
    lines[7] = json.dumps(row).replace("123456789.5", token)
    files[1].write_text("\n".join(lines) + "\n")
    check(files, 2, "new.jsonl:8:", "null")


def test_a_duplicate_row_is_refused(files):
    rf.mutate(files[1], lambda lines: mend([*lines[:-1], rows_of(lines, KEY)[3], lines[-1]]))
    check(files, 2, "must be unique")


def test_a_second_attempt_counts_in_place_of_the_first(files):
    def retry(lines):
        rows = rows_of(lines, KEY)
        rows[3]["status"] = "crashed"
        again = {**rows[4], "round": 3, "attempt": 1}
        return mend([*lines[:-1], again, lines[-1]])

    rf.mutate(files[1], retry)
    check(files, 0, "24 SAME")


def test_an_empty_file_is_refused(files):
    files[1].write_bytes(b"")
    check(files, 2, "the file is empty")


def test_a_file_that_is_not_there_is_refused(files, tmp_path):
    check((files[0], tmp_path / "nowhere.jsonl"), 2, "no such file exists")


def test_a_newer_major_schema_is_refused_and_a_newer_minor_warns(files):
    def schema(version):
        def change(lines):
            lines[0]["schema"] = version
            lines[0]["something_new"] = 1
            return lines

        return change

    rf.mutate(files[1], schema("fabench/1.7"))
    check(files, 0, "schema fabench/1.7 is newer than fabench/1.0; ignored: header.something_new")
    rf.mutate(files[1], schema("fabench/2.0"))
    check(files, 2, "major version 2")


def test_files_with_nothing_in_common_are_refused(tmp_path, files):
    other = write(tmp_path / "other.jsonl", table(3, cases=[rf.case(512)]))
    check((files[0], other), 2, "must have rows in common, got 24 and 3 rows and none in both")


def test_a_condition_that_leaves_nothing_is_refused(files):
    result = diff(*files, "--where", "N=77")
    assert result.exit_code == 2
    assert "--where 'N=77' must match a row of both files, got none of 24 in both" in result.output


def test_256_regressions_exit_with_1_and_not_with_their_number(tmp_path):
    cases = [rf.case(2048 + n) for n in range(256)]
    old = write(tmp_path / "old.jsonl", table(1, cases=cases, backends=["sdpa-flash"], count=6))
    new = write(tmp_path / "new.jsonl", table(2, cases=cases, backends=["sdpa-flash"], count=6, factor=1.2))
    check((old, new), 1, "256 REGRESSED")


def test_a_slower_row_regresses_and_a_faster_one_does_not_fail(tmp_path, files):
    slow = write(tmp_path / "s", table(2, factors={(CASES[3], "online"): 1.03}))
    check((files[0], slow), 1, "1 REGRESSED", "23 SAME")
    fast = write(tmp_path / "f", table(2, factors={(CASES[3], "online"): 0.95}))
    check((files[0], fast), 0, "1 IMPROVED", "23 SAME")


def test_one_row_id_for_two_problems_is_refused(files):
    def rename(lines):
        for row in rows_of(lines, KEY):
            row["key"]["seed"] = 77
        return lines

    rf.mutate(files[1], rename)
    check(files, 2, "must mean one case and backend")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quantiles": {"min": 1.0, "median": 0.0}}, "'row.quantiles.median': input should be greater than 0, got 0.0"),
        ({"quantiles": {"min": 9.0, "median": 1.0}}, "not fall from min to max"),
        ({"quantiles": {"p10": 1.0}}, "have a median"),
        ({"samples_ns": [5.0, -1.0]}, "'row.samples_ns[1]': input should be greater than 0, got -1.0"),
        ({"samples_ns": [0.0]}, "'row.samples_ns[0]': input should be greater than 0, got 0.0"),
        ({"round": -1}, "'row.round': input should be greater than or equal to 0, got -1"),
        ({"K": 10**30}, "'row.K': input should be less than 4611686018427387904, got 10000"),
        ({"round": 10**60}, "'row.round': input should be less than"),
        ({"cost": {"pairs": 1, "flops": 10**400, "ideal_bytes": 1, "convention": "x"}}, "'row.cost.flops': input"),
    ],
)
def test_numbers_that_no_measurement_has_are_refused_with_their_line(files, change, says):
    def damage(lines):
        lines[5].update(change)
        return lines

    rf.mutate(files[1], damage)
    check(files, 2, "new.jsonl:6:", says)


def test_a_stopped_run_is_read_and_what_it_lacks_is_missing(files):
    def stop(lines):
        kept = [x for x in lines if x.get("backend") != "online"]
        kept[-1]["complete"] = False
        return mend(kept)

    rf.mutate(files[1], stop)
    check(files, 1, "8 MISSING", f"{files[1]}: the run was stopped before its last row; what it lacks is MISSING")
    check(files[::-1], 0, "8 NEW", f"{files[1]}: the run was stopped before its last row; what it lacks is NEW")


def test_a_file_compared_with_itself_passes_and_the_report_says_so(files):
    says = "old and new hold the same times, round by round"

    check((files[0], files[0]), 0, says)
    assert says not in check(files, 0).output


def test_rows_that_the_new_run_was_told_to_leave_out_are_not_missing(tmp_path, files):
    rows = [row for row in table(2) if row.backend != "online" and row.key["Nq"] > 1024]
    told = {"where": "N>1024", "backend": ["sdpa-*", "triton-flash"]}
    check((files[0], write(tmp_path / "n", rows, header={"filter": told})), 0, "12 SAME", "12 SKIPPED")
    told = {"where": "N>1024"}
    check((files[0], write(tmp_path / "m", rows, header={"filter": told})), 1, "6 MISSING")


def test_a_shard_explains_absent_cases_but_not_a_backend_absent_from_its_cases(tmp_path, files):
    rows = [row for row in table(2, cases=CASES[::2]) if (row.backend, row.key["Nq"]) != ("online", 1024)]
    new = write(tmp_path / "n", rows, header={"filter": {"shard": [1, 2]}})
    check((files[0], new), 1, "1 MISSING", "12 SKIPPED")
    old = write(tmp_path / "o", table(1), header={"filter": {"shard": [1, 2]}})
    check((old, new), 1, "13 MISSING")


def test_fail_on_chooses_what_fails(tmp_path, files):
    rows = table(2, factors={(CASES[0], "online"): 1.2})
    rows = [row for row in rows if row.row_id != KEY]
    new = write(tmp_path / "n", rows)
    assert diff(files[0], new).exit_code == 1
    assert diff(files[0], new, "--fail-on", "missing").exit_code == 1
    assert diff(files[0], new, "--fail-on", "broken,coverage_lost").exit_code == 0
    assert diff(files[0], new, "--fail-on", "none").exit_code == 0
    wrong = diff(files[0], new, "--fail-on", "regresed")
    assert wrong.exit_code == 2
    assert "did you mean 'regressed'?" in wrong.output


def test_many_inconclusive_rows_leave_no_decision(tmp_path):
    files = [write(tmp_path / f"{s}.jsonl", table(s, noise=0.02)) for s in (1, 2)]
    result = check(files, 3, "INCONCLUSIVE (limit 20%)")
    assert "rounds a side to find +5%" in result.output


def test_both_sides_of_everything_at_once(tmp_path):
    """Every verdict that statuses alone decide, from one pair of files."""
    case = CASES[0]
    old = [
        *rounds(case, "a"), *rounds(case, "b"), *rounds(case, "c"), *failing(case, "d", "crashed"),
        *failing(case, "e", "oom"), *failing(case, "f", "unsupported"), *failing(case, "g", "unsupported"),
    ]  # fmt: skip
    new = [
        *rounds(case, "a", seed=1), *failing(case, "b", "oom"), *failing(case, "c", "unavailable"), *rounds(case, "d"),
        *failing(case, "e", "oom"), *rounds(case, "f"), *failing(case, "g", "unsupported"), *rounds(case, "h"),
    ]  # fmt: skip
    result = diff(write(tmp_path / "o", old), write(tmp_path / "n", new), "--csv", tmp_path / "t.csv")
    assert result.exit_code == 1
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()[1:]]
    verdicts = {backend: verdict for verdict, _, backend, *_ in lines}
    assert verdicts == {
        "a": "SAME",
        "b": "BROKEN",
        "c": "COVERAGE_LOST",
        "d": "FIXED",
        "e": "STILL_FAILING",
        "f": "NEW",
        "g": "SKIPPED",
        "h": "NEW",
    }


def test_the_table_has_every_backend_of_the_files(files):
    output = diff(*files, "--all").output
    assert all(output.count(f"  {backend}  ") >= 8 for backend in BACKENDS)


def test_rows_without_a_time_leave_no_decision(tmp_path, files):
    def drop(lines):
        for row in rows_of(lines, KEY):
            del row["quantiles"], row["samples_ns"]
        return lines

    rf.mutate(files[1], drop)
    check(files, 3, "1 INCONCLUSIVE", "no time was recorded")


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [("crashed", "crashed", "STILL_FAILING"), ("unavailable", "unavailable", "SKIPPED"), ("unsupported", "oom", "NEW")],
)
@pytest.mark.parametrize("options", [(), ("--cross-gpu",)])
def test_files_in_which_no_row_works_are_no_pass(tmp_path, old, new, verdict, options):
    files = [
        write(tmp_path / name, [row for case in CASES for row in failing(case, "sdpa-flash", status)])
        for name, status in (("o", old), ("n", new))
    ]
    check((*files, *options), 3, f"8 {verdict}", "no row is ok in both files: nothing was compared")


def test_a_row_that_works_again_is_something_compared(tmp_path):
    old = write(tmp_path / "o", failing(CASES[0], "sdpa-flash", "crashed"))
    check((old, write(tmp_path / "n", rounds(CASES[0]))), 0, "1 FIXED")


def test_a_file_without_rows_is_refused(tmp_path, files):
    check((files[0], write(tmp_path / "none", [])), 2, "got 24 and 0 rows and none in both")


def test_the_sides_of_an_ab_run_the_wrong_way_round_are_noticed(tmp_path):
    a, b = (write(tmp_path / side, table(1), header={"ab_side": side}) for side in ("a", "b"))
    assert "the other way round" not in diff(a, b).output
    assert "old is side b and new is side a" in diff(b, a).output

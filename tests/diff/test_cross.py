"""Two cards side by side: what gates, what is shown, and the optional gate on efficiency."""

from __future__ import annotations

import json
import re

import pytest

import resultfiles as rf
from diff_files import CASES, diff, failing, rounds, table, without_paths, write
from golden_files import assert_golden

H100 = {"model": "NVIDIA H100", "canary": {"gemm_flops": {"bf16": rf.GEMM_FLOPS * 0.75}, "copy_bandwidth": 3.0e12}}
LONG = CASES[6:]


def cards(tmp_path, *, factor=1 / 0.75, factors=None, rows=None, **fields):
    """An H200 and an H100 on which everything takes `factor` as long, as its canary does."""
    old = write(tmp_path / "h200.jsonl", table(1, cases=LONG))
    new = table(2, cases=LONG, factor=factor, factors=factors) if rows is None else rows
    return old, write(tmp_path / "h100.jsonl", new, session_id="other", **{**H100, **fields})


def read(tmp_path, *arguments):
    result = diff(*arguments, "--json", tmp_path / "d.json")
    return result, json.loads((tmp_path / "d.json").read_text()) if result.exit_code != 2 else {}


def test_without_the_option_two_cards_leave_no_decision(tmp_path):
    assert diff(*cards(tmp_path)).exit_code == 3


def test_times_of_two_cards_are_shown_and_not_judged(tmp_path):
    result, data = read(tmp_path, *cards(tmp_path), "--cross-gpu")
    assert result.exit_code == 0
    assert data["summary"] == {"SHOWN": 6}
    assert data["anchor"] == "sdpa-flash"


def test_the_table_of_two_cards(tmp_path):
    factors = {(LONG[1], "triton-flash"): 0.9}
    output = diff(*cards(tmp_path, factors=factors), "--cross-gpu").output
    assert_golden("diff_cross_gpu.txt", without_paths(output, tmp_path))


def test_efficiency_is_against_each_cards_own_canary(tmp_path):
    """As slow as its canary: the same share of its own roofline, so a ratio of 1."""
    _, data = read(tmp_path, *cards(tmp_path), "--cross-gpu")
    for row in data["cross"]:
        assert row["eta_ratio"][0] == pytest.approx(1.0, rel=0.01)
        assert row["old_eta"] == pytest.approx(row["new_eta"], rel=0.01)
        assert 0 < row["old_sheet"] < row["old_eta"] < 1


def test_a_kernel_right_on_one_card_and_wrong_on_another_fails(tmp_path):
    rows = [r for r in table(2, cases=LONG) if (r.backend, r.key["causal"]) != ("online", True)]
    result = diff(*cards(tmp_path, rows=rows + failing(LONG[1], "online", "wrong_result")), "--cross-gpu")
    assert result.exit_code == 1
    assert "1 BROKEN" in result.output


def test_coverage_and_absence_gate_across_cards_too(tmp_path):
    rows = [r for r in table(2, cases=LONG) if r.backend != "online"]
    assert diff(*cards(tmp_path, rows=rows), "--cross-gpu").exit_code == 1
    refused = rows + failing(LONG[0], "online", "unavailable") + rounds(LONG[1], "online")
    result = diff(*cards(tmp_path, rows=refused), "--cross-gpu")
    assert result.exit_code == 1
    assert "1 COVERAGE_LOST" in result.output


def test_few_rounds_and_other_methods_leave_no_doubt_across_cards(tmp_path):
    rows = [r.model_copy(update={"method_id": "x"}) for r in table(2, cases=LONG) if r.round == 0]
    assert diff(*cards(tmp_path, rows=rows), "--cross-gpu").exit_code == 0


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.03, 0), (1.12, 1)])
def test_the_efficiency_gate_fails_a_backend_that_fell_by_more(tmp_path, slower, code):
    factors = {(LONG[0], "triton-flash"): 1 / 0.75 * slower}
    result, data = read(tmp_path, *cards(tmp_path, factors=factors), "--cross-gpu", "--gate-efficiency", "5%")
    assert result.exit_code == code, result.output
    if code:
        assert data["summary"]["LESS_EFFICIENT"] == 1
        assert "efficiency fell to 89" in result.output


def test_the_efficiency_gate_sees_a_fall_relative_to_the_anchor(tmp_path):
    """The anchor got 30 % faster than the card explains and the other did not keep up."""
    factors = {(case, "sdpa-flash"): 1 / 0.75 / 1.3 for case in LONG}
    result, data = read(tmp_path, *cards(tmp_path, factors=factors), "--cross-gpu", "--gate-efficiency", "5%")
    assert result.exit_code == 1
    assert data["summary"]["LESS_EFFICIENT"] == 4
    assert "speed relative to sdpa-flash fell to" in result.output


def test_an_uncertain_canary_widens_the_efficiencys_interval(tmp_path):
    files = cards(tmp_path, factors={(LONG[0], "triton-flash"): 1 / 0.75 * 1.12})

    def shake(lines):
        canary = next(line for line in lines if line["rec"] == "canary")
        more = [{**canary, "gemm_flops": {"bf16": canary["gemm_flops"]["bf16"] * f}} for f in (0.8, 1.25)]
        return [*lines[:-1], *more, lines[-1]]

    rf.mutate(files[1], shake)
    assert diff(*files, "--cross-gpu", "--gate-efficiency", "5%", "--where", "backend=triton-flash").exit_code == 0


def test_an_efficiency_fall_can_be_waived(tmp_path):
    waivers = tmp_path / "w.toml"
    waivers.write_text('[[waiver]]\nrow = "triton*"\nbound = "15%"\nexpires = 2099-01-01\nreason = "known"\n')
    files = cards(tmp_path, factors={(LONG[0], "triton-flash"): 1 / 0.75 * 1.12})
    result = diff(*files, "--cross-gpu", "--gate-efficiency", "5%", "--waivers", waivers)
    assert result.exit_code == 0
    assert "LESS_EFFICIENT (waived)" in result.output


def test_launch_bound_rows_have_no_efficiency(tmp_path):
    result, data = read(tmp_path, *cards(tmp_path, canary={**H100["canary"], "null_ns": 1e9}), "--cross-gpu")
    assert {row["note"] for row in data["cross"]} == {"launch-bound"}
    assert all(row["eta_ratio"] is None for row in data["cross"])
    assert "no efficiency: launch-bound" in result.output


def test_without_canaries_there_is_no_efficiency_and_the_reason_is_said(tmp_path):
    files = cards(tmp_path)
    rf.mutate(files[1], lambda lines: [x for x in lines if x["rec"] != "canary"])
    assert "no canary of bf16 GEMM and copy on both cards" in diff(*files, "--cross-gpu").output


def test_flops_counted_by_two_conventions_are_not_compared(tmp_path):
    rows = [
        r.model_copy(update={"cost": r.cost.model_copy(update={"convention": "half_causal"})})
        for r in table(2, cases=LONG)
    ]
    output = diff(*cards(tmp_path, rows=rows), "--cross-gpu").output
    assert "FLOPs are counted differently: exact_pairs and half_causal" in output


def test_a_winner_that_changes_beyond_doubt_is_called_changed(tmp_path):
    factors = {(LONG[0], "triton-flash"): 0.5}
    _, data = read(tmp_path, *cards(tmp_path, factors=factors), "--cross-gpu")
    output = diff(*cards(tmp_path, factors=factors), "--cross-gpu").output
    assert data["winners"] == [
        {"case": LONG[0].label(), "old": "sdpa-flash", "new": "triton-flash", "changed": True},
        {"case": LONG[1].label(), "old": "sdpa-flash", "new": "sdpa-flash", "changed": False},
    ]
    assert "changed" in output


def test_a_winner_within_the_noise_is_not_certain(tmp_path):
    factors = {(LONG[0], "triton-flash"): 1 / 0.75 * 0.9995 / 1.3}
    _, data = read(tmp_path, *cards(tmp_path, factors=factors), "--cross-gpu")
    assert data["winners"][0]["changed"] is False


def test_the_anchor_can_be_named_and_must_be_there(tmp_path):
    files = cards(tmp_path)
    _, data = read(tmp_path, *files, "--cross-gpu", "--anchor", "online")
    assert data["anchor"] == "online"
    ratios = {row["row_id"]: row["old_to_anchor"] for row in data["cross"]}
    assert max(filter(None, ratios.values())) == pytest.approx(9.0, rel=0.02)
    refused = diff(*files, "--cross-gpu", "--anchor", "onlin")
    assert refused.exit_code == 2
    assert "did you mean 'online'?" in refused.output


@pytest.mark.parametrize("option", ["--gate-efficiency", "--anchor"])
def test_options_of_two_cards_are_refused_for_one(tmp_path, option):
    result = diff(*cards(tmp_path), option, "5%")
    assert result.exit_code == 2
    assert f"'{option}' goes with --cross-gpu" in result.output


PUBLISHED = {
    "paper": "A Paper, 2024", "place": "Table 1", "gpu": "H100 SXM5", "convention": "half_causal", "mark": "paper",
    "value": 600.0,
}  # fmt: skip


def figure(case, backend, ns, **fields):
    row = rf.row(case, backend, ns, published=PUBLISHED, **fields)
    empty = dict.fromkeys(("samples_ns", "parity", "method", "method_id", "n", "K", "telemetry"))
    return row.model_copy(update={**empty, "quantiles": {"median": ns}, "rerun": ""})


@pytest.mark.parametrize("options", [[], ["--cross-gpu"]])
def test_published_figures_are_shown_and_never_gate(tmp_path, options):
    import dataclasses

    theirs = [figure(dataclasses.replace(case, seed=0), "sdpa-flash", 1e5) for case in CASES]
    theirs.append(figure(CASES[0], "online", 1.0))
    paper = write(tmp_path / "paper.jsonl", theirs, session_id="paper", model="H100")
    ours = write(tmp_path / "ours.jsonl", table(1, cases=[dataclasses.replace(c, layout="bshd") for c in CASES[1:]]))
    result = diff(paper, ours, *options)
    assert result.exit_code == 0, result.output
    assert "21 PUBLISHED" in result.output
    assert "sdpa-flash / sdpa-flash" in result.output
    assert "triton-flash / sdpa-flash" in result.output
    assert "online / online" not in result.output  # its figure is of a problem that we did not solve


def test_a_published_file_without_our_problems_is_refused(tmp_path):
    paper = write(tmp_path / "paper.jsonl", [figure(rf.case(333), "sdpa-flash", 1e5)], session_id="paper")
    refused = diff(paper, write(tmp_path / "o", table(1)))
    assert refused.exit_code == 2
    assert "no Nq (333; 1024, 2048, 4096, 8192) is in both" in refused.output


def test_shipped_figures_can_be_compared_those_of_a_dtype_we_do_not_measure_too():
    from fabench.diff import load
    from fabench.views.published import shipped

    with_rows = [name for name, path in shipped().items() if load(path).rows]
    assert len(with_rows) >= 5
    for name in with_rows:
        result = diff(name, name)
        assert result.exit_code == 0, (name, result.output)
        assert "PUBLISHED" in result.output


def test_a_row_stands_beside_every_figure_for_its_problem_with_each_ones_own_time(tmp_path):
    theirs = [figure(CASES[1], name, ns) for name, ns in (("FA2", 2e5), ("FA3", 1e5), ("cuDNN", 4e5))]
    paper = write(tmp_path / "paper.jsonl", theirs, session_id="paper", model="H100")
    mine = write(tmp_path / "mine.jsonl", [rf.row(CASES[1], "triton-flash", 2e5)])
    for files in ((paper, mine), (mine, paper)):
        _, data = read(tmp_path, *files)
        assert sorted(round(row["ratio"], 3) for row in data["rows"]) == [0.5, 1.0, 2.0]
    output = diff(paper, mine).output
    assert "changed:" not in output
    assert "canary" not in output.replace("canary_shift", "")
    row_id = rf.row_id(CASES[1], "triton-flash")
    explained = diff(paper, mine, "--explain", row_id[:6]).output
    assert all(f"triton-flash / {name} " in explained for name in ("FA2", "FA3", "cuDNN"))
    assert all(f"d (Hodges-Lehmann)  {d}" in explained for d in ("+0.000000", "+0.693147", "-0.693147"))


@pytest.mark.parametrize(("bound", "code"), [("12%", 0), ("9%", 1)])
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_waivers_bound_is_held_against_the_fall_and_not_against_times_of_two_cards(tmp_path, speed, bound, code):
    """Efficiency fell by 11 % on a card that takes half, or twice, as long."""
    waivers = tmp_path / "w.toml"
    waivers.write_text(f'[[waiver]]\nrow = "triton*"\nbound = "{bound}"\nexpires = 2099-01-01\nreason = "known"\n')
    canary = {"gemm_flops": {"bf16": rf.GEMM_FLOPS * speed}, "copy_bandwidth": rf.COPY_BANDWIDTH * speed}
    files = cards(tmp_path, factor=1 / speed, factors={(LONG[0], "triton-flash"): 1.12 / speed}, canary=canary)
    assert diff(*files, "--cross-gpu", "--gate-efficiency", "5%", "--waivers", waivers).exit_code == code


def test_a_gate_on_efficiency_that_could_judge_nothing_says_so(tmp_path):
    rows = [r for r in table(2, cases=LONG) if r.round == 0]
    old = write(tmp_path / "old.jsonl", [r for r in table(1, cases=LONG) if r.round == 0])
    new = write(tmp_path / "new.jsonl", rows, session_id="other", **H100)
    result = diff(old, new, "--cross-gpu", "--gate-efficiency", "5%")
    assert "--gate-efficiency judged 0 of 6 rows timed on both cards" in result.output
    assert "--gate-efficiency judged" not in diff(*cards(tmp_path), "--cross-gpu", "--gate-efficiency", "5%").output
    assert "--gate-efficiency judged" not in diff(old, new, "--cross-gpu").output


def test_explain_prints_what_the_efficiency_gate_looked_at(tmp_path):
    files = cards(tmp_path, factors={(LONG[0], "triton-flash"): 1 / 0.75 * 1.12})
    row = rf.row_id(LONG[0], "triton-flash")
    output = diff(*files, "--cross-gpu", "--gate-efficiency", "5%", "--explain", row).output
    assert "verdict LESS_EFFICIENT" in output
    shares = re.search(r"share of roofline   (\S+) in old, (\S+) in new", output)
    assert float(shares[2]) / float(shares[1]) == pytest.approx(0.892, abs=0.005)
    assert "new/old of it       0.89" in output
    assert "speed against       sdpa-flash: x 0.769" in output


def test_a_share_below_one_percent_is_not_called_none():
    from fabench.views.diff_cross import _percent

    assert [_percent(share) for share in (0.0, 0.00004, 0.0036, 0.0099, 0.01, 0.714)] == [
        "0%", "0.004%", "0.4%", "1%", "1%", "71%",
    ]  # fmt: skip

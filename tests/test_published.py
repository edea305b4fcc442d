"""The published figures under results/published: each is what its source prints, says so, and can stand beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.case import Case, digest
from fabench.cli import main
from fabench.cost import pairs, paper_flops
from fabench.records import Row
from fabench.resultfile import case_of, read
from fabench.resultfile.consistency import problems
from fabench.suite import load
from fabench.views.published import claims, find, shipped

SETS = sorted(shipped())
FOLDER = Path(__file__).parent.parent / "results" / "published"


def rows(name: str, backend: str, *, dtype: str = "fp16", **fields: object) -> list[Row]:
    """The rows of a set by backend and fields of the case, by N."""
    wanted = {"dtype": dtype, "direction": "forward", "causal": False, **fields}
    found = [
        row
        for row in read(find(name)).rows
        if row.backend == backend and all(row.key[field] == value for field, value in wanted.items())
    ]
    return sorted(found, key=lambda row: int(row.key["Nk"]))


def printed(name: str, backend: str, **fields: object) -> list[float | None]:
    return [row.published.value for row in rows(name, backend, **fields) if row.published]  # type: ignore[arg-type]


def test_every_source_asked_for_is_shipped() -> None:
    assert [name.removeprefix("published/") for name in SETS] == [
        "cudnn_h200", "decode_h200", "fa1_a100", "fa2_a100", "fa2_h100", "fa3_h100", "fa4_b200", "online_softmax",
        "thunderkittens_h100", "triton_h100",
    ]  # fmt: skip
    assert {path.name for path in FOLDER.glob("*")} == {f"{name.removeprefix('published/')}.jsonl" for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_a_sound_result_file_that_says_what_it_is(name: str) -> None:
    result = read(find(name))

    assert problems(result) == []
    assert result.complete
    assert result.header.suite["name"] == name.removeprefix("published/")
    assert len(result.header.suite["description"]) > 40
    assert result.rows or claims(result)
    assert len(claims(result)) == len(result.header.suite["claims"])


@pytest.mark.parametrize("name", SETS)
def test_each_row_cites_its_source_and_claims_nothing_measured(name: str) -> None:
    for row in read(find(name)).rows:
        source = row.published
        assert source is not None
        assert all(len(text) > 3 for text in (source.paper, source.place, source.gpu, source.convention))
        assert (row.rerun, row.samples_ns, row.n, row.parity, row.method, row.flags) == ("", None, None, None, None, [])
        assert (row.status, source.value is None) in (("ok", False), ("oom", True))
        assert row.row_id == digest({"key": row.key, "backend": row.backend})


@pytest.mark.parametrize("name", SETS)
def test_each_time_follows_from_the_printed_figure_by_the_papers_convention(name: str) -> None:
    for row in read(find(name)).rows:
        if row.status != "ok":
            assert row.quantiles is None
            continue
        assert row.quantiles is not None
        assert row.published is not None
        assert row.cost is not None
        assert list(row.quantiles) == ["median"]
        case, value, seconds = case_of(row.key), row.published.value, row.quantiles["median"] / 1e9
        assert row.cost.pairs == pairs(case.mask)
        if row.published.unit == "us":
            assert seconds * 1e6 == pytest.approx(value, rel=1e-4)
        else:
            assert paper_flops(case) / seconds / 1e12 == pytest.approx(value, rel=1e-4)
            if case.d == case.dv:  # ours counts exact pairs: 1/N above the papers' half when causal
                assert row.cost.flops / seconds / 1e12 == pytest.approx(
                    value, rel=(1.1 if case.causal else 0.01) / case.Nq
                )


def test_the_figures_are_those_of_the_sources() -> None:
    """One line of each table, typed a second time."""
    assert printed("fa3_h100", "FA3", d=128, causal=True) == [292, 423, 521, 579, 602, 616]
    assert printed("fa3_h100", "FA3", d=256) == [482, 630, 707, 736, 746, 756]
    assert printed("fa3_h100", "FA2", d=64) == [282, 306, 318, 321, 322, 324]
    assert printed("fa3_h100", "cuDNN 9.1", d=128, direction="backward") == [305, 408, 465, 499, 518, 516]
    assert printed("fa3_h100", "standard", d=128) == [74, 100, 119, 133, 139, None]
    assert printed("fa3_h100", "FA3", d=256, dtype="fp8_e4m3") == [510, 744, 931, 966, 1151, 1171]
    assert printed("cudnn_h200", "cuDNN 9.19.1", dtype="bf16", causal=True, d=128) == [484, 591, 644, 673, 688]
    assert printed("cudnn_h200", "cuDNN 9.1", dtype="bf16") == [704, 697, 688, 649, 635]
    assert printed("fa2_h100", "FA2", d=64, causal=True, direction="forward_backward") == [141, 192, 232, 257, 273, 284]
    assert printed("fa2_a100", "FA2", direction="forward_backward") == [150, 173, 187, 196, 201, 203]
    assert printed("thunderkittens_h100", "ThunderKittens", dtype="bf16", causal=True) == [290, 417, 519, 537, 550]
    assert printed("triton_h100", "Triton tutorial", dtype="bf16") == [329, 390, 434, 458, 471, 477]
    assert printed("decode_h200", "TileOps", dtype="fp8_e4m3") == [11.7, 36.5, 117]
    assert printed("fa1_a100", "FA1", direction="forward_backward") == [7300]


def test_figures_read_off_a_chart_are_marked() -> None:
    assert {
        row.published.value for row in read(find("fa3_h100")).rows if row.published and row.published.approximate
    } == {630}
    assert all(
        row.published.approximate for row in rows("triton_h100", "TLX", dtype="bf16", causal=True) if row.published
    )


def test_the_claims_hold_what_fits_no_problem() -> None:
    stated = {what: figure for name in SETS for what, figure in claims(read(find(name)))}

    assert stated["fastest fp16 forward of FA3, 75 % of the H100's peak"].value == 740
    assert stated["fastest bf16 forward of FA4, 71 % of the B200's peak"].value == 1613
    assert stated["softmax with the online normaliser over the safe softmax"].value == 1.3
    assert stated["fastest forward of FA2, 73 % of the A100's peak"].value == 230


def show(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["show", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_published_column_stands_beside_ours_and_is_never_shown_as_ours(tmp_path: Path) -> None:
    """Ours on an H200 in another layout; theirs on an H100."""
    rows_ = [
        make.row(make.case(N, batch=16384 // N, dtype="fp16", layout="bshd"), "flash-attn-3") for N in (512, 16384)
    ]
    path = make.build(tmp_path / "ours.jsonl", rows_)

    text = show(path, "--against", "published/fa3_h100")

    lines = text.splitlines()
    heading = next(line for line in lines if line.lstrip().startswith("N "))
    assert heading.split("  ")[-1] == "FA3 [fa3_h100]"
    assert "NVIDIA H200, burst" in text
    assert "¹ published, not measured here: Shah" in text
    assert "; H100 SXM5, recounted over attended pairs" in text
    assert next(line for line in lines if line.lstrip().startswith("512")).split()[-2:] == ["467", "¹"]
    assert "oom" in next(line for line in lines if line.lstrip().startswith("16384"))


def test_a_published_speed_up_is_over_the_baseline_of_its_own_source(tmp_path: Path) -> None:
    """Ours is 1.00x over ours; FA3's 467 TFLOP/s are 1.51x FA2's 309 of the same chart, whatever ours is."""
    path = make.build(tmp_path / "ours.jsonl", [make.row(make.case(512, batch=32, dtype="fp16"), "sdpa-flash")])

    text = show(path, "--against", "fa3_h100", "--value", "speedup", "--row", "backend")

    lines = [line.rstrip(" ¹") for line in text.splitlines()]
    found = {line.split("  ")[0]: line.split()[-1] for line in lines if line.endswith("x")}
    assert found["sdpa-flash"] == "1.00x"
    assert found["FA2 [fa3_h100]"] == "1.00x"
    assert found["FA3 [fa3_h100]"] == "1.51x"


def test_problems_without_a_published_figure_are_said_so(tmp_path: Path) -> None:
    path = make.build(tmp_path / "ours.jsonl", [make.row(make.case(777))])

    assert "none of the problems shown has a figure in" in show(path, "--against", "fa3_h100", code=2)


def test_a_set_shows_its_claims(tmp_path: Path) -> None:
    text = show(find("fa4_b200"))

    assert text.startswith("fa4_b200 states, of no single problem:\n- fastest bf16 forward of FA4")
    assert "1613 TFLOP/s; FlashAttention-4, 2026, arXiv 2603.05451" in text


def problem(case: Case) -> tuple[object, ...]:
    return (
        case.batch,
        case.heads,
        case.kv_heads,
        case.Nq,
        case.Nk,
        case.d,
        case.dv,
        case.causal,
        case.direction,
        case.dtype,
    )


@pytest.mark.parametrize(("suite", "sets"), [("fa3_paper", ["fa3_h100"]), ("fa2_paper", ["fa2_h100", "fa2_a100"])])
def test_a_papers_suite_runs_every_problem_of_its_charts(suite: str, sets: list[str]) -> None:
    asked = {problem(case) for case in load(suite).cases}
    printed_ = {
        problem(case_of(row.key)) for name in sets for row in read(find(name)).rows if row.key["dtype"] == "fp16"
    }

    assert printed_ <= asked
    directions = {"fa3_paper": "forward", "fa2_paper": "forward_backward"}
    charted = {case for case in asked if case[-2] == directions[suite]}
    assert charted <= printed_  # the charts that are whole


@pytest.mark.parametrize("suite", ["fa3_paper", "fa2_paper"])
def test_ours_of_the_papers_suite_stand_beside_theirs_in_table_plot_and_report(suite: str, tmp_path: Path) -> None:
    """Made rows of the suite's own cases, with its inputs, layout and seed."""
    theirs = {"fa3_paper": "published/fa3_h100", "fa2_paper": "published/fa2_h100"}[suite]
    ours = make.build(tmp_path / "ours.jsonl", [make.row(case, "cuda-v2") for case in load(suite).cases])

    text = show(ours, "--against", theirs, "--where", "d=128,causal=true,N=8192")
    figure = {"fa3_paper": ["602", "FA3 [fa3_h100]"], "fa2_paper": ["308", "FA2 [fa2_h100]"]}[suite]
    assert all(word in text for word in figure)
    for command, out in (("report", "page.html"), ("plot", "plots")):
        arguments = [command, str(ours), "--against", theirs, "--where", "d=128", "-o", str(tmp_path / out)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
    for file in ("page.html", "plots/tflops.svg"):
        assert figure[1] in (tmp_path / file).read_text()

"""`--against` with a measured file: another run beside ours, under its own name, and never taken for ours."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.resultfile import read
from fabench.views.outcomes import beside, gather
from fabench.views.plots import KINDS, panel_figure
from fabench.views.plots.style import LIGHT
from fabench.views.show import placed

ROOT = Path(__file__).parents[1]
LENGTHS = (1024, 2048)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    rows = [make.row(make.case(N), name, 2e6) for N in LENGTHS for name in ("sdpa-flash", "mine")]
    return make.build(tmp_path / "new.jsonl", rows)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Another card's file of last year, in another regime, in which `mine` was wrong."""
    method = {"regime": "sustained", "cache": "cold", "timer": "cuda_event", "inputs": "rotated", "rules": "1"}
    rows = [make.row(make.case(N), "sdpa-flash", 1e6, method=method, time="2025-03-04T00:00:00") for N in LENGTHS]
    rows += [make.row(make.case(N), "mine", status="wrong_result", detail="rho 37 > 4") for N in LENGTHS]
    return make.build(tmp_path / "old.jsonl", rows, envs=[make.env(model="NVIDIA A100-SXM4-80GB")])


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_another_run_stands_beside_ours_under_the_name_of_its_file(ours: Path, theirs: Path) -> None:
    text = run("show", ours, "--against", theirs, "--value", "ms")

    heading = next(line for line in text.splitlines() if line.lstrip().startswith("N "))
    assert [name.strip() for name in heading.split("  ") if name.strip()] == [
        *("N", "sdpa-flash", "mine", "sdpa-flash [old]", "mine [old]"),
    ]
    row = next(line for line in text.splitlines() if line.lstrip().startswith("1024")).split()
    assert row[:4] == ["1024", "2.000", "2.000", "1.000"]


def test_the_footnote_says_where_how_and_when_it_was_measured_and_the_caption_is_ours(ours: Path, theirs: Path) -> None:
    text = run("show", ours, "--against", theirs)

    assert "of old, another file: NVIDIA A100-SXM4-80GB in regime sustained, 2025-03-04" in text
    assert "wrong_result: rho 37 > 4" in text
    caption = next(line for line in text.splitlines() if line.startswith("NVIDIA"))
    assert caption.startswith("NVIDIA H200, burst, ")


def test_its_speed_up_is_over_the_baseline_in_its_own_file(ours: Path, theirs: Path) -> None:
    text = run("show", ours, "--against", theirs, "--value", "speedup", "--where", "N=1024", "--row", "backend")

    found = {line.split("  ")[0]: line.split("  ")[-1].split()[0] for line in text.splitlines() if "x" in line[-8:]}
    assert found["sdpa-flash [old]"] == "1.00x"


@pytest.mark.parametrize("style", ["csv", "json"])
def test_as_data_its_device_and_file_are_its_own(ours: Path, theirs: Path, style: str) -> None:
    text = run("show", ours, "--against", theirs, "--format", style)

    records = json.loads(text) if style == "json" else list(csv.DictReader(io.StringIO(text)))
    places = {record["backend"]: (record["file"], record["device"], record["regime"]) for record in records}
    assert places["sdpa-flash"] == ("new", "NVIDIA H200", "burst")
    assert places["sdpa-flash [old]"] == ("old", "NVIDIA A100-SXM4-80GB", "sustained")


def test_it_counts_in_no_verdict_of_the_report(ours: Path, theirs: Path, tmp_path: Path) -> None:
    run("report", ours, "--against", theirs, "-o", tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    verdicts = page[page.index('id="verdicts"') : page.index('id="environment"')]
    assert "wrong_result" not in verdicts
    assert "[old]" not in verdicts
    assert "sdpa-flash [old]" in page


def test_its_lines_are_dashed_and_it_is_under_no_roof_of_ours(ours: Path, theirs: Path) -> None:
    outcomes = placed([read(ours)], against=[read(theirs)])
    (axes,) = (panel_figure(panel, LIGHT).axes[0] for panel in KINDS["tflops"].panels(outcomes))

    styles = {container.get_label(): container[0].get_linestyle() for container in axes.containers}
    assert styles == {"sdpa-flash": "-", "mine": "-", "sdpa-flash [old]": "--"}
    (roof,) = (panel_figure(panel, LIGHT).axes[0] for panel in KINDS["roofline"].panels(outcomes))
    assert not [line for line in roof.lines if "[old]" in str(line.get_label())]
    assert [panel.title for panel in KINDS["speedup"].panels(outcomes)] == ["over sdpa-flash"]


def test_two_measured_rows_are_matched_by_the_whole_case(tmp_path: Path) -> None:
    """Of a published figure the layout is not known; of a run it is, and each stands beside its own."""
    rows = [make.row(make.case(layout=layout)) for layout in ("bhsd", "bshd")]
    paths = [make.build(tmp_path / name / "run.jsonl", rows) for name in ("a", "b")]

    found = placed([read(paths[0])], against=[read(paths[1])])

    assert [(o.case.layout, o.backend) for o in found] == [
        *(("bhsd", "sdpa-flash"), ("bshd", "sdpa-flash")),
        *(("bhsd", "sdpa-flash [b/run]"), ("bshd", "sdpa-flash [b/run]")),
    ]


def test_a_run_stands_beside_published_figures_too(tmp_path: Path) -> None:
    case = make.case(8192, batch=2, dtype="fp16", causal=True, layout="bshd", seed=3)
    measured = make.build(tmp_path / "run.jsonl", [make.row(case)])

    text = run("show", ROOT / "results/published/fa3_h100.jsonl", "--against", measured, "--where", "N=8192,d=128")

    assert "sdpa-flash [run]" in text


def test_a_part_of_a_run_is_taken_if_that_is_allowed_and_said(ours: Path, theirs: Path) -> None:
    theirs.write_text("".join(theirs.read_text().splitlines(keepends=True)[:-2]))

    assert "the file is truncated" in run("show", ours, "--against", theirs, code=2)
    for command in (["show", ours], ["report", ours, "-o", ours.parent / "page.html"]):
        text = run(*command, "--against", theirs, "--allow-partial")
        assert f"Warning: {theirs}: the file is truncated" in text


def test_what_stands_beside_knows_where_it_comes_from(ours: Path, theirs: Path) -> None:
    first, *_ = beside(gather([read(ours)]), gather([read(theirs)]))

    assert not first.ours
    assert first.origin is not None
    assert (first.device, first.origin.device) == ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")

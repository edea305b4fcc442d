"""`fabench plot`: what the panels hold is what the rows say, and pictures are written as asked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

import resultfiles as make
from fabench.cli import main
from fabench.parity.thresholds import RIGHT
from fabench.records import Memory, Row
from fabench.resultfile import read
from fabench.views.outcomes import Outcome, gather
from fabench.views.plots import KINDS, figure, panel_figure
from fabench.views.plots.panel import ALL, names_of
from fabench.views.plots.roofs import measured_copy, measured_gemm
from fabench.views.plots.style import LIGHT, THEMES, colour, length_text, marker
from show_files import sweep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sweep(tmp_path / "sweep.jsonl")


def outcomes(path: Path) -> list[Outcome]:
    return gather([read(path)])


def built(tmp_path: Path, rows: list[Row]) -> list[Outcome]:
    return outcomes(make.build(tmp_path / "run.jsonl", rows))


def panels(kind: str, found: list[Outcome]) -> dict[str, Axes]:
    """The panels of a kind by title, drawn."""
    return {p.title: panel_figure(p, LIGHT).axes[0] for p in KINDS[kind].panels(found)}


def line(axes: Axes, label: str) -> Any:
    """The points of the line of that label (of an error bar's, its middle)."""
    for container in axes.containers:
        if container.get_label() == label:
            return _points(container[0])
    return _points(next(drawn for drawn in axes.lines if drawn.get_label() == label))


def _points(drawn: Any) -> Any:
    x, y = drawn.get_data()
    return list(map(float, x)), list(map(float, y))


def plot(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["plot", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_tflops_has_a_panel_a_mask_and_a_line_a_backend(path: Path) -> None:
    drawn = panels("tflops", outcomes(path))

    assert list(drawn) == ["not causal", "causal"]
    assert line(drawn["not causal"], "sdpa-flash") == ([1024, 4096, 16384], pytest.approx([400, 400, 400]))
    assert line(drawn["not causal"], "naive") == ([1024, 4096], pytest.approx([80, 80]))
    assert "mine_v1" not in [c.get_label() for c in drawn["causal"].containers]
    assert [tick.get_text() for tick in drawn["causal"].get_xticklabels()] == ["1k", "4k", "16k"]


def test_what_follows_from_the_length_in_one_suite_stays_so_beside_another(path: Path, tmp_path: Path) -> None:
    """batch = 16384/N in the sweep, batch 1 in the other: neither falls apart into panels of one length."""
    plain = [make.row(make.case(N, batch=1, d=128)) for N in (512, 1024)]
    decode = [make.row(make.case(N, Nq=1, Nk=N)) for N in (512, 1024)]
    files = [
        path,
        make.build(tmp_path / "plain.jsonl", plain, head=make.header(suite={"name": "plain"})),
        make.build(tmp_path / "decode.jsonl", decode, head=make.header(suite={"name": "decode"})),
    ]

    drawn = panels("tflops", gather([read(file) for file in files]))

    assert list(drawn) == ["example, not causal", "example, causal", "plain", "decode"]
    assert line(drawn["plain"], "sdpa-flash")[0] == [512, 1024]
    assert [drawn[title].get_xlabel() for title in ("plain", "decode")] == ["N", "Nk"]


def test_files_of_two_suites_that_share_a_problem_are_one_line_a_backend_everywhere(path: Path, tmp_path: Path) -> None:
    shared = [make.row(make.case(N, batch=16384 // N), "naive") for N in (1024, 4096)]
    other = make.build(tmp_path / "other.jsonl", shared, head=make.header(suite={"name": "other"}))
    found = gather([read(path), read(other)])

    drawn = {kind: panels(kind, found) for kind in KINDS}

    assert line(drawn["tflops"]["other"], "naive")[0] == [1024, 4096]
    assert len(line(drawn["roofline"][ALL], "naive")[0]) == 4 + 2
    assert "naive, n = 6" in [tick.get_text() for tick in drawn["accuracy"]["largest rho"].get_yticklabels()]


def test_two_files_of_one_suite_keep_their_names_in_the_panels_that_only_one_of_them_has(tmp_path: Path) -> None:
    rows = [make.row(make.case(N, causal=causal), "naive") for causal in (False, True) for N in (512, 1024)]
    files = [make.build(tmp_path / "old.jsonl", rows), make.build(tmp_path / "new.jsonl", rows[:2])]
    found = gather([read(file) for file in files])

    drawn = {kind: panels(kind, found) for kind in KINDS}

    labels = {title: [c.get_label() for c in axes.containers] for title, axes in drawn["tflops"].items()}
    assert labels == {"not causal": ["naive (old)", "naive (new)"], "causal": ["naive (old)"]}
    assert len(line(drawn["roofline"][ALL], "naive (old)")[0]) == 4


def test_each_device_has_an_accuracy_league_of_its_own(tmp_path: Path) -> None:
    files = [
        make.build(tmp_path / f"{name}.jsonl", [make.row(make.case())], envs=[make.env(model=name)])
        for name in ("NVIDIA H200", "AMD EPYC")
    ]

    drawn = panels("accuracy", gather([read(file) for file in files]))

    assert list(drawn) == ["NVIDIA H200, largest rho", "NVIDIA H200, RMSE against float64",
                           "AMD EPYC, largest rho", "AMD EPYC, RMSE against float64"]  # fmt: skip


def test_a_backend_that_was_skipped_throughout_has_no_crosses_and_no_column(path: Path) -> None:
    drawn = panels("tflops", outcomes(path))["not causal"]

    labels = drawn.get_legend_handles_labels()[1]
    assert "xformers" not in labels
    crosses = [_points(line)[0] for line in drawn.lines if line.get_marker() == "x"]
    assert [1024, 4096, 16384] not in crosses
    (heat,) = panels("speedup", outcomes(path)).values()
    assert [text.get_text() for text in heat.get_xticklabels()] == ["sdpa-flash", "naive", "sdpa-cudnn", "mine_v1"]


def test_a_backend_without_a_speed_is_a_cross_at_the_foot(path: Path) -> None:
    crosses = [
        _points(drawn) for drawn in panels("tflops", outcomes(path))["causal"].lines if drawn.get_marker() == "x"
    ]

    assert ([1024, 4096, 16384], [0, 0, 0]) in crosses  # mine_v1 is wrong there
    assert ([16384], [0]) in crosses  # naive does not fit


WIDE = {**make.quantiles(1e6), "ci_low": 0.9e6, "ci_high": 1.25e6}


def test_a_legend_names_what_has_a_number_first(path: Path) -> None:
    (panel,) = [p for p in KINDS["tflops"].panels(outcomes(path)) if p.title == "causal"]

    (legend,) = panel_figure(panel, LIGHT).legends

    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["sdpa-flash", "naive", "sdpa-cudnn", "mine_v1", "no speed here"]


def test_error_bars_are_the_interval_of_the_median(tmp_path: Path) -> None:
    """1 ms with an interval of 0.9 to 1.25 ms: the speed reaches from x/1.25 to x/0.9."""
    row, other = make.row(make.case(1024), quantiles=WIDE), make.row(make.case(4096))
    (axes,) = panels("tflops", built(tmp_path, [row, other])).values()

    assert row.cost is not None
    speed = row.cost.flops / 1e-3 / 1e12
    (bars,) = axes.containers[0][2]
    low, high = sorted(point[1] for point in bars.get_segments()[0])
    assert (low, high) == (pytest.approx(speed / 1.25), pytest.approx(speed / 0.9))


def test_published_lines_are_dashed_and_hollow(tmp_path: Path) -> None:
    from fabench.views.outcomes import beside
    from fabench.views.published import find

    cases = [make.case(N, batch=16384 // N, dtype="fp16") for N in (2048, 4096)]
    ours = built(tmp_path, [make.row(case, "flash-attn-3") for case in cases])
    found = ours + beside(ours, gather([read(find("fa3_h100"))]))
    (axes,) = panels("tflops", found).values()

    theirs = next(c for c in axes.containers if c.get_label() == "FA3 [fa3_h100]")[0]
    assert (theirs.get_linestyle(), theirs.get_markerfacecolor()) == ("--", "none")
    assert _points(theirs) == ([2048, 4096], pytest.approx([625, 638], rel=1e-3))


def test_one_length_alone_is_no_plot_against_the_length(tmp_path: Path) -> None:
    assert panels("tflops", built(tmp_path, [make.row(make.case(), name) for name in ("a", "b")])) == {}


def test_roofs_follow_from_the_rows(path: Path) -> None:
    found = outcomes(path)

    assert measured_gemm(found) == pytest.approx(make.GEMM_FLOPS)
    assert measured_copy(found) == pytest.approx(make.COPY_BANDWIDTH)


def test_the_roofline_bends_at_the_ridge_and_holds_every_row_with_a_speed(path: Path) -> None:
    (axes,) = panels("roofline", outcomes(path)).values()

    x, y = line(axes, "datasheet roof")
    assert x[1] == pytest.approx(make.PEAK_FLOPS / 4.8e12)
    assert y[1:] == pytest.approx([989, 989])
    measured, _ = line(axes, "measured roof")
    assert (measured[0], measured[-1]) == (x[0], x[-1])
    x, y = line(axes, "sdpa-flash")
    assert len(x) == 6
    assert max(y) < 989


def test_dtypes_have_a_roof_of_their_own(tmp_path: Path) -> None:
    rows = [make.row(make.case(dtype=dtype)) for dtype in ("bf16", "fp32")]

    assert list(panels("roofline", built(tmp_path, rows))) == ["bf16", "fp32"]


def test_memory_has_the_guides_of_slope_1_and_2(tmp_path: Path) -> None:
    rows = [
        make.row(make.case(N, batch=1, heads=1), name, memory=Memory(peak_bytes=2**10 * N**power // 1024**power))
        for N in (1024, 2048, 4096)
        for name, power in (("flash", 1), ("standard", 2))
    ]
    (axes,) = panels("memory", built(tmp_path, rows)).values()

    assert line(axes, "standard") == ([1024, 2048, 4096], [2**10, 2**12, 2**14])
    guides = [_points(drawn) for drawn in axes.lines if drawn.get_linestyle() == ":"]
    assert guides == [([1024, 4096], [2**10, 2**12]), ([1024, 4096], [2**10, 2**14])]


def test_memory_of_other_batches_is_compared_by_batch_and_head(tmp_path: Path) -> None:
    rows = [make.row(make.case(N, batch=8192 // N), memory=Memory(peak_bytes=2**20)) for N in (1024, 8192)]
    (axes,) = panels("memory", built(tmp_path, rows)).values()

    assert line(axes, "sdpa-flash")[1] == [2**20 / (8 * 16), 2**20 / 16]


def test_the_league_is_led_by_the_smallest_worst_error_and_keeps_the_wrong(path: Path) -> None:
    drawn = panels("accuracy", outcomes(path))

    axes = drawn["largest rho"]
    assert axes.get_xlabel() == RIGHT
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[-1] == "mine_v1, n = 6"
    assert "37" in [text.get_text() for text in axes.texts]
    assert "xformers" not in names


def test_the_heat_map_has_numbers_and_statuses(path: Path) -> None:
    (axes,) = panels("speedup", outcomes(path)).values()

    texts = [text.get_text() for text in axes.texts]
    assert texts.count("1.00") == 6
    assert texts.count("1.43") == 6
    assert texts.count("predicted\noom") == 2
    assert texts.count("wrong\nresult") == 3
    assert [tick.get_text() for tick in axes.get_yticklabels()][:2] == ["full N 1k", "full N 4k"]


def test_panels_of_a_single_length_are_named_in_a_line(tmp_path: Path) -> None:
    lengths = {64: (1024, 2048), 128: (1024,), 256: (1024, 2048)}
    rows = [make.row(make.case(N, d=d)) for d, ns in lengths.items() for N in ns]
    failed = make.row(make.case(2048, d=128), status="oom", detail="out of memory")
    make.build(tmp_path / "run.jsonl", [*rows, failed])

    text = plot(tmp_path / "run.jsonl", "--kind", "tflops", "--kind", "memory", "-o", tmp_path / "plots")

    assert text.splitlines()[0] == "tflops: 1 panel of a single length left out: d 128"
    assert "memory: 1 panel of a single length left out: d 128" in text
    assert (tmp_path / "plots" / "tflops.png").exists()


def test_many_panels_of_a_single_length_are_counted(tmp_path: Path) -> None:
    make.build(tmp_path / "run.jsonl", [make.row(make.case(d=d)) for d in (32, 64, 96, 128, 256)])

    text = plot(tmp_path / "run.jsonl", "-o", tmp_path / "plots")

    assert "tflops: nothing to plot; 5 panels of a single length left out: d 32; d 64; d 96; and 2 more\n" in text


def test_a_file_without_the_baseline_is_named_beside_one_that_has_it(tmp_path: Path) -> None:
    rows = [make.row(make.case(N), name) for N in (1024, 2048) for name in ("sdpa-flash", "naive")]
    files = [make.build(tmp_path / "both.jsonl", rows), make.build(tmp_path / "alone.jsonl", rows[1::2])]

    text = plot(*files, "--kind", "speedup", "-o", tmp_path / "plots")

    assert text.splitlines()[0] == "speedup: 1 panel without the baseline left out: alone"


def caption(kind: str, found: list[Outcome]) -> list[str]:
    """The lines under a picture's title, as it is drawn."""
    picture = figure(KINDS[kind], found, LIGHT)
    assert picture is not None
    assert picture.get_suptitle().split("\n")[0] == KINDS[kind].title
    return [text.get_text() for text in picture.texts if text.get_text() != picture.get_suptitle()]


@pytest.mark.parametrize("kind", ["tflops", "memory", "speedup"])
def test_a_picture_says_on_which_device_and_of_which_problems_it_is(path: Path, kind: str) -> None:
    """What its panels do not tell apart: with them it can leave its page."""
    assert caption(kind, outcomes(path)) == ["NVIDIA H200, burst, forward, bf16, heads 16, d 128, batch = 16384/N"]


@pytest.mark.parametrize("kind", ["roofline", "accuracy"])
def test_a_panel_that_mixes_problems_says_which(path: Path, kind: str) -> None:
    assert " ".join(caption(kind, outcomes(path))) == (
        "NVIDIA H200, burst, forward, bf16, heads 16, d 128, batch = 16384/N causal and not; N 1k, 4k, 16k"
    )


def test_what_is_the_same_within_a_suite_is_said_of_the_suite(tmp_path: Path) -> None:
    wide = [make.row(make.case(N, batch=16384 // N, d=64)) for N in (1024, 2048)]
    long = [make.row(make.case(N, batch=1, d=64, causal=True)) for N in (4096, 8192)]
    for name, rows in {"wide": wide, "long": long}.items():
        make.build(tmp_path / f"{name}.jsonl", rows, head=make.header(planned_rows=2, suite={"name": name}))
    found = gather([read(tmp_path / "wide.jsonl"), read(tmp_path / "long.jsonl")])

    assert caption("tflops", found) == [
        "NVIDIA H200, burst, forward, bf16, heads 16, d 64",
        "wide: not causal, batch = 16384/N",
        "long: batch 1, causal",
    ]


@pytest.mark.parametrize("kind", ["tflops", "accuracy"])
def test_a_title_is_no_wider_than_its_panel(tmp_path: Path, kind: str) -> None:
    rows = [
        make.row(make.case(N, batch=batch, heads=heads, kv_heads=2, d=d, dtype=dtype))
        for N in (512, 1024)
        for batch in (3, 7)
        for heads in (2, 16)
        for d in (64, 128)
        for dtype in ("bf16", "fp16")
    ]
    models = ("NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X VF, of a cloud whose name is long")
    files = [make.build(tmp_path / f"{m[:3]}.jsonl", rows, envs=[make.env(model=m)]) for m in models]

    for panel in KINDS[kind].panels(gather([read(file) for file in files])):
        picture = panel_figure(panel, LIGHT)
        FigureCanvasAgg(picture).draw()
        title = picture.axes[0].title
        assert title.get_text().replace("\n", " ") == panel.title
        box = title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= picture.bbox.width


def test_a_caption_is_broken_between_its_words(tmp_path: Path) -> None:
    rows = [make.row(make.case(N, batch=16384 // N, inputs="outliers")) for N in (1024, 2048)]

    lines = caption("tflops", built(tmp_path, rows))

    assert len(lines) == 2
    assert lines[0].endswith(",")
    assert " ".join(lines).endswith("inputs outliers, heads 16, d 128, not causal, batch = 16384/N")
    assert lines[1] in ("not causal, batch = 16384/N", "batch = 16384/N")


def test_the_caption_is_below_the_title_and_above_the_panels(path: Path) -> None:
    for kind in KINDS.values():
        picture = figure(kind, outcomes(path), LIGHT)
        assert picture is not None
        FigureCanvasAgg(picture).draw()
        top = max(axes.get_tightbbox().y1 for axes in picture.axes)
        boxes = [text.get_window_extent() for text in picture.texts if text.get_text() != picture.get_suptitle()]
        assert boxes
        assert min(box.y0 for box in boxes) > top
        assert max(box.y1 for box in boxes) < picture.bbox.y1 - 12 * picture.dpi / 72
        assert all(box.x0 > 0 and box.x1 < picture.bbox.x1 for box in boxes)


def test_a_problem_that_was_launched_nowhere_has_no_row_in_the_heat_map(tmp_path: Path) -> None:
    rows = [make.row(make.case(1024), name) for name in ("sdpa-flash", "naive")]
    rows += [make.row(make.case(N), "xformers", status="unavailable", detail="no") for N in (1024, 2048)]
    rows += [make.row(make.case(4096), name, status="oom", detail="no") for name in ("sdpa-flash", "naive")]

    (axes,) = panels("speedup", built(tmp_path, rows)).values()

    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["N 1k", "N 4k"]


def test_a_heat_map_of_few_problems_is_not_drawn_as_high_as_one_of_many(tmp_path: Path) -> None:
    files = []
    for name, lengths in (("one", (512,)), ("many", range(128, 2688, 128))):
        rows = [make.row(make.case(N), backend) for N in lengths for backend in ("sdpa-flash", "naive")]
        files.append(make.build(tmp_path / f"{name}.jsonl", rows, head=make.header(suite={"name": name})))
    found = gather([read(file) for file in files], baseline="naive")

    picture = figure(KINDS["speedup"], found, LIGHT)

    assert picture is not None
    FigureCanvasAgg(picture).draw()
    one, many = (axes.get_window_extent().height for axes in picture.axes)
    assert one < many / 3


def test_nothing_to_plot_is_no_picture(tmp_path: Path) -> None:
    found = built(tmp_path, [make.row(make.case(), status="unavailable", detail="not here")])

    assert [figure(kind, found, LIGHT) for kind in KINDS.values()] == [None] * len(KINDS)
    assert "the files hold nothing to plot" in plot(tmp_path / "run.jsonl", "-o", tmp_path / "plots", code=2)


def test_a_file_without_rows_and_a_picture_of_another_kind_are_sentences(tmp_path: Path) -> None:
    empty = make.build(tmp_path / "empty.jsonl", [])

    assert "no row is left to plot" in plot(empty, "-o", tmp_path / "plots", code=2)
    assert "must end in .png, .svg or .pdf, or be a folder" in plot(empty, "-o", tmp_path / "tflops.gif", code=2)
    assert [figure(kind, [], LIGHT) for kind in KINDS.values()] == [None] * len(KINDS)
    assert not (tmp_path / "tflops.gif").exists()


def test_every_backend_looks_unlike_every_other() -> None:
    assert len({(colour(i), marker(i)) for i in range(40)}) == 40
    assert len({colour(i) for i in range(15)}) == 15


def test_a_backend_that_was_skipped_throughout_takes_no_colour(tmp_path: Path) -> None:
    rows = [
        make.row(make.case(), "first", status="unavailable", detail="not here"),
        make.row(make.case(), "second"),
        make.row(make.case(), "third", status="wrong_result", detail="O differs"),
    ]

    assert names_of(built(tmp_path, rows)).index == {"second": 0, "third": 1, "first": 2}


def test_the_labels_of_the_accuracy_league_do_not_touch(tmp_path: Path) -> None:
    """Whether the errors lie close together or decades apart, and with the limit in sight."""
    for name, errors in {"close": (0.3, 0.9), "apart": (1e-6, 0.5)}.items():
        scores = [{"class": "A", "O": {"max_rho": rho, "rmse": rho / 1e4, "max_abs": rho / 1e3}} for rho in errors]
        rows = [make.row(make.case(N), parity=score) for N, score in zip((1024, 2048), scores, strict=True)]
        found = outcomes(make.build(tmp_path / f"{name}.jsonl", rows))
        for panel in KINDS["accuracy"].panels(found):
            picture = panel_figure(panel, LIGHT)
            FigureCanvasAgg(picture).draw()
            axis = picture.axes[0].xaxis
            labels = [tick.label1 for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]]
            left, right = picture.axes[0].bbox.x0 - 1, picture.axes[0].bbox.x1 + 1
            boxes = sorted(
                (box.x0, box.x1)
                for label in labels
                if label.get_text() and left < sum((box := label.get_window_extent()).intervalx) / 2 < right
            )
            assert len(boxes) >= 2
            assert all(one[1] < other[0] for one, other in pairwise(boxes))


@pytest.mark.parametrize(("time_ns", "text"), [(2e6, "0.50"), (4e8, "0.0025"), (1e5, "10.00")])
def test_no_backend_is_0_times_as_fast(tmp_path: Path, time_ns: float, text: str) -> None:
    rows = [make.row(make.case(), median_ns=1e6), make.row(make.case(), "slow", median_ns=time_ns)]

    (axes,) = panels("speedup", built(tmp_path, rows)).values()

    assert text in [drawn.get_text() for drawn in axes.texts]


@pytest.mark.parametrize(("length", "text"), [(512, "512"), (1024, "1k"), (131072, "128k"), (1500, "1500"), (1, "1")])
def test_lengths_are_written_as_in_the_papers(length: int, text: str) -> None:
    assert length_text(length) == text


def test_a_folder_gets_a_png_and_an_svg_of_each_kind(path: Path, tmp_path: Path) -> None:
    text = plot(path, "-o", tmp_path / "plots")

    written = sorted(file.name for file in (tmp_path / "plots").iterdir())
    assert written == sorted(f"{kind}{suffix}" for kind in KINDS for suffix in (".png", ".svg"))
    assert text.count(str(tmp_path / "plots")) == len(written)
    assert (tmp_path / "plots" / "tflops.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("theme", sorted(THEMES))
def test_one_file_is_one_kind_and_the_same_rows_give_the_same_bytes(path: Path, tmp_path: Path, theme: str) -> None:
    for name in ("a.svg", "b.svg"):
        plot(path, "--kind", "tflops", "-o", tmp_path / name, "--theme", theme)

    text = (tmp_path / "a.svg").read_text()
    assert "<svg" in text
    assert THEMES[theme].ink in text
    assert text == (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--kind", "tflop"], "unknown plot 'tflop'; did you mean 'tflops'?"),
        (["--kind", "pie"], "unknown plot 'pie'; known: tflops, roofline, memory, accuracy, speedup"),
        (["-o", "all.png"], "'--out' must be a folder for 5 kinds of plot, got 'all.png'; add --kind for one"),
        (["--against", "nothing"], "'nothing' must be a result file or a shipped set"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_exit_code_2(path: Path, options: list[str], sentence: str) -> None:
    assert sentence in plot(path, *options, code=2)

"""The guides to show, results, explain, report, profile and published say what is so."""

from __future__ import annotations

import contextlib
import io
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench import gpus, probe
from fabench.case_text import parse
from fabench.cli import main
from fabench.explain import explain
from fabench.profiling import ncu
from fabench.records import Published
from fabench.tiling import Tiling
from fabench.views.axes import AXES
from fabench.views.plots import KINDS
from fabench.views.published import shipped
from fabench.views.values import VALUES

ROOT = Path(__file__).parents[1]
COMMANDS = {"show": "show", "report": "report", "explain": "explain", "profile": "profile"}


def guide(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_every_value_and_the_axes_named_are_in_the_guide_to_show() -> None:
    table = guide("show").split("| `--value` | shows |")[1].split("\n\n")[0]

    assert {name for cell in re.findall(r"^\| (.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)} == set(
        VALUES
    )
    axes = re.search(r"`(N d causal .*?) \.\.\.`", guide("show"))
    assert axes is not None
    assert set(axes[1].split()) <= set(AXES)


def test_every_kind_of_plot_is_in_the_guide_to_reports() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", guide("report"), re.M)) == set(KINDS)


def test_every_published_set_and_field_is_in_the_guide() -> None:
    first, *_ = guide("published").split("Each row has")

    assert {f"published/{name}" for name in re.findall(r"`(\w+_\w+)`", first.split("| set |")[1])} == set(shipped())
    fields = guide("published").split("| field |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", fields, re.M)))) == set(
        Published.model_fields
    )


def test_the_refusal_shown_is_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = make.build(Path("broken.jsonl"), [make.row(make.case())])
    path.write_text(path.read_text().replace('"median":', '"median":NaN,"x":', 1))

    result = CliRunner().invoke(main, ["show", "broken.jsonl"])

    assert f"$ fabench show broken.jsonl\n{result.output}" in guide("results")


def test_the_python_shown_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", guide("results"), re.DOTALL)

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})

    assert "FA3 8192 ok" in printed.getvalue()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_shown_exists(name: str) -> None:
    """Options of `fabench` commands, and those that it gives ncu, in code spans and blocks."""
    options: set[str] = set()
    for command in main.list_commands(None):  # type: ignore[arg-type]
        found = main.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None
        options |= {option for parameter in found.params for option in parameter.opts}
    options |= {word for word in ncu.command("ncu", Path("log"), []) if word.startswith("--")}
    code = "".join(re.findall(r"`[^`]*`|```.*?```", guide(name), re.DOTALL))

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) <= options


def test_the_numbers_of_the_story_are_right() -> None:
    """docs/attention-io.md states these in words."""
    told = explain(parse("N=8192,d=128,dtype=bf16,heads=32"), gpus.named("nvidia-h200"))
    ideal, standard = told.traffic[0], told.traffic[1]
    text = guide("attention-io")

    assert f"{standard.bytes / ideal.bytes:.0f} times the ideal" in text
    assert told.ridge is not None
    assert f"needs {told.ridge:.0f} FLOPs for every byte" in text
    assert [f"{step.intensity:.0f}" for step in standard.steps] == ["124", "1", "124"]
    assert f"together they have {standard.intensity:.0f}," in text
    assert ideal.intensity == 8192 / 2
    assert [parse_scores(N) for N in (1024, 32768)] == [4 * 2**20, 4 * 2**30]
    assert round(1 + math.exp(-2) + math.exp(-3) + math.exp(-4), 4) == 1.2034
    assert f"{16 / 132:.0%}" == "12%"
    at_16k, at_128k = (explain(parse(f"N={N},d=128,heads=16"), gpus.named("nvidia-h200")) for N in (2**14, 2**17))
    assert (at_16k.score_bytes, at_128k.score_bytes, at_128k.traffic[0].bytes) == (16 * 2**30, 2**40, 2 * 2**30)


def test_the_story_of_the_tiles_is_that_of_the_kernels() -> None:
    case, card = parse("N=8192,d=128,dtype=bf16,heads=32"), gpus.named("nvidia-h200")
    tilings = [Tiling.from_json(data) for data in probe.tilings([case], card.device)[case.id]]
    told = explain(case, card, tilings)
    moved = {traffic.algorithm: traffic for traffic in told.traffic}
    v1, v2 = moved["tiled v1, 128 x 128 (cuda-v1)"], moved["tiled v2, 128 x 64 (cuda-v2)"]

    assert "32 CTAs against\n2048" in guide("attention-io")
    assert [item.launch.ctas for item in told.occupancy[:2]] == [32, 2048]
    assert v1.bytes > moved["standard"].bytes  # "by this count it moves more than the textbook"
    assert f"v2's {v2.intensity:.0f} FLOPs a byte, below the ridge" in guide("attention-io")
    assert told.ridge is not None
    assert v2.intensity < told.ridge < told.traffic[0].intensity


def parse_scores(N: int) -> int:
    """Bytes of S and P of one head."""
    return explain(parse(f"N={N},d=128,dtype=bf16,heads=1"), gpus.named("nvidia-h200")).score_bytes

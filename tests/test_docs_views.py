"""The guides to show, results, explain, report, profile and published say what is so."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.records import Published
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
    """Options of `fabench` commands that a guide types, in code spans and blocks."""
    options: set[str] = set()
    for command in main.list_commands(None):  # type: ignore[arg-type]
        found = main.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None
        options |= {option for parameter in found.params for option in parameter.opts}
    code = "".join(re.findall(r"`[^`]*`|```.*?```", guide(name), re.DOTALL))

    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) <= options

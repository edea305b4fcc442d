"""The tables in README and docs are what their commands print from the files in results/."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(ROOT)
    return module


def test_every_block_is_what_its_command_prints(tables) -> None:
    assert list(tables.drifted()) == []


def test_a_block_that_drifted_is_named_and_rewritten(tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- $ fabench list suites -->\nstale\n<!-- end -->\nafter\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(tables, "ROOT", tmp_path)

    assert list(tables.drifted()) == ["README.md: fabench list suites"]
    assert tables.run([]) == 0
    assert "smoke" in page.read_text()
    assert page.read_text().startswith("before\n<!--")
    assert page.read_text().endswith("<!-- end -->\nafter\n")
    assert tables.run(["--check"]) == 0


PLOT = "fabench plot results/published/fa3_h100.jsonl --kind tflops --where 'd=128,dtype=fp16' -o docs/plots/fa3.svg"


def test_a_picture_is_drawn_once_and_again_when_its_figures_changed(
    tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    page, plot = tmp_path / "docs" / "page.md", tmp_path / "docs" / "plots" / "fa3.svg"
    (tmp_path / "README.md").write_text("")
    page.write_text(f"<!-- $ {PLOT} -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)

    assert list(tables.drifted()) == [f"docs/page.md: {PLOT}"]
    assert tables.run([]) == 0
    assert f"]({plot.relative_to(page.parent)})\n" in page.read_text()
    assert list(tables.drifted()) == []
    right = plot.read_text()
    plot.write_text(right.replace("</svg>", "<g/></svg>"))
    assert list(tables.drifted()) == [f"docs/page.md: {PLOT}"]
    assert tables.run([]) == 0
    assert plot.read_text() == right


def test_a_picture_of_another_matplotlib_stands(tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = tmp_path / "docs" / "plots" / "fa3.svg"
    plot.parent.mkdir(parents=True)
    plot.write_text("<svg>Matplotlib v1.0</svg>")
    monkeypatch.setattr(tables, "ROOT", tmp_path)

    assert not tables.is_old(PLOT)


def test_the_last_lines_of_an_output_are_shown_as_a_shell_would(tables) -> None:
    body = tables.printed("fabench list suites | tail -n 2", ROOT / "README.md")

    assert body.startswith("```console\n$ fabench list suites | tail -n 2\n")
    assert len(body.splitlines()) == 5

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

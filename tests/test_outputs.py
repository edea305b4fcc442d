"""What a command writes never takes the place of what it reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main

KERNEL = "def attention(q, k, v):\n    return v\n"
WRITERS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "report": ("run.jsonl", lambda file: ["report", file, "-o", file]),
    "report --against": ("other.jsonl", lambda file: ["report", "run.jsonl", "--against", file, "-o", file]),
    "plot": ("run.png", lambda file: ["plot", file, "--kind", "roofline", "-o", file]),
    "plot into a folder": ("roofline.svg", lambda file: ["plot", file, "-o", "."]),
    "diff --json": ("run.jsonl", lambda file: ["diff", file, "other.jsonl", "--json", file]),
    "merge": ("run.jsonl", lambda file: ["merge", file, "other.jsonl", "--out", file]),
    "parity --json": ("kernel.py", lambda file: ["parity", f"{file}:attention", "--json", f"./{file}"]),
    "parity --junit": ("inputs.pt", lambda file: ["parity", "kernel.py", "--inputs", file, "--junit", file]),
    "profile": ("kernel.py", lambda file: ["profile", "--case", "N=8,d=8", "--backend-file", file, "-o", file]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_command_writes_over_a_file_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file, arguments = WRITERS[name]
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "inputs.pt").write_bytes(b"tensors")
    for place in ("other.jsonl", *([file] if file.startswith(("run", "roofline")) else [])):
        make.build(tmp_path / place, [make.row(make.case())])
    before = (tmp_path / file).read_bytes()

    result = CliRunner().invoke(main, arguments(file))

    assert (tmp_path / file).read_bytes() == before
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1

"""Every command makes the folders of what it writes, and says before its work what it cannot write."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.errors import UsageError
from fabench.output_files import check, check_folder, obstacle, write_text
from fabench.parity.calibration import SCHEMA

Command = Callable[[str], list[str]]
"""The arguments that make a command write the file of that name."""
CASE = "N=16,d=8,dtype=fp32,batch=1,heads=1"
QUICK: dict[str, Command] = {
    **{
        f"diff {option}": lambda out, option=option: ["diff", "a.jsonl", "b.jsonl", option, out]  # type: ignore[misc]
        for option in ("--json", "--markdown", "--junit", "--csv", "--rerun")
    },
    "report": lambda out: ["report", "a.jsonl", "-o", out],
    "plot": lambda out: ["plot", "a.jsonl", "--kind", "roofline", "-o", f"{out}.svg"],
    "merge": lambda out: ["merge", "a.jsonl", "b.jsonl", "--renumber", "--out", out],
    "calibrate --noise": lambda out: ["calibrate", "--noise", "two.jsonl", "--out", out],
}
SLOW: dict[str, Command] = {
    "run": lambda out: ["run", "one.yaml", "--device", "cpu", "--seconds", "0.01", "--out", out],
    "profile": lambda out: ["profile", "--case", CASE, "--backend", "naive", "--device", "cpu", "-o", out],
    **{
        f"parity {option}": lambda out, option=option: [  # type: ignore[misc]
            *("parity", "naive", "--device", "cpu", "--where", "N<=17,dtype=fp32,inputs=normal", "--probe", "rho"),
            *("--forward-only", option, out),
        ]
        for option in ("--json", "--junit")
    },
    "calibrate": lambda out: [
        *("calibrate", "--device", "cpu", "--backend", "naive", "--lengths", "16", "--seeds", "1", "--out", out),
    ],
}
SUITE = "name: one\naxes: {N: [16], d: [8], dtype: [fp32], batch: [1], heads: [1]}\nbackends: [naive]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with what the commands read."""
    monkeypatch.chdir(tmp_path)
    case = make.case()
    make.build(tmp_path / "a.jsonl", [make.row(case)])
    make.build(tmp_path / "b.jsonl", [make.row(case, median_ns=2e6)])
    make.build(tmp_path / "two.jsonl", [make.row(case, median_ns=1e6 + number, round=number) for number in range(2)])
    (tmp_path / "one.yaml").write_text(SUITE)
    return tmp_path


def run(arguments: list[str]) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.output


@pytest.mark.parametrize("command", [*QUICK, *SLOW])
def test_missing_folders_are_made(folder: Path, command: str) -> None:
    output = run((QUICK | SLOW)[command]("new/deeper/out"))

    (written,) = (folder / "new" / "deeper").iterdir()
    assert written.stat().st_size > 0, output


@pytest.mark.parametrize("command", [*QUICK, *SLOW])
def test_a_file_in_the_place_of_a_folder_is_named_before_the_work(folder: Path, command: str) -> None:
    (folder / "taken").write_text("precious")

    output = run((QUICK | SLOW)[command]("taken/deeper/out"))

    assert output.splitlines()[-1].startswith("Error: 'taken/deeper/out")
    assert "cannot be written: 'taken' must be a folder, and is a file" in output
    assert (folder / "taken").read_text() == "precious"


def test_repro_scripts_go_into_a_folder_that_was_not_there(folder: Path) -> None:
    (folder / "wrong.py").write_text("def attention(q, k, v):\n    return v * 1.5\n")

    run(["parity", "wrong.py:attention", "--where", "N<=17,dtype=fp32", "--probe", "rho", "--repro", "new/deeper"])

    assert list((folder / "new" / "deeper").glob("repro_*.py"))


def test_a_command_that_fails_leaves_no_folder_behind(folder: Path) -> None:
    before = sorted(folder.iterdir())

    assert "no row is left" in run(["report", "a.jsonl", "--where", "N=7", "-o", "new/deeper/out.html"])
    assert sorted(folder.iterdir()) == before


def test_a_try_leaves_what_is_there_as_it_was(folder: Path) -> None:
    (folder / "kept").write_text("precious")
    (folder / "link").symlink_to("nowhere")

    assert [obstacle(Path(name)) for name in ("kept", "link", "fresh", "a/b/c", "/dev/stdout")] == [None] * 5
    assert (folder / "kept").read_text() == "precious"
    assert (folder / "link").is_symlink()
    assert not [name for name in ("nowhere", "fresh", "a") if (folder / name).exists()]


def test_a_pipe_is_not_opened_before_there_is_something_to_write(folder: Path) -> None:
    os.mkfifo("pipe")
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.append(Path("pipe").read_text()), daemon=True)
    reader.start()

    check(Path("pipe"))
    write_text(Path("pipe"), "all of it")
    reader.join(timeout=10)

    assert seen == ["all of it"]


def test_what_cannot_be_a_file_or_a_folder_is_a_sentence(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^'\.' cannot be written: Is a directory$"):
        check(Path())
    with pytest.raises(UsageError, match=r"^'a.jsonl' must be a folder that can be written to: 'a.jsonl' must be a fo"):
        check_folder(Path("a.jsonl"))


@pytest.mark.parametrize("flag", ["--parity", "--noise"])
def test_a_calibration_is_not_added_to_another_kind_of_file(folder: Path, flag: str) -> None:
    (folder / "precious").write_text("{}")

    output = run(["calibrate", flag, "--device", "cpu", "--backend", "naive", "--out", "precious"])

    assert output.startswith("Error: ")
    assert "precious" in output
    assert (folder / "precious").read_text() == "{}"


def test_a_calibration_keeps_what_it_knew_of_other_backends(folder: Path) -> None:
    entry = {"backend": "other", "class": "A", "dtype": "fp32", "N": 16, "tensor": "O", "max_rho": 1.0, "rms_rho": 1.0}
    (folder / "kept.json").write_text(json.dumps({"schema": SCHEMA, "entries": [entry]}))

    run(SLOW["calibrate"]("kept.json"))

    assert {e["backend"] for e in json.loads((folder / "kept.json").read_text())["entries"]} == {"naive", "other"}

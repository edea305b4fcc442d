"""Pipes, devices and folders as inputs: read to their end, or refused in one sentence, never waited for for ever."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabench import input_files
from fabench.cli import main
from show_files import sweep

COMMANDS = (
    "validate {}",
    "show {}",
    "diff {} {good}",
    "diff {good} {}",
    "report {} --out {folder}/page.html",
    "plot {} --out {folder}/plots",
    "merge {} {good} --out {folder}/merged.jsonl",
    "profile {}",
    "calibrate --noise {}",
    "run smoke --device cpu --resume {}",
    "run smoke --device cpu --like {}",
    "run smoke --device cpu --rows {}",
    "run {} --device cpu",
)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return sweep(tmp_path / "good.jsonl")


def refusal(command: str, path: Path, good: Path) -> str:
    """What a command says on refusing `path`; anything but one sentence, named so, and exit code 2 is a failure."""
    words = command.format(path, good=good, folder=good.parent).split()
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    (said,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert str(path) in said
    return said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_named_pipe_that_nobody_writes_to_is_refused(
    command: str, tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "WRITER_S", 0.1)
    os.mkfifo(tmp_path / "pipe")

    assert "pipe" in refusal(command, tmp_path / "pipe", good)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(command: str, device: str, good: Path) -> None:
    said = refusal(command, Path(device), good)

    assert "got a device" in said or "must be a regular file" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_refused(command: str, tmp_path: Path, good: Path) -> None:
    assert "folder" in refusal(command, tmp_path, good).lower() or "directory" in refusal(command, tmp_path, good)


def test_the_sentence_says_what_was_expected_what_came_and_what_to_do(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "WRITER_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert refusal("show {}", pipe, good) == (
        f"Error: '{pipe}' cannot be read: it must be a file, or a pipe that is written to, got one to which nothing "
        "was written in 0.1 s; give a file, or <(command)"
    )
    assert refusal("show {}", Path("/dev/zero"), good) == (
        "Error: '/dev/zero' cannot be read: it must be a file or a pipe, got a device; give a file that holds it"
    )
    assert refusal("run smoke --device cpu --resume {}", pipe, good) == (
        f"Error: '{pipe}' must be a file to be continued, got a pipe; copy it into one"
    )


def fabench(arguments: str) -> subprocess.CompletedProcess[str]:
    """A shell's command, in which `fabench` is this one."""
    line = f'fabench() {{ {shlex.quote(sys.executable)} -m fabench "$@"; }}; {arguments}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", ["validate", "show", "diff --fail-on none {good}"])
@pytest.mark.parametrize("pipe", ["<(cat {good})", "/dev/stdin"])
def test_a_pipe_without_a_name_is_read(command: str, pipe: str, good: Path) -> None:
    expected = fabench(f"fabench {command} {good}".format(good=good))
    done = fabench(f"cat {good} | fabench {command} {pipe}".format(good=good))

    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr)
    assert len(done.stdout.splitlines()) == len(expected.stdout.splitlines())


def test_a_pipe_without_a_name_is_waited_for_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "WRITER_S", 0.05)
    end, start = os.pipe()

    def write() -> None:
        time.sleep(0.3)
        os.write(start, b"late")
        os.close(start)

    writer = threading.Thread(target=write)
    writer.start()
    with input_files.open_input(f"/dev/fd/{end}") as stream:
        assert stream.read() == b"late"
    writer.join()
    os.close(end)


def test_a_named_pipe_is_read_when_somebody_writes_to_it(tmp_path: Path, good: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    done = fabench(f"(sleep 1; cat {good} > {tmp_path}/pipe) & fabench validate {tmp_path}/pipe")

    assert (done.returncode, done.stderr) == (0, "")
    assert "sound, complete" in done.stdout


def test_a_writer_that_leaves_without_a_word_makes_an_empty_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    began = time.monotonic()
    with subprocess.Popen(["sh", "-c", f"sleep 0.2; : > {shlex.quote(str(pipe))}"]) as writer:
        with input_files.open_input(pipe) as stream:
            assert stream.read() == b""
        assert writer.wait(10) == 0
    assert time.monotonic() - began < input_files.WRITER_S

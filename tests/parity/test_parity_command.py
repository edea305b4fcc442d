"""`fabench parity` from the outside: exit codes, sentences, files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fabench.case import Case
from fabench.cli import main
from fabench.cli.parity import parse_budget
from fabench.errors import UsageError
from fabench.interpreter import HERE
from fabench.parity import junit
from fabench.parity.report import render
from fabench.parity.session import Left
from fabench.parity.trial import Result as FoundResult
from fabench.parity.trial import Trial
from fabench.parity.verdict import Verdict, findings

GALLERY = str(Path(__file__).resolve().parents[1] / "mutants" / "gallery.py")
MARGIN_S = 20.0
"""For starting workers, and a machine that is busy."""
WELL_INTO_IT = 60
"""Calls of a kernel: what it takes has been found out, and the battery is on its way."""
GOOD = """
import torch
def attention(q, k, v):
    print("a kernel may print")
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if q.shape[1] != k.shape[1]: raise ValueError("heads")
    S = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    return (torch.softmax(S, -1) @ v.double()).to(q.dtype)
"""


def parity(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["parity", *arguments, "--device", "cpu"])


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return f"{path}:attention"


def test_a_right_kernel_passes_with_exit_code_0(good: str, tmp_path: Path) -> None:
    xml, out = tmp_path / "out.xml", tmp_path / "out.json"
    done = parity(good, "--where", "N<=65,inputs=normal", "--junit", str(xml), "--json", str(out))
    assert done.exit_code == 0, done.output
    assert "passed" in done.output
    suite = ElementTree.parse(xml).getroot()[0]
    assert int(suite.attrib["failures"]) == 0
    assert int(suite.attrib["tests"]) == len(suite)
    (report,) = json.loads(out.read_text())
    assert report["passed"]
    assert report["left_out"]["trials"] == 0


def test_a_wrong_kernel_fails_with_its_name_its_place_and_a_script(tmp_path: Path) -> None:
    xml = tmp_path / "out.xml"
    done = parity(
        f"{GALLERY}:NextKeyLeaked",
        *("--where", "dtype=fp16,inputs=normal,causal=true", "--repro", str(tmp_path / "repro"), "--junit", str(xml)),
        *("--budget", "10s", "--explain"),
    )
    assert done.exit_code == 1, done.output
    assert "lets one key past the diagonal through" in done.output
    assert "smallest failing case: N=2 d=8 causal" in done.output
    assert "worst row" in done.output
    assert "tile 0 of 64" in done.output
    assert "How it is judged" in done.output
    scripts = list((tmp_path / "repro").glob("repro_*.py"))
    assert len(scripts) == 1
    assert scripts[0].with_suffix(".png").stat().st_size > 1000
    shown = subprocess.run([sys.executable, str(scripts[0])], capture_output=True, check=False)
    assert shown.returncode == 1
    failure = ElementTree.parse(xml).getroot().find(".//failure")
    assert failure is not None
    assert "past the diagonal" in failure.attrib["message"]


def test_options_choose_probes_dtypes_and_directions(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = parity(
        f"{GALLERY}:DkWithoutScale",
        *("--probe", "rho,mask", "--dtype", "fp16", "--where", "N<=33", "--forward-only", "--json", str(out)),
    )
    assert done.exit_code == 0, done.output
    (report,) = json.loads(out.read_text())
    assert {r["probe"] for r in report["results"]} == {"rho", "mask"}
    assert {r["trial"]["key"]["dtype"] for r in report["results"]} == {"fp16"}


def test_real_tensors_are_judged(good: str, tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    torch.save({n: torch.randn(1, 2, 40, 16, dtype=torch.float16) for n in "qkv"}, path)
    done = parity(good, "--inputs", str(path))
    assert done.exit_code == 0, done.output
    assert "rho" in done.output
    wrong = parity(f"{GALLERY}:NoScale", "--inputs", str(path))
    assert wrong.exit_code == 1
    assert "without the 1/sqrt(d) scale" in wrong.output


@pytest.mark.parametrize(
    ("call", "sentence"),
    [("os.abort()", "it ends its process: the worker died of SIGABRT"), ("time.sleep(60)", "it hangs: a call did not")],
)
def test_a_kernel_that_dies_of_real_tensors_is_wrong(call: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    torch.save({n: torch.randn(1, 2, 40, 16, dtype=torch.float16) for n in "qkv"}, path)
    (tmp_path / "k.py").write_text(f"import os\nimport time\ndef attention(q, k, v):\n    {call}\n")

    done = parity(f"{tmp_path / 'k.py'}:attention", "--inputs", str(path), "--timeout", "2")

    assert done.exit_code == 1, done.output
    assert sentence in done.output


def test_a_bad_file_of_tensors_is_exit_code_2(good: str, tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    path.write_bytes(b"rubbish")
    done = parity(good, "--inputs", str(path))
    assert done.exit_code == 2, done.output
    assert "must be a file that torch.load can read" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        (None, "nofile.py:attention", "got no such file"),
        ("x = 1", "k.py:attention", "must be defined in"),
        ("attention = 3", "k.py:attention", "must be a function"),
        ("def attention(q k):", "k.py", "SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\nf()", "k.py", "ZeroDivisionError: division by zero"),
        ("import nothing_like_this", "k.py", "No module named 'nothing_like_this'"),
    ],
)
def test_what_cannot_be_loaded_is_exit_code_2(
    source: str | None, target: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "k.py").write_text(source)
    done = parity(target)
    assert done.exit_code == 2, done.output
    assert sentence in done.output
    assert "fabench/" not in done.output.replace(str(tmp_path), "")


def test_a_failing_import_shows_the_users_own_frames_only(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text("def helper():\n    return 1 / 0\n\n\nhelper()\n")
    done = parity(str(path))
    assert done.exit_code == 2
    assert "line 2, in helper" in done.output
    assert "importlib" not in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-backend"], "must be a backend"),
        (["naive", "--dtype", "bf61"], "did you mean 'bf16'?"),
        (["naive", "--probe", "rhoo"], "did you mean 'rho'?"),
        (["naive", "--budget", "soon"], "--budget must be a time such as 50s or 8m, got 'soon'"),
        (["naive", "--where", "dtpye=bf16"], "unknown key 'dtpye'"),
        (["naive", "--where", "N=5"], "got no case"),
        (["sdpa-cudnn"], "cannot run here"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    done = parity(*arguments)
    assert done.exit_code == 2, done.output
    assert sentence in done.output


def test_a_kernel_that_refuses_everything_is_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text('def attention(q, k, v):\n    raise ValueError("not today")\n')
    done = parity(str(path), "--where", "N<=33")
    assert done.exit_code == 2, done.output
    assert "not today" in done.output
    assert "no case ran" in done.output


def test_a_file_that_cannot_be_written_is_found_before_the_work() -> None:
    done = parity("naive", "--json", "/proc/nowhere/out.json")
    assert done.exit_code == 2
    assert done.output.startswith("Error: '/proc/nowhere/out.json' cannot be written: ")


def test_a_disk_that_fills_up_costs_one_file_and_not_the_report(good: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = parity(good, "--where", "N<=17", "--probe", "rho", "--junit", "/dev/full", "--json", str(out))
    assert done.exit_code == 2
    assert "passed" in done.output
    assert "'/dev/full' cannot be written: No space left on device" in done.output
    assert json.loads(out.read_text())[0]["passed"]


def test_a_file_that_was_only_asked_after_is_not_left_behind(good: str, tmp_path: Path) -> None:
    done = parity(good, "--where", "d=7", "--json", str(tmp_path / "out.json"), "--repro", str(tmp_path / "repro"))
    assert done.exit_code == 2
    assert "--where or --probe leaves nothing" in done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["good.py"]


def test_a_folder_that_cannot_be_written_is_found_before_the_work() -> None:
    done = parity("naive", "--repro", "/proc/nowhere")
    assert done.exit_code == 2
    assert "must be a folder that can be written to" in done.output


def test_a_glob_takes_what_can_run_here_and_says_what_cannot() -> None:
    done = parity("sdpa-*", "--where", "Nq<=65,inputs=normal", "--probe", "one", "--forward-only")
    assert "'sdpa-cudnn' cannot run here" in done.output
    assert "sdpa-math on" in done.output
    assert "sdpa-flash on" in done.output


SLOW = """
import time
import torch
def attention(q, k, v):
    time.sleep(0.25)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)SUFFIX
"""


@pytest.mark.parametrize(("suffix", "code"), [("", 0), pytest.param(" * 1.1", 1, marks=pytest.mark.slow)])
def test_a_budget_holds_for_a_slow_kernel_right_or_wrong(tmp_path: Path, suffix: str, code: int) -> None:
    """First calls are apart, up to as long again; what has failed is made smaller in as long once more."""
    (tmp_path / "slow.py").write_text(SLOW.replace("SUFFIX", suffix))
    out = tmp_path / "out.json"

    done = parity(f"{tmp_path / 'slow.py'}:attention", "--budget", "6s", "--json", str(out))

    assert done.exit_code == code, done.output
    said = r"^Left out: \d+ cases( and \d+ probes? of another)?, because the budget of 6 s is used up"
    assert re.search(said, done.output, re.M)
    (report,) = json.loads(out.read_text())
    assert report["left_out"]["trials"] > 50
    assert report["seconds"] < 6 * (2 + code) + MARGIN_S


def test_a_budget_too_small_for_one_case_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.replace("SUFFIX", "").replace("0.25", "60"))

    done = parity(f"{tmp_path / 'slow.py'}:attention", "--budget", "0.5s")

    assert done.exit_code == 2
    assert "Error: no case ran: the budget of 0.5 s is used up; give it more" in done.output


def test_ctrl_c_ends_with_what_is_known_so_far(good: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    calls = tmp_path / "calls"
    slow = tmp_path / "slow.py"
    slow.write_text(GOOD.replace("    print", f"    open({str(calls)!r}, 'a').write('.')\n    print"))
    command = [sys.executable, "-m", "fabench", "parity", f"{slow}:attention", "--device", "cpu", "--json", str(out)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=HERE.environment()) as p:
        while p.poll() is None and (not calls.exists() or calls.stat().st_size < WELL_INTO_IT):
            time.sleep(0.05)
        p.send_signal(signal.SIGINT)
        text, errors = p.communicate(timeout=60)
    assert p.returncode == 130, errors
    assert "it was interrupted" in text
    assert errors.endswith("Interrupted\n")
    assert json.loads(out.read_text())[0]["left_out"]["trials"] > 0


def test_characters_that_xml_has_no_place_for_are_left_out() -> None:
    trial = Trial(Case(1, 1, 8, 8, 8), ("rho",))
    result = FoundResult("rho", trial, "failed", "a\x00b\ud800c\ufffed\U0001f600")
    verdict = Verdict("k\x1b.py", "cpu", "quick", [result], Left(), 1.0, 0.0)
    (failure,) = ElementTree.fromstring(junit.as_junit([verdict]).encode()).iter("failure")
    assert failure.attrib["message"] == "abcd\U0001f600"


def test_the_report_fits_the_terminal() -> None:
    trial = Trial(Case(1, 1, 8, 8, 8), ("rho",))
    results = [
        FoundResult(
            "rho", trial, "failed", "'O' is wrong in many ways, " * 8, diagnosis={"where": "O " * 60, "tiles": ""}
        )
    ]
    verdict = Verdict("k.py:attention", "a device with a long name", "quick", results, Left(), 1.0, 0.0)
    verdict.findings = findings(results)
    assert max(map(len, render(verdict, width=60).splitlines())) <= 60
    assert 60 < max(map(len, render(verdict).splitlines())) <= 110


def test_what_is_said_below_the_numbers_fits_the_terminal_too() -> None:
    numbers = {"class": "A", "O": {"max_rho": 0.5, "rms_rho": 0.25, "two_x": 0.5, "max_abs": 1e-3}}
    passed = FoundResult("rho", Trial(Case(1, 1, 8, 8, 8), ("rho",)), "passed", parity=numbers)
    text = render(Verdict("k.py:attention", "cpu", "quick", [passed], Left(), 1.0, 0.0), width=60)
    said = text[text.index("(rho decides") :].splitlines()
    assert len(said) > 2
    assert max(map(len, said)) <= 60


def test_budgets_are_seconds_or_minutes() -> None:
    assert [parse_budget(t) for t in ("50s", "8m", "90", None)] == [50.0, 480.0, 90.0, None]
    for text in ("0s", "-1s", "1h", ""):
        with pytest.raises(UsageError):
            parse_budget(text)

"""`fabench list` fits the terminal and gives the reason for everything that is not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabench import records
from fabench.backend import Facts
from fabench.cli import main
from fabench.device import Device
from fabench.probe import BackendReport, Probe
from fabench.suite import from_bytes
from fabench.views import capabilities
from golden_files import assert_golden

H200 = Device(
    "cuda", "NVIDIA H200", 0, (9, 0), 132, memory_bytes=150 << 30, free_bytes=149 << 30, l2_bytes=50 << 20,
    max_sm_clock_hz=1.98e9,
)  # fmt: skip
REPORTS = (
    BackendReport(Facts("plain", "Operators, one after the other", window=True, softcap=True, accuracy="B")),
    BackendReport(
        Facts(
            "picky",
            "A library with a long line to say about itself, longer than a narrow terminal is wide",
            dtypes=("bf16",),
            max_head_dim=256,
            head_dim_multiple=8,
            dv_differs=False,
            alignments=("bottom_right",),
            directions=("forward",),
            returns_lse=True,
        ),
        unavailable="cannot import picky_attention: ModuleNotFoundError: No module named 'picky_attention'; "
        "install it with `pip install picky-attention`",
    ),
    BackendReport(
        Facts(
            "square",
            "Fixed sizes",
            dtypes=("fp16", "fp32"),
            head_dims=(64, 128),
            alignments=(),
            gqa=False,
            fp32_accuracy="A-tf32",
        )
    ),
    BackendReport(Facts("unmasked", "No mask", causal=False)),
)
PROBE = Probe(
    H200,
    records.Identity(device_type="cuda", model=H200.name),
    records.Software(python="3.12.0", torch="2.11.0"),
    records.Session(host_hash="0" * 12),
    {report.facts.name: report for report in REPORTS},
    {},
)
SUITE = b"name: pair\ndescription: two sizes\naxes: {N: [128, 256], d: 64}\nbackends: [naive, 'sdpa-*']\n"


@pytest.mark.parametrize("width", [40, 72, 200])
def test_the_matrix_fits_the_terminal(width: int) -> None:
    text = capabilities.backends(PROBE, width)
    assert max(map(len, text.splitlines())) <= width
    assert_golden(f"list_backends_{width}.txt", text + "\n")


def test_no_value_is_lost_in_a_narrow_terminal() -> None:
    narrow = " ".join(capabilities.backends(PROBE, 30).split())
    for report in REPORTS:
        for column, value in capabilities.columns(report.facts, report.unavailable).items():
            assert value == "-" or column == "backend" or f"{column} {value}" in narrow
        assert report.facts.summary in narrow


def test_github_style_is_never_narrowed() -> None:
    assert_golden("list_backends_github.md", capabilities.backends(PROBE, 20, "github") + "\n")


@pytest.mark.parametrize("width", [30, 120])
def test_devices_and_suites_fit_too(width: int) -> None:
    cpu = Device("cpu", "A processor", memory_bytes=24 << 30, free_bytes=20 << 30)
    suites = {"pair": from_bytes(SUITE, "pair.yaml")}
    text = capabilities.devices([cpu, H200], width) + "\n\n" + capabilities.suites(suites, width)
    assert max(map(len, text.splitlines())) <= width
    assert_golden(f"list_devices_suites_{width}.txt", text + "\n")


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["list", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_here_is_listed_with_reasons(tmp_path: Path) -> None:
    kernel = tmp_path / "mine.py"
    kernel.write_text("def attention(q, k, v): return q")
    listed = json.loads(
        invoke("backends", "--device", "cpu", "--format", "json", "--backend-file", str(kernel), "naive", "sdpa-e*")
    )
    assert list(listed["backends"]) == ["naive", "sdpa-efficient", "attention"]
    assert listed["backends"]["naive"]["unavailable"] is None
    assert listed["backends"]["sdpa-efficient"]["unavailable"] == "device cpu, takes cuda"
    assert listed["device"]["type"] == "cpu"


def test_a_glob_that_matches_nothing_exits_with_2() -> None:
    result = CliRunner().invoke(main, ["list", "backends", "nothing-*"])
    assert result.exit_code == 2
    assert "Error: 'nothing-*' must match a backend" in result.output


def test_without_a_word_all_three_are_listed() -> None:
    text = invoke()
    assert [line for line in text.splitlines() if line in ("Devices", "Suites") or line.startswith("Backends on")] == [
        "Devices",
        "Suites",
        next(line for line in text.splitlines() if line.startswith("Backends on")),
    ]


def test_devices_and_suites_are_json_too() -> None:
    assert json.loads(invoke("devices", "--format", "json"))[0]["type"] == "cpu"
    assert all(
        set(entry) == {"description", "cases", "hash"}
        for entry in json.loads(invoke("suites", "--format", "json")).values()
    )

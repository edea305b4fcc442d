"""`fabench profile`: reading ncu's counters, and what is said where there are none."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench import gpus, probe
from fabench.case_text import parse as case_of
from fabench.cli import main
from fabench.device import Device
from fabench.errors import BackendError
from fabench.explain import explain
from fabench.profiling import ncu, session, stored
from fabench.profiling.kernel import Kernel, Profile, by_name, combined
from fabench.records import Harness
from fabench.tiling import Tiling
from fabench.views.profile import render
from golden_files import assert_golden

NAMES = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC"'
)
COUNTERS = (
    '"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","launch__registers_per_thread",'
    '"launch__shared_mem_per_block_dynamic","launch__shared_mem_per_block_static","lts__t_sector_hit_rate.pct",'
    '"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","sm__warps_active.avg.pct_of_peak_sustained_active"'
)
UNITS = '"","","","","","","","","","","","byte","byte","ns","register/thread","byte/block","byte/block","%","%","%"'
ROW = '"{id}","9","python3","127.0.0.1","{name}","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",{values}'
NAIVE = "\n".join(
    [
        "==PROF== Connected to process 9 (/usr/bin/python3)",
        '==PROF== Profiling "gemm_kernel" - 0: 0%....50%....100% - 4 passes',
        f"{NAMES},{COUNTERS}",
        UNITS,
        ROW.format(id=0, name="void gemm_kernel<bf16>(Params)",
                   values='"137,000,000","2,120,000,000","1,000,000","128","98,304","1,024","40.5","60","25"'),
        ROW.format(id=1, name="void softmax(float*)",
                   values='"2,150,000,000","2,150,000,000","1,000,000","32","0","0","1.5","0","75"'),
        ROW.format(id=2, name="void gemm_kernel<bf16>(Params)",
                   values='"2,230,000,000","67,000,000","3,000,000","128","98,304","1,024","20.5","80","25"'),
        "==PROF== Disconnected from process 9",
    ]
)  # fmt: skip
"""What ncu prints of the three kernels of standard attention, in its raw page."""

H200 = Device(
    "cuda", "NVIDIA H200", capability=(9, 0), sms=132, memory_bytes=2**37, free_bytes=2**37, l2_bytes=50 * 2**20
)


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program in ncu's place that writes `csv` to the log it is told of, and `says` to stderr."""

    def install(csv: str = "", says: str = "", code: int = 0) -> Path:
        tool = tmp_path / "ncu"
        (tmp_path / "csv").write_text(csv)
        tool.write_text(
            "#!/bin/sh\n"
            f'echo "$@" > {tmp_path}/arguments\n'
            'while [ "$1" != --log-file ]; do shift; done\n'
            f'cp {tmp_path}/csv "$2"\n'
            f'echo "{says}" >&2\nexit {code}\n'
        )
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setattr(ncu, "find", lambda: str(tool))
        return tmp_path / "arguments"

    return install


def test_counters_are_read_in_base_units() -> None:
    first, *_ = ncu.parse(NAIVE)

    assert first == Kernel(
        "void gemm_kernel<bf16>(Params)",
        1,
        1e6,
        137e6,
        2.12e9,
        pytest.approx(0.405),
        pytest.approx(0.6),
        0.25,
        128,
        99328,
    )


@pytest.mark.parametrize(("unit", "ns"), [("ns", 5), ("nsecond", 5), ("usecond", 5e3), ("us", 5e3), ("second", 5e9)])
def test_a_unit_is_taken_as_printed(unit: str, ns: float) -> None:
    (kernel,) = ncu.parse(f'"Kernel Name","gpu__time_duration.sum"\n"","{unit}"\n"k","5"')

    assert kernel.time_ns == ns


def test_a_counter_the_card_has_not_is_unknown_and_never_zero() -> None:
    text = '"Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum"\n"","ns","byte"\n"k","5","n/a"'
    (kernel,) = ncu.parse(text)

    assert (kernel.dram_read_bytes, kernel.dram_written_bytes, kernel.tensor) == (None, None, None)
    assert Profile("x", "ncu", (kernel,)).dram_bytes is None


def test_the_other_name_of_a_counter_counts() -> None:
    text = '"Kernel Name","gpu__time_duration.sum","dram__bytes_op_read.sum"\n"","ns","Mbyte"\n"k","5","2"'

    assert [kernel.dram_read_bytes for kernel in ncu.parse(text)] == [2e6]


def test_launches_of_one_kernel_are_taken_together() -> None:
    gemm, softmax = by_name(ncu.parse(NAIVE))

    assert (gemm.launches, gemm.time_ns, gemm.dram_read_bytes) == (2, 4e6, 137e6 + 2.23e9)
    assert gemm.tensor == pytest.approx((1 * 0.6 + 3 * 0.8) / 4)  # by time
    assert (softmax.launches, softmax.registers) == (1, 32)


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    whole = combined("all", [Kernel("a", 1, 1.0, 5.0), Kernel("b", 1, 1.0, None)])

    assert whole.time_ns == 2
    assert whole.dram_read_bytes is None


def test_measured_bytes_of_naive_lie_within_5_percent_of_the_standard_model() -> None:
    """The counters of theory.md's example: bf16, N = 4096, d = 128, 64 heads; softmax's are the model's own."""
    case = case_of("N=4096,d=128,dtype=bf16,batch=4,heads=16")
    told = explain(case, gpus.named("nvidia-h200"))
    measured = Profile("naive", "ncu", by_name(ncu.parse(NAIVE))).dram_bytes

    assert measured is not None
    assert measured / told.traffic[1].bytes == pytest.approx(1, abs=0.05)


def test_a_profile_looks_like_its_golden_file() -> None:
    told = explain(case_of("N=4096,d=128,dtype=bf16,batch=4,heads=16"), gpus.named("nvidia-h200"))
    flash = Kernel("void flash_fwd<128, 64>(Params)", 1, 5e5, 0.3e9, 0.07e9, 0.8, 0.7, 0.25, 192, 98304)
    profiles = [
        Profile("naive", "ncu", by_name(ncu.parse(NAIVE))),
        Profile("cuda-v2", "ncu", (flash,)),
        Profile("mine", "torch", (Kernel("mine_kernel", 2, 1234.0), Kernel("tiny", 1, 1.0)), session.NO_NCU),
        Profile("empty", "torch", ()),
    ]

    assert_golden("profile.txt", render(profiles, told) + "\n")


def test_ncu_is_asked_for_one_call_with_the_clocks_left_alone(fake_ncu) -> None:
    arguments = fake_ncu(NAIVE)

    found = session.profile(case_of("N=64"), "naive", H200)

    assert (found.tool, len(found.kernels), found.note) == ("ncu", 2, "")
    words = arguments.read_text().split()
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[-2] == "fabench.profiling.target"


@pytest.mark.parametrize(
    ("csv", "says", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "", "ncu may not read the counters here"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "", "ncu: Failed to initialize the profiler"),
        ("==WARNING== No kernels were profiled.", "boom", "ncu counted no kernel (exit code 3): boom"),
    ],
)
def test_without_counters_torchs_profiler_is_used_and_the_reason_kept(
    fake_ncu, monkeypatch: pytest.MonkeyPatch, csv: str, says: str, sentence: str
) -> None:
    fake_ncu(csv, says, code=3)
    monkeypatch.setattr(session, "_by_torch", lambda *arguments: (Kernel("k", 1, 5.0),))

    found = session.profile(case_of("N=64"), "naive", H200)

    assert (found.tool, found.kernels) == ("torch", (Kernel("k", 1, 5.0),))
    assert found.note.startswith(sentence)


def test_without_ncu_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "find", lambda: None)
    monkeypatch.setattr(session, "_by_torch", lambda *arguments: ())

    assert "put Nsight Compute's ncu on the PATH" in session.profile(case_of("N=64"), "naive", H200).note


def test_an_ncu_that_knows_not_all_names_is_asked_again_for_the_usual_ones(tmp_path: Path) -> None:
    tool, target = tmp_path / "ncu", ["python", "-m", "x"]
    (tmp_path / "csv").write_text(NAIVE)
    tool.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/arguments\n'
        'case "$*" in *dram__bytes_op_read*) echo "==ERROR== Unknown metric: dram__bytes_op_read" >&2; exit 1;; esac\n'
        'while [ "$1" != --log-file ]; do shift; done\n'
        f'cp {tmp_path}/csv "$2"\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)

    assert len(ncu.launches(str(tool), tmp_path / "log", target, 10)) == 3
    first, second = (tmp_path / "arguments").read_text().splitlines()
    assert "dram__bytes_op_read.sum" in first
    for field, names in ncu.METRICS.items():
        assert names[0] in second, field
    assert "launch__shared_mem_per_block_dynamic" in second
    assert "dram__bytes_op" not in second


def test_the_command_is_one_that_ncu_takes() -> None:
    """Options of Nsight Compute's command line, each with its value after it, and the target last."""
    words = ncu.command("ncu", Path("log.csv"), ["python", "-m", "x"])

    assert words[-3:] == ["python", "-m", "x"]
    at = words.index("--csv")
    pairs = dict(zip(words[1:at:2], words[2:at:2], strict=True)) | dict(
        zip(words[at + 1 : -3 : 2], words[at + 2 : -3 : 2], strict=True)
    )
    assert pairs.pop("--metrics").split(",")[0] == "gpu__time_duration.sum"
    assert pairs == {
        "--target-processes": "all", "--profile-from-start": "off", "--clock-control": "none", "--page": "raw",
        "--print-units": "base", "--log-file": "log.csv",
    }  # fmt: skip


def test_once_the_counters_are_refused_ncu_is_not_started_again(fake_ncu, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = fake_ncu("==ERROR== ERR_NVGPUCTRPERM - no permission", code=1)
    monkeypatch.setattr(session, "_by_torch", lambda *arguments: (Kernel("k", 1, 5.0),))
    first, _ = session.profile_all(case_of("N=64"), ["naive", "triton"], H200)
    arguments.unlink()

    notes = [found.note for found in session.profile_all(case_of("N=64"), ["a", "b", "c"], H200)]

    assert notes == [ncu.NOT_ALLOWED] * 3 == [first.note] * 3
    assert arguments.read_text().count("\n") == 1


def kept(path: Path) -> stored.StoredProfile:
    """What a run on an H200 might leave in a file."""
    case = case_of("N=4096,d=128,dtype=bf16,batch=4,heads=16")
    card = gpus.named("nvidia-h200")
    flash = Kernel("flash_v2_fwd", 1, 5e5, 0.3e9, 0.07e9, 0.8, 0.7, 0.25, 255, 98304)
    tilings = [Tiling.from_json(data) for data in probe.tilings([case], card.device)[case.id]]
    made = stored.StoredProfile(
        started="2026-01-02T03:04:05+00:00", argv=["fabench", "profile"], harness=Harness(version="0.1.0"),
        identity=make.env().identity, software=make.env().software, case=case.key, gpu=card, tilings=tuple(tilings),
        profiles=(Profile("naive", "ncu", by_name(ncu.parse(NAIVE))), Profile("cuda-v2", "ncu", (flash,))),
    )  # fmt: skip
    stored.write(path, made)
    return made


def test_a_stored_profile_prints_as_it_did_and_says_when_it_was_made(tmp_path: Path) -> None:
    made = kept(tmp_path / "results" / "profile.json")
    text = profile(str(tmp_path / "results" / "profile.json"))

    assert stored.read(tmp_path / "results" / "profile.json") == made
    assert text.startswith("profiled 2026-01-02, torch 2.11.0, driver 580.95, fabench 0.1.0\nN=4096 d=128 full bf16")
    assert text.endswith(render(made.profiles, made.explanation) + "\n")
    measured = {
        line.split()[0]: line.split()[-3:] for line in text[text.index("DRAM bytes measured") :].splitlines()[2:]
    }
    assert measured["naive"] == ["33.0x", "1.00x", "-"]
    assert measured["cuda-v2"] == ["1.38x", "0.0418x", "0.0835x"]  # of 4.43 GB by its own tiles


def test_a_profile_is_kept_where_it_is_told_to(tmp_path: Path) -> None:
    out = tmp_path / "new" / "profile.json"
    arguments = ["--case", "N=64,d=32,heads=2,dtype=fp32", "--backend", "naive", "--device", "cpu"]
    shown = profile(*arguments, "-o", str(out))

    again = stored.read(out)
    assert again.case == case_of("N=64,d=32,heads=2,dtype=fp32").key
    assert [found.backend for found in again.profiles] == ["naive"]
    assert render(again.profiles, again.explanation) in shown


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "must be a file that 'fabench profile --out' wrote, got Invalid JSON"),
        ("[]", "must be a file that 'fabench profile --out' wrote, got Input should be an object"),
        ('{"schema": "fabench-profile/2.0"}', "got Input should be 'fabench-profile/1.0' at 'schema'"),
        ("\x00\xff", "got Invalid JSON"),
    ],
)
def test_a_damaged_profile_is_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "p.json").write_text(content)

    assert sentence in profile(str(tmp_path / "p.json"), code=2)


def test_a_place_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["--case", "N=64", "--device", "cpu", "--backend", "nothing"]

    assert "p.json' cannot be written: " in profile(*arguments, "-o", str(tmp_path / "file" / "p.json"), code=2)
    assert "cannot be read: No such file" in profile(str(tmp_path / "none.json"), code=2)


def profile(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["profile", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_on_a_cpu_the_operators_are_shown_and_a_refusal_is_said(tmp_path: Path) -> None:
    text = profile("--case", "N=64,d=32,heads=2,dtype=fp32", "--backend", "naive,flash-attn", "--device", "cpu")

    assert "a CPU has no GPU counters: operators and their own times" in text
    assert "aten::bmm" in text
    assert "flash-attn: left out, " in text


def test_json_has_kernels_and_model_in_base_units() -> None:
    arguments = ["--case", "N=64,d=32,heads=2,dtype=fp32,direction=backward", "--backend", "naive", "--device", "cpu"]
    told = json.loads(profile(*arguments, "--format", "json"))

    (found,) = told["profiles"]
    assert found["tool"] == "torch"
    assert found["total"]["time_ns"] == pytest.approx(sum(kernel["time_ns"] for kernel in found["kernels"]))
    assert found["total"]["dram_read_bytes"] is None
    assert told["model"]["case"]["direction"] == "backward"


def test_a_kernel_of_ones_own_is_profiled(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def attention(q, k, v, causal=False, scale=None):\n"
        "    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v\n"
    )

    text = profile("--case", "N=64,d=32,heads=2,dtype=fp32", "--backend-file", str(file), "--backend", "attention",
                   "--device", "cpu")  # fmt: skip

    assert "attention: torch's profiler" in text
    assert "aten::_softmax" in text


def test_a_kernel_that_dies_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os\ndef attention(q, k, v):\n    print('going', flush=True)\n    os._exit(7)\n")

    with pytest.raises(
        BackendError, match="'attention' must run without ending its process, got exit 7 after printing: going"
    ):
        session.profile(case_of("N=64,dtype=fp32"), "attention", Device("cpu", "a CPU"), [str(file)])


def test_a_kernel_that_raises_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def attention(q, k, v):\n    raise RuntimeError('no\\n  luck')\n")

    with pytest.raises(BackendError, match="'attention' must run the case, got RuntimeError: no luck"):
        session.profile(case_of("N=64,dtype=fp32"), "attention", Device("cpu", "a CPU"), [str(file)])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--case", "N=64", "--backend", "flash-attn", "--device", "cpu"], "no backend takes 'N=64 d=128 full bf16"),
        (["--case", "N=64", "--backend", "nothing", "--device", "cpu"], "nothing"),
        (["--case", "N", "--device", "cpu"], "a case must be KEY=VALUE parts"),
        ([], "'profile' must get --case 'N=8192,d=128' or a file that --out wrote, one of them"),
        (["p.json", "--case", "N=64"], "one of them"),
        (["--case", "N=64", "--timeout", "nan"], "is not a number of seconds"),
        (["--case", "N=64", "--timeout", "-1"], "is not in the range 0<x<inf"),
        (["p.json", "--backend", "naive"], "'p.json' is printed as it is; leave out --backend"),
        (["--case", "N=64", "--device", "tpu"], "tpu"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    assert sentence in profile(*arguments, code=2)


@pytest.mark.gpu
def test_naives_bytes_on_this_gpu_match_the_standard_model_within_5_percent() -> None:
    if ncu.find() is None:
        pytest.skip("needs ncu")
    arguments = ["--case", "N=4096,d=128,dtype=bf16,batch=4,heads=16", "--backend", "naive", "--format", "json"]
    told = json.loads(profile(*arguments))
    (found,) = told["profiles"]
    if found["tool"] != "ncu":
        pytest.skip(found["note"])

    model = next(item for item in told["model"]["algorithms"] if item["algorithm"] == "standard")
    measured = found["total"]["dram_read_bytes"] + found["total"]["dram_written_bytes"]
    assert measured / (model["read_bytes"] + model["written_bytes"]) == pytest.approx(1, abs=0.05)

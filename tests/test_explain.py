"""`fabench explain`: the right values of the theory, on cards that are not here, and the one that is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fabench import gpus, probe
from fabench.case import Case
from fabench.case_text import parse
from fabench.cli import main
from fabench.errors import CaseError, DeviceError
from fabench.explain import Explanation, Traffic, explain
from fabench.roofline import Tile
from fabench.suite import load, shipped
from fabench.tiling import Tiling, plain
from fabench.views.explain import in_cards, in_full, in_lines
from golden_files import assert_golden

H200 = gpus.named("nvidia-h200")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["explain", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def traffic(explanation: Explanation, name: str) -> Traffic:
    return next(item for item in explanation.traffic if item.algorithm.startswith(name))


def test_one_case_looks_like_its_golden_file() -> None:
    case = parse("N=8192,d=128,dtype=bf16,batch=1,heads=32,causal=false")

    assert_golden("explain_case.txt", in_full(explain(case, gpus.named("a100-40gb"))) + "\n")


def test_several_cases_are_a_line_each() -> None:
    cases = [parse(f"N={N},d=64,causal=true,direction={way}") for N in (1024, 2048) for way in ("forward", "backward")]

    assert_golden("explain_lines.txt", in_lines([explain(case, H200) for case in cases]) + "\n")


def test_the_command_prints_one_case_in_full_and_a_suite_by_the_line() -> None:
    one = run("--case", "N=8192,d=128,heads=32", "--gpu", "a100-40gb")
    suite = run("smoke", "--where", "direction=forward")

    assert one.startswith("N=8192 d=128 full bf16 batch=1 heads=32 forward\nNVIDIA A100-SXM4-40GB: 312 TFLOP/s in bf16")
    wanted = [case for case in load("smoke").cases if case.direction == "forward"]
    assert "all: N=256 d=64 batch=1 heads=4 forward" in suite
    assert sum(line.startswith(("full ", "causal ")) for line in suite.splitlines()) == len(wanted)


def test_a_small_problem_is_told_in_small_units() -> None:
    one = run("--case", "Nq=1,Nk=8192,d=128,heads=32")
    suite = run("decode_shaped")
    least = run("--case", "N=1,d=8,heads=1")

    assert "134 MFLOP: 8192 attended pairs a head" in one
    assert re.search(r"ideal +134 MB +0\.00819 MB +1\.00 +memory +4\.80 +28\.0\n", one)
    assert "least us" in one
    assert "32.0 FLOP: 1 attended pair a head" in least
    assert re.search(r"ideal +48.0 B +16.0 B .*\n", least)
    assert "least ns" in least
    assert "e-0" not in one + suite


def test_a_suite_of_two_dtypes_names_the_peak_of_both() -> None:
    assert "67.0 TFLOP/s in fp32 (ridge 13.96 FLOP/B), 989 TFLOP/s in bf16 (ridge 206.0 FLOP/B)" in run("smoke")


def test_a_line_has_the_kernels_tiles_else_the_papers() -> None:
    text = run("smoke")

    assert "tiled v1: cuda-v1's tiles, else the paper's" in text  # fp32 is no case of cuda-v1
    assert "tiled v2: cuda-v2's tiles, else triton's" in text


@pytest.mark.parametrize("width", [40, 70, 100])
def test_everything_fits_a_terminal(width: int) -> None:
    """But for a label, which is never broken."""
    cases = [parse(f"N={N},d=64,causal=true,direction=forward_backward") for N in (1024, 2048)]
    explained = [explain(case, H200) for case in cases]
    text = "\n".join([in_full(explained[0], width), in_lines(explained, width), in_cards([H200], width)])

    assert max(map(len, text.splitlines())) <= max(width, 64)


def test_the_table_of_cards_names_a_source_for_each() -> None:
    assert_golden("explain_gpus.txt", run("--gpu", "list"))
    for slug in gpus.slugs():
        card = gpus.named(slug)
        assert len(card.sources) > 20
        assert set(card.peaks.flops) >= {"bf16", "fp16", "fp32"}
        assert card.peaks.source.startswith(("NVIDIA", "AMD"))
        assert card.peaks.bandwidth
        assert card.sms


@pytest.mark.parametrize("slug", gpus.slugs())
def test_the_ridge_shown_follows_from_the_peak_and_the_bandwidth_shown(slug: str) -> None:
    line = in_full(explain(parse("N=8192,d=128"), gpus.named(slug))).splitlines()[1]

    peak, ridge, bandwidth = map(float, re.findall(r"([0-9.]+) (?:TFLOP/s|FLOP/B|TB/s)", line))
    assert peak / bandwidth == pytest.approx(ridge, rel=5e-4)


def test_an_a100_at_8k_is_bound_by_memory_in_the_standard_algorithm_only() -> None:
    case = parse("N=8192,d=128,dtype=fp16,batch=1,heads=32")
    told = explain(case, gpus.named("a100-40gb"))

    assert told.cost.flops == pytest.approx(1.10e12, rel=2e-3)
    assert told.ridge == pytest.approx(201, abs=0.8)
    assert traffic(told, "ideal").bound == "compute"
    assert traffic(told, "ideal").attainable_flops == 312e12
    standard = traffic(told, "standard")
    assert standard.bound == "memory"
    assert standard.intensity == pytest.approx(63.0, abs=0.05)
    assert standard.attainable_flops == pytest.approx(63.0 * 1.555e12, rel=1e-3)
    assert standard.least_s == pytest.approx(1.10e12 / (63.0 * 1.555e12), rel=2e-3)


def test_the_bytes_of_the_standard_algorithm_are_its_step_table() -> None:
    N, d, heads, e = 8192, 128, 32, 2
    standard = traffic(explain(parse(f"N={N},d={d},heads={heads},dtype=fp16"), H200), "standard")

    assert standard.bytes == (4 * N * N + 4 * N * d) * heads * e
    assert [step.name for step in standard.steps] == ["S = QKᵀ", "softmax", "O = PV"]
    assert standard.read_bytes == (2 * N * N + 3 * N * d) * heads * e


def test_the_tiled_algorithm_reads_k_and_v_once_a_query_tile() -> None:
    N, d = 4096, 64
    case = parse(f"N={N},d={d},heads=1,dtype=bf16")
    told = explain(case, H200, [plain("v2", case, Tile(128, 64, d, d, 2, stages=2), "mine")])

    v2 = traffic(told, "tiled v2")
    assert v2.algorithm == "tiled v2, 128 x 64 (mine)"
    assert v2.read_bytes == (N * d + 2 * N * d * (N // 128)) * 2
    assert v2.written_bytes == N * d * 2 + N * 4
    assert [item.tiling.source for item in told.occupancy] == ["the paper's", "mine"]


def test_the_ideal_reads_and_writes_each_tensor_once() -> None:
    ideal = traffic(explain(parse("N=4096,d=128,heads=16,batch=2,causal=true"), H200), "ideal")

    tensor = 2 * 16 * 4096 * 128 * 2
    assert (ideal.read_bytes, ideal.written_bytes) == (3 * tensor, tensor)


def test_memory_of_s_and_p_is_4_mib_a_head_at_1k() -> None:
    told = explain(parse("N=1024,d=64,heads=1,dtype=fp16"), H200)

    assert told.score_bytes == 4 * 2**20
    assert told.lse_bytes == 1024 * 4
    assert told.extra_bytes["standard"] > told.score_bytes > told.extra_bytes["flash"]


def test_v1_at_16_heads_uses_12_percent_of_the_sms() -> None:
    v1, v2 = explain(parse("N=4096,d=128,batch=1,heads=16"), H200).occupancy

    assert (v1.launch.ctas, v2.launch.ctas) == (16, 16 * 32)
    assert v1.sm_share == pytest.approx(0.12, abs=2e-3)
    assert v2.sm_share == 1
    assert v2.waves == pytest.approx(512 / (132 * 2))


def test_a_tile_that_does_not_fit_says_why() -> None:
    case = parse("N=4096,d=256")
    tiling = plain("v2", case, Tile(256, 256, 256, 256, 2, stages=2, threads=128), "mine")
    told = explain(case, gpus.named("rtx-4090"), [tiling])

    mine = next(item for item in told.occupancy if item.tiling.source == "mine")
    assert mine.infeasible == ("shared memory 655360 B > 101376 B", "accumulators 1024 registers a thread > 255")


def test_the_paper_tiles_fit_the_cards_they_were_made_for() -> None:
    for d in (64, 128):
        for slug in ("a100-40gb", "nvidia-h100-sxm"):
            assert all(not item.infeasible for item in explain(parse(f"N=4096,d={d}"), gpus.named(slug)).occupancy)


def test_json_is_the_same_in_base_units() -> None:
    (told,) = json.loads(run("--case", "N=8192,d=128,heads=32", "--gpu", "nvidia-h200", "--format", "json"))

    assert told["flops"] == 4 * 8192**2 * 128 * 32
    assert told["peak_flops_per_s"] == 989e12
    assert told["bandwidth_bytes_per_s"] == 4.8e12
    assert told["case"] == parse("N=8192,d=128,heads=32").key
    standard = told["algorithms"][1]
    assert standard["read_bytes"] == sum(step["read_bytes"] for step in standard["steps"])
    assert standard["steps"][0]["transfers"][0] == {
        "tensor": "Q", "way": "read", "elements": 32 * 8192 * 128, "element_bytes": 2, "bytes": 32 * 8192 * 128 * 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_suite_can_be_explained(name: str) -> None:
    told: list[dict[str, Any]] = json.loads(run(name, "--format", "json", "--where", "N<=8192"))

    assert told
    assert all(item["algorithms"][0]["least_s"] > 0 for item in told)


def test_this_is_measured() -> None:
    (told,) = json.loads(run("--case", "N=64,d=64,dtype=fp32", "--gpu", "this", "--format", "json"))

    assert told["gpu"]["peaks"]["source"].startswith("measured here")
    assert told["peak_flops_per_s"] > 1e9
    assert told["bandwidth_bytes_per_s"] > 1e8


def test_explaining_imports_no_torch_in_this_process() -> None:
    code = "import sys; from fabench.cli import main; main(['explain','--case','N=64'],standalone_mode=False); "
    code += "sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_tilings_need_neither_torch_nor_triton_nor_a_gpu() -> None:
    """None of them can be imported; the backends answer all the same."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'triton', 'cuda', 'cuda.core'))\n"
        "from fabench import gpus, probe; from fabench.case_text import parse\n"
        "case = parse('N=4096,d=128,direction=forward_backward')\n"
        "found = probe._tilings([case], gpus.named('nvidia-h200').device)[case.id]\n"
        "sys.exit([tiling['source'] for tiling in found] != ['cuda-v1', 'cuda-v2', 'triton'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_command_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('a broken build')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert "cuda-v2" in run("--case", "N=4096,d=128", "--gpu", "nvidia-h200")


def test_tilings_come_from_the_backends_that_take_the_case() -> None:
    """Whoever answers has the loop order and a tile of the case's dims; a case no kernel takes has none."""
    case, odd = parse("N=4096,d=128"), parse("N=4096,d=128,dtype=fp32,softcap=3,window=1:1")
    found = probe.tilings([case, odd], H200.device)

    assert set(found) == {case.id, odd.id}
    tilings = [Tiling.from_json(data) for data in found[case.id]]
    assert [(tiling.source, tiling.loop) for tiling in tilings] == [
        ("cuda-v1", "v1"),
        ("cuda-v2", "v2"),
        ("triton", "v2"),
    ]
    for tiling, data in zip(tilings, found[case.id], strict=True):
        (launch,) = tiling.launches
        assert (launch.tile.d, launch.tile.dv) == (128, 128)
        assert json.loads(json.dumps(tiling.to_json())) == data
    assert [data["source"] for data in found[odd.id]] == ["triton"]


@pytest.mark.parametrize("slug", ["nvidia-h100-sxm", "h100-sxm", "nvidia-h100-80gb-hbm3", "nvidia-a100-sxm4-40gb",
                                  "b200", "l40s", "amd-instinct-mi300x", "nvidia-geforce-rtx-4090"])  # fmt: skip
def test_a_card_answers_to_its_folder_under_results_too(slug: str) -> None:
    assert gpus.named(slug).slug in gpus.slugs()


def test_the_folder_name_of_every_card_is_known() -> None:
    for slug in gpus.slugs():
        assert gpus.named(gpus.named(slug).device.slug).slug == slug


def test_an_unknown_card_gets_the_nearest_name() -> None:
    with pytest.raises(DeviceError, match="unknown GPU 'nvidia-h20'; did you mean 'nvidia-h200'"):
        gpus.named("nvidia-h20")


@pytest.mark.parametrize(
    ("slug", "names"), [("h100", "'nvidia-h100-sxm' or 'nvidia-h100-pcie'"), ("A100", "'a100-40gb' or 'a100-80gb'")]
)
def test_half_a_name_gets_the_cards_that_have_it(slug: str, names: str) -> None:
    with pytest.raises(DeviceError, match=f"unknown GPU '{slug}'; did you mean {names}\\?"):
        gpus.named(slug)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "'explain' must get a suite or --case, one of them"),
        (["smoke", "--case", "N=1"], "'explain' must get a suite or --case, one of them"),
        (["--case", "N=64", "--where", "d=64"], "'--where' narrows a suite; leave it out beside --case"),
        (["smoke", "--where", "N=7"], "no case of suite 'smoke' matches 'N=7'"),
        (["smoek"], "smoek"),
        (["--case", "N=64", "--gpu", "tpu"], "unknown GPU 'tpu'; known: a100-40gb"),
        (["--case", "N=many"], "'N' must be a whole number of up to 12 digits, got 'many'"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    assert sentence in run(*arguments, code=2)


def test_a_case_is_spelt_in_the_words_of_a_suite() -> None:
    text = "Nq=1, Nk=64, d=32, dv=16, batch=2, heads=8, kv_heads=4, dtype=fp16, causal=true, window=7:0, softcap=1.5, "
    text += "scale=0.25, direction=backward, alignment=top_left, layout=bshd, inputs=std3, seed=5"

    assert parse(text) == Case(
        batch=2, heads=8, kv_heads=4, Nq=1, Nk=64, d=32, dv=16, dtype="fp16", causal=True, window=(7, 0), softcap=1.5,
        scale=0.25, direction="backward", alignment="top_left", layout="bshd", inputs="std3", seed=5,
    )  # fmt: skip
    assert parse("N=64") == Case(batch=1, heads=16, Nq=64, Nk=64, d=128)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a case must have N, or Nq and Nk, got no Nq and no Nk in ''"),
        ("Nq=5", "got no Nk in 'Nq=5'"),
        ("N", "a case must be KEY=VALUE parts such as 'N=8192,d=128', got 'N'"),
        ("N=", "a case must be KEY=VALUE parts"),
        ("N=64,headz=3", "unknown key 'headz' in 'headz=3'; did you mean 'heads'?"),
        ("N=64,size=3", "unknown key 'size' in 'size=3'; known: N, Nq, Nk"),
        ("N=64,N=3", "'N' must be given once, got it twice"),
        ("N=64,Nq=3", "'N' must stand alone"),
        ("N=64,causal=yes", "'causal' must be true or false, got 'yes'"),
        ("N=64,window=5", "'window' must be left:right, such as 1024:0, got '5'"),
        ("N=64,scale=big", "'scale' must be a number, got 'big'"),
        ("N=64,dtype=fp64", "'dtype' must be one of fp16, bf16, fp32, got 'fp64'"),
        ("N=64,heads=5,kv_heads=2", "'heads' must be a multiple of 'kv_heads', got 5 and 2"),
    ],
)
def test_a_case_that_cannot_be_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse(text)
    assert sentence in str(caught.value)


def test_a_backend_says_its_tiles_with_one_function() -> None:
    """As docs/backends.md has it; what the probe carries from the child is the same again."""
    case = parse("N=4096,d=64,direction=forward_backward,causal=true")
    tiling = plain("v2", case, Tile(64, 128, 64, 64, 2, stages=3, threads=256), "mine")
    told = explain(case, H200, [tiling])

    assert Tiling.from_json(json.loads(json.dumps(tiling.to_json()))) == tiling
    assert [(item.launch.kernel, item.launch.ctas) for item in told.occupancy if item.tiling is tiling] == [
        ("forward", 16 * 64), ("backward", 16 * 32),
    ]  # fmt: skip
    assert traffic(told, "tiled v2, 64 x 128 (mine)").steps == tiling.steps


@pytest.mark.parametrize(("N", "MiB"), [(1024, 4), (2048, 16), (4096, 64), (8192, 256), (16384, 1024), (32768, 4096)])
def test_s_and_p_of_a_head_in_16_bits(N: int, MiB: int) -> None:
    assert explain(parse(f"N={N},d=128,heads=1,dtype=fp16"), H200).score_bytes == MiB * 2**20


def test_the_table_of_cards_is_json_in_base_units_too() -> None:
    cards = {card["slug"]: card for card in json.loads(run("--gpu", "list", "--format", "json"))}

    assert list(cards) == list(gpus.slugs())
    assert cards["nvidia-h200"]["l2_bytes"] == 62914560  # as the driver says it; the H100 has 50 MiB

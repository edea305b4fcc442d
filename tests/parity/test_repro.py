"""The scripts of failures: standalone, and they fail when run."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from fabench.function_backend import bare
from fabench.parity.repro import inputs_code, script
from fabench.parity.subject import Subject
from fabench.parity.trial import ProbeName, Trial
from mutants.gallery import mutants
from mutants.variants import VARIANTS
from proof import CPU, FULL, KILLS

GALLERY = Path(__file__).resolve().parents[1] / "mutants" / "gallery.py"
PLAIN_LEAK = """
import torch

def NextKeyLeaked(q, k, v, causal=False):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1 + k.shape[2] - q.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask if causal else None)
"""
NO_TILES_NO_GRADIENT = """
def attention(q, k, v):
    weighted = total = 0 * q
    for j in range(k.shape[2]):
        weight = (q * k[:, :, j : j + 1] / q.shape[-1] ** 0.5).sum(-1, keepdim=True).exp()
        weighted, total = weighted + weight * v[:, :, j : j + 1], total + weight
    return weighted / total if k.shape[2] else weighted
"""
SMALL = dataclasses.replace(FULL, batch=1, heads=2, kv_heads=1, Nq=33, Nk=33, d=16, dv=16)


def text_of(mutant: str, probe: ProbeName, trial: Trial) -> str:
    subject = Subject(bare(mutants()[mutant], mutant), CPU)
    target = {"file": str(GALLERY), "function": mutant}
    text = script(subject, trial, probe, target, f"{mutant} is wrong")
    assert text is not None
    return text


def run(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a child that has torch already: importing it would take longer than all else."""
    path, out, err = tmp_path / "repro.py", tmp_path / "out.txt", tmp_path / "err.txt"
    path.write_text(text)
    sys.stdout.flush()
    sys.stderr.flush()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            sys.stdout, sys.stderr = out.open("w"), err.open("w")
            runpy.run_path(str(path), run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return subprocess.CompletedProcess(str(path), os.waitstatus_to_exitcode(status), out.read_text(), err.read_text())


@pytest.mark.parametrize(
    ("mutant", "probe", "changes", "order"),
    [
        ("NextKeyLeaked", "mask", {"causal": True}, {}),
        ("DkWithoutScale", "rho", {"dtype": "fp32", "window": (9, 4)}, {}),
        ("LseBase2", "count", {"softcap": 5.0}, {}),
        ("MaximumFromZero", "neglse", {"inputs": "neglse"}, {}),
        ("StridesIgnored", "rho", {"layout": "bshd", "kv_heads": 2}, {}),
        ("LastKeyDropped", "rho", {"inputs": "sink"}, {"order": "offset8"}),
        ("GradientStridesIgnored", "rho", {}, {"gradient_order": "transposed"}),
        ("FirstTileClamped", "rho", {"inputs": "neglse", "causal": True}, {"order": "odd_strides"}),
        ("ValuesWithStridesOfK", "rho", {"heads": 4, "kv_heads": 2}, {"order": "mixed"}),
        ("GradientBatchDense", "rho", {"batch": 2}, {"gradient_order": "sliced"}),
        ("GradientsDoubledWithLse", "rho", {}, {}),
    ],
)
def test_a_wrong_value_is_shown_by_a_script_with_a_seed(
    mutant: str, probe: ProbeName, changes: dict[str, object], order: dict[str, object], tmp_path: Path
) -> None:
    trial = Trial(dataclasses.replace(SMALL, **changes), (probe,), **order)  # type: ignore[arg-type]
    text = text_of(mutant, probe, trial)
    assert "fabench" not in text.split('"""', 2)[2]
    done = run(text, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: the kernel is wrong here" in done.stderr
    assert "expected" in done.stdout
    assert "got" in done.stdout


def test_a_script_runs_as_a_program_without_fabench(tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    path.write_text(text_of("NextKeyLeaked", "mask", Trial(dataclasses.replace(SMALL, causal=True), ("mask",))))
    (tmp_path / "fabench.py").write_text("raise ImportError('fabench is not installed')")
    (tmp_path / "gallery.py").write_text(PLAIN_LEAK)
    path.write_text(path.read_text().replace(str(GALLERY), str(tmp_path / "gallery.py")))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: the kernel is wrong here" in done.stderr


def test_inputs_without_a_short_code_are_written_into_the_script(tmp_path: Path) -> None:
    trial = Trial(dataclasses.replace(SMALL, inputs="near_overflow", direction="forward"), ("rho",))
    text = text_of("NoScale", "rho", trial)
    assert "zlib.decompress" in text
    assert run(text, tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("mutant", "probe", "words"),
    [
        ("InputOverwritten", "mutate", "changed its input"),
        ("CachedFirstResult", "stale", "remembers an earlier call"),
        ("KeysCachedByAddress", "stale", "remembers an earlier call"),
        ("SameMemory", "stale", "overwrites an earlier answer"),
        ("WritesLate", "stale", "the answer changes after the call|remembers an earlier call"),  # as its thread gets on
        ("Racy", "repeat", "different answers"),
        ("Empty", "poison", "never written"),
        ("TailRead", "guard", "outside its inputs"),
        ("NanLaundered", "nan", "a NaN in q, k, v is lost or spreads"),
        ("takes_any_heads", "refusal", "must be refused"),
        ("returns_other_shape", "type", "wrong form"),
    ],
)
def test_misbehaviour_has_scripts_of_its_own(mutant: str, probe: ProbeName, words: str, tmp_path: Path) -> None:
    trial = Trial(dataclasses.replace(SMALL, kv_heads=2, direction="forward"), (probe,))
    done = run(text_of(mutant, probe, trial), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(words, done.stderr), done.stderr


def test_the_script_has_inputs_that_the_kernel_does_change(tmp_path: Path) -> None:
    tiny = dataclasses.replace(SMALL, heads=1, Nq=1, Nk=1, d=8, dv=8, dtype="fp32", direction="forward")
    done = run(text_of("ScaledInPlaceAndBack", "mutate", Trial(tiny, ("mutate",))), tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the call changed its input q" in done.stderr


def test_a_backward_pass_of_the_wrong_forward_is_shown(tmp_path: Path) -> None:
    done = run(text_of("LastForwardRemembered", "stale", Trial(SMALL, ("stale",))), tmp_path)
    assert done.returncode == 1
    assert "another call between forward and backward changes d" in done.stderr


@pytest.mark.parametrize(
    ("probe", "changes"),
    [
        *((probe, {}) for probe in ("mutate", "stale", "repeat", "poison", "guard", "nan", "refusal", "type")),
        ("nan", {"causal": True, "Nk": 20}),
        ("nan", {"window": (3, 0), "heads": 4}),
        ("type", {"Nk": 0}),
        ("type", {"Nq": 0}),
    ],
)
def test_the_script_of_a_right_kernel_ends_well(probe: ProbeName, changes: dict[str, object], tmp_path: Path) -> None:
    subject = Subject(bare(VARIANTS["Right"], "Right"), CPU)
    trial = Trial(dataclasses.replace(SMALL, **changes), (probe,))  # type: ignore[arg-type]
    text = script(subject, trial, probe, {"file": str(GALLERY), "function": "Right"}, None)
    assert text is not None
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_right_kernel_has_no_script() -> None:
    kill = next(k for k in KILLS if k.mutant == "LsePlusInf")
    subject = Subject(bare(mutants()["LsePlusInf"], "LsePlusInf"), CPU)
    target = {"file": str(GALLERY), "function": "LsePlusInf"}
    assert script(subject, Trial(SMALL, (kill.probe,)), kill.probe, target, None) is None


def test_a_gradient_that_is_missing_without_keys_is_shown(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(NO_TILES_NO_GRADIENT)
    trial = Trial(dataclasses.replace(SMALL, kv_heads=2, Nk=0), ("type",))
    target = {"file": str(tmp_path / "loop.py"), "function": "attention"}
    loop = runpy.run_path(target["file"])["attention"]
    text = script(Subject(bare(loop, "attention"), CPU), trial, "type", target, None)
    assert text is not None
    done = run(text, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the output does not depend on k" in done.stderr


@pytest.mark.parametrize(
    "trial",
    [Trial(SMALL, ("rho",), order=order) for order in ("sliced", "offset1", "offset8", "mixed")]
    + [Trial(SMALL, ("rho",), gradient_order="sliced")],
    ids=lambda t: f"{t.order}-{t.gradient_order}",
)
def test_what_lies_around_an_input_is_nan_in_the_script_too(trial: Trial) -> None:
    given = {name: torch.randn(2, 2, 5, 8) for name in ("q", "k", "v", "dO")}
    names: dict[str, Any] = {"torch": torch, "math": math, "dtype": torch.float32, "device": "cpu", **given}
    exec(inputs_code.arrange(trial), names)
    arranged: dict[str, torch.Tensor] = {name: names[name] for name in given}
    assert all(torch.equal(arranged[name], x) for name, x in given.items())
    moved = [x for x in arranged.values() if x.untyped_storage().nbytes() > 4 * x.numel()]
    assert moved
    for x in moved:
        whole = torch.as_strided(x, (x.untyped_storage().nbytes() // 4,), (1,), 0)
        assert int(whole.isnan().sum()) == len(whole) - x.numel()

"""The harness's own proof: every mutant is killed by its probe and named, no right kernel is blamed."""

from __future__ import annotations

import dataclasses
import json
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fabench import inputs, reference, registry
from fabench.case import Case
from fabench.function_backend import bare
from fabench.parity.examiner import Examiner
from fabench.parity.rule import judge
from fabench.parity.shrink import shrink
from fabench.parity.subject import Subject
from fabench.parity.trial import PROBES, ProbeName, Trial
from mutants.gallery import mutants
from mutants.variants import VARIANTS
from proof import CPU, FULL, IN_PROCESSES_OF_THEIR_OWN, KILLS, Kill, called, command, examine

GALLERY = Path(__file__).resolve().parents[1] / "mutants" / "gallery.py"
SEEDS = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_table_holds_every_mutant() -> None:
    assert {k.mutant for k in KILLS} | set(IN_PROCESSES_OF_THEIR_OWN) == set(mutants())


@pytest.mark.parametrize("kill", KILLS, ids=lambda k: k.mutant)
def test_a_mutant_is_killed_by_its_probe_and_called_by_its_name(kill: Kill) -> None:
    results = examine(mutants()[kill.mutant], kill.mutant, kill.trial)
    assert any(r.probe == kill.probe and r.bad for r in results), [(r.probe, r.ending, r.message) for r in results]
    assert kill.words in called(results)


@pytest.mark.parametrize("probe", ["poison", "guard"])
def test_a_kernel_whose_calls_differ_is_not_blamed_for_memory(probe: ProbeName) -> None:
    results = examine(mutants()["Racy"], "Racy", Trial(FULL, (probe,)))
    assert [r.ending for r in results] == ["failed"]
    assert "equal calls give different answers" in called(results)


@pytest.mark.parametrize(
    "name", ["NextKeyLeaked", "PadKeysCounted", "HeadMapTiled", "DkWithoutScale", "LseBase2", "CachedFirstResult"]
)
def test_a_failure_shrinks_to_a_small_case(name: str) -> None:
    kill = next(k for k in KILLS if k.mutant == name)
    examiner = Examiner(Subject(bare(mutants()[name], name), CPU))

    def fails(trial: Trial) -> bool:
        return any(r.probe == kill.probe and r.bad for r in examiner.run(trial))

    smallest = shrink(kill.trial, kill.probe, fails, seconds=60)
    assert fails(smallest)
    assert max(smallest.case.Nq, smallest.case.Nk) <= 64
    assert smallest.case.batch == 1


BASE = Case(1, 4, 65, 65, 64, kv_heads=2, direction="backward")
RIGHT_CASES: tuple[Case, ...] = (
    dataclasses.replace(BASE, dtype="bf16", causal=True),
    dataclasses.replace(BASE, dtype="fp16", inputs="std6"),
    dataclasses.replace(BASE, dtype="fp32", inputs="outliers", causal=True),
    dataclasses.replace(BASE, dtype="bf16", inputs="std6", causal=True, d=32, dv=32),
    dataclasses.replace(BASE, dtype="fp16", Nk=97, causal=True, inputs="neglse"),
    dataclasses.replace(BASE, dtype="bf16", Nq=97, Nk=33, inputs="repeated_k"),
    dataclasses.replace(BASE, dtype="fp16", layout="bshd", inputs="sink"),
    dataclasses.replace(BASE, dtype="fp32", inputs="constant_v", heads=2, kv_heads=2),
    dataclasses.replace(BASE, dtype="fp16", inputs="near_overflow", softcap=30.0, causal=True, d=128, dv=128),
    dataclasses.replace(BASE, dtype="fp16", inputs="neglse", softcap=30.0),
    dataclasses.replace(BASE, dtype="bf16", inputs="constant_v", scale=0.0, Nq=15, Nk=15),
)


@cache
def right_kernels() -> dict[str, Subject]:
    """Variants of the tests' own kernel, and the shipped backends that run on a CPU."""
    found = {name: bare(kernel, name) for name, kernel in VARIANTS.items()}
    shipped = registry.shipped()
    backends = {**found, **{n: shipped[n] for n in ("naive", "online", "sdpa-math", "sdpa-flash")}}
    return {name: Subject(backend, CPU) for name, backend in backends.items()}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_right_kernel_fails_the_rule(seed: int) -> None:
    """Tile sizes, reversed order, split-KV, sums of rounded P, exp2, deferred rescale, two passes, torch's own SDPA."""
    for base in RIGHT_CASES:
        case = dataclasses.replace(base, seed=seed)
        tensors = inputs.make(case, "cpu")
        expected = reference.compute(case, tensors)
        for name, subject in right_kernels().items():
            if subject.reasons(case) or (name == "SquareOnly" and case.Nq != case.Nk):
                continue
            outputs = subject.call(case, inputs.rotate(tensors, 0), backward=True)
            if subject.facts.returns_lse:
                outputs |= {"LSE": subject.call(case, inputs.rotate(tensors, 0), lse=True)["LSE"]}
            found = judge(case, expected, outputs, subject.facts.accuracy_for(case.dtype))
            assert found.passed, f"{name} on {case.label()}: {found.message}"


@pytest.mark.parametrize(("reach", "bad"), [(1, False), (2, True)])
def test_a_nan_that_torchs_own_product_lets_through_is_not_the_kernels(
    monkeypatch: pytest.MonkeyPatch, reach: int, bad: bool
) -> None:
    """As on a CPU with AMX, where a product of 16-bit numbers takes one element of the next row times zero."""
    from fabench.parity.probes import nan

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        b, h, i = (int(x) for x in torch.isnan(q).any(-1).nonzero()[0]) if bool(torch.isnan(q).any()) else (0, 0, 0)
        if i:
            o[b, h, i - reach : i] = torch.nan
        return o

    def leaks(bench: Any, b: int, h: int, i: int) -> torch.Tensor:
        found = torch.zeros(bench.case.batch, bench.case.heads, bench.case.Nq, bench.case.dv, dtype=torch.bool)
        found[b, h, i - 1 : i + 1] = True
        return found

    monkeypatch.setattr(nan, "_product_of_nan_row", leaks)
    (result,) = Examiner(Subject(bare(attention, "attention"), CPU)).run(
        Trial(Case(1, 1, 16, 16, 16, dtype="fp32"), ("nan",))
    )
    assert result.bad is bad
    assert ("own fp32 matrix product" in result.message) is not bad


@pytest.mark.parametrize("name", [*VARIANTS, "naive", "online", "sdpa-math", "sdpa-flash"])
def test_no_right_kernel_fails_a_probe(name: str) -> None:
    subject = right_kernels()[name]
    small = Case(2, 2, 65, 65, 32, direction="backward")
    for case in (
        small,
        dataclasses.replace(small, Nq=97, Nk=97, causal=True, inputs="neglse"),
        dataclasses.replace(small, dtype="fp32", inputs="neglse"),
        dataclasses.replace(small, dtype="fp16", scale=-0.1, inputs="subnormal"),
        dataclasses.replace(small, dtype="fp16", scale=1.0, inputs="sparse_ints"),
    ):
        for result in Examiner(subject).run(Trial(case, PROBES)):
            assert not result.bad, f"{result.probe} on {result.trial.label()}: {result.message}"


def test_what_ends_the_command_ends_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabench.parity.runner.kernels", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match="Interrupted by SIGTERM"):
        command("parity", "sdpa-math")


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS, ids=lambda k: k.mutant)
def test_the_command_finds_every_mutant(kill: Kill, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["parity", f"{GALLERY}:{kill.mutant}", "--device", "cpu", "--json", str(out), "--repro", str(tmp_path)]
    done = command(*arguments)
    assert done.exit_code == 1, done.output
    report = json.loads(out.read_text())[0]
    assert any(r["probe"] == kill.probe and r["ending"] in ("failed", "crashed") for r in report["results"])
    first = report["findings"][0]
    if kill.shrinks and first["smallest"] is not None:
        assert max(first["smallest"]["key"]["Nq"], first["smallest"]["key"]["Nk"]) <= kill.smallest


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_command_passes_every_variant(name: str) -> None:
    done = command("parity", f"{GALLERY}:{name}", "--device", "cpu")
    assert done.exit_code == 0, done.output

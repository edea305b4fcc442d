"""The GPU proofs' bookkeeping and their figures in docs/diff.md, which need no GPU."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "diff.md"
RESULTS = ROOT / "results" / "nvidia-h200"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    """tests/gpu and tests/planted as a script there sees them."""
    sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "tests" / "planted")]
    yield
    del sys.path[:2]


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def line(kind="A/A", truth=0.0, verdicts=("SAME",), d=0.001, **fields):
    rows = [{"verdict": verdict, "case": "c", "d": d} for verdict in verdicts]
    base = {"device": "NVIDIA X", "driver": "580", "torch": "2.11", "session": "s", "seconds": 300.0, "run_rows": 9}
    return {"kind": kind, "truth": truth, "rounds": 10, "exit": 0, "rows": rows, **base, **fields}


# Pairs.


def test_every_planted_truth_has_a_length_and_a_name():
    proof = load("diff_proof")
    gpu, cpu = proof.lengths(cpu=False), proof.lengths(cpu=True)
    assert {(x.kind, round(x.truth, 4)) for x in gpu} == {
        ("A/A", 0.0), ("+2%", 0.02), ("+3%", 0.03), ("+5%", 0.05), ("-5%", -0.0476),
    }  # fmt: skip
    assert sum(x.kind == "A/A" for x in gpu) >= 3
    assert {x.kind for x in cpu} >= {"A/A", "+20%"}
    assert all(x.N >= 1000 for x in gpu)


def test_kinds_that_are_behind_come_first_and_no_length_twice():
    proof = load("diff_proof")
    first = [x.kind for x in proof.chosen([], 6, cpu=False)]
    assert first == ["A/A", "+2%", "+3%", "+5%", "-5%", "A/A"]
    seen = [line(kind) for kind in ("A/A", "+2%", "+3%", "+5%", "-5%")]
    assert [x.kind for x in proof.chosen(seen, 2, cpu=False)] == ["A/A", "A/A"]
    everything = proof.chosen([], 100, cpu=False)
    assert len({x.N for x in everything}) == len(everything) == len(proof.lengths(cpu=False))


def test_a_run_has_room_for_what_earlier_runs_took():
    proof = load("diff_proof")
    guess = proof.room([], 400.0, 10)
    assert guess == int((400 / 20 - proof.START_S) / (proof.ROW_S * proof.ROWS))
    slow = line(seconds=20 * (proof.START_S + 9 * 2 * proof.ROW_S))
    assert proof.room([slow], 400.0, 10) <= guess / 2 + 1
    assert proof.room([], 100.0, 10) < 1


def test_the_suite_it_writes_has_three_rows_a_length(tmp_path):
    from fabench import suite

    proof = load("diff_proof")
    for values, N in ((proof.GPU, (4096, 4224)), (proof.CPU, (256, 320))):
        path = tmp_path / "s.yaml"
        path.write_text(proof.SUITE.format(**values, lengths=", ".join(map(str, N))))
        made = suite.load(str(path))
        kept = [c for c in made.cases if not any(x.matches(c, "candidate") for x in made.exclude)]
        assert len(kept) == proof.ROWS * len(N)


def test_the_planted_sides_compute_what_the_kernel_does():
    import torch

    slowed = load("slowed")
    q, k, v = torch.randn(3, 1, 2, 320, 32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(slowed.a(q, k, v, causal=True), expected)
    assert torch.equal(slowed.b(q, k, v, causal=True), expected)


def test_the_table_gives_the_bound_that_was_reached_and_what_was_false():
    seen = load("diff_seen")
    lines = [line()] * 20 + [
        line("+5%", 0.05, ("REGRESSED", "REGRESSED"), math.log(1.052), exit=1),
        line("-5%", 1 / 1.05 - 1, ("IMPROVED", "REGRESSED"), math.log(1 / 1.05), exit=1),
    ]
    text = seen.pairs_table(lines)
    assert "| A/A | 20 | 20 SAME | 0.10 % | 0.10 % | 0 (at most 14%) | 0: 20 |" in text
    assert "| +5% | 1 | 2 REGRESSED | 0.19 % | 0.19 % | 0 (at most 95%) | 1: 1 |" in text
    assert "| -5% | 1 | 1 IMPROVED, 1 REGRESSED | 0.00 % | 0.00 % | 1 (at most 100%) | 1: 1 |" in text


def test_a_false_verdict_in_an_unchanged_diff_is_counted():
    seen = load("diff_seen")
    assert "1 (at most 100%)" in seen.pairs_table([line(verdicts=("SAME", "REGRESSED"))])
    assert "1 (at most 100%)" in seen.pairs_table([line(verdicts=("IMPROVED",))])


def test_a_diff_with_a_row_that_failed_is_no_proof_of_any_truth():
    seen = load("diff_seen")
    for truth in (0.0, 0.05, -0.05):
        assert "1 (at most 100%)" in seen.pairs_table([line("x", truth, ("SAME", "BROKEN"), exit=1)])


# Timers.


class FakeState:
    """The part of cuda.bench.State that is used, after its published stub; samples are what the timer saw."""

    def __init__(self, samples: int) -> None:
        self.samples, self.times, self.asked = samples, [], {}

    def get_stream(self):
        return SimpleNamespace(addressof=lambda: 0)

    def __getattr__(self, name):
        assert name in ("set_min_samples", "set_timeout", "set_blocking_kernel_timeout"), name
        return lambda value: self.asked.update({name: value})

    def exec(self, fn, /, *, batched=None, sync=False, timer=False):
        import time

        assert timer
        clock = {}
        stub = SimpleNamespace(
            start=lambda: clock.update(start=time.perf_counter()), stop=lambda: clock.update(stop=time.perf_counter())
        )
        for _ in range(self.samples):
            fn(SimpleNamespace(), stub)
            self.times.append(clock["stop"] - clock["start"])


@pytest.fixture
def fake_bench(monkeypatch):
    """A module that runs benchmarks as cuda.bench does, and gives their samples back as its results module does."""
    registered: list[tuple[object, dict]] = []
    results: dict[str, list] = {}

    class Benchmark(SimpleNamespace):
        def __getattr__(self, name):
            assert name in (
                "set_name", "set_stopping_criterion", "set_criterion_param_int64", "set_cold_warmup_runs",
            ), name  # fmt: skip

            def setter(*values):
                self.facts[name] = values
                return self

            return setter

    def register(fn):
        made = Benchmark(facts={})
        registered.append((fn, made.facts))
        return made

    def run_all_benchmarks(argv):
        assert argv[1:3] == ["--devices", "0"]
        for fn, facts in registered:
            assert facts["set_stopping_criterion"] == ("sample-count",)
            state = FakeState(facts["set_criterion_param_int64"][1])
            fn(state)
            reason = None if state.times else "nothing ran"
            results[facts["set_name"][0]] = [SimpleNamespace(is_skipped=False, skip_reason=reason, samples=state.times)]
        Path(argv[argv.index("--jsonbin") + 1]).write_text("{}")

    bench = ModuleType("cuda.bench")
    bench.register, bench.run_all_benchmarks = register, run_all_benchmarks
    bench_results = ModuleType("cuda.bench.results")
    bench_results.BenchmarkResult = SimpleNamespace(from_json=lambda path: results)
    cuda = ModuleType("cuda")
    cuda.bench = bench
    for name, module in {"cuda": cuda, "cuda.bench": bench, "cuda.bench.results": bench_results}.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_cuda_bench_is_driven_as_its_stub_says_and_gives_the_median_of_its_samples(tmp_path, fake_bench):
    check = load("cross_check")
    row = SimpleNamespace(name="r")
    slept = []
    proof = SimpleNamespace(
        dry=True,
        device=SimpleNamespace(index=None),
        engine=SimpleNamespace(sleep=slept.append, synchronize=lambda: None),
        launcher=lambda row: (lambda i: sum(range(20_000 * (1 + i))), 2),
    )
    found = check.benched(proof, [(row, 1e6)], tmp_path)
    assert slept == pytest.approx([check.REST * 1e-3] * check.SAMPLES)
    assert found["r"] > 1e4  # ns: a sum over 20,000 numbers takes longer


def checked(burst, profiler, bench=None, rows=10):
    entry = {"row": "r", "burst_ns": burst, "profiler_ns": profiler, "cuda_bench_ns": bench}
    version = None if bench is None else "0.3.0"
    return {"device": "NVIDIA X", "torch": "2.11", "cuda_bench": version, "rows": [entry] * rows}


@pytest.mark.parametrize(
    ("run", "code", "says"),
    [
        (checked(1.01e6, 1e6, 1.02e6), 0, "agrees within 2%: torch.profiler: 10 rows, at most 1.00%, cuda-bench: 10"),
        (checked(1.03e6, 1e6), 1, "differs by more than 2%: torch.profiler: 10 rows, at most 3.00%"),
        (checked(1e6, 1e6, 1.05e6), 1, "cuda-bench: 10 rows, at most 4.76%"),
        (checked(1e6, 1e6, rows=9), 3, "too few rows were compared"),
        (checked(1e6, None), 3, "no row"),
    ],
)
def test_the_timers_must_agree_on_ten_rows(run, code, says):
    got, why = load("cross_check").verdict(run)
    assert got == code
    assert says in why


def test_without_cuda_bench_that_is_one_sentence():
    check = load("cross_check")
    assert not check.installed()
    assert check.ABSENT.startswith("cuda-bench is not installed (pip install")


def test_the_table_of_timers_gives_the_largest_difference_over_all_runs(tmp_path):
    runs = [checked(1.015e6, 1e6, 1e6), checked(1.01e6, 1e6, 1e6)]
    (tmp_path / "cross-check.json").write_text(json.dumps({"runs": runs}))
    text = load("diff_seen").timers(tmp_path)
    assert "torch.profiler 1.50 % in 2 runs, cuda-bench 1.50 % in 2 runs" in text
    assert "| r | 1.0100 | 1.0000 | 1.0000 | 1.0100 | 1.0100 |" in text


# The guide.


def test_the_guide_shows_what_the_committed_files_hold():
    assert load("diff_seen").fill(GUIDE.read_text(), RESULTS) == GUIDE.read_text()


def test_every_figure_has_its_block_in_the_guide_and_every_block_its_figure():
    seen = load("diff_seen")
    assert sorted(name for _, name, _ in seen.BLOCK.findall(GUIDE.read_text())) == sorted(seen.FIGURES)


def test_what_was_not_measured_is_not_claimed(tmp_path):
    seen = load("diff_seen")
    assert {figure(tmp_path) for figure in seen.FIGURES.values()} == {seen.NOTHING}


def test_pairs_are_told_with_their_sessions(tmp_path):
    lines = [line(session=str(n)) for n in range(3)]
    (tmp_path / "diff-proof.json").write_text(json.dumps({"diffs": lines}))
    assert load("diff_seen").pairs(tmp_path).startswith("NVIDIA X, 3 sessions, torch 2.11, driver 580:\n\n| truth |")


def test_seven_diffs_of_each_kind_come_of_equal_runs():
    """Run after run the kinds stay in proportion."""
    proof, known = load("diff_proof"), []
    for _ in itertools.repeat(None, 7):
        known += [line(x.kind) for x in proof.chosen(known, 7, cpu=False)]
    counts = {kind: sum(x["kind"] == kind for x in known) for kind in ("A/A", "+2%", "+3%", "+5%", "-5%")}
    assert counts["A/A"] == 21
    assert {counts[kind] for kind in counts if kind != "A/A"} == {7}

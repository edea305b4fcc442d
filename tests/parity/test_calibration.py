"""Calibration: the grid, the file, the table, and the warning when a backend has drifted."""

from __future__ import annotations

import dataclasses
import io
import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Ended
from rich.console import Console

from fabench.case import Case
from fabench.cli import main
from fabench.errors import UsageError
from fabench.parity import calibration, calibrator, progress
from fabench.parity.calibrate_grid import DISTRIBUTIONS, LENGTHS, comparable, grid
from fabench.parity.calibration_file import earlier, entries, left_out, left_out_lines
from fabench.parity.calibrator import Calibrator, Reading, Watcher
from fabench.parity.session import Left
from fabench.parity.trial import Result, Trial
from fabench.parity.verdict import Accuracy, Verdict
from fabench.progress import live_bar
from proof import CPU


def reading(backend: str, rho: float, N: int = 64, dtype: str = "bf16") -> Reading:
    numbers = {"max_rho": rho, "rms_rho": rho / 3, "max_el": 5.0}
    parity = {"class": "A", "O": numbers, "dQ": None, "dK": None, "dV": None}
    return Reading(backend, Case(1, 1, N, N, 64, dtype=dtype, seed=int(10 * rho)), parity, True)


def test_entries_hold_the_worst_of_each_backend_dtype_and_length() -> None:
    found = entries([reading("a", 0.4), reading("a", 0.9), reading("a", 0.5, N=128), reading("b", 0.1)])
    assert [(e["backend"], e["N"], e["max_rho"], e["cases"]) for e in found] == [
        ("a", 64, 0.9, 2),
        ("a", 128, 0.5, 1),
        ("b", 64, 0.1, 1),
    ]
    assert found[0]["direction"] == "forward"


def values(case: Case) -> tuple[object, ...]:
    return case.dtype, case.Nq, case.d, case.causal, case.inputs, case.seed, case.kv_heads


def pairs(cases: list[Case]) -> set[object]:
    numbered = [list(enumerate(values(case))) for case in cases]
    return {pair for axes in numbered for pair in combinations(axes, 2)}


def test_whatever_a_budget_leaves_of_the_grid_is_a_fair_sample() -> None:
    """Its first 16 cases have every value of every axis, its first 52 every two values together."""
    cases = list(grid("cuda", 2))

    assert len(cases) == len(set(cases)) == 384
    assert [len(set(axis)) for axis in zip(*map(values, cases[:16]), strict=True)] == [3, 4, 2, 2, 4, 2, 2]
    assert pairs(cases[:52]) == pairs(cases)
    assert cases == list(grid("cuda", 2))


@pytest.mark.parametrize(("seeds", "lengths"), [(1, (32,)), (1, ()), (3, (32, 64)), (2, (1, 2, 3, 4, 5))])
def test_the_order_of_the_grid_leaves_no_case_out(seeds: int, lengths: tuple[int, ...]) -> None:
    cases = list(grid("cpu", seeds, lengths))

    expected = product(("bf16", "fp16", "fp32"), lengths or LENGTHS["cpu"], (64, 128), (False, True), DISTRIBUTIONS,
                       range(seeds))  # fmt: skip
    assert sorted(values(case)[:6] for case in cases) == sorted(expected)


def test_a_backend_that_is_less_exact_than_calibrated_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "cpu" / calibration.NAME
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": calibration.SCHEMA, "entries": entries([reading("a", 0.6)])}))
    calm, drifted = (Accuracy("O", "bf16", "A", max_rho=r) for r in (1.3, 1.5))
    assert calibration.drift("a", CPU, [calm]) == []
    (sentence,) = calibration.drift("a", CPU, [drifted])
    assert "max rho of O in bf16 is 1.50, calibrated at 0.60" in sentence
    assert calibration.drift("b", CPU, [drifted]) == []


@pytest.mark.parametrize(
    ("other", "is_comparable"),
    [
        ({}, True),
        ({"case": {"inputs": "std6", "d": 40, "Nk": 17}}, True),
        ({"gradient_order": "sliced", "order": "sliced"}, True),
        ({"case": {"inputs": "one_hot"}}, False),
        ({"case": {"scale": 0.3}}, False),
        ({"case": {"window": (7, 0)}}, False),
        ({"case": {"softcap": 30.0}}, False),
        ({"gradient_order": "expanded"}, False),
        ({"order": "expanded_kv"}, False),
    ],
)
def test_only_what_a_calibration_has_is_held_against_it(other: dict[str, Any], is_comparable: bool) -> None:
    case = dataclasses.replace(Case(1, 1, 33, 33, 64, direction="backward"), **other.pop("case", {}))
    assert comparable(Trial(case, ("rho",), **other)) is is_comparable


def test_accuracy_is_of_the_trials_asked_for() -> None:
    cases = {name: Case(1, 1, 33, 33, 64, inputs=name) for name in ("normal", "one_hot")}
    rho = {"normal": 0.5, "one_hot": 2.5}
    results = [
        Result("rho", Trial(case, ("rho",)), "passed", parity={"class": "A", "O": {"max_rho": rho[name]}})
        for name, case in cases.items()
    ]
    verdict = Verdict("mine", "cpu", "quick", results, Left(), 1.0, 0.0)
    assert [row.max_rho for row in verdict.accuracy()] == [2.5]
    assert [row.max_rho for row in verdict.accuracy(comparable)] == [0.5]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """One calibration of one backend, into a file that knew another: how the command ended, and the file."""
    out = tmp_path_factory.mktemp("made") / "calibration.json"
    out.write_text(json.dumps({"schema": calibration.SCHEMA, "entries": entries([reading("other", 0.6)])}))
    arguments = ["calibrate", "--device", "cpu", "--backend", "sdpa-math", "--lengths", "32", "--seeds", "1"]
    return CliRunner().invoke(main, [*arguments, "--out", str(out)]), out


def test_the_command_writes_a_file_and_keeps_what_it_did_not_measure(made: tuple[Ended, Path]) -> None:
    done, out = made
    assert done.exit_code == 0, done.output
    data = json.loads(out.read_text())
    assert {e["backend"] for e in data["entries"]} == {"other", "sdpa-math"}
    assert data["failures"] == []
    assert all(e["max_rho"] < 2 for e in data["entries"])
    assert "sdpa-math" in done.output


def test_a_file_that_was_kept_is_printed_and_any_other_refused(made: tuple[Ended, Path], tmp_path: Path) -> None:
    done, kept = made
    printed = CliRunner().invoke(main, ["calibrate", str(kept)])
    assert printed.exit_code == 0, printed.output
    assert set(done.stdout.strip().splitlines()) <= set(printed.stdout.splitlines())
    assert "largest of dK: 0." in printed.stdout
    out = tmp_path / "calibration.json"
    for text in ("{}", "[]", "x", json.dumps({"schema": calibration.SCHEMA, "entries": [{"tensor": "O"}]})):
        out.write_text(text)
        refused = CliRunner().invoke(main, ["calibrate", str(out)])
        assert refused.exit_code == 2
        assert "must be a calibration" in refused.output


class Fake(Calibrator):
    """Answers each case at once, and takes a second for it; 'fragile' ends the worker in its third."""

    clock = 0.0

    def _measure(self, case: Case, able: list[str]) -> None:
        type(self).clock += 1
        for backend in able:
            self.watcher.working(backend, case)
            if backend == "fragile" and self.cases.index(case) == 2:
                self.lost[backend] = f"killed by signal 11 on {case.label()}"
            else:
                made = reading(backend, 0.5)
                self.readings.append(Reading(backend, case, made.parity, True))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    Fake.clock = 0.0
    monkeypatch.setattr(calibrator.time, "monotonic", lambda: Fake.clock)
    return Fake(Any, ["steady", "fragile"])  # type: ignore[arg-type]


def test_what_was_left_out_is_counted_with_the_reason_and_what_was_never_measured(fake: Fake) -> None:
    fake.run(list(grid("cuda", 2)), budget_s=3.5)

    steady, fragile = left_out(fake)
    assert (steady["backends"], steady["cases"], steady["of"]) == (["steady"], 380, 384)
    assert steady["why"] == "the budget of 3.5 s is used up"
    assert (fragile["backends"], fragile["cases"]) == (["fragile"], 382)
    assert fragile["why"].startswith("killed by signal 11 on N=")
    tried = {case.dtype for case in fake.cases[:4]}
    assert [word for word in steady["never"] if word[:2] in ("bf", "fp")] == [
        dtype for dtype in ("fp32", "bf16", "fp16") if dtype not in tried
    ]
    sentence = left_out_lines([steady], ["steady"])[0]
    assert sentence.startswith("left out: 380 of 384 cases of every backend: the budget of 3.5 s is used up; never")


def test_a_whole_calibration_leaves_nothing_out(fake: Fake) -> None:
    fake.backends = ["steady"]
    fake.run(list(grid("cpu", 1)), budget_s=1000)

    assert left_out(fake) == []


def test_an_interrupted_calibration_says_so(fake: Fake) -> None:
    class Impatient(Watcher):
        def done(self, case: Case, passed: int, failed: int) -> None:
            raise KeyboardInterrupt

    fake.watcher = Impatient()
    fake.run(list(grid("cpu", 1)))

    assert fake.interrupted
    assert [(group["cases"], group["why"]) for group in left_out(fake)] == [(95, "the run was interrupted")]


def test_a_terminal_shows_what_is_at_work(fake: Fake) -> None:
    cases, console = list(grid("cpu", 1)), Console(file=io.StringIO(), width=120)
    with live_bar(console, len(cases)) as bar:
        shown = progress.CaseBar(bar)
        shown.working("flex", cases[0])
        assert bar.bar.tasks[0].fields["at_work"] == f"flex · {cases[0].label()}"
        shown.working(None, cases[0])
        assert bar.bar.tasks[0].fields["at_work"] == f"reference · {cases[0].label()}"
        shown.done(cases[0], 3, 1)
        assert (bar.bar.tasks[0].completed, shown.counts) == (1, {"ok": 3, "wrong_result": 1})


def calibrated(out: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """What a calibration of the smallest grid prints, and the file."""
    command = ["calibrate", "--device", "cpu", "--lengths", "16", "--seeds", "1", "--out", str(out), *arguments]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    return done.stdout, json.loads(out.read_text())


def test_a_repeated_calibration_replaces_and_says_what_it_knows_less_of(tmp_path: Path) -> None:
    """Of the backends it measures; of others it keeps numbers, failures, gaps, and when they were made."""
    out = tmp_path / "calibration.json"
    calibrated(out, "--backend", "sdpa-math")
    text, before = calibrated(out, "--backend", "naive", "--budget", "0.001s")
    assert "left out: 47 of 48 cases of naive: the budget of 0.001 s is used up; never measured: " in text
    assert before["left_out"][0]["cases"] == 47
    assert set(before["earlier"]) == {"sdpa-math"}

    before["failures"] = [{"backend": name, "case": "c", "reason": "r"} for name in ("naive", "sdpa-math")]
    out.write_text(json.dumps(before))
    text, after = calibrated(out, "--backend", "sdpa-math", "--budget", "0.001s")
    assert "replaced: 48 cases of sdpa-math by 1" in text
    assert [failure["backend"] for failure in after["failures"]] == ["naive"]
    assert [(group["backends"], group["cases"]) for group in after["left_out"]] == [
        (["naive"], 47),
        (["sdpa-math"], 47),
    ]
    assert after["earlier"] == {"naive": {"made": before["made"], "torch": before["software"]["torch"]}}
    printed = CliRunner().invoke(main, ["calibrate", str(out)]).stdout
    assert f"of an earlier run, {before['made'][:10]}, torch {before['software']['torch']}: naive" in printed

    text, whole = calibrated(out, "--backend", "naive")
    assert "left out" not in text
    assert [group["backends"] for group in whole["left_out"]] == [["sdpa-math"]]


def test_a_calibration_of_another_device_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"schema": calibration.SCHEMA, "device": "NVIDIA H100", "entries": []}))

    with pytest.raises(
        UsageError, match=f"must be a calibration of {CPU.name}, got one of NVIDIA H100; choose another"
    ):
        earlier(path, CPU)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lengths", "x"], "--lengths must list sequence lengths"),
        (["--budget", "x"], "--budget must be a time"),
        (["--backend", "nothing*"], "must match a backend"),
    ],
)
def test_usage_errors_are_one_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["calibrate", "--device", "cpu", *arguments])
    assert done.exit_code == 2
    assert sentence in done.output

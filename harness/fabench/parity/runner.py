"""`fabench parity` as a function: load the kernel's facts, run the battery, name, shrink, write repros. No torch."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabench import probe as probing
from fabench.errors import BackendError, UsageError
from fabench.output_files import make_folders
from fabench.parity import battery, heatmap
from fabench.parity.battery import Request
from fabench.parity.budget import Budget
from fabench.parity.memory_words import of_memory
from fabench.parity.scout import scout
from fabench.parity.session import Left, Session, fails
from fabench.parity.shrink import shrink
from fabench.parity.target import Target
from fabench.parity.thresholds import WARN_RHO
from fabench.parity.trial import Result, Trial
from fabench.parity.verdict import Finding, Verdict, findings, merged
from fabench.probe import Probe
from fabench.registry import FileSpec
from fabench.text import counted

MOST_SHRUNK, MOST_LOOKED_AT = 3, 8
SHRINK_S = 20.0
SCRIPT_LIMIT_S = 120.0
MOST_REFUSED = 0.5
SCOUT_SHARE = 0.25
"""Of a budget: after that, what a bare function has not been asked it is taken to take."""
CALL_LIMIT_S = {"cpu": 30.0, "cuda": 120.0}


@dataclass(frozen=True)
class Options:
    """What the command line settled."""

    target: str
    device: str = "auto"
    request: Request = field(default_factory=Request)
    inputs: str | None = None
    fail_fast: bool = False
    budget_s: float | None = None
    repro: Path | None = None
    timeout_s: float | None = None
    shrink: bool = True


@dataclass(frozen=True)
class Kernel:
    """One kernel of the target: a file may hold several."""

    name: str
    probe: Probe
    file: str | None

    @property
    def label(self) -> str:
        """As the user named it."""
        return self.name if self.file is None else f"{self.file}:{self.name}"


class Watcher:
    """Told what happens while it goes on; the command line shows it."""

    def start(self, trials: int) -> None:
        """The battery begins."""

    def result(self, result: Result) -> None:
        """One probe has ended."""

    def note(self, text: str) -> None:
        """Something worth reading."""


def kernels(options: Options, note: Callable[[str], object]) -> list[Kernel]:
    """The kernels of the target that can run here; `note` is told of others that a glob or a file has beside them.

    Raises BackendError if the target cannot be loaded, is unknown, or nothing of it can run here.
    """
    is_file = ".py" in options.target
    if is_file:
        FileSpec.parse(options.target)
    found = probing.ask(options.device, [options.target] if is_file else [], [], [] if is_file else [options.target])
    file = options.target.rpartition(":")[0] or options.target if is_file else None
    reasons = {name: f"'{name}' cannot run here: {report.unavailable}" for name, report in found.backends.items()}
    able = [name for name, report in found.backends.items() if report.unavailable is None]
    if not able:
        raise BackendError("; ".join(reasons.values()))
    for name in set(reasons) - set(able):
        note(reasons[name])
    return [Kernel(name, found, file) for name in able]


def run(options: Options, kernel: Kernel, watcher: Watcher) -> Verdict:
    """Run the battery on one kernel and say what is wrong with it."""
    facts, device = kernel.probe.backends[kernel.name].facts, kernel.probe.device
    request = dataclasses.replace(options.request, device_type=device.type)
    files = () if kernel.file is None else (options.target,)
    limit = options.timeout_s or CALL_LIMIT_S[device.type]
    session = Session(Target(kernel.name, device, files), call_limit_s=limit, budget=_budget(options))
    began = time.monotonic()
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        watcher.result(result)

    try:
        left = Left()
        if options.inputs is not None:
            for result in session.real(options.inputs):
                keep(result)
            if session.given_up_s is not None:
                left = Left(1, session.budget.why)
        else:
            facts, refusals = scout(facts, request, _asking(session))
            for result in refusals:
                keep(result)
            trials = battery.build(facts, request)
            everything = dataclasses.replace(request, where=None, probes=(), dtypes=())
            if not trials and (not refusals or battery.build(facts, everything)):
                raise UsageError(
                    f"'{kernel.label}' must support something of what was asked for, got no case: "
                    "--dtype, --where or --probe leaves nothing of what it declares"
                )
            watcher.start(len(trials))
            left = session.run(trials, keep, fail_fast=options.fail_fast)
        doubt = session.doubt()
        session.budget = _budget(options)  # as much again for what has failed
        if not left.interrupted:
            _look_again(session, results)
        compile_s = sum(r.compile_s for r in results)
        verdict = Verdict(
            kernel.label, device.name, request.profile, results, left, time.monotonic() - began, compile_s
        )
        verdict.findings = findings(results)
        verdict.warnings += doubt
        _warn(verdict, kernel)
        if left.interrupted:
            return verdict
        try:
            _show(session, verdict, options, kernel, watcher)
        except KeyboardInterrupt:
            verdict.left.interrupted = True
        return verdict
    finally:
        session.close()


def _budget(options: Options) -> Budget:
    return Budget(math.inf if options.budget_s is None else options.budget_s)


def _asking(session: Session) -> Callable[[Trial], list[Result]]:
    """What the scout asks by: no answer, which is no refusal, once it has had its share of the budget."""
    least = session.budget.total_s * (1 - SCOUT_SHARE)
    return lambda trial: session.trial(trial) if session.budget.left_s >= least else []


def _show(session: Session, verdict: Verdict, options: Options, kernel: Kernel, watcher: Watcher) -> None:
    """Shrink what was found, and write its scripts."""
    if options.shrink and options.inputs is None:
        for finding in verdict.findings[:MOST_SHRUNK]:
            _shrink(session, finding, watcher)
        verdict.findings = merged(verdict.findings)
    if options.repro is not None:
        for finding in verdict.findings[:MOST_SHRUNK]:
            _write_repro(session, finding, options, kernel)


def _look_again(session: Session, results: list[Result]) -> None:
    """Diagnose one of each kind of failure that was passed over because another had its name by then."""
    seen: set[tuple[str, str]] = set()
    for i, result in enumerate(results):
        kind = (result.probe, result.message.split(" ")[0])
        if result.ending != "failed" or result.diagnosis is not None or kind in seen:
            continue
        if len(seen) >= MOST_LOOKED_AT:
            return
        seen.add(kind)
        again = session.trial(dataclasses.replace(result.trial, probes=(result.probe,)), diagnose=True)
        for found in again:
            if found.probe == result.probe and found.bad:
                results[i] = dataclasses.replace(result, diagnosis=found.diagnosis or {})


def _warn(verdict: Verdict, kernel: Kernel) -> None:
    from fabench.parity.calibrate_grid import comparable
    from fabench.parity.calibration import drift

    every = len({r.trial for r in verdict.results})
    if every and verdict.refused > MOST_REFUSED * every:
        verdict.warnings.append(f"more than half of the cases were refused: {verdict.refused} of {every}")
    large = [r for r in verdict.results if r.warn]
    if large:
        passing = counted(len(large), "case passes", "cases pass")
        verdict.warnings.append(f"{passing} with a rho above {WARN_RHO:g}, for instance {large[0].trial.label()}")
    if kernel.file is None:
        verdict.warnings += drift(kernel.name, kernel.probe.device, verdict.accuracy(comparable))


def _shrink(session: Session, finding: Finding, watcher: Watcher) -> None:
    example = finding.name.example
    if example is None:
        return
    watcher.note(f"shrinking: {finding.name.sentence}")
    failing = fails(session, example.probe)
    alone = dataclasses.replace(example.trial, probes=(example.probe,))
    if not (failing(alone) and failing(alone)):  # the first may fail for what ran before it
        finding.repro_note = (
            f"it was not made smaller: {session.budget.why}"
            if session.budget.spent
            else "the same case did not fail when it was run again: it depends on what ran before, or chance"
        )
        return
    finding.smallest = shrink(example.trial, example.probe, failing, seconds=SHRINK_S)
    if words := of_memory(finding.smallest, example):
        finding.name.sentence = words


def _write_repro(session: Session, finding: Finding, options: Options, kernel: Kernel) -> None:
    """Write the script and the heat map, and run the script to see that it shows the failure."""
    example = finding.name.example
    assert options.repro is not None
    if example is None:
        return
    path = _free(options.repro / f"repro_{example.probe}.py")
    trial = finding.smallest or example.trial
    command = {
        "cmd": "repro",
        "trial": trial.to_json(),
        "probe": example.probe,
        "target": _loading(options, kernel) | {"ending": example.ending},
        "named": finding.name.sentence,
    }
    answer = session.ask(command, "repro")
    heat = (example.diagnosis or {}).get("heat")
    try:
        make_folders(path)
        if heat and heat["cells"]:
            heatmap.png(heat, path.with_suffix(".png"))
        if answer is None or answer["text"] is None:
            finding.repro_note = "no script could be written that shows it alone"
            return
        path.write_text(answer["text"])
    except OSError as error:
        finding.repro_note = f"'{path}' could not be written: {error.strerror}"
        return
    finding.repro = str(path)
    if not shows_failure(path):
        finding.repro_note = "run alone, the script does not show it: what goes wrong depends on what ran before"


def _loading(options: Options, kernel: Kernel) -> dict[str, Any]:
    if kernel.file is None:
        return {"backend": kernel.name, "device": kernel.probe.device.torch_name}
    function = FileSpec.parse(options.target).function
    return {"file": kernel.file, "function": function or kernel.name}


def shows_failure(path: Path) -> bool:
    """True if the script, run on its own, does not end well."""
    try:
        done = subprocess.run([sys.executable, str(path)], capture_output=True, timeout=SCRIPT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def _free(path: Path) -> Path:
    """`path`, or the first of path_2, path_3, ... that is not there."""
    candidate, n = path, 2
    while candidate.exists():
        candidate = path.with_stem(f"{path.stem}_{n}")
        n += 1
    return candidate

"""Runs one trial on a kernel: each probe in turn, every way it can end turned into a `Result`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from fabench.inputs import Tensors
from fabench.outcome import classify, is_ctrl_c
from fabench.parity.bench import Bench, Failed, NotApplicable, Passed
from fabench.parity.probes import probe
from fabench.parity.subject import Subject
from fabench.parity.trial import Ending, ProbeName, Result, Trial
from fabench.settings import multiply_exactly

Diagnose = Callable[[Bench, Failed, ProbeName], dict[str, Any] | None]
"""Says what a failure looks like; see `diagnose.py`."""


MOST_DIAGNOSED = 2
"""Failures of one trial that are diagnosed: the others are the same bug seen from elsewhere."""


class Examiner:
    """One kernel under examination."""

    def __init__(self, subject: Subject, diagnose: Diagnose | None = None) -> None:
        self.subject, self.diagnose = subject, diagnose
        self.on_probe: Callable[[ProbeName], None] = lambda name: None
        """Told which probe is about to run."""

    def run(self, trial: Trial, tensors: Tensors | None = None) -> Iterator[Result]:
        """The results of a trial, one a probe, and one for `type` if an answer had a wrong form.

        `tensors` take the place of the case's own inputs.
        """
        if reasons := self.subject.reasons(trial.case):
            yield from (Result(name, trial, "unsupported", reasons[0]) for name in trial.probes)
            return
        bench = Bench(self.subject, trial)
        if tensors is not None:
            bench.tensors = bench.arranged(tensors)
        if trial.probes == ("type",):
            yield self._one(bench, "type")
            return
        malformed = False
        for name in trial.probes:
            if name == "type":
                continue
            result = self._one(bench, name)
            malformed |= result.probe == "type"
            yield result
            if result.probe == "type" or _device_lost(result):
                break
        if not malformed and "type" in trial.probes:
            answered = self.subject.answered(trial.case)
            yield Result(
                "type", trial, "passed" if answered else "unsupported", "" if answered else "it never answered"
            )

    def _one(self, bench: Bench, name: ProbeName) -> Result:
        """One probe to its end."""
        self.on_probe(name)
        started, compiled = time.perf_counter(), self.subject.compile_s
        result = self._verdict(bench, name)
        result.compile_s = self.subject.compile_s - compiled
        result.seconds = time.perf_counter() - started
        return result

    def _verdict(self, bench: Bench, name: ProbeName) -> Result:
        trial = bench.trial
        try:
            multiply_exactly()  # whatever the user's file switched on
            verdict = probe(name)(bench)
        except Failed as failed:
            result = Result(name, trial, "failed", failed.message, failed.parity, failed.witness)
            result.numbers |= failed.numbers
            if name == "rho":
                bench.wrong_outputs = failed.outputs
            if self.diagnose is not None and bench.diagnosed < MOST_DIAGNOSED:
                bench.diagnosed += 1
                result.diagnosis = self._diagnosis(bench, failed, name)
            return result
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            return self._accident(trial, name, error)
        if isinstance(verdict, NotApplicable):
            return Result(name, trial, "skipped", verdict.reason)
        assert isinstance(verdict, Passed)
        return Result(
            name, trial, "passed", parity=verdict.parity, note=verdict.note, warn=verdict.warn, numbers=verdict.numbers
        )

    def _diagnosis(self, bench: Bench, failed: Failed, name: ProbeName) -> dict[str, Any] | None:
        assert self.diagnose is not None
        try:
            return self.diagnose(bench, failed, name)
        except Exception as error:  # naming is a service; its own failure never hides the finding
            return {"note": f"no diagnosis: {type(error).__name__}: {error}"}

    def _accident(self, trial: Trial, name: ProbeName, error: BaseException) -> Result:
        """What an exception out of the kernel means."""
        failure = classify(error, before_output=not self.subject.answered(trial.case))
        endings: dict[str, Ending] = {"unsupported": "unsupported", "oom": "oom", "crashed": "crashed"}
        if failure.status == "wrong_result":
            return Result("type", trial, "failed", failure.message)
        message = failure.message
        if failure.status == "error" and failure.traceback:
            lines = failure.traceback.strip().splitlines()
            places = [line.strip() for line in lines if line.strip().startswith("File ")]
            message = f"it raised {message}" + (f" ({places[-1]})" if places else "")
        result = Result(name, trial, endings.get(failure.status, "failed"), message)
        if failure.fatal:
            result.numbers["device_lost"] = 1.0
        return result


def _device_lost(result: Result) -> bool:
    return bool(result.numbers.get("device_lost"))

"""The work of one case inside a worker: check every backend, time the good ones together, verify them once more.

Nothing here survives the process: what a backend does to it (crash, hang, exit) is seen by the supervisor through the
board and the end of the pipe.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter  # by name: a backend may replace it in the module
from typing import TYPE_CHECKING, Any

import torch

from fabench import inputs
from fabench.backend import Backend, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.inputs import Tensors
from fabench.launches import Launches, gradients_of, poison_free_blocks
from fabench.measure.method import method_for
from fabench.measure.regime import choose
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fabench.names import Flag, Regime
from fabench.outcome import Failure, classify, split_output
from fabench.parity.rule import judge
from fabench.protocol import CHECK, DESCRIBE, FIRST_ROW, PREPARE, TIME, Board
from fabench.torch_settings import TorchSettings

if TYPE_CHECKING:
    from fabench.measure.engine import Engine
    from fabench.reference import Reference

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Options:
    """What the command line and the suite settled for every case of the run."""

    regime: Regime = "burst"
    seconds: float = 0.5
    check: bool = True
    reference: str = "auto"
    """auto | full | sampled"""
    null_ns: float | None = None
    """The launch floor, from the canaries."""


@dataclass
class Job:
    """One backend's part of the case, and what is known of it so far."""

    row_id: str
    backend: Backend
    board_row: int
    describe: bool = True
    """Measure memory and kernel names too: once per case and backend, not in every round."""
    like: tuple[int, int] | None = None
    """K and n of the row of an older file that this one is measured like."""
    prepared: Prepared | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    flags: set[Flag] = field(default_factory=set)
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def call(self) -> Prepared:
        """The prepared backend; only after `prepare` went well."""
        assert self.prepared is not None
        return self.prepared


class CaseWork:
    """One case on one device, for several backends."""

    def __init__(
        self,
        case: Case,
        device: Device,
        engine: Engine,
        options: Options,
        board: Board,
        emit: Emit,
        settings: TorchSettings,
    ) -> None:
        self.case, self.device, self.engine, self.options = case, device, engine, options
        self.board, self.emit, self.settings = board, emit, settings
        self.torch_device = torch.device(device.torch_name)
        self._began = perf_counter()
        self._booked = 0.0

    def run(self, jobs: Sequence[Job], tensors: Tensors, reference: Reference | None, reference_s: float) -> None:
        """Check, time and verify; emits one `row` event per job, as soon as it is known."""
        ready = []
        self._fingerprint = tensors.fingerprint()
        for job in jobs:
            job.spent["reference_s"] = reference_s / len(jobs)  # taken before this began, so not booked
            if self._guard(job, lambda job=job, t=tensors: self._check(job, t, reference)):  # type: ignore[misc]
                ready.append(job)
            elif self._written(tensors):
                tensors = inputs.make(self.case, self.torch_device)  # what one does to them is no other's fault
        if ready:
            self._time(ready, tensors, reference)

    def _guard(self, job: Job, step: Callable[[], None]) -> bool:
        """Run one step of a job; on any exception its row ends here. True if the step went well."""
        self.settings.restore()
        try:
            step()
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            before_output = "before_output" not in job.fields
            failure = classify(error, before_output=before_output)
            self.finish(job, failure.row_fields(), fatal=failure.fatal)
            return False
        finally:
            self.board.leave()
        return True

    def finish(
        self,
        job: Job,
        outcome: dict[str, Any],
        *,
        fatal: bool = False,
        spans_s: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Emit the job's row. A failure has no samples, whatever was measured before it failed."""
        job.fields.pop("before_output", None)
        fields = {**job.fields, **outcome}
        fields["flags"] = sorted({*job.flags, *fields.get("flags", ())})
        fields["spent"] = self._settle(job)
        job.prepared = None
        self.emit({"ev": "row", "row_id": job.row_id, "fields": fields, "fatal": fatal, "spans_s": spans_s})

    def _charge(self, job: Job, part: str, seconds: float) -> None:
        """Book time that is known to be this row's."""
        job.spent[part] = job.spent.get(part, 0.0) + seconds
        self._booked += seconds

    def _settle(self, job: Job) -> dict[str, float]:
        """The row's account. What has passed and is booked to nobody is overhead, and goes to the row that ends."""
        overhead = perf_counter() - self._began - self._booked
        self._booked += overhead
        total = sum(job.spent.values()) + overhead
        return {"total_s": total, **{part: s for part, s in job.spent.items() if part != "compile_s"}}

    def _check(self, job: Job, tensors: Tensors, reference: Reference | None) -> None:
        """Prepare, run once to compile, run again over poison and judge; memory and kernel names of the same call."""
        began = perf_counter()
        self.emit({"ev": "begin", "row_id": job.row_id})
        self.board.enter(job.board_row, PREPARE)
        with_lse = None
        job.prepared = job.backend.prepare(self.case, self.device)
        self._outputs(job.call, tensors)
        self.engine.synchronize()
        if job.backend.facts_on(self.device).returns_lse:
            with_lse = job.backend.prepare(self.case, self.device, lse=True)
            self._lse(with_lse, tensors)
            self.engine.synchronize()
        job.fields["compile_s"] = perf_counter() - began
        self._charge(job, "compile_s", job.fields["compile_s"])
        job.fields["before_output"] = False
        if job.call.copied:
            job.flags.add("copied")
        if job.call.tuned is not None:
            job.fields["tuned"] = job.call.tuned()
        self.board.enter(job.board_row, CHECK)
        began = perf_counter()
        if reference is None:
            job.flags.add("unchecked")
        else:
            poison_free_blocks(self.case, self.torch_device)
            outputs = self._outputs(job.call, tensors)
            if with_lse is not None:
                outputs["LSE"] = self._lse(with_lse, tensors)
            if written := self._written(tensors):
                raise Failure("wrong_result", f"a call must leave its inputs as they are, and wrote into {written[0]}")
            self._judge(job, outputs, reference)
            del outputs
        self._charge(job, "check_s", perf_counter() - began)
        if job.describe:
            self.board.enter(job.board_row, DESCRIBE)
            self._describe(job, tensors)

    def _written(self, tensors: Tensors) -> list[str]:
        """The inputs that a backend has written into."""
        now = tensors.fingerprint()
        return [name for name, was in self._fingerprint.items() if now[name] != was]

    def _outputs(self, prepared: Prepared, tensors: Tensors) -> dict[str, torch.Tensor]:
        """One launch of the case's direction: O, and dQ, dK, dV where gradients are asked for."""
        if not self.case.has_backward:
            with torch.no_grad():
                output = prepared.call(tensors.q, tensors.k, tensors.v)
            return split_output(output, self.case, self.torch_device, lse=False)
        return gradients_of(prepared, tensors, self.case)

    def _lse(self, prepared: Prepared, tensors: Tensors) -> torch.Tensor:
        with torch.no_grad():
            output = prepared.call(tensors.q, tensors.k, tensors.v)
        return split_output(output, self.case, self.torch_device, lse=True)["LSE"]

    def _judge(self, job: Job, outputs: dict[str, torch.Tensor], reference: Reference, when: str = "") -> None:
        """Compare with the reference; the first judgement's numbers are the row's. Raises Failure('wrong_result')."""
        accuracy = job.backend.facts_on(self.device).accuracy_for(self.case.dtype)
        judgement = judge(self.case, reference, outputs, accuracy)
        parity = judgement.parity.model_dump(mode="json", by_alias=True)
        if reference.sampled:
            job.flags.add("sampled")
        if not judgement.passed:
            message = f"{when}{judgement.message}"
            raise Failure("wrong_result", message, worst=judgement.worst, extra={"parity": parity})
        job.fields.setdefault("parity", parity)

    def _describe(self, job: Job, tensors: Tensors) -> None:
        from fabench.measure.kernels import profile_kernels
        from fabench.measure.memory import measure_memory

        began = perf_counter()
        job.fields["memory"] = measure_memory(
            self.case, job.call, tensors, self.engine, model=job.backend.facts_on(self.device).memory
        ).model_dump(mode="json")
        self._charge(job, "memory_s", perf_counter() - began)
        began = perf_counter()
        report = profile_kernels(lambda: self._outputs(job.call, tensors), self.engine)
        self._charge(job, "profile_s", perf_counter() - began)
        if report is None:
            return
        job.fields["kernels"] = report.names
        if report.other_streams:
            raise Failure("error", f"other stream: {report.other_streams[0]} ran outside the current stream")
        facts = job.backend.facts_on(self.device)
        if not facts.bare and (fallback := report.fallback(facts.kernels)):
            raise Failure("error", fallback)

    def _time(self, jobs: Sequence[Job], tensors: Tensors, reference: Reference | None) -> None:
        """Time what passed, interleaved as far as memory allows, and verify each timed output."""
        launches = Launches(self.case, tensors, self.engine)
        for group in launches.groups([(job.call, job) for job in jobs]):
            alive = [job for _, job in group]
            if len(group) < len(jobs):
                for job in alive:
                    job.flags.add("not_interleaved")
            self._time_group(alive, launches, reference)

    def _time_group(self, jobs: list[Job], launches: Launches, reference: Reference | None) -> None:
        method = method_for(choose(self.case, self.device, self.options.regime), self.device, self.case.inputs)
        alive = [job for job in jobs if self._guard(job, lambda job=job: self._open(job, launches))]  # type: ignore[misc]
        while alive:
            candidates = [
                Candidate(job.row_id, launches.launcher(job.row_id), launches.rotation, self._entering(job), job.like)
                for job in alive
            ]
            try:
                limits = Limits(seconds=self.options.seconds)
                measured = measure(
                    candidates, method, limits, self.engine, self._on_window, null_ns=self.options.null_ns
                )
            except BaseException as error:  # sys.exit, or a lost device: whoever was at work is to blame
                if is_ctrl_c(error):
                    raise
                guilty = next((job for job in alive if job.board_row == self.board.row), alive[0])
                failure = classify(error, before_output=False)
                self.board.leave()
                self.finish(guilty, failure.row_fields(), fatal=failure.fatal)
                launches.close(guilty.row_id)
                alive.remove(guilty)
                continue
            for job in alive:
                job.fields["method"] = method.model_dump(mode="json")
                result = measured[job.row_id]
                self._guard(job, lambda j=job, m=result: self._conclude(j, m, launches, reference))  # type: ignore[misc]
                launches.close(job.row_id)
            return

    def _on_window(self, name: str, samples: list[float]) -> None:
        self.board.leave()
        self.emit({"ev": "window", "row_id": name, "n": len(samples)})

    def _entering(self, job: Job) -> Callable[[], None]:
        def enter() -> None:
            self.settings.restore()
            self.board.enter(job.board_row, TIME)

        return enter

    def _open(self, job: Job, launches: Launches) -> None:
        self.board.enter(job.board_row, CHECK)
        if launches.capped:
            job.flags.add("partial_cold")
        launches.open(job.row_id, job.call)

    def _conclude(self, job: Job, m: Measurement, launches: Launches, reference: Reference | None) -> None:
        """Verify a timed output and a launch on changed inputs, then emit the row with its samples."""
        if m.unsupported:
            raise Failure("unsupported", m.unsupported)
        if m.failure is not None:
            raise m.failure
        if m.error:
            raise Failure("error", m.error)
        job.flags |= m.flags
        self._charge(job, "device_s", m.device_s)
        self._charge(job, "idle_s", m.idle_s)
        if reference is not None:
            self.board.enter(job.board_row, CHECK)
            began = perf_counter()
            self._verify(job, m, launches, reference)
            self._charge(job, "check_s", perf_counter() - began)
        outcome = {
            "status": "ok",
            "samples_ns": m.samples_ns,
            "K": m.K,
            "n": m.n,
            "t_host_ns": m.t_host_ns,
            "stop_reason": m.stop_reason,
            "derived": m.derived.model_dump(mode="json"),
        }
        self.finish(job, outcome, spans_s=m.spans_s)

    def _verify(self, job: Job, m: Measurement, launches: Launches, reference: Reference) -> None:
        """A timed output, then one more launch over poison on inputs that changed in place."""
        if m.kept is not None:
            index, output = m.kept
            self._judge(job, launches.named(output), reference.rotated(index), "a timed output: ")
        changed_reference = "after the inputs changed in place: "
        if m.replay is not None:
            with launches.changed_inputs(m.replay.index):
                m.replay.run()
                self.engine.synchronize()
                outputs = launches.named(self.engine.clone(m.replay.output))
            sign = m.replay.index ^ 1
            if self.case.direction != "backward":  # a captured backward reads the O of the inputs as they were
                self._judge(job, outputs, reference.rotated(sign), changed_reference)
            return
        with launches.changed_inputs(0) as changed:
            poison_free_blocks(self.case, self.torch_device)
            outputs = self._outputs(job.call, changed)
            self._judge(job, outputs, reference.rotated(1), changed_reference)


def is_ctrl_c(error: BaseException) -> bool:
    """True if the user wants to stop. A worker hears no SIGINT: there a backend has raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def first_board_row(index: int) -> int:
    """Board row of the case's `index`-th backend."""
    return FIRST_ROW + index

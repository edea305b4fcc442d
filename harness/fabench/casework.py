"""The work of one case inside a worker: check every backend, time the good ones together, verify them once more.

Nothing here survives the process: what a backend does to it (crash, hang, exit) is seen by the supervisor through the
board and the end of the pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter  # by name: a backend may replace it in the module
from typing import TYPE_CHECKING, Any

from fabench import inputs
from fabench.case import Case
from fabench.checking import Checker, Emit
from fabench.device import Device
from fabench.inputs import Tensors
from fabench.jobs import Account, Job, Options
from fabench.launches import Launches, poison_free_blocks
from fabench.measure.method import method_for
from fabench.measure.regime import choose
from fabench.measure.sampling import Candidate, Limits, Measurement, measure
from fabench.outcome import Failure, classify, is_ctrl_c
from fabench.protocol import CHECK, TIME, Board
from fabench.settings import Settings

if TYPE_CHECKING:
    import torch

    from fabench.measure.engine import Engine
    from fabench.measure.graph import Replay
    from fabench.reference import Reference


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
        settings: Settings,
        tensors: Tensors,
    ) -> None:
        self.case, self.device, self.engine, self.options = case, device, engine, options
        self.board, self.emit, self.settings, self.tensors = board, emit, settings, tensors
        self.account = Account()
        self.checker = Checker(case, device, engine, board, emit, self.account, tensors)

    def run(self, jobs: Sequence[Job], reference: Reference | None, reference_s: float) -> None:
        """Check, time and verify; emits one `row` event per job, as soon as it is known."""
        ready = []
        for job in jobs:
            job.spent["reference_s"] = reference_s / len(jobs)  # taken before this began, so not booked
            if self._guard(job, lambda job=job: self.checker.check(job, self.tensors, reference)):  # type: ignore[misc]
                ready.append(job)
            elif self.checker.written(self.tensors):
                # What one does to them is no other's fault.
                self.tensors = inputs.make(self.case, self.device.torch_name)
        if ready:
            self._time(ready, reference)

    def _guard(self, job: Job, step: Callable[[], None]) -> bool:
        """Run one step of a job; on any exception its row ends here. True if the step went well."""
        self._restore(job.row_id)
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
            self._restore(job.row_id)
            self.board.leave()
        return True

    def _restore(self, row_id: str) -> None:
        """Put back what the row's backend has changed, and say so if that cannot be."""
        self.settings.restore()
        if self.settings.lost():
            self.emit({"ev": "spoilt", "row_id": row_id})

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
        fields["spent"] = self.account.settle(job)
        job.prepared = None
        self.emit({"ev": "row", "row_id": job.row_id, "fields": fields, "fatal": fatal, "spans_s": spans_s})

    def _time(self, jobs: Sequence[Job], reference: Reference | None) -> None:
        """Time what passed, interleaved as far as memory allows, and verify each timed output."""
        launches = self.launches()
        for group in launches.groups([(job.call, job) for job in jobs]):
            alive = [job for _, job in group]
            if len(group) < len(jobs):
                for job in alive:
                    job.flags.add("not_interleaved")
            self._time_group(alive, launches, reference)

    def launches(self) -> Launches:
        """What the candidates launch: the case's input sets."""
        return Launches(self.case, self.tensors, self.engine)

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
                self._restore(guilty.row_id)
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
        self._restore(name)
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
        self.account.charge(job, "device_s", m.device_s)
        self.account.charge(job, "idle_s", m.idle_s)
        if reference is not None:
            self.board.enter(job.board_row, CHECK)
            began = perf_counter()
            self.verify(job, m, launches, reference)
            self.account.charge(job, "check_s", perf_counter() - began)
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

    def verify(self, job: Job, m: Measurement, launches: Launches, reference: Reference) -> None:
        """A timed output, then one more launch over poison on inputs that changed in place."""
        if m.kept is not None:
            index, output = m.kept
            self.checker.judge(job, launches.named(output), reference.rotated(index), "a timed output: ")
        changed_when = "after the inputs changed in place: "
        if m.replay is not None:
            outputs, expected = self._replayed(m.replay, launches, reference)
            self.checker.judge(job, outputs, expected, changed_when)
            return
        with launches.negated("v", 0) as changed:
            poison_free_blocks(self.case, self.checker.torch_device)
            outputs = self.checker.outputs(job.call, changed)
            self.checker.judge(job, outputs, reference.rotated(1), changed_when)

    def _replayed(
        self, replay: Replay, launches: Launches, reference: Reference
    ) -> tuple[dict[str, torch.Tensor], Reference]:
        """One more replay, over poison and on changed inputs, and what it must give.

        A captured backward reads the O that its forward saved, so there it is dO that changes.
        """
        index, backward = replay.index, self.case.direction == "backward"
        expected = reference.rotated(index).of_negated_dO() if backward else reference.rotated(index ^ 1)
        with launches.negated("dO" if backward else "v", index):
            launches.poison(replay.output, index)
            replay.run()
            self.engine.synchronize()
            outputs = launches.named(self.engine.clone(replay.output))
        return outputs, expected

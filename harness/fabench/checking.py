"""Is one backend right on one case? Prepares it, runs it over poison, judges it, and looks at what it ran."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter  # by name: a backend may replace it in the module
from typing import TYPE_CHECKING, Any

import torch

from fabench.backend import Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.inputs import Tensors
from fabench.jobs import Account, Job
from fabench.launches import forward_with_graph, gradients_of, poison_free_blocks
from fabench.measure.kernels import profile_kernels
from fabench.measure.memory import measure_memory, outside_allocator
from fabench.outcome import Failure, split_output
from fabench.parity import rule
from fabench.protocol import CHECK, DESCRIBE, PREPARE, Board

if TYPE_CHECKING:
    from fabench.measure.engine import Engine
    from fabench.reference import Reference

Emit = Callable[[dict[str, Any]], None]


class Checker:
    """Checks the backends of one case, one after the other. A bad one raises, mostly a Failure; see `outcome`."""

    def __init__(
        self, case: Case, device: Device, engine: Engine, board: Board, emit: Emit, account: Account, tensors: Tensors
    ) -> None:
        self.case, self.device, self.engine = case, device, engine
        self.board, self.emit, self.account = board, emit, account
        self.torch_device = torch.device(device.torch_name)
        self._fingerprint = tensors.fingerprint()

    def check(self, job: Job, tensors: Tensors, reference: Reference | None) -> None:
        """Prepare, run once to compile, run again over poison and judge; memory and kernel names of the same call."""
        began = perf_counter()
        self.emit({"ev": "begin", "row_id": job.row_id})
        self.board.enter(job.board_row, PREPARE)
        with_lse = None
        outside = outside_allocator(self.engine) if job.describe else None  # before it loads or allocates anything
        job.prepared = job.backend.prepare(self.case, self.device)
        self.outputs(job.call, tensors)
        self.engine.synchronize()
        if job.backend.facts_on(self.device).returns_lse:
            with_lse = job.backend.prepare(self.case, self.device, lse=True)
            self._lse(with_lse, tensors)
            self.engine.synchronize()
        job.fields["compile_s"] = perf_counter() - began
        self.account.charge(job, "compile_s", job.fields["compile_s"])
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
            outputs = self.outputs(job.call, tensors)
            if with_lse is not None:
                outputs["LSE"] = self._lse(with_lse, tensors)
            if written := self.written(tensors):
                raise Failure("wrong_result", f"a call must leave its inputs as they are, and wrote into {written[0]}")
            self.judge(job, outputs, reference)
            del outputs
        self.account.charge(job, "check_s", perf_counter() - began)
        if job.describe:
            self.board.enter(job.board_row, DESCRIBE)
            self._describe(job, tensors, outside)

    def written(self, tensors: Tensors) -> list[str]:
        """The inputs that a backend has written into."""
        now = tensors.fingerprint()
        return [name for name, was in self._fingerprint.items() if now[name] != was]

    def outputs(self, prepared: Prepared, tensors: Tensors) -> dict[str, torch.Tensor]:
        """One launch of the case's direction: O, and dQ, dK, dV where gradients are asked for."""
        if not self.case.has_backward:
            return split_output(self._forward(prepared, tensors), self.case, self.torch_device, lse=False)
        return gradients_of(prepared, tensors, self.case)

    def _lse(self, prepared: Prepared, tensors: Tensors) -> torch.Tensor:
        return split_output(self._forward(prepared, tensors), self.case, self.torch_device, lse=True)["LSE"]

    def _forward(self, prepared: Prepared, tensors: Tensors) -> object:
        """One call on views of its own: requires_grad_ or resize_ on them does not reach other backends."""
        own = tensors.detached()
        with torch.no_grad():
            return prepared.call(own.q, own.k, own.v)

    def judge(self, job: Job, outputs: dict[str, torch.Tensor], reference: Reference, when: str = "") -> None:
        """Compare with the reference; the first judgement's numbers are the row's. Raises Failure('wrong_result')."""
        accuracy = job.backend.facts_on(self.device).accuracy_for(self.case.dtype)
        judgement = rule.judge(self.case, reference, outputs, accuracy)
        parity = judgement.parity.model_dump(mode="json", by_alias=True)
        if reference.sampled:
            job.flags.add("sampled")
        if not judgement.passed:
            message = f"{when}{judgement.message}"
            raise Failure("wrong_result", message, worst=judgement.worst, extra={"parity": parity})
        job.fields.setdefault("parity", parity)

    def _timed(self, prepared: Prepared, tensors: Tensors) -> Callable[[], object]:
        """The launch that is timed: of a backward, its forward is no part, so that each answers for its own kernels."""
        if self.case.direction != "backward":
            return lambda: self.outputs(prepared, tensors)
        leaves, O = forward_with_graph(prepared, tensors, self.case)
        return lambda: torch.autograd.grad(O, leaves, tensors.dO, retain_graph=True)

    def _describe(self, job: Job, tensors: Tensors, outside: int | None) -> None:
        facts = job.backend.facts_on(self.device)
        began = perf_counter()
        job.fields["memory"] = measure_memory(
            self.case, job.call, tensors, self.engine, model=facts.memory, outside_before=outside
        ).model_dump(mode="json")
        self.account.charge(job, "memory_s", perf_counter() - began)
        began = perf_counter()
        report = profile_kernels(self._timed(job.call, tensors), self.engine)
        self.account.charge(job, "profile_s", perf_counter() - began)
        if report is None:
            return
        job.fields["kernels"] = report.names
        if report.other_streams:
            raise Failure("error", f"other stream: {report.other_streams[0]} ran outside the current stream")
        if not facts.bare and (fallback := report.fallback(facts.kernels)):
            raise Failure("error", fallback)

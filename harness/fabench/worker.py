"""The process that owns the device: takes one case after another from the supervisor and may die at any of them.

Run as `python -m fabench.worker COMMAND_FD EVENT_FD BOARD_FD PARENT_PID`; not meant to be started by hand.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fabench import torch_here
from fabench.case import Case
from fabench.device import Device
from fabench.protocol import REFERENCE, Board
from fabench.serving import Emit, run


class Session:
    """What a worker keeps from one case to the next: the device, the engine, the backends, stored references."""

    def __init__(self, command: dict[str, Any], board: Board, emit: Emit) -> None:
        torch = torch_here.imported()

        from fabench import registry
        from fabench.jobs import Options
        from fabench.measure.engine import engine_for
        from fabench.references import ReferenceStore
        from fabench.settings import Settings, multiply_exactly

        self.board, self.emit = board, emit
        self.device = Device.from_json(command["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device.index)
            multiply_exactly()
        self.engine = engine_for(self.device)
        self.empty_cache = torch.cuda.empty_cache
        self.settings = Settings()
        self.backends = registry.shipped()
        for spec in command["backend_files"]:
            self.backends.update({backend.name: backend for backend in registry.from_file(spec)})
        self.settings.restore()
        self.settings.lost()  # what a file gives away when it is loaded is no row's doing: it does so in every worker
        self.options = Options(**command["options"], null_ns=command.get("null_ns"))
        self.references = ReferenceStore(Path(command["store"]), self.device, self.options.reference)

    def case(self, command: dict[str, Any]) -> None:
        """Run one case for the backends named; emits their rows and then `case_done`."""
        from fabench import inputs
        from fabench.casework import CaseWork
        from fabench.jobs import Job, first_board_row

        case = Case.from_key(command["key"])
        if self.device.type == "cuda":  # what the last case has freed: modules and libraries ask the driver for theirs
            self.empty_cache()
        tensors = inputs.make(case, self.device.torch_name)
        jobs = [
            Job(j["row_id"], self.backends[j["backend"]], first_board_row(i), j["describe"], like_of(j))
            for i, j in enumerate(command["jobs"])
        ]
        reference, seconds = None, 0.0
        if self.options.check:
            self.board.enter(REFERENCE, 0)
            began = time.perf_counter()
            accuracies = sorted({job.backend.facts_on(self.device).accuracy_for(case.dtype) for job in jobs})
            planned_s = len(jobs) * self.options.seconds * (10 if self.device.type == "cuda" else 1)
            reference = self.references.get(case, tensors, accuracies, planned_s)
            seconds = time.perf_counter() - began
            self.board.leave()
        work = CaseWork(case, self.device, self.engine, self.options, self.board, self.emit, self.settings, tensors)
        work.run(jobs, reference, seconds)
        self.emit({"ev": "case_done"})

    def ahead(self, command: dict[str, Any]) -> None:
        """Prepare and call each pair of a case and a backend, so that it has been compiled; emits `compiled`.

        What a backend raises here, it will raise again where it is recorded.
        """
        from fabench import inputs
        from fabench.compile_ahead import compile_alone
        from fabench.launches import gradients_of

        compile_alone()
        for pair in command["work"]:
            case, backend = Case.from_key(pair["key"]), self.backends[pair["backend"]]
            with contextlib.suppress(Exception):
                tensors = inputs.make(case, self.device.torch_name)
                for lse in (False, True) if backend.facts_on(self.device).returns_lse else (False,):
                    prepared = backend.prepare(case, self.device, lse=lse)
                    if case.has_backward and not lse:
                        gradients_of(prepared, tensors, case)
                    else:
                        prepared.call(tensors.q, tensors.k, tensors.v)
            self.settings.restore()
            self.emit({"ev": "compiled", **pair})

    def canary(self, command: dict[str, Any]) -> None:
        """Time the canaries and emit their readings."""
        from fabench.measure.canary import measure_canary

        reading = measure_canary(self.engine, command["dtypes"], command["regime"])
        self.options = replace(self.options, null_ns=reading.null_ns)
        self.emit({"ev": "canary", "where": command["where"], "reading": reading.to_json()})


def like_of(job: dict[str, Any]) -> tuple[int, int] | None:
    """K and n to take, if the job says so."""
    like = job.get("like")
    return None if like is None else (int(like[0]), int(like[1]))


if __name__ == "__main__":
    run(sys.argv[1:], Session)

"""The process in which the kernel under test runs: takes trials one by one, and may die at any of them.

Run as `python -m fabench.parity.worker COMMAND_FD EVENT_FD BOARD_FD PARENT_PID`; not meant to be started by hand.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from fabench import torch_here
from fabench.device import Device
from fabench.parity.budget import phase_of
from fabench.parity.trial import PROBES, Trial
from fabench.protocol import FIRST_ROW, Board
from fabench.serving import Emit, run


class Session:
    """What a worker keeps from one trial to the next: the kernel and its examiner."""

    def __init__(self, command: dict[str, Any], board: Board, emit: Emit) -> None:
        torch = torch_here.imported()

        from fabench import probe
        from fabench.parity.diagnose import diagnose, label
        from fabench.parity.examiner import Examiner
        from fabench.parity.subject import Subject

        self.board, self.emit = board, emit
        self.device = Device.from_json(command["device"])
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device.index)
        else:
            torch.set_num_threads(1)  # the cases are small: threads cost more than they give on a busy machine
        self.loaded, _ = probe.load(command["backend_files"])
        self.calls = 0
        self.probe_row = FIRST_ROW
        self.subject = Subject(self.loaded[command["backend"]], self.device, self._watch)
        self.examiner = Examiner(self.subject, diagnose)
        self.undiagnosed = Examiner(self.subject, label)

    def _watch(self, running: bool) -> None:
        """Show the supervisor that a call of the kernel runs, and which."""
        if running:
            self.calls += 1
            self.board.enter(self.probe_row, phase_of(self.calls, self.subject.stage))
        else:
            self.board.leave()

    def trial(self, command: dict[str, Any]) -> None:
        """Run one trial; emits a `result` a probe and then `trial_done`."""
        trial = Trial.from_json(command["trial"])
        examiner = self.examiner if command["diagnose"] else self.undiagnosed
        examiner.on_probe = self._on_probe
        for result in examiner.run(trial):
            self.emit({"ev": "result", "result": result.to_json()})
        self.emit({"ev": "trial_done"})

    def ahead(self, command: dict[str, Any]) -> None:
        """Call the kernel on each trial, so that it has been compiled; what it answers or raises is of no interest.

        Does not return: a process that compiles ahead has nothing to say, and no use after that.
        """
        from fabench.compile_ahead import compile_alone
        from fabench.parity.bench import Bench
        from fabench.settings import multiply_exactly

        compile_alone()
        multiply_exactly()
        for data in command["trials"]:
            bench = Bench(self.subject, Trial.from_json(data))
            with contextlib.suppress(Exception):
                if not self.subject.reasons(bench.case):
                    bench.call(bench.tensors, backward=bench.backward)
                    if bench.lse:
                        bench.call(bench.tensors, lse=True, backward=bench.backward)
        os._exit(0)

    def _on_probe(self, name: str) -> None:
        self.probe_row = FIRST_ROW + PROBES.index(name)

    def repro(self, command: dict[str, Any]) -> None:
        """Write the script that shows a failure without fabench; emits `repro` with its text, or None."""
        from fabench.parity.repro import script

        trial = Trial.from_json(command["trial"])
        text = script(self.subject, trial, command["probe"], command["target"], command["named"])
        self.emit({"ev": "repro", "text": text})

    def calibrate(self, command: dict[str, Any]) -> None:
        """Judge several backends on one case; emits a `reading` for each and then `trial_done`."""
        from fabench.case import Case
        from fabench.parity.calibrate_case import measure

        backends = [self.loaded[name] for name in command["backends"]]
        case = Case.from_key(command["key"])
        for reading in measure(case, backends, self.device, lambda i: self.board.enter(FIRST_ROW + i, 0)):
            self.emit({"ev": "reading", "reading": reading})
        self.board.leave()
        self.emit({"ev": "trial_done"})

    def real(self, command: dict[str, Any]) -> None:
        """Judge the kernel on a file of real tensors; emits `trial`, a `result` a probe, or `usage` for a bad file."""
        from fabench.errors import UsageError
        from fabench.parity.real_inputs import examine

        self.examiner.on_probe = self._on_probe
        try:
            for result in examine(self.examiner, command["path"], self._show):
                self.emit({"ev": "result", "result": result.to_json()})
        except UsageError as error:
            self.emit({"ev": "usage", "message": str(error)})
        self.emit({"ev": "trial_done"})

    def _show(self, trial: Trial) -> None:
        self.emit({"ev": "trial", "trial": trial.to_json()})


if __name__ == "__main__":
    run(sys.argv[1:], Session)

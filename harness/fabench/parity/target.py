"""The kernel under test, and how a process that runs it is started. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from fabench.device import Device
from fabench.interpreter import Interpreter
from fabench.worker_process import WorkerProcess


@dataclass(frozen=True)
class Target:
    """The kernel: its name in the worker, and where it comes from."""

    name: str
    device: Device
    backend_files: tuple[str, ...] = ()

    def start(self) -> WorkerProcess:
        """A new worker that has been told its kernel; it says `ready` once it has loaded it."""
        worker = WorkerProcess(ParityInterpreter())
        worker.send(
            {
                "cmd": "start",
                "device": self.device.to_json(),
                "backend": self.name,
                "backend_files": list(self.backend_files),
            }
        )
        return worker


class ParityInterpreter(Interpreter):
    """Starts this package's worker in the place of run's."""

    def command(self, module: str, *arguments: str) -> list[str]:
        """The command of the parity worker, whichever module is asked for."""
        return super().command("fabench.parity.worker", *arguments)

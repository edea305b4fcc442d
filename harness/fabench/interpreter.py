"""Which Python a child process runs in, and with which environment: this one, or the other side of an A/B run."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Interpreter:
    """A Python and the variables set before it starts."""

    python: str = sys.executable
    variables: tuple[tuple[str, str], ...] = ()

    def command(self, module: str, *arguments: str) -> list[str]:
        """The command that runs a module of fabench; what lies in the current folder cannot shadow it."""
        return [self.python, "-P", "-m", module, *arguments]

    def environment(self) -> dict[str, str]:
        """This process's environment with the variables set. A child of the same Python finds this very fabench."""
        environment = {**os.environ, **dict(self.variables)}
        if self.python != sys.executable:
            environment.pop("PYTHONPATH", None)
            return environment
        here = Path(__file__).resolve()
        beside = here.parents[2] / "backends"
        roots = [str(here.parents[1]), *([str(beside)] if beside.is_dir() else [])]
        path = environment.get("PYTHONPATH")
        return environment | {"PYTHONPATH": os.pathsep.join([*roots, *([path] if path else [])])}


HERE = Interpreter()
"""The Python of this process, with nothing changed."""

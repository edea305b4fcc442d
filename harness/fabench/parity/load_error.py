"""The user's own traceback when their file cannot be loaded, without the frames that are not theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_S = 60.0


def own_traceback(path: str) -> str | None:
    """Run the file in a child and return its traceback from the first frame in it on; None if it loads."""
    resolved = Path(path).resolve()
    code = "import runpy, sys; sys.path.insert(0, sys.argv[2]); runpy.run_path(sys.argv[1], run_name='kernel')"
    command = [sys.executable, "-P", "-c", code, str(resolved), str(resolved.parent)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    lines = done.stderr.rstrip().splitlines()
    first = next((i for i, line in enumerate(lines) if f'File "{resolved}"' in line), None)
    return None if done.returncode == 0 or first is None else "\n".join(lines[first:])

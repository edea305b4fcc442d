"""tests/findings/run_all.py: one line a script, whatever the script does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).resolve().parent / "findings" / "run_all.py"


def test_every_ending_of_a_script_is_one_line_and_one_record(tmp_path: Path) -> None:
    shutil.copy(DRIVER, tmp_path / "run_all.py")
    scripts = {
        "wrong": "import sys\nprint('right: a')\nprint('REPRODUCED: b')\nprint('REPRODUCED: c')\nsys.exit(1)",
        "fine": "print('right: d')",
        "elsewhere": "print('not run: needs a CUDA device')",
        "broken": "raise RuntimeError('no such operator')",
        "endless": "import time\nprint('right: e', flush=True)\ntime.sleep(600)",
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text + "\n")
    out = tmp_path / "seen.json"
    command = [sys.executable, str(tmp_path / "run_all.py"), "--json", str(out), "--limit", "3", "--jobs", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = {line.split(":")[0].split()[-1]: line for line in done.stdout.splitlines()[1:]}
    assert lines.keys() == scripts.keys()
    assert lines["wrong"].startswith("REPRODUCED wrong: b (and 1 more)")
    assert lines["fine"].startswith("right      fine: d")
    assert lines["elsewhere"].startswith("not run    elsewhere: needs a CUDA device")
    assert "[ended with 1: RuntimeError: no such operator]" in lines["broken"]
    assert "[no end after 3 s]" in lines["endless"]
    report = json.loads(out.read_text())["scripts"]
    assert report["wrong"]["counts"] == {"REPRODUCED": 2, "right": 1, "not run": 0}
    assert report["endless"]["lines"] == ["right: e"]


def test_no_script_begins_after_the_time_of_all(tmp_path: Path) -> None:
    shutil.copy(DRIVER, tmp_path / "run_all.py")
    (tmp_path / "fine.py").write_text("print('right: d')\n")
    command = [sys.executable, str(tmp_path / "run_all.py"), "--total", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "not run    fine:  [no time was left]" in done.stdout

"""Run every script of this folder, each in a process of its own, and print one line of verdict for each.

    python tests/findings/run_all.py [--jobs 4] [--limit 90] [--total 170] [--json OUT.json] [--verbose]

Ends with 0 once all have been asked. A script that is still running after --limit seconds, or when --total seconds are
over, is ended. torch is the only import, in the scripts; this one needs nothing.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERDICTS = ("REPRODUCED", "right", "not run")
VERSIONS = (
    "import torch; c = torch.cuda.is_available(); "
    "print(torch.__version__, 'CUDA', torch.version.cuda, 'cuDNN', torch.backends.cudnn.version() if c else None, "
    "'on', torch.cuda.get_device_name() if c else 'a CPU')"
)


def run(command, limit_s):
    """(output, errors, exit code or None if it was ended) of a command and of what it starts."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
            return output, errors, process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            return output, errors, None


def examine(path, limit_s, end):
    """What one script says, as plain data."""
    began = time.monotonic()
    left = min(limit_s, end - began)
    if left <= 0:
        return {"verdict": "not run", "why": "no time was left", "lines": [], "seconds": 0.0}
    output, errors, code = run([sys.executable, str(path)], left)
    lines = output.strip().splitlines()
    counts = {verdict: sum(line.startswith(verdict + ":") for line in lines) for verdict in VERDICTS}
    verdict = next((v for v in VERDICTS if counts[v]), "not run")
    if code is None:
        why = f"no end after {left:.0f} s"
    elif code not in (0, 1) or not lines:
        why = f"ended with {code}: {(errors.strip().splitlines() or ['(silent)'])[-1][:160]}"
    else:
        why = ""
    return {"verdict": verdict, "why": why, "counts": counts, "lines": lines, "seconds": time.monotonic() - began}


def line(name, found):
    """One line: the verdict, the first case that shows it, how many more there are."""
    shown = [x for x in found["lines"] if x.startswith(found["verdict"])]
    text = shown[0].partition(": ")[2] if shown else ""
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    why = f" [{found['why']}]" if found["why"] else ""
    return f"{found['verdict']:<10} {name}: {text}{more}{why}  {found['seconds']:.0f} s"


def main():
    """Ask them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4, help="scripts at a time [4]")
    parser.add_argument("--limit", type=float, default=90, help="seconds for one script [90]")
    parser.add_argument("--total", type=float, default=170, help="seconds for all of them [170]")
    parser.add_argument("--json", type=Path, help="write everything they said to this file")
    parser.add_argument("--verbose", action="store_true", help="print every line they said")
    given = parser.parse_args()
    end = time.monotonic() + given.total
    scripts = sorted(p for p in HERE.glob("*.py") if p != Path(__file__).resolve())
    versions = run([sys.executable, "-c", VERSIONS], 60)[0].strip() or "torch cannot be imported"
    print(versions)
    report = {"versions": versions, "scripts": {}}
    with concurrent.futures.ThreadPoolExecutor(max(1, given.jobs)) as pool:
        asked = {pool.submit(examine, path, given.limit, end): path.stem for path in scripts}
        for done in concurrent.futures.as_completed(asked):
            name, found = asked[done], done.result()
            report["scripts"][name] = found
            print(line(name, found), flush=True)
            for said in found["lines"] if given.verbose else ():
                print(f"           {said}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

"""Run every script of this folder and print what each says; ends with 0 once all have been asked."""

import subprocess
import sys
from pathlib import Path

LIMIT_S = 300


def main():
    here = Path(__file__).resolve()
    for path in sorted(p for p in here.parent.glob("*.py") if p != here):
        try:
            done = subprocess.run(
                [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{path.stem}: no end after {LIMIT_S} s")
            continue
        lines = done.stdout.strip().splitlines() or [(done.stderr.strip().splitlines() or ["(silent)"])[-1]]
        for line in lines:
            print(f"{path.stem}: {line}")
        if done.returncode not in (0, 1) or (done.returncode and not done.stdout.strip()):
            print(f"{path.stem}: ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:160]}")


if __name__ == "__main__":
    main()

"""Nsight Compute: where it is, what is asked of it, and reading what it prints. No torch."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fabench.profiling.kernel import Kernel

METRICS: dict[str, tuple[str, ...]] = {
    "time_ns": ("gpu__time_duration.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_written_bytes": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "l2_hit": ("lts__t_sector_hit_rate.pct",),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
               "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "registers": ("launch__registers_per_thread",),
    "shared_bytes": ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic"),
}  # fmt: skip
"""Field of `Kernel` -> the counters it is read from. Of several the first that the card has counts; the two parts of
shared memory are added."""

_UNITS = {
    "second": 1e9, "s": 1e9, "msecond": 1e6, "ms": 1e6, "usecond": 1e3, "us": 1e3, "nsecond": 1.0, "ns": 1.0,
    "byte": 1.0, "byte/block": 1.0, "kbyte": 1e3, "kbyte/block": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12,
    "%": 0.01, "register/thread": 1.0, "": 1.0,
}  # fmt: skip
"""Unit as printed -> factor to ns, bytes, and shares of 1."""

FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*")


NOT_ALLOWED = (
    "ncu may not read the counters here (ERR_NVGPUCTRPERM); run as root, or let the driver allow it "
    "(NVreg_RestrictProfilingToAdminUsers=0)"
)


class NcuError(Exception):
    """Why ncu gave no counters: one sentence, with what to do."""


def find() -> str | None:
    """ncu on the PATH, or where the CUDA toolkit puts it; None if it is not installed."""
    if found := shutil.which("ncu"):
        return found
    places = [place for folder in FOLDERS for place in sorted(Path("/").glob(f"{folder[1:]}/ncu"), reverse=True)]
    return str(places[0]) if places else None


def command(ncu: str, log: Path, target: Sequence[str], *, alternatives: bool = True) -> list[str]:
    """The command that counts what `target` launches between cudaProfilerStart and Stop.

    Blackwell has the DRAM counters under other names than the cards before it; with `alternatives` both are asked for,
    and the one that a card has not is n/a in the output.

    Clocks are left alone (ncu would lock them to their base). ncu flushes caches before each kernel and replays it
    once for each group of counters, so a kernel's bytes are those of a cold call.
    """
    counters = [
        name
        for field, names in METRICS.items()
        for name in (names if alternatives or field == "shared_bytes" else names[:1])
    ]
    return [
        ncu, "--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none", "--csv",
        "--page", "raw", "--print-units", "base", "--log-file", str(log), "--metrics", ",".join(counters), *target,
    ]  # fmt: skip


def launches(
    ncu: str, log: Path, target: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> list[Kernel]:
    """Every kernel launch of `target`, counted. Raises NcuError with the reason there are no counters."""
    try:
        return _launches(command(ncu, log, target), log, timeout_s, environment)
    except NcuError as error:
        if "metric" not in str(error):
            raise
    # An ncu that will not have a name it does not know is asked for the usual ones alone.
    return _launches(command(ncu, log, target, alternatives=False), log, timeout_s, environment)


def _launches(words: Sequence[str], log: Path, timeout_s: float, environment: Mapping[str, str] | None) -> list[Kernel]:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NcuError(f"ncu was not done after {timeout_s:g} s; profile a smaller case") from None
    except OSError as error:
        raise NcuError(f"'{words[0]}' cannot be started: {error.strerror}") from None
    text = log.read_text(errors="replace") if log.exists() else ""
    if (why := refusal(text + done.stdout + done.stderr)) is not None:
        raise NcuError(why)
    found = list(parse(text))
    if not found:
        said = (done.stderr or text or done.stdout).strip().splitlines()
        raise NcuError(f"ncu counted no kernel (exit code {done.returncode})" + (f": {said[-1][:300]}" if said else ""))
    return found


def refusal(text: str) -> str | None:
    """What ncu says when it may not or cannot count, as a sentence."""
    if "ERR_NVGPUCTRPERM" in text:
        return NOT_ALLOWED
    if found := re.search(r"==ERROR==\s*(.+)", text):
        return f"ncu: {found[1].strip()[:300]}"
    return None


def parse(text: str) -> Iterator[Kernel]:
    """The launches in ncu's CSV (page raw): a line of names, a line of units, a line a launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines:
        return
    names, units, *rows = csv.reader(lines)
    factors = dict(zip(names, (_UNITS.get(unit.lower()) for unit in units), strict=False))
    for row in rows:
        values = dict(zip(names, row, strict=False))
        fields = {field: _value(field, counters, values, factors) for field, counters in METRICS.items()}
        time_ns = fields.pop("time_ns") or 0.0
        whole = {
            name: round(value) for name in ("registers", "shared_bytes") if (value := fields.pop(name)) is not None
        }
        yield Kernel(values.get("Kernel Name", "?"), 1, time_ns, **fields, **whole)  # type: ignore[arg-type]


def _value(
    field: str, counters: Sequence[str], values: Mapping[str, str], factors: Mapping[str, float | None]
) -> float | None:
    found = [number for name in counters if (number := _number(values.get(name), factors.get(name))) is not None]
    if not found:
        return None
    return sum(found) if field == "shared_bytes" else found[0]


def _number(text: str | None, factor: float | None) -> float | None:
    """The number in base units; None for 'n/a', for a counter that the card has not, and for an unknown unit."""
    try:
        return None if text is None or factor is None else float(text.replace(",", "")) * factor
    except ValueError:
        return None

"""How long a row will take, before anything is launched: a rough figure, for planning and for the progress bar.

One call takes the time that the roofline allows divided by an assumed efficiency, plus a launch:

- a backend that follows the flash memory model does the case's FLOPs and moves its ideal bytes;
- one that follows the standard model does the products of the full matrices, whatever the mask hides, and moves every
  byte of the standard algorithm's steps.

Peaks are the datasheet's or computed ones on a GPU, and an assumed rate a thread on a CPU. The efficiencies are round
figures that real kernels reach on an H200 (FlashAttention-2 36 % of the bf16 peak forward at N = 4k and d = 128, cuDNN
68 %; naive PyTorch a quarter to a third of its own roofline), so that a row is off by a factor of two or three, and the
slowest backends by more. From the time of a call the row's follows by the rules of measurement: three windows of
warm-up, then windows of samples until the median is known or the suite's seconds are spent, each window followed by the
idle time that its regime's duty cycle asks for, a few calls that check it, and `OVERHEAD_S` for the rest. Building and
compiling are not in it.
"""

from __future__ import annotations

import math

from fabench import roofline, steps
from fabench.case import Case
from fabench.cost import MemoryModel, cost
from fabench.device import Device
from fabench.measure.peaks import peaks
from fabench.measure.regime import choose
from fabench.measure.rules import GATE_NS, RULES, WARMUP_WINDOWS
from fabench.measure.stopping import CHECKPOINTS
from fabench.names import Regime

EFFICIENCY: dict[MemoryModel, float] = {"flash": 0.4, "standard": 0.25}
"""Share of its own roofline that a backend is assumed to reach."""
LAUNCH_S = 10e-6
OVERHEAD_S = {"cpu": 0.15, "cuda": 0.5}
"""Judging a row twice, counting memory and kernels, writing: 824 rows on an H200 took 0.4 to 0.9 s beyond the rest."""
OTHER_CALLS = 6
"""Calls that are not timed: the check before, the two after, the memory pass and the profiler's."""
CPU_THREAD_FLOPS, CPU_BANDWIDTH = 1e11, 2e10
UNKNOWN_GPU_FLOPS, UNKNOWN_GPU_BANDWIDTH = 50e12, 1e12
FLUSH_NS, SPIN_NS = 40e3, 600e3
"""Before a timed span: the flush, and the spin for as long as PyTorch takes to queue a call."""
WORKER_START_S = 6.0
"""A fresh worker: Python, torch, the device's context, its canaries."""


def call_seconds(case: Case, model: MemoryModel, device: Device, threads: int = 1) -> float:
    """Seconds of one call of `case` on `device` by a backend that follows `model`."""
    peak, bandwidth = _rates(case, device, threads)
    if model == "standard":
        algorithm = steps.standard(case)
        products = sum(step.flops for step in algorithm if step.counted)
        least = roofline.seconds(products, steps.total_bytes(algorithm), peak, bandwidth)
    else:
        needs = cost(case)
        least = roofline.seconds(needs.flops, needs.ideal_bytes, peak, bandwidth)
    return least / EFFICIENCY[model] + LAUNCH_S


def row_seconds(case: Case, call_s: float, device: Device, requested: Regime, seconds: float) -> float:
    """Wall seconds of one row of a round whose call takes `call_s`: warm-up, samples, idle time and overhead."""
    regime = choose(case, device, requested)
    rules, t_ns = RULES[regime], call_s * 1e9
    untimed_s = OVERHEAD_S[device.type] + OTHER_CALLS * call_s
    if regime == "sustained":
        return untimed_s + rules.settle_s + max(seconds, call_s)
    span_ns = t_ns * math.ceil(max(rules.span_ns / t_ns, 1))
    if t_ns > rules.long_call_ns:
        idle_ns = max(t_ns, rules.long_call_idle_ns) if rules.duty < 1 else 0.0
        calls = rules.long_calls or max(5, math.ceil(seconds * 1e9 / t_ns))
        return untimed_s + (WARMUP_WINDOWS + calls) * (t_ns + idle_ns) / 1e9
    each_ns, spin_ns = span_ns + (FLUSH_NS if rules.flush else 0.0), SPIN_NS if rules.spin else 0.0
    gate_ns = GATE_NS if rules.gated else 0.0
    a_window = max(1, min(CHECKPOINTS[0], int((rules.window_ns - gate_ns) / (each_ns + spin_ns))))
    samples = _samples(span_ns, seconds, noisy=regime == "cpu")
    windows = math.ceil(samples / a_window)
    windows += WARMUP_WINDOWS
    samples += WARMUP_WINDOWS * a_window
    work_ns = samples * each_ns + windows * gate_ns
    return untimed_s + (work_ns / rules.duty + samples * spin_ns) / 1e9


def _samples(span_ns: float, seconds: float, *, noisy: bool) -> int:
    """Samples until the rule stops: a GPU's median is known at the first checkpoint, a CPU's only when time is up."""
    enough = CHECKPOINTS[-1] if noisy else CHECKPOINTS[0]
    return next((n for n in CHECKPOINTS if n >= enough or n * span_ns >= seconds * 1e9), enough)


def _rates(case: Case, device: Device, threads: int) -> tuple[float, float]:
    """(FLOP/s, bytes/s) that the roofline of `device` is drawn with."""
    if device.type == "cpu":
        return CPU_THREAD_FLOPS * threads, CPU_BANDWIDTH
    known = peaks(device)
    return known.flops.get(case.dtype, UNKNOWN_GPU_FLOPS), known.bandwidth or UNKNOWN_GPU_BANDWIDTH

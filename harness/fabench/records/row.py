"""A row and what it is made of."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fabench.names import Accuracy, Flag, Regime, Status, StopReason
from fabench.records.base import Amount, Count, Index, Natural, Positive, Record


class Method(Record):
    """The rules of a measurement; `method_id` is their hash. What follows from the device is in `Derived`."""

    regime: Regime
    cache: Literal["cold", "warm"]
    timer: Literal["cuda_event", "perf_counter"]
    inputs: str
    """How inputs were rotated and distributed."""
    rules: str
    """Version of the rule set."""


class Detail(Record):
    """Why a row is not plainly ok."""

    message: str
    worst: dict[str, Any] | None = None
    """Where the worst error is: tensor, b, h, row, col, got, expected."""
    traceback: str | None = None


class TensorError(Record):
    """How far one output is from the reference (docs/parity.md): the rho rule judges, the rest is shown beside it."""

    max_rho: Amount | None = None
    rms_rho: Amount | None = None
    max_el: Amount | None = None
    max_abs: Amount | None = None
    rmse: Amount | None = None
    cosine: float | None = None
    relative_frobenius: Amount | None = None
    bias: float | None = None
    """Mean signed error."""
    ulp_p50: Amount | None = None
    ulp_p999: Amount | None = None
    ulp_max: Amount | None = None
    two_x: Amount | None = None
    """Max error over twice that of the emulated low-precision pass: flash-attention's tests ask for at most 1."""


class Parity(Record):
    """The verdict's numbers, by tensor."""

    accuracy: Accuracy = Field(alias="class")
    O: TensorError | None = None
    lse: TensorError | None = None
    dQ: TensorError | None = None
    dK: TensorError | None = None
    dV: TensorError | None = None
    rows_checked: Index | None = None
    """Rows of O compared, where sampled."""


class CostRecord(Record):
    """What the problem costs, the same for every backend."""

    pairs: Natural
    """Attended (query, key) pairs of one head."""
    flops: Natural
    ideal_bytes: Natural
    convention: str


class Utilization(Record):
    """Fractions of 1; null where the peak is not known."""

    mfu: Amount | None = None
    """FLOP/s over the peak in `Env.peaks`: the datasheet's, else SMs x clock."""
    gemm: Amount | None = None
    """FLOP/s over the measured GEMM."""
    hbm: Amount | None = None
    """Ideal bytes per second over the measured copy."""
    roofline: Amount | None = None
    """max(FLOPs/peak, bytes/bandwidth) over the time, measured peaks."""


class Memory(Record):
    """Memory of one call beyond its inputs, in bytes; null where it could not be measured."""

    peak_bytes: Natural | None = None
    outputs_bytes: Natural | None = None
    workspace_bytes: Natural | None = None
    saved_bytes: Natural | None = None
    device_delta_bytes: Natural | None = None
    """Growth of the device's used memory that the allocator does not see."""
    predicted_bytes: Natural | None = None
    note: str | None = None
    """Why it is null."""


class Derived(Record):
    """What the device or a measured time made of the rules; recorded, not hashed."""

    flush_bytes: Natural | None = None
    rotation: Count | None = None
    idle_s: Amount | None = None
    loops: Count | None = None


class Telemetry(Record):
    """Means and ranges while the row was measured."""

    sm_clock_mhz_mean: Amount | None = None
    sm_clock_mhz_min: Amount | None = None
    memory_clock_mhz_mean: Amount | None = None
    power_w_mean: Amount | None = None
    temperature_c_max: float | None = None
    energy_j: Amount | None = None
    power_violation_s: Amount | None = None
    """Time that the power limit held the clock down, by the driver's own count."""
    thermal_violation_s: Amount | None = None
    event_reasons: Index | None = None
    """NVML clock event reasons seen, or-ed together."""
    polls: Index = 0


class Spent(Record):
    """Where the row's wall time went, in seconds."""

    total_s: Amount
    device_s: Amount = 0.0
    idle_s: Amount = 0.0
    reference_s: Amount = 0.0
    profile_s: Amount = 0.0
    memory_s: Amount = 0.0
    check_s: Amount = 0.0
    worker_start_s: Amount = 0.0
    """Start of the worker process, on the first row it gives."""


class Published(Record):
    """Where a published figure stands, and what it says there; nothing of it was measured by fabench."""

    paper: str
    """Authors, title, year, and where to get it."""
    place: str
    """Table, figure, section, file or thread."""
    gpu: str
    """As the source names it."""
    convention: str
    """How the source counts FLOPs."""
    mark: Literal["paper", "vendor", "issue", "blog"]
    """What kind of source: a paper or project chart, a vendor's table or README, an issue or PR, a blog."""
    approximate: bool = False
    """Read off a figure, not printed as a number."""
    value: Positive | None = None
    """The figure as printed; null where the source prints none, e.g. OOM."""
    unit: str = "TFLOP/s"
    note: str | None = None
    """What the figure leaves open, or what had to be assumed."""


class Row(Record):
    """The outcome of one (case, backend, round, attempt). A failure never has a speed."""

    rec: Literal["row"] = "row"
    row_id: str
    round: Index
    attempt: Index
    key: dict[str, Any]
    """The case; see `Case.from_key`."""
    env_id: str
    backend: str
    backend_sha256: str | None = None
    """Of the code: a user's file, or the backend's own file or folder in this repository."""
    rerun: str
    """The command that repeats this row alone; empty for a published figure."""
    time: str
    compile_s: Amount | None = None
    t_host_ns: Index | None = None
    tuned: dict[str, Any] | None = None
    """What an autotuner or a dispatcher chose."""
    method_id: str | None = None
    method: Method | None = None
    order: Index | None = None
    """Position in the shuffled order of the round."""
    status: Status
    detail: Detail | None = None
    parity: Parity | None = None
    K: Count | None = None
    """Calls per sample."""
    n: Count | None = None
    """Samples."""
    samples_ns: list[Positive] | None = None
    """Nanoseconds of one call, in the order taken."""
    quantiles: dict[str, Positive] | None = None
    """Of samples_ns: min, p10, p25, median, p75, p90, max, ci_low, ci_high (95 % interval of the median)."""
    flags: list[Flag] = Field(default_factory=list)
    cost: CostRecord | None = None
    utilization: Utilization | None = None
    memory: Memory | None = None
    kernels: list[str] | None = None
    derived: Derived | None = None
    telemetry: Telemetry | None = None
    spent: Spent | None = None
    stop_reason: StopReason | None = None
    published: Published | None = None
    """Set on a figure taken from a publication: such a row was not measured here (see `resultfile`)."""

"""What `--value` can show: where each number comes from, its base unit, and the one place where it is scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fabench.errors import UsageError
from fabench.names import TENSORS
from fabench.parity.thresholds import RIGHT
from fabench.records import Row, TensorError
from fabench.stats import FEWEST
from fabench.text import did_you_mean
from fabench.views.outcomes import Outcome

Read = Callable[[Outcome], float | None]
"""The number in base units, or None where it is not known."""


@dataclass(frozen=True)
class Value:
    """One number of an outcome: in `base` units inside, times `scale` when printed."""

    name: str
    base: str
    """Field name in json and csv, with its unit."""
    heading: str
    meaning: str
    read: Read
    scale: float = 1.0
    better: str = ""
    """'higher', 'lower' or nothing."""
    digits: int = 3
    """Significant digits printed."""
    suffix: str = ""
    timed: bool = True
    """Follows from the median time, so that the time's interval is the number's."""
    of_failures: bool = False
    """Shown for a wrong result too, because it says how wrong; never a speed."""

    def text(self, number: float) -> str:
        """The number as printed: scaled, rounded, never in exponents while it fits."""
        return significant(number * self.scale, self.digits) + self.suffix

    def of(self, outcome: Outcome) -> float | None:
        """The number in base units; None if there is none, a failure's speed above all."""
        if outcome.status != "ok" and not (self.of_failures and outcome.status == "wrong_result"):
            return None
        return self.read(outcome)


def significant(number: float, digits: int = 3) -> str:
    """`number` to `digits` significant digits, whole digits kept: 1234, 412, 41.2, 0.0412, 4.12e-07."""
    if number == 0:
        return "0"
    text = f"{number:.{digits - 1}e}"
    exponent = int(text.partition("e")[2])
    if not -5 < exponent < 15:
        return text
    return f"{float(text) if exponent < digits else number:.{max(0, digits - 1 - exponent)}f}"


def _per_second(amount: Callable[[Outcome], float | None]) -> Read:
    def read(outcome: Outcome) -> float | None:
        total = amount(outcome)
        return None if total is None or not outcome.time_ns else total / (outcome.time_ns / 1e9)

    return read


def _field(part: str, name: str) -> Callable[[Row], float | None]:
    """Reads `row.<part>.<name>`; None where the row has no such part."""
    return lambda row: getattr(getattr(row, part), name, None)


def _cost(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.largest(_field("cost", name))


def _speedup(outcome: Outcome) -> float | None:
    if outcome.baseline is None or outcome.baseline.time_ns is None or not outcome.time_ns:
        return None
    return outcome.baseline.time_ns / outcome.time_ns


def _utilization(name: str) -> Read:
    return lambda outcome: outcome.median_of(_field("utilization", name))


def _memory(name: str) -> Read:
    return lambda outcome: outcome.largest(_field("memory", name))


def _worst_error(name: str) -> Read:
    return lambda outcome: outcome.largest(lambda row: worst_tensor(row, name)[1])


def worst_tensor(row: Row, name: str) -> tuple[str | None, float | None]:
    """(tensor, number) of the output whose error number `name` is largest; (None, None) if nothing was judged."""
    found: list[tuple[float, str]] = []
    for tensor in TENSORS if row.parity else ():
        error: TensorError | None = getattr(row.parity, "lse" if tensor == "LSE" else tensor)
        if error is not None and (number := getattr(error, name)) is not None:
            found.append((number, tensor))
    if not found:
        return None, None
    worst = max(found)
    return worst[1], worst[0]


def _interval(outcome: Outcome) -> float | None:
    if outcome.interval_ns is None or not outcome.time_ns:
        return None
    low, high = outcome.interval_ns
    return (high - low) / 2 / outcome.time_ns


def _percent(name: str, base: str, heading: str, meaning: str, read: Read) -> Value:
    return Value(name, base, heading, meaning, read, 100, "higher", suffix="%")


_ALL = (
    Value("tflops", "flops_per_s", "TFLOP/s", "FLOPs of the attended pairs over the time", _per_second(_cost("flops")),
          1e-12, "higher"),
    Value("ms", "time_ns", "ms", "median time of one call", lambda outcome: outcome.time_ns, 1e-6, "lower", 4),
    Value("us", "time_ns", "us", "median time of one call", lambda outcome: outcome.time_ns, 1e-3, "lower", 4),
    Value("gbs", "ideal_bytes_per_s", "GB/s", "each input read once, each output written once, over the time",
          _per_second(_cost("ideal_bytes")), 1e-9, "higher"),
    Value("interval", "interval_share", "± %",
          f"half-width of the median's 95 % interval (of fewer than {FEWEST} rounds or samples, of their range)",
          _interval, 100, "lower", 2, timed=False, suffix="%"),
    Value("peak", "peak_bytes", "peak MiB", "peak memory of one call beyond its inputs", _memory("peak_bytes"), 2**-20,
          "lower", timed=False),
    Value("workspace", "workspace_bytes", "workspace MiB", "peak memory beyond inputs, outputs and what is saved",
          _memory("workspace_bytes"), 2**-20, "lower", timed=False),
    Value("saved", "saved_bytes", "saved MiB", "memory that the forward keeps for the backward",
          _memory("saved_bytes"), 2**-20, "lower", timed=False),
    _percent("mfu", "mfu", "mfu", "FLOP/s over the datasheet's peak, or SMs x clock where none is known",
             _utilization("mfu")),
    _percent("gemm", "gemm", "% of GEMM", "FLOP/s over a large GEMM measured in the same run", _utilization("gemm")),
    _percent("hbm", "hbm", "% of copy", "ideal bytes per second over a copy measured in the same run",
             _utilization("hbm")),
    _percent("roofline", "roofline", "roofline", "the time that measured peaks allow over the median time",
             _utilization("roofline")),
    Value("rho", "max_rho", "max rho", f"largest error over what rounding allows, of all outputs; {RIGHT}",
          _worst_error("max_rho"), better="lower", timed=False, of_failures=True),
    Value("rmse", "rmse", "RMSE", "root mean square error against float64, of the worst output", _worst_error("rmse"),
          better="lower", timed=False, of_failures=True),
    Value("max_abs", "max_abs", "max error", "largest absolute error against float64", _worst_error("max_abs"),
          better="lower", timed=False, of_failures=True),
    Value("speedup", "speedup", "speed-up", "the baseline's time over the time", _speedup, better="higher", timed=False,
          suffix="x"),
    Value("compile", "compile_s", "compile s", "seconds to build, compile and tune before the first call",
          lambda outcome: outcome.median_of(lambda row: row.compile_s), better="lower", timed=False),
)  # fmt: skip

VALUES: dict[str, Value] = {value.name: value for value in _ALL}
"""By the name that `--value` takes."""


def value_named(name: str) -> Value:
    """The value, or UsageError with the nearest name."""
    if name not in VALUES:
        hint = did_you_mean(name, VALUES) or f"; known: {', '.join(VALUES)}"
        raise UsageError(f"unknown value '{name}'{hint}")
    return VALUES[name]

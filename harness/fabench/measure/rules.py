"""Every constant of the measuring rules, by regime. A change that alters figures must change `VERSION`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fabench.names import Regime

VERSION = "3"
"""Version of the rule set, part of `method_id`: files of different versions are not compared.

1: flush, spin, start event. 2: spin, flush, start event (a call right after a spin is up to 2 us slower).
3: idle for four times the work, spins not counted, where it was nine times all device time; a graph holds as many calls
as a span needs, on as many input sets, where it held every set; a call longer than a window settles within 1 %.
"""

ESTIMATE_CALLS = 10
ESTIMATE_S = 0.2
"""The first look at a call: the median of up to this many calls, within this time, at least one."""

HOST_MARGIN = 1.5
"""The spin before a timed span lasts this many times the host time that the span needs to be enqueued."""
SPIN_CAP_NS = 10e6
"""A longer spin would cost more than it saves: such a call is bound by the host anyway."""
LEAK_SHARE = 0.5
"""A window leaks if in more than this share of its samples the device went past the start event too early."""
LEAK_RETRIES, LATE_RETRIES = 2, 10
"""Times the spin is made longer before a call is timed by the wall: a call that seems to wait for the device, and one
that was only queued late, on a busy machine."""
WAIT_SHARE = 0.5
"""A call seems to wait for the device if the host never got through with it in less than this share of its time."""
LATE_SHARE = 0.05
"""Samples of a row that the host may have been late for; with more the row is flagged."""

WARMUP_WINDOWS = 3
"""Warm is: the medians of the last this many windows agree within the tolerance."""
ONE_CALL_NS = 0.5e9
"""A call longer than this is warmed up by a single call."""

STRAY_SHARE, STRAY_FLOOR_NS = 0.3, 50e3
"""After a span's end event, a device-wide sync must return within max(30 % of the call, 50 us)."""
CAPTURES = 3
"""Graphs that a call is captured in, at most, until one holds as many calls as a span needs."""
CAPTURE_TOLERANCE = 0.1
"""Calls by which a graph may be off, as a share."""

STRAY_TRIES = 3
"""Looks at it before it counts: one late return may be the host's scheduler."""

GATE_NS = 1e6
"""Length of the canary that opens a window: `GATE_SPANS` equal spans, of which the median counts."""
GATE_SPANS = 3
GATE_TOLERANCE = 0.005
"""A canary slower than its cold value by more than this means that the card has not recovered."""
CALIBRATION_REST_S = 0.1
"""Idle time before each of the canary readings that tell its cold value."""
GATE_GIVE_UP_S = 3.0
"""Still slow after this long: the card has drifted, and the present value becomes the cold one."""

SHORT_NULLS = 10
"""A call shorter than this many empty launches is flagged short, outside graphs."""


@dataclass(frozen=True)
class Rules:
    """What one regime asks of a measurement."""

    span_ns: float
    """Least length of a timed span: with K calls between two events, K * t is at least this."""
    window_ns: float = 10e6
    """Most device work of a window, its canary included."""
    duty: float = 1.0
    """Most share of the time that the device works, spins aside; 1 leaves no idle time."""
    long_call_ns: float = 10e6
    """A span longer than this is a window by itself; its calls are the long ones below."""
    long_call_idle_ns: float = 0.0
    """Least idle time after one; it idles as long as the window's work took if that is more."""
    long_calls: int | None = None
    """One stops at this many samples; None lets the stopping rule decide."""
    flush: bool = False
    """The L2 cache is flushed before every timed span."""
    gated: bool = False
    """A canary opens every window, and the window waits until the card has recovered."""
    gate_retry_s: float = 0.1
    """Idle time before the canary is asked again."""
    spin: bool = False
    """The device is held before every timed span until the host has queued it."""
    primed: bool = False
    """An untimed span opens each window: the caches are to be warm, and another candidate has just used them."""
    warmup_tolerance: float = 0.005
    """The medians of the last windows agree if the largest is above the smallest by no more than this share."""
    long_warmup_tolerance: float = 0.005
    """The same for a call longer than `long_call_ns`, whose clock falls while it runs."""
    warmup_cap_s: float = 3.0
    """A row that has not settled by then is sampled as it is, flagged unstable; less where fewer seconds are asked."""
    settle_s: float = 0.0
    """Back-to-back work before the first sample."""
    unstable_half_width: float = 0.01
    """A final 95 % interval of the median with a half-width above this share of it flags the row unstable."""
    captured: bool = False
    """The K calls of a span are replayed from a CUDA graph."""


_BURST = Rules(
    span_ns=50e3,
    duty=0.20,
    long_call_idle_ns=40e6,
    long_calls=5,
    flush=True,
    gated=True,
    gate_retry_s=0.02,
    spin=True,
    warmup_cap_s=1.5,
    long_warmup_tolerance=0.01,
)
RULES: dict[Regime, Rules] = {
    "burst": _BURST,
    "graph": replace(_BURST, span_ns=200e3, captured=True),
    "sustained": Rules(span_ns=1e6, window_ns=100e6, settle_s=3.0),
    # A CPU shares its caches and its cores with the system: agreement within 0.5 % would never come.
    "cpu": Rules(span_ns=100e3, primed=True, warmup_tolerance=0.05, warmup_cap_s=0.5, unstable_half_width=0.05),
}
"""The rules of each regime."""

CPU_RESOLUTIONS = 1000
"""On a CPU a timed span also lasts at least this many steps of the timer."""

"""Footnotes: every flag, every reason and every source behind a cell, numbered once and printed under the table."""

from __future__ import annotations

from fabench.measure.rules import LATE_SHARE, RULES, SHORT_NULLS
from fabench.names import Flag
from fabench.records import Published
from fabench.views.outcomes import Outcome

_BURST, _CPU = RULES["burst"], RULES["cpu"]

FLAGS: dict[Flag, str] = {
    "throttled": "the GPU slowed itself down meanwhile (heat or power brake)",
    "unstable": (
        "the warm-up did not settle, or the interval's half-width is above "
        f"{_BURST.unstable_half_width * 100:g} % of the median ({_CPU.unstable_half_width * 100:g} % on a CPU)"
    ),
    "partial_cold": "too little memory to rotate enough inputs past L2: partly warm",
    "short": f"shorter than {SHORT_NULLS} empty launches: launching is no small part of it",
    "hot": f"one sample is longer than {_BURST.long_call_ns / 1e6:g} ms, a window's most: full clock is not claimed",
    "host_sync": "the call waits for the GPU, or the host cannot queue it in time: wall time, not device time",
    "host_late": f"the host queued more than {LATE_SHARE * 100:g} % of the samples late: they include waiting for it",
    "drift": "the card did not return to its earlier speed; measured from a new baseline",
    "unchecked": "not compared with the reference",
    "sampled": "only sampled rows of the output were compared with the reference",
    "shared_gpu": "another process had a context on the GPU meanwhile",
    "wrong_memory": "memory grew with N² where the backend claims O(N)",
    "copied": "the backend copies its inputs into another layout, which is timed",
    "no_telemetry": "no clocks, power or throttling could be read",
    "not_interleaved": "timed apart from the other backends: it did not fit beside them, or had a worker of its own",
}
"""What each flag says about the number it stands beside."""

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Notes:
    """The footnotes of one table: equal texts share a number, in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of `text`, from 1; a new one if it was not met before."""
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    @property
    def texts(self) -> list[str]:
        """The footnotes in the order of their numbers."""
        return list(self._numbers)


def superscript(number: int) -> str:
    """¹, ², ... ¹⁰."""
    return str(number).translate(_SUPERSCRIPTS)


def about(outcome: Outcome) -> list[str]:
    """Every sentence that belongs under a number of `outcome`: its status and reason, its flags, its source."""
    texts = []
    detail = outcome.worst.detail
    message = " ".join(detail.message.split()) if detail else ""
    if outcome.status != "ok":
        texts.append(f"{outcome.status}{_rounds(outcome)}" + (f": {message}" if message else ""))
    elif message:
        texts.append(message)
    texts += [f"{flag}: {FLAGS[flag]}" for flag in outcome.flags]
    if outcome.published is not None:
        texts.append(source(outcome.published))
    elif outcome.origin is not None:
        texts.append(elsewhere(outcome.origin))
    return texts


def elsewhere(theirs: Outcome) -> str:
    """Where and when a row of another file was measured, in one line."""
    regime = f" in regime {theirs.regime}" if theirs.regime else ""
    return f"of {theirs.file}, another file: {theirs.device}{regime}, {theirs.rows[-1].time[:10]}"


def source(published: Published) -> str:
    """A published figure's source, in one line."""
    read_off = ", read off a figure" if published.approximate else ""
    recounted = ", recounted over attended pairs" if published.unit == "TFLOP/s" and published.value else ""
    note = f"; {published.note}" if published.note else ""
    where = f"{published.paper}, {published.place}; {published.gpu}"
    return f"published, not measured here: {where}{read_off}{recounted}{note}"


def _rounds(outcome: Outcome) -> str:
    """` in 1 of 10 rounds` where the rounds do not agree."""
    bad = sum(row.status == outcome.status for row in outcome.rows)
    return "" if bad == len(outcome.rows) else f" in {bad} of {len(outcome.rows)} rounds"

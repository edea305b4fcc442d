"""Footnotes: every flag, every reason and every source behind a cell, numbered once and printed under the table."""

from __future__ import annotations

from fabench.names import Flag
from fabench.records import Published
from fabench.views.outcomes import Outcome

FLAGS: dict[Flag, str] = {
    "throttled": "the GPU slowed itself down meanwhile (heat or power brake)",
    "unstable": "medians of the warm-up or of rounds did not settle",
    "partial_cold": "too little memory to rotate enough inputs past L2: partly warm",
    "short": "near the launch floor, where the launch is timed more than the kernel",
    "hot": "one call is longer than a burst window: full clock is not claimed",
    "host_sync": "the call waits for the GPU, or the host cannot queue it in time: wall time, not device time",
    "drift": "the card did not return to its earlier speed; measured from a new baseline",
    "unchecked": "not compared with the reference",
    "sampled": "only sampled rows of the output were compared with the reference",
    "shared_gpu": "another process used the GPU meanwhile",
    "wrong_memory": "memory grew with N² where the backend claims O(N)",
    "copied": "the backend copies its inputs into another layout, which is timed",
    "no_telemetry": "no clocks, power or throttling could be read",
    "not_interleaved": "timed apart from the other backends: it did not fit beside them, or a worker had died",
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
    return texts


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

"""The axes of a table: which fields of the cases vary, which are fixed, and which follow from another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fabench.case import Case
from fabench.errors import UsageError
from fabench.names import DIRECTIONS
from fabench.text import did_you_mean
from fabench.views.outcomes import Outcome

Key = tuple[object, ...]


class OfCase(Protocol):
    """What has a case: an outcome, or a planned row."""

    @property
    def case(self) -> Case:
        """The problem."""


def _field(name: str) -> Callable[[Any], object]:
    return lambda outcome: getattr(outcome.case, name)


def _length(case: Case) -> int | str:
    return case.Nq if case.Nq == case.Nk else f"{case.Nq}x{case.Nk}"


AXES: dict[str, Callable[[Any], object]] = {
    "device": lambda outcome: outcome.device,
    "file": lambda outcome: outcome.file,
    "regime": lambda outcome: outcome.regime,
    **{
        name: _field(name)
        for name in (
            "direction", "dtype", "layout", "inputs", "alignment", "softcap", "scale", "seed",
            "batch", "heads", "kv_heads", "d", "dv", "window", "causal",
        )
    },
    "N": lambda outcome: _length(outcome.case),
    "Nq": _field("Nq"),
    "Nk": _field("Nk"),
    "backend": lambda outcome: outcome.backend,
}  # fmt: skip
"""Every axis a table can have, slowest to fastest: rows are labelled and sorted in this order."""

SHAPE = tuple(name for name in AXES if name not in ("device", "file", "regime", "backend"))
"""The axes that say which problem is solved."""


@dataclass(frozen=True)
class Shape:
    """How the problems of some outcomes differ."""

    varying: tuple[str, ...]
    """Axes that tell the problems apart, slowest first."""
    fixed: tuple[str, ...]
    """What all have in common, and what follows from another axis, in words: 'bf16', 'batch = 16384/N'."""


def axis_names(text: str, option: str, *more: str) -> tuple[str, ...]:
    """The axes of a comma-separated option, which may also hold `more`. Raises UsageError for an unknown one."""
    names, known = tuple(name.strip() for name in text.split(",") if name.strip()), (*AXES, *more)
    for name in names:
        if name == "value" and name not in known:
            raise UsageError(f"'value' must be in --col, got it in {option}")
        if name not in known:
            hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
            raise UsageError(f"unknown axis '{name}' in {option}{hint}")
    return names


def key_of(outcome: Outcome, axes: Sequence[str]) -> Key:
    """The outcome's place on these axes."""
    return tuple(AXES[name](outcome) for name in axes)


def varies(name: str, outcomes: Sequence[OfCase]) -> bool:
    """True if the axis tells any two of the outcomes apart."""
    return len({AXES[name](outcome) for outcome in outcomes}) > 1


def shape_of(outcomes: Sequence[OfCase]) -> Shape:
    """Which axes of the problem vary, and what to say of the others; nothing of no outcomes."""
    if not outcomes:
        return Shape((), ())
    square = all(outcome.case.Nq == outcome.case.Nk for outcome in outcomes)
    skipped = {"Nq", "Nk"} if square else {"N"}
    skipped |= {a for a, b in (("kv_heads", "heads"), ("dv", "d")) if _always_equal(a, b, outcomes)}
    names = [name for name in SHAPE if name not in skipped]
    varying = [name for name in names if varies(name, outcomes)]
    fixed = [text for name in names if name not in varying and (text := common_text(name, outcomes[0]))]
    for name in ("batch", "heads"):
        for other in ("N", "d"):
            product = {getattr(o.case, name) * getattr(o.case, "Nq" if other == "N" else "d") for o in outcomes}
            if name in varying and other in varying and len(product) == 1:
                varying.remove(name)
                fixed.append(f"{name} = {product.pop()}/{other}")
    return Shape(tuple(varying), tuple(fixed))


def _always_equal(name: str, other: str, outcomes: Sequence[OfCase]) -> bool:
    return all(getattr(outcome.case, name) == getattr(outcome.case, other) for outcome in outcomes)


_DEFAULTS = {"layout": "bhsd", "inputs": "normal", "alignment": "bottom_right", "softcap": 0.0, "scale": None,
             "window": None, "seed": 0}  # fmt: skip


def common_text(name: str, outcome: OfCase) -> str:
    """How a caption says the value that all share; nothing for what is as usual."""
    value = AXES[name](outcome)
    if name in _DEFAULTS and value == _DEFAULTS[name]:
        return ""
    return named(name, value)


def named(name: str, value: object) -> str:
    """A place on an axis in words that need no heading: 'bf16', 'not causal', 'd 128'."""
    if name in ("direction", "dtype", "layout", "alignment", "device", "file", "regime", "backend"):
        return axis_text(value)
    if name == "causal":
        return "causal" if value else "not causal"
    return f"{name} {axis_text(value)}"


def axis_text(value: object) -> str:
    """An axis value as a row or column label."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def sort_key(key: Key) -> tuple[tuple[int, float, str], ...]:
    """Orders labels: no value first, numbers by size, forward before backward, other words as spelt; 'NqxNk' by Nq."""

    def part(value: object) -> tuple[int, float, str]:
        if value is None:
            return (0, 0.0, "")
        if isinstance(value, int | float):
            return (1, float(value), "")
        if value in DIRECTIONS:
            return (1, float(DIRECTIONS.index(value)), "")
        text = axis_text(value)
        head = text.partition("x")[0]
        return (1, float(head), text) if head.isdigit() else (2, 0.0, text)

    return tuple(part(value) for value in key)

"""One unit of the battery and what came of it, as plain data: the supervisor, the worker and the reports share it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from fabench.case import Case

ProbeName = Literal[
    "rho",
    "mask",
    "count",
    "addr",
    "one",
    "neglse",
    "nan",
    "equivariance",
    "refusal",
    "type",
    "poison",
    "guard",
    "mutate",
    "stale",
    "repeat",
    "stream",
    "capture",
]
"""Every probe, in the order of reports: the numeric rule, the exact probes, then hygiene."""
Order = Literal["plain", "sliced", "offset1", "offset8", "expanded_kv", "odd_strides", "mixed", "far_rows"]
"""How the inputs lie in memory beyond `Case.layout`; see `orders.py`."""
GradientOrder = Literal["plain", "transposed", "expanded", "sliced"]
Ending = Literal["passed", "failed", "unsupported", "skipped", "crashed", "timeout", "oom"]

PROBES: tuple[ProbeName, ...] = get_args(ProbeName)
ORDERS: tuple[Order, ...] = get_args(Order)
GRADIENT_ORDERS: tuple[GradientOrder, ...] = get_args(GradientOrder)
BAD_ENDINGS: tuple[Ending, ...] = ("failed", "crashed", "timeout")
"""Endings that make the kernel wrong."""


@dataclass(frozen=True)
class Trial:
    """Some probes on one case and memory order."""

    case: Case
    probes: tuple[ProbeName, ...]
    order: Order = "plain"
    gradient_order: GradientOrder = "plain"
    """Memory order of dO."""
    stress: bool = False
    """Many repetitions, and other work on the device at the same time."""

    def label(self) -> str:
        """A short name for messages."""
        parts = [self.case.label()]
        if self.order != "plain":
            parts.append(f"order={self.order}")
        if self.gradient_order != "plain":
            parts.append(f"dO={self.gradient_order}")
        return " ".join(parts)

    def __str__(self) -> str:
        """The label: the id of a test."""
        return self.label()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {
            "key": self.case.key,
            "probes": list(self.probes),
            "order": self.order,
            "gradient_order": self.gradient_order,
            "stress": self.stress,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial `to_json` wrote."""
        return cls(
            Case.from_key(data["key"]), tuple(data["probes"]), data["order"], data["gradient_order"], data["stress"]
        )


@dataclass
class Witness:
    """One element that is wrong: where, what it is, what it must be, and by how much it may differ."""

    tensor: str
    index: list[int]
    """b, h, row and, of a tensor with channels, col."""
    got: float | None
    """None if it is NaN or infinite."""
    expected: float | None
    limit: float
    """Largest allowed error of the row's norm (`row`) or of this element."""
    row: bool = False
    """The limit is on the norm of the whole row's error, as in the rho rule."""
    with_lse: bool = False
    """It shows where LSE is asked for beside it."""


@dataclass
class Result:
    """What one probe found on one trial."""

    probe: ProbeName
    trial: Trial
    ending: Ending
    message: str = ""
    """One sentence: why it failed, or the kernel's own reason for refusing."""
    parity: dict[str, Any] | None = None
    """The numbers of the rule, as `fabench.records.Parity` writes them."""
    witness: Witness | None = None
    note: str | None = None
    """Something worth reporting that is no failure."""
    diagnosis: dict[str, Any] | None = None
    """What the wrong output looks like; see `diagnose.py`."""
    warn: bool = False
    """Passed with a large rho."""
    seconds: float = 0.0
    compile_s: float = 0.0
    """Of that, preparing and first calls: compilers and autotuners run there."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What a probe measured beside its verdict."""

    @property
    def bad(self) -> bool:
        """True if this makes the kernel wrong."""
        return self.ending in BAD_ENDINGS

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, without NaN and inf; `from_json` is the inverse."""
        values: dict[str, Any] = _finite({**asdict(self), "trial": self.trial.to_json()})
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The result `to_json` wrote."""
        values = dict(data)
        values["trial"] = Trial.from_json(data["trial"])
        values["witness"] = None if data["witness"] is None else Witness(**data["witness"])
        return cls(**values)


def _finite(value: Any) -> Any:
    """The same with None in the place of numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

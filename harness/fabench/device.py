"""Facts about the device a run uses, and its telemetry. The facts are plain data: reading them imports no torch."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Device:
    """One device as planning and backends see it. A child process that owns torch fills it in (`probe.py`)."""

    type: Literal["cpu", "cuda"]
    name: str
    """As the driver or /proc/cpuinfo names it, e.g. 'NVIDIA H200'."""
    index: int = 0
    capability: tuple[int, int] | None = None
    """CUDA compute capability, None on a CPU."""
    sms: int | None = None
    memory_bytes: int = 0
    free_bytes: int = 0
    l2_bytes: int | None = None
    max_sm_clock_hz: float | None = None

    @property
    def slug(self) -> str:
        """The folder name under results/: 'nvidia-h200', or 'cpu'."""
        return "cpu" if self.type == "cpu" else re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def torch_name(self) -> str:
        """The name torch takes: 'cpu' or 'cuda:0'."""
        return "cpu" if self.type == "cpu" else f"cuda:{self.index}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Device:
        """The device `to_json` wrote."""
        capability = data.get("capability")
        return cls(**{**data, "capability": None if capability is None else (int(capability[0]), int(capability[1]))})

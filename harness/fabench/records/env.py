"""Where rows were measured: hardware, software and the state of the machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fabench.records.base import Amount, Count, Index, Natural, Positive, Record


class Peaks(Record):
    """Peaks of the device by dtype, and where they come from."""

    flops: dict[str, Positive]
    """FLOP/s by dtype."""
    bandwidth: Positive | None = None
    """Bytes/s."""
    source: str


class Identity(Record):
    """What the hardware is: two files that differ here come from different devices."""

    device_type: Literal["cpu", "cuda"]
    model: str
    capability: tuple[Index, Index] | None = None
    sms: Count | None = None
    memory_bytes: Natural | None = None
    l2_bytes: Natural | None = None
    ecc: bool | None = None
    power_limit_w: Amount | None = None
    mig: bool | None = None
    threads: Count | None = None
    """CPU threads used, on a CPU."""


class Software(Record):
    """What ran on it."""

    python: str
    torch: str
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    backends: dict[str, str] = Field(default_factory=dict)
    """Version of each backend's library."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that change kernels, where set."""


class Session(Record):
    """The state of the machine when the session began: informational, never part of an identity."""

    gpu_uuid_hash: str | None = None
    host_hash: str
    boot_id: str | None = None
    sm_clock_hz: Amount | None = None
    memory_clock_hz: Amount | None = None
    temperature_c: float | None = None
    power_w: Amount | None = None
    cpu: str | None = None
    governor: str | None = None
    load_1min: Amount | None = None
    affinity: list[Index] | None = None
    """Cores this run may use."""


class Env(Record):
    """Where rows were measured. One a session; rows name theirs by `env_id`."""

    rec: Literal["env"] = "env"
    env_id: str
    session_id: str
    peaks: Peaks
    identity: Identity
    software: Software
    session: Session

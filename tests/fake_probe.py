"""What the probe would answer on a machine that is not here: an H200 with every backend, or a small CPU."""

from __future__ import annotations

from collections.abc import Iterable

from fabench import records
from fabench.backend import Facts
from fabench.case import Case
from fabench.device import Device
from fabench.probe import BackendReport, Probe

H200 = Device(
    "cuda", "NVIDIA H200", 0, (9, 0), sms=132, memory_bytes=150_000_000_000, free_bytes=149_000_000_000,
    l2_bytes=62_914_560, max_sm_clock_hz=1.98e9,
)  # fmt: skip
CPU = Device("cpu", "Two Cores", memory_bytes=16 << 30, free_bytes=12 << 30)

CPU_BACKENDS = ("naive", "online", "sdpa-math", "sdpa-flash", "sdpa-auto")
ALL_BACKENDS = (
    "naive", "online", "sdpa-math", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-overrideable", "sdpa-auto",
    "flash-attn", "flash-attn-3", "flash-attn-4", "flex", "xformers", "triton", "cuda-v1", "cuda-v2",
)  # fmt: skip


def report(name: str, **more) -> BackendReport:
    """A backend of `name`: the two standard ones follow that memory model, the half-precision kernels refuse fp32."""
    facts: dict = {"memory": "standard" if name in ("naive", "sdpa-math") else "flash"}
    if name in ("flash-attn", "flash-attn-3", "flash-attn-4", "cuda-v1", "cuda-v2"):
        facts |= {"dtypes": ("fp16", "bf16"), "max_head_dim": 128 if name == "cuda-v1" else 256}
    if name == "flash-attn-3":
        facts |= {"directions": ("forward",)}
    if name == "sdpa-overrideable":
        more = {"unavailable": "no device in this build of torch registers it", **more}
    return BackendReport(Facts(name=name, **facts), **more)


def fake_probe(
    cases: Iterable[Case], backends: Iterable[str | tuple[str, BackendReport]] = CPU_BACKENDS, device: Device = CPU
) -> Probe:
    """A probe's answer in which each backend refuses what its facts refuse."""
    named = dict((entry, report(entry)) if isinstance(entry, str) else entry for entry in backends)
    return Probe(
        device=device,
        identity=records.Identity(device_type=device.type, model=device.name, threads=2),
        software=records.Software(python="3.11", torch="2.13.0"),
        session=records.Session(host_hash="0"),
        backends=named,
        reasons={(case.id, name): r.facts.case_reasons(case) for case in cases for name, r in named.items()},
    )

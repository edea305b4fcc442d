"""Peaks of a device: from a table of datasheets, else computed from its SMs and clock. No torch here.

Dense rates only (a datasheet's figure "with sparsity" is twice as high), matrix units for fp16, bf16 and tf32, and
plain FMA for fp32. `mfu` divides by these; `limits` gives what no call can be above.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fabench.device import Device
from fabench.records import Peaks


@dataclass(frozen=True)
class Datasheet:
    """One product: FLOP/s by dtype and bytes/s, as its maker states them."""

    name: str
    """Matches the driver's name of the device, a regular expression."""
    bf16: float
    tf32: float
    fp32: float
    bandwidth: float
    source: str

    @property
    def flops(self) -> dict[str, float]:
        """FLOP/s by dtype; fp16 and bf16 run alike on all of these."""
        return {"fp16": self.bf16, "bf16": self.bf16, "tf32": self.tf32, "fp32": self.fp32}


_A100 = "NVIDIA A100 Tensor Core GPU datasheet, 2021"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, half of the figures with sparsity"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, half of the figures with sparsity"

DATASHEETS: tuple[Datasheet, ...] = (
    Datasheet(r"A100.*SXM4.*80GB", 312e12, 156e12, 19.5e12, 2.039e12, _A100),
    Datasheet(r"A100.*80GB.*PCIe", 312e12, 156e12, 19.5e12, 1.935e12, _A100),
    Datasheet(r"A100", 312e12, 156e12, 19.5e12, 1.555e12, "NVIDIA A100 Tensor Core GPU datasheet, 2020 (40 GB)"),
    Datasheet(r"H100 NVL", 835.5e12, 417.5e12, 60e12, 3.9e12, _H100),
    Datasheet(r"H100 PCIe", 756e12, 378e12, 51e12, 2.0e12, _H100),
    Datasheet(r"H100.*HBM3|H100 SXM", 989.4e12, 494.7e12, 67e12, 3.35e12, _H100),
    Datasheet(r"H200 NVL", 835.5e12, 417.5e12, 60e12, 4.8e12, _H200),
    Datasheet(r"H200", 989e12, 494.5e12, 67e12, 4.8e12, _H200),
    Datasheet(r"B200", 2250e12, 1125e12, 75e12, 8.0e12, "NVIDIA DGX B200 datasheet, an eighth of its dense figures"),
    Datasheet(r"RTX 4090", 165.2e12, 82.6e12, 82.6e12, 1.008e12, "NVIDIA Ada GPU architecture whitepaper, appendix A"),
    Datasheet(r"L40S", 362.05e12, 183e12, 91.6e12, 0.864e12, "NVIDIA L40S datasheet"),
    Datasheet(r"MI300X", 1307.4e12, 653.7e12, 163.4e12, 5.3e12, "AMD Instinct MI300X data sheet"),
)
"""The first whose name matches counts, so the narrower names come first."""

PER_SM_CLOCK: dict[tuple[int, int], tuple[int, int, int]] = {
    (7, 0): (1024, 128, 128),
    (7, 5): (1024, 128, 128),
    (8, 0): (2048, 1024, 128),
    (8, 6): (1024, 512, 256),
    (8, 7): (2048, 1024, 256),
    (8, 9): (1024, 512, 256),
    (9, 0): (4096, 2048, 256),
    (10, 0): (8192, 4096, 256),
    (10, 3): (8192, 4096, 256),
    (12, 0): (1024, 512, 256),
    (12, 1): (1024, 512, 256),
}
"""Compute capability -> dense FLOP a clock and SM in fp16 or bf16, tf32, fp32.

Of the architecture whitepapers: e.g. GH100, 132 SMs x 1.83 GHz x 4096 = 989 TFLOP/s. GeForce parts accumulate fp16
products in fp32 at half the rate given here, which makes this an upper limit for them.
"""


def datasheet(device: Device) -> Datasheet | None:
    """The entry for `device`, None if the table has none."""
    return next((sheet for sheet in DATASHEETS if re.search(sheet.name, device.name, re.IGNORECASE)), None)


def computed(device: Device) -> Peaks | None:
    """SMs x highest clock x FLOP a clock and SM; None unless all three are known. No bandwidth follows from these."""
    rates = None if device.capability is None else PER_SM_CLOCK.get(device.capability)
    if rates is None or not device.sms or not device.max_sm_clock_hz:
        return None
    clocks = device.sms * device.max_sm_clock_hz
    half, tf32, fp32 = (rate * clocks for rate in rates)
    source = f"computed: {device.sms} SMs x {device.max_sm_clock_hz / 1e9:.3g} GHz x FLOP/clk/SM of capability "
    return Peaks(
        flops={"fp16": half, "bf16": half, "tf32": tf32, "fp32": fp32},
        bandwidth=None,
        source=source + "{}.{}".format(*device.capability or (0, 0)),
    )


def peaks(device: Device) -> Peaks:
    """What `mfu` divides by: the datasheet, else the computed peak, else nothing (empty `flops`), with its source."""
    if (sheet := datasheet(device)) is not None:
        return Peaks(flops=sheet.flops, bandwidth=sheet.bandwidth, source=sheet.source)
    if (clocked := computed(device)) is not None:
        return clocked
    return Peaks(flops={}, bandwidth=None, source=f"unknown: no datasheet figures for '{device.name}'")


def limits(device: Device) -> Peaks:
    """What no call can exceed: the higher of computed and datasheet FLOP/s, and the datasheet's bytes/s."""
    stated, clocked = peaks(device), computed(device)
    if clocked is None:
        return stated
    flops = {name: max(value, stated.flops.get(name, 0.0)) for name, value in clocked.flops.items()}
    source = clocked.source if stated.source == clocked.source else f"the higher of {stated.source}; {clocked.source}"
    return Peaks(flops=flops, bandwidth=stated.bandwidth, source=source)

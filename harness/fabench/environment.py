"""Where a run happens: devices, hardware identity, software versions, the state of the machine. Imports torch late.

Only worker processes and the probe's child call this; the parent gets the answers as plain data (`probe.py`).
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabench import records
from fabench.cgroup import memory_limits
from fabench.device import Device
from fabench.errors import DeviceError
from fabench.nvml import opened
from fabench.text import counted

KERNEL_VARIABLES = (
    "CUBLAS",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDNN",
    "FLASH_ATTENTION",
    "KMP",
    "MKL",
    "NVIDIA_TF32_OVERRIDE",
    "OMP",
    "PYTORCH",
    "TORCH",
    "TORCHINDUCTOR",
    "TRITON",
)
"""Environment variables whose name is one of these, or one of these and an underscore, change what runs."""
PLACES = ("CACHE", "CACHE_ENABLED", "DIR", "FILE", "FILENAME", "HOME", "LOGS", "PATH")
"""Last words of variables that only say where files lie, or that there are some."""


def devices() -> list[Device]:
    """Every device here: the CPU, then each CUDA device as torch numbers them. Free memory is that of the moment."""
    import torch

    found = [_cpu()]
    if torch.cuda.is_available():
        found += [_cuda(index) for index in range(torch.cuda.device_count())]
    return found


def resolve(name: str) -> Device:
    """The device a user means by 'auto', 'cpu', 'cuda' or 'cuda:1'. Raises DeviceError if it is not here."""
    import torch

    kind, colon, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and (kind != "cuda" or not index.isdigit())):
        raise DeviceError(f"'device' must be auto, cpu, cuda or cuda:INDEX, got '{name}'")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return _cpu()
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "torch was built without CUDA" if built is None else f"torch, built for CUDA {built}, finds no usable GPU"
        raise DeviceError(f"'device' {name} must be here, got no CUDA device: {why}; run `fabench doctor`")
    number, count = int(index or 0), torch.cuda.device_count()
    if number >= count:
        raise DeviceError(f"'device' {name} must be here, got {counted(count, 'CUDA device')}, numbered from 0")
    return _cuda(number)


def _cpu() -> Device:
    total, free = _host_memory()
    return Device("cpu", _cpu_model(), memory_bytes=total, free_bytes=free)


def _cpu_model() -> str:
    return _from_lines("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _from_lines(path: str, key: str) -> str | None:
    try:
        with open(path) as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return None


def _host_memory() -> tuple[int, int]:
    """Total and free bytes that this process may use: the machine's, or its control group's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _from_lines("/proc/meminfo", "MemAvailable")
    free = int(available.split()[0]) * 1024 if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    limits = [(limit, used) for limit, used in memory_limits() if limit < total]
    return min([total, *(limit for limit, _ in limits)]), min([free, *(max(0, limit - used) for limit, used in limits)])


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cuda(index: int) -> Device:
    import torch

    facts = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    clock = nvml(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), index)
    return Device(
        "cuda",
        facts.name,
        index=index,
        capability=(facts.major, facts.minor),
        sms=facts.multi_processor_count,
        memory_bytes=total,
        free_bytes=free,
        l2_bytes=getattr(facts, "L2_cache_size", None),
        max_sm_clock_hz=None if clock is None else clock * 1e6,
    )


def uuid(index: int) -> str | None:
    """The UUID of a CUDA device as NVML writes it ('GPU-...'), whatever CUDA_VISIBLE_DEVICES hides or reorders."""
    import torch

    found = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if found is None else f"GPU-{found}"


def nvml(ask: Callable[[Any, Any], Any], index: int) -> Any:
    """What `ask(pynvml, handle)` says of a CUDA device, None if NVML is absent or does not know (MIG, containers)."""
    with opened() as pynvml:
        if pynvml is None:
            return None
        try:
            name = uuid(index)
            by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
            return ask(pynvml, by_index(index) if name is None else by_uuid(name))
        except pynvml.NVMLError:
            return None


def identity(device: Device) -> records.Identity:
    """What the hardware is."""
    import torch

    if device.type == "cpu":
        return records.Identity(
            device_type="cpu", model=device.name, memory_bytes=device.memory_bytes, threads=torch.get_num_threads()
        )
    limit = nvml(lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h), device.index)
    ecc = nvml(lambda n, h: n.nvmlDeviceGetEccMode(h)[0], device.index)
    mig = nvml(lambda n, h: n.nvmlDeviceGetMigMode(h)[0], device.index)
    return records.Identity(
        device_type="cuda",
        model=device.name,
        capability=device.capability,
        sms=device.sms,
        memory_bytes=device.memory_bytes,
        l2_bytes=device.l2_bytes,
        ecc=None if ecc is None else bool(ecc),
        power_limit_w=None if limit is None else limit / 1000,
        mig=None if mig is None else bool(mig),
    )


def software(device: Device, backends: dict[str, str]) -> records.Software:
    """What runs on it; `backends` are the versions of the libraries that backends use."""
    import torch

    on_gpu = device.type == "cuda"
    cudnn = torch.backends.cudnn.version() if on_gpu else None  # type: ignore[no-untyped-call]
    return records.Software(
        python=platform.python_version(),
        torch=torch.__version__,
        driver=nvml(lambda n, h: n.nvmlSystemGetDriverVersion(), device.index) if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        cudnn=None if cudnn is None else dotted(cudnn),
        triton=version("triton"),
        backends=dict(sorted(backends.items())),
        variables=variables(os.environ),
    )


def dotted(cudnn: int) -> str:
    """91900 -> '9.19.0': cuDNN's own encoding, major·10000 since version 9 and major·1000 before."""
    major = 10000 if cudnn >= 90000 else 1000
    return f"{cudnn // major}.{cudnn % major // 100}.{cudnn % 100}"


def version(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    from importlib import metadata

    try:
        return str(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None


def variables(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The environment variables that change which kernels run or how, where set."""

    def changes_kernels(name: str) -> bool:
        return any(name == word or name.startswith(word + "_") for word in KERNEL_VARIABLES) and not any(
            name.endswith("_" + word) for word in PLACES
        )

    return {name: value for name, value in sorted(environment.items()) if changes_kernels(name)}


def session(device: Device) -> records.Session:
    """The state of the machine now: informational. Host and GPU are named by hashes only."""
    gpu: dict[str, Any] = {}
    if device.type == "cuda":
        name = uuid(device.index)
        at = device.index
        gpu["gpu_uuid_hash"] = None if name is None else _hash(name)
        for field, ask, factor in (
            ("sm_clock_hz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), 1e6),
            ("memory_clock_hz", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM), 1e6),
            ("temperature_c", lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), 1.0),
            ("power_w", lambda n, h: n.nvmlDeviceGetPowerUsage(h), 1e-3),
        ):
            value = nvml(ask, at)
            gpu[field] = None if value is None else value * factor
    return records.Session(
        host_hash=_hash(platform.node()),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        cpu=_cpu_model(),
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_1min=os.getloadavg()[0],
        affinity=sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        **gpu,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]

"""What `fabench doctor` finds out, in the process that may import torch: one finding a part of the installation."""

from __future__ import annotations

import glob
import importlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fabench import environment, registry, torch_here
from fabench.device import Device
from fabench.errors import DeviceError
from fabench.text import counted

TOOL_FOLDERS = ("/usr/local/cuda*/bin", "/opt/nvidia/nsight-compute/*", "/usr/lib/nsight-compute")
"""Where NVIDIA's installers put command line tools that are not on PATH."""


OWN_LINE = ("triton", "cuda.core")
"""Modules that are looked at for more than one backend's sake: `findings` names them by themselves."""


@dataclass(frozen=True)
class Finding:
    """One part: is it here, which version, and what to do if it is not."""

    part: str
    state: Literal["ok", "missing", "not needed"]
    found: str
    """The version or place if it is here, else what is wrong."""
    remedy: str = ""
    """What to install or do; empty if nothing."""
    serves: str = ""
    """What needs it."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `Finding(**data)` is the inverse."""
        return asdict(self)


def findings() -> list[Finding]:
    """Every part, from the driver up to the backends' libraries; without torch, those that can be asked without it."""
    try:
        torch = torch_here.imported()
    except DeviceError as error:
        found = str(error).removeprefix("'torch' ").removesuffix(f"; {torch_here.REMEDY}")
        missing = Finding("torch", "missing", found, torch_here.REMEDY, "everything")
        return [Finding("python", "ok", platform.python_version()), _driver(), missing, *_compilers()]

    device = environment.resolve("auto")
    gpu = device.type == "cuda"
    return [
        Finding("python", "ok", platform.python_version()),
        _driver(),
        _torch(torch, gpu),
        _device(device),
        *_cudnn(torch, gpu),
        _nvml(gpu),
        _module("triton", lambda m: m.__version__, "pip install 'fabench[gpu]'", "triton kernels, flex", gpu),
        _module("cuda.core", lambda m: m.__version__, "pip install 'fabench[gpu]'", "CUDA kernels", gpu),
        _nvrtc(gpu),
        *_compilers(),
        _tool("ncu", "fabench profile", "install Nsight Compute (it comes with the CUDA toolkit)", gpu),
        _tool("compute-sanitizer", "hunting races and bad addresses", "install the CUDA toolkit", gpu),
        *_libraries(device),
    ]


def _driver() -> Finding:
    serves = "every GPU run"
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return Finding("NVIDIA driver", "ok", str(pynvml.nvmlSystemGetDriverVersion()), serves=serves)
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # no library, no driver, or the two do not match
        path = "/proc/driver/nvidia/version"
        if os.path.exists(path):
            with open(path) as file:
                return Finding("NVIDIA driver", "ok", " ".join(file.readline().split()), serves=serves)
        found = f"none found ({type(error).__name__}: {error})"
        return Finding("NVIDIA driver", "missing", found, "install NVIDIA's driver to measure on a GPU", serves)


def _torch(torch: Any, gpu: bool) -> Finding:
    built = torch.version.cuda
    found = f"{torch.__version__}, " + (f"built for CUDA {built}" if built else "built without CUDA")
    remedy = ""
    if os.path.exists("/dev/nvidiactl") and not gpu:
        remedy = "a GPU is here but torch cannot use it: " + (
            "update the driver" if built else "install a CUDA build of torch (pytorch.org/get-started)"
        )
    return Finding("torch", "missing" if remedy else "ok", found, remedy, "everything")


def _device(device: Device) -> Finding:
    size = f"{device.memory_bytes / 2**30:.0f} GiB"
    if device.type == "cpu":
        return Finding("device", "ok", f"cpu: {device.name}, {size}", serves="--device auto")
    capability = "{}.{}".format(*(device.capability or (0, 0)))
    return Finding(
        "device", "ok", f"{device.torch_name}: {device.name}, {size}, capability {capability}", serves="--device auto"
    )


def _cudnn(torch: Any, gpu: bool) -> Iterator[Finding]:
    if gpu:
        number = torch.backends.cudnn.version()
        if number is None:
            yield Finding("cuDNN", "missing", "torch finds none", "install nvidia-cudnn-cu13", "sdpa-cudnn")
        else:
            yield Finding("cuDNN", "ok", environment.dotted(number), serves="sdpa-cudnn")


def _nvml(gpu: bool) -> Finding:
    serves = "telemetry: clocks, power, throttling"
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        version = environment.version("nvidia-ml-py") or "unknown version"
        return Finding("NVML", "ok", f"nvidia-ml-py {version}, {counted(count, 'device')}", serves=serves)
    except ImportError:
        return Finding("NVML", _state(gpu), "nvidia-ml-py is not installed", "pip install nvidia-ml-py", serves)
    except Exception as error:  # NVMLError: no driver, or a container without its library
        remedy = "without it rows are flagged no_telemetry" if gpu else ""
        return Finding("NVML", _state(gpu), f"{type(error).__name__}: {error}", remedy, serves)


def _state(gpu: bool) -> Literal["missing", "not needed"]:
    return "missing" if gpu else "not needed"


def _module(name: str, version: Callable[[Any], str], remedy: str, serves: str, gpu: bool) -> Finding:
    try:
        return Finding(name, "ok", str(version(importlib.import_module(name))), serves=serves)
    except Exception as error:  # a broken installation may raise anything
        return Finding(name, _state(gpu), f"{type(error).__name__}: {error}", remedy, serves)


def _nvrtc(gpu: bool) -> Finding:
    def version(nvrtc: Any) -> str:
        _, major, minor = nvrtc.nvrtcVersion()
        return f"{major}.{minor}"

    return _module("cuda.bindings.nvrtc", version, "pip install nvidia-cuda-nvrtc", "compiling CUDA kernels", gpu)


def _compilers() -> Iterator[Finding]:
    """Those that torch.compile and Triton start: the one that CC or CXX names, else the first of theirs on PATH."""
    for part, variable, names, serves in (
        ("C compiler", "CC", ("gcc", "cc", "clang"), "Triton's launcher: triton, flex on a GPU"),
        ("C++ compiler", "CXX", ("g++",), "torch.compile: flex on a CPU"),
    ):
        wanted = (os.environ[variable],) if os.environ.get(variable) else names
        if path := next((path for name in wanted if (path := shutil.which(name))), None):
            yield Finding(part, "ok", path, serves=serves)
        else:
            found = f"no {' or '.join(wanted)} on PATH"
            yield Finding(part, "missing", found, f"install {names[0]}, or name another in {variable}", serves)


def _tool(name: str, serves: str, remedy: str, gpu: bool) -> Finding:
    path = shutil.which(name)
    if path is None:
        places = (os.path.join(folder, name) for pattern in TOOL_FOLDERS for folder in sorted(glob.glob(pattern)))
        path = next((place for place in places if os.access(place, os.X_OK)), None)
    if path is None:
        return Finding(name, _state(gpu), "not on PATH", remedy, serves)
    return Finding(name, "ok", path, serves=serves)


def _libraries(device: Device) -> Iterator[Finding]:
    """The library of each backend that needs one; backends that share one are one finding."""
    users: dict[str, list[str]] = {}
    backends = registry.shipped()
    for backend in backends.values():
        if backend.facts.module is not None:
            users.setdefault(backend.facts.module, []).append(backend.name)
    for module, names in sorted(users.items()):
        backend, serves = backends[names[0]], ", ".join(names)
        if module in OWN_LINE:
            continue
        if off := backend.facts_on(device).device_reasons(device):
            yield Finding(module, "not needed", off[0], serves=serves)
        elif why := backend.unavailable(device):
            yield Finding(module, "missing", why.split("; install it with")[0], backend.facts.install, serves)
        else:
            versions = ", ".join(f"{name} {version}" for name, version in backend.versions().items())
            yield Finding(module, "ok", versions or "importable", serves=serves)

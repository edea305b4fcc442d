"""The architectures that `fabench kernels` compiles for: what --arch takes, and which GPUs are here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from fabench.errors import UsageError
from fabench.nvml import opened

OLDEST = 80
"""The kernels need compute capability 8.0."""
FIRST_WITH_LETTER = {"a": 90, "f": 100}
"""The oldest architecture that has forms of its own (a) or of its family (f)."""
NO_GPU = "sm_90a"
"""What is compiled for where no GPU is that the kernels run on."""


def here() -> tuple[str, ...]:
    """The architectures of the GPUs of this machine that the kernels run on, each once, by NVML; ('sm_90',) of an H200.

    Empty where there is no GPU, no driver, or no NVML.
    """
    with opened() as pynvml:
        if pynvml is None:
            return ()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            capabilities = [pynvml.nvmlDeviceGetCudaComputeCapability(handle) for handle in handles]
        except pynvml.NVMLError:
            return ()
    numbers = dict.fromkeys(10 * major + minor for major, minor in capabilities)
    return tuple(f"sm_{number}" for number in numbers if number >= OLDEST)


def parse_archs(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    """'sm_80,sm_90a' -> its names, each once, and None -> (). Raises UsageError on anything else."""
    if text is None:
        return ()
    archs = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for arch in archs:
        match = re.fullmatch(r"sm_([1-9]\d{1,2})([af]?)", arch)
        if match is None:
            raise UsageError(f"'--arch' must be architectures such as sm_80,sm_90a, got '{arch}'")
        if int(match[1]) < OLDEST:
            raise UsageError(f"'--arch' must be sm_{OLDEST} or newer, which the kernels need, got '{arch}'")
        if int(match[1]) < FIRST_WITH_LETTER.get(match[2], OLDEST):
            raise UsageError(f"'--arch' must be without a letter before sm_90, or an 'f' before sm_100, got '{arch}'")
    return archs


def chosen(archs: tuple[str, ...], launched_as: Callable[[str], str]) -> tuple[str, ...]:
    """What --arch named; else the GPUs here, each as a launch looks for it, or `NO_GPU` without any."""
    return archs or tuple(dict.fromkeys(launched_as(arch) for arch in here())) or (NO_GPU,)


def option(function: Any) -> Any:
    """--arch, as `archs`: () if it was not given."""
    return click.option(
        "--arch", "archs", callback=parse_archs, metavar="A,B",
        help=f"Architectures to compile for, e.g. sm_80,{NO_GPU}.  [default: those of the GPUs here, else {NO_GPU}]",
    )(function)  # fmt: skip

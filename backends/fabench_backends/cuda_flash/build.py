"""CUDA sources to cubins through NVRTC: no nvcc, no host compiler, no CUDA headers, and no GPU needed.

A cubin is for one exact architecture. Results are kept in a folder of the user's cache, one file an entry, named by the
sha256 of everything that decides the result: source, headers, options, NVRTC version.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fabench.errors import FabenchError
from fabench_backends.cuda_flash.configs import Config, number, smem_limit

FOLDER = Path(__file__).parent
_ONE_AT_A_TIME = threading.Lock()
"""Neither the first import of cuda.core nor NVRTC's log (13.0 mixes up concurrent ones) suits threads."""


class KernelError(FabenchError):
    """A kernel that cannot be compiled, loaded or launched, by name."""


@dataclass(frozen=True)
class Stats:
    """What ptxas says about one kernel."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    smem_bytes: int
    """Dynamic, as launched, plus static."""
    seconds: float
    """Time on a core that compiling it took: what else runs on the machine does not count."""
    warnings: tuple[str, ...] = ()
    """ptxas advisories C75xx: setmaxnreg ignored, wgmma serialised, and their like."""

    def faults(self, arch: str) -> list[str]:
        """Why this build must not ship: spills, a stack frame, C75xx warnings, more shared memory than there is."""
        found = []
        if spilled := self.spill_store_bytes + self.spill_load_bytes:
            found.append(f"{spilled} bytes of register spills, must be 0")
        if self.stack_bytes:
            found.append(f"a stack frame of {self.stack_bytes} bytes, must be 0")
        if self.smem_bytes > smem_limit(arch):
            found.append(f"{self.smem_bytes} bytes of shared memory > {smem_limit(arch)} on {arch}")
        return [*found, *self.warnings]


@dataclass(frozen=True)
class Built:
    """A compiled kernel."""

    cubin: bytes
    stats: Stats
    unkept: str | None = None
    """Why the cache could not keep it."""


def cache_folder() -> Path:
    """$FABENCH_CACHE, else fabench in the user's cache folder."""
    if own := os.environ.get("FABENCH_CACHE"):
        return Path(own) / "cubin"
    home = os.path.expanduser("~")  # as it stands for a user who has none, as in containers; Path.home() would raise
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("/" if home == "~" else home) / ".cache") / "fabench" / "cubin"


@cache
def nvrtc_version() -> str:
    """'13.0'. Raises KernelError if NVRTC cannot be loaded."""
    try:
        with _ONE_AT_A_TIME:
            from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise what the loader raises
        raise _missing("NVRTC", error) from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC must be installed to compile CUDA kernels, asking its version gave {status.name}")
    return f"{major}.{minor}"


def _missing(what: str, error: Exception) -> KernelError:
    said = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".:")
    return KernelError(f"{what} must be installed to compile CUDA kernels, got {said}; pip install 'fabench[gpu]'")


def known_archs() -> list[int]:
    """What the NVRTC that is installed compiles for: [75, 80, ...]. Raises KernelError if it cannot be loaded."""
    nvrtc_version()
    from cuda.bindings import nvrtc

    return list(nvrtc.nvrtcGetSupportedArchs()[1])


def supports(arch: str) -> bool:
    """True if NVRTC compiles for `arch`. Raises KernelError if it cannot be loaded."""
    return number(arch) in known_archs()


def architecture(capability: tuple[int, int]) -> str:
    """The exact architecture of a compute capability: 'sm_80', 'sm_90a'."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def key(config: Config, arch: str) -> str:
    """The sha256 of all that decides the cubin."""
    digest = hashlib.sha256()
    for path in [FOLDER / config.source, *sorted(FOLDER.glob("*.cuh"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(json.dumps([config.macros, arch, OPTIONS, nvrtc_version()], sort_keys=True).encode())
    return digest.hexdigest()


def build(config: Config, arch: str, *, use_cache: bool = True) -> Built:
    """The cubin of `config` for `arch`, from the cache or compiled now. Raises KernelError if it does not compile."""
    if not use_cache:
        return compile_now(config, arch)
    entry = cache_folder() / f"{key(config, arch)}.cubin"
    if (found := _read(entry)) is None:
        found = compile_now(config, arch)
        found = replace(found, unkept=_write(entry, found))
    return found


OPTIONS: dict[str, Any] = {"std": "c++17", "ptxas_options": ["-v"], "device_as_default_execution_space": True}


def compile_now(config: Config, arch: str) -> Built:
    """Compile without looking at the cache."""
    nvrtc_version()
    with _ONE_AT_A_TIME:
        try:
            from cuda.core import Program, ProgramOptions
        except ImportError as error:
            raise _missing("cuda-core", error) from error

        source = (FOLDER / config.source).read_text()
        options = ProgramOptions(
            name=config.source,
            arch=arch,
            include_path=[str(FOLDER)],
            define_macro=list(config.macros.items()),
            **OPTIONS,
        )
        log = io.StringIO()
        start = time.thread_time()
        try:
            cubin = bytes(Program(source, "c++", options).compile("cubin", logs=log).code)
        except Exception as error:  # cuda-core raises its own and RuntimeError
            said = f"{log.getvalue()}\n{error}".replace("\0", "")
            if not supports(arch) or re.search(r"--nv_arch|--gpu-architecture", said):  # such as sm_80a: no such 'a'
                known = f"NVRTC {nvrtc_version()} compiles for {', '.join(f'sm_{n}' for n in known_archs())}"
                raise KernelError(
                    f"'{config.name}' must be compiled for a known architecture, got '{arch}'; {known}; "
                    f"with an 'a' from sm_90 on"
                ) from error
            first = next((line.strip() for line in said.splitlines() if "error:" in line), said.strip())
            raise KernelError(f"'{config.name}' must compile for {arch}, got {first}") from error
        seconds = time.thread_time() - start
    return Built(cubin, parse_log(log.getvalue(), config, seconds))


def parse_log(log: str, config: Config, seconds: float) -> Stats:
    """The figures in the output of `ptxas -v`. Raises KernelError if they are not there."""
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    if frame is None or registers is None:
        raise KernelError(f"ptxas must report the registers of '{config.name}', got: {log!r}")
    static = re.search(r"(\d+) bytes smem", log)
    return Stats(
        registers=int(registers[1]),
        stack_bytes=int(frame[1]),
        spill_store_bytes=int(frame[2]),
        spill_load_bytes=int(frame[3]),
        smem_bytes=config.smem_bytes + (int(static[1]) if static else 0),
        seconds=round(seconds, 3),
        warnings=tuple(line.strip() for line in log.splitlines() if re.search(r"\bC75\d\d\b", line)),
    )


def _read(entry: Path) -> Built | None:
    """The entry if it is whole, else None. The sha256 of all that follows, a line of JSON, the cubin."""
    try:
        digest, _, content = entry.read_bytes().partition(b"\n")
        if digest.decode() != hashlib.sha256(content).hexdigest():
            return None
        header, _, cubin = content.partition(b"\n")
        fields = json.loads(header)
        fields["warnings"] = tuple(fields["warnings"])
        return Built(cubin, Stats(**fields))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(entry: Path, built: Built) -> str | None:
    """Put the entry in place in one step. A cache that cannot be written is only slower: the reason is returned."""
    content = json.dumps(asdict(built.stats)).encode() + b"\n" + built.cubin
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            os.replace(temporary, entry)
        except BaseException:  # an interrupt too
            os.unlink(temporary)
            raise
    except OSError as error:
        return error.strerror or str(error)
    return None

"""What one backend changes in torch, Python or its process is put back before the next one runs."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fabench.settings import Settings, multiply_exactly

INFERENCE = torch.inference_mode()
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "default device": (lambda: torch.empty(0).device, lambda: torch.set_default_device("meta")),
    "grad mode": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "determinism": (
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(True),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
    "oneDNN": (lambda: torch.backends.mkldnn.enabled, lambda: setattr(torch.backends.mkldnn, "enabled", False)),
    "tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    ),
    "tf32 of cuDNN": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
    ),
    "precision of matmul": (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: torch.set_float32_matmul_precision("high"),
    ),
    "inference mode": (torch.is_inference_mode_enabled, lambda: INFERENCE.__enter__()),
    "function modes": (torch._C._len_torch_function_stack, lambda: TorchFunctionMode().__enter__()),
    "anomaly": (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
    "an alarm": (lambda: signal.getitimer(signal.ITIMER_REAL)[1], lambda: signal.setitimer(0, 100, 100)),
    "a handler": (lambda: signal.getsignal(signal.SIGUSR1), lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
    "an open files limit": (
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (99, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    ),
    "a CPU time limit": (
        lambda: resource.getrlimit(resource.RLIMIT_CPU)[0],
        lambda: resource.setrlimit(resource.RLIMIT_CPU, (10**6, resource.getrlimit(resource.RLIMIT_CPU)[1])),
    ),
    "collector's debugging": (gc.get_debug, lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE)),
    "recursion": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(5000)),
    "profile": (sys.getprofile, lambda: sys.setprofile(lambda *_: None)),
    "collector": (gc.get_threshold, lambda: gc.set_threshold(1, 2, 3)),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.simplefilter("error")),
    "folder": (os.getcwd, lambda: os.chdir("/proc")),
    "flash": (torch.backends.cuda.flash_sdp_enabled, lambda: torch.backends.cuda.enable_flash_sdp(False)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_setting_is_put_back(what: str) -> None:
    read, change = CHANGES[what]
    kept, before = Settings(), read()

    change()
    changed = read()
    kept.restore()

    assert changed != before
    assert read() == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is one core only")
def test_a_process_that_was_bound_to_one_core_runs_on_all_of_its_own_again() -> None:
    kept, before = Settings(), os.sched_getaffinity(0)

    os.sched_setaffinity(0, {min(before)})
    kept.restore()

    assert os.sched_getaffinity(0) == before


def test_a_default_device_is_taken_away_and_not_set_to_the_cpu_which_would_slow_every_call() -> None:
    kept = Settings()
    torch.set_default_device("cpu")

    kept.restore()

    assert getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is None


def test_the_stream_and_the_device_of_a_gpu_are_put_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"device": 0, "stream": "the engine's"}
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr(
        "fabench.settings.CUDA_SETTINGS",
        [
            (lambda name=name: now[name], lambda value, name=name: now.update({name: value}))  # type: ignore[misc]
            for name in ("device", "stream")
        ],
    )
    kept = Settings()

    now.update(device=1, stream="another")
    kept.restore()

    assert now == {"device": 0, "stream": "the engine's"}


def test_multiplying_exactly_switches_off_all_that_rounds_more_than_the_dtype() -> None:
    matmul, names = torch.backends.cuda.matmul, ("allow_fp16_reduced_precision_reduction", "allow_tf32")
    settings = Settings()
    try:
        matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        multiply_exactly()
        assert not any(getattr(matmul, name) for name in (*names, "allow_bf16_reduced_precision_reduction"))
        assert not torch.backends.cudnn.allow_tf32
    finally:
        settings.restore()


WITHOUT = """
import torch
for name in ("_get_sdp_priority_order", "_set_blas_preferred_backend", "_get_fp32_precision_getter",
             "_len_torch_dispatch_stack", "_pop_torch_dispatch_stack"):
    delattr(torch._C, name)
del torch._C._autograd._top_saved_tensors_default_hooks
from fabench.settings import Settings
kept = Settings()
torch.set_num_threads(torch.get_num_threads() + 1)
changed = torch.get_num_threads()
kept.restore()
assert torch.get_num_threads() == changed - 1
"""


def test_a_torch_without_some_of_its_internal_functions_has_the_others_put_back() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

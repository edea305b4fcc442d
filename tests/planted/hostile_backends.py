"""Kernels that do something to the process they run in, for `--backend-file`: see test_hostile.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections import Counter

import torch

import fabench

CALLS: Counter[str] = Counter()
MODES: list[torch.inference_mode] = []


def right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def first_call(name: str) -> bool:
    CALLS[name] += 1
    return CALLS[name] == 1


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@fabench.backend(name="fork_then_die")
def fork_then_die(q, k, v):
    """Its child outlives it, holding every descriptor."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


@fabench.backend(name="fork_that_returns")
def fork_that_returns(q, k, v):
    if first_call("fork_that_returns"):
        os.fork()
    return right(q, k, v)


@fabench.backend(name="daemon")
def daemon(q, k, v):
    """Starts a process in a session of its own."""
    if first_call("daemon") and os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "598.25"])
    return right(q, k, v)


@fabench.backend(name="closes_descriptors")
def closes_descriptors(q, k, v):
    os.closerange(0, 64)
    return right(q, k, v)


@fabench.backend(name="writes_descriptors")
def writes_descriptors(q, k, v):
    for fd in range(32):
        try:
            os.write(fd, b"garbage\n")
        except OSError:
            continue
    return right(q, k, v)


@fabench.backend(name="unreadable")
def unreadable(q, k, v):
    raise UnreadableError


@fabench.backend(name="not_utf8")
def not_utf8(q, k, v):
    raise RuntimeError("bytes \udcff and \x1b[31m colours")


@fabench.backend(name="interrupts")
def interrupts(q, k, v):
    raise KeyboardInterrupt


@fabench.backend(name="writes_inputs")
def writes_inputs(q, k, v):
    out = right(q, k, v)
    v.zero_()
    return out


@fabench.backend(name="sparse")
def sparse(q, k, v):
    return right(q, k, v).to_sparse()


@fabench.backend(name="no_lse", returns_lse=True)
def no_lse(q, k, v, return_lse=False):
    return (right(q, k, v), None) if return_lse else right(q, k, v)


@fabench.backend(name="patches")
def patches(q, k, v):
    time.perf_counter = time.perf_counter_ns = lambda: 0
    json.dumps = lambda *_, **__: "not JSON"
    return right(q, k, v)


@fabench.backend(name="changes_settings")
def changes_settings(q, k, v):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    return right(q, k, v)


@fabench.backend(name="alarms")
def alarms(q, k, v):
    """Its alarm would ring inside whatever runs next."""

    def ring(*_):
        raise RuntimeError("an alarm rang")

    if first_call("alarms"):
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.001)
    return right(q, k, v)


@fabench.backend(name="wants_gradients")
def wants_gradients(q, k, v):
    """Its inputs would require gradients in every other's forward too."""
    return right(q.requires_grad_(), k.requires_grad_(), v.requires_grad_())


@fabench.backend(name="resizes_inputs")
def resizes_inputs(q, k, v):
    """Gets the tensor back that it has made smaller, and no other does."""
    out = right(q, k, v)
    q.resize_(0)
    return out


@fabench.backend(name="changes_process")
def changes_process(q, k, v):
    out = right(q, k, v)
    os.chdir("/")
    sys.setrecursionlimit(60)
    sys.settrace(lambda *_: None)
    warnings.simplefilter("error")
    if first_call("changes_process"):
        MODES.append(torch.inference_mode())
        MODES[0].__enter__()
    return out


@fabench.backend(name="sees_settings")
def sees_settings(q, k, v):
    """Right only if nobody has changed what torch and Python do by default."""
    warnings.warn("that is no error", stacklevel=1)
    assert sys.gettrace() is None
    assert sys.getrecursionlimit() >= 1000
    assert os.getcwd() != "/"
    assert not torch.is_inference_mode_enabled()
    assert not any(x.requires_grad for x in (q, k, v))
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    return right(q, k, v)

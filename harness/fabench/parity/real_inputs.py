"""Real tensors as the inputs: a file of q, k, v and what else `KEYS` has, judged like any case."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.errors import UsageError
from fabench.input_files import kind
from fabench.inputs import Tensors
from fabench.outcome import first_line
from fabench.parity.examiner import Examiner
from fabench.parity.trial import ProbeName, Result, Trial

KEYS = ("q", "k", "v", "dO", "causal", "scale", "window", "softcap", "alignment")
PROBES: tuple[ProbeName, ...] = ("rho", "type", "one", "poison", "guard", "mutate", "stale", "repeat")
SHAPES = "q [batch, heads, Nq, d], k [batch, kv_heads, Nk, d], v [batch, kv_heads, Nk, dv]"


def load(path: str, device: torch.device) -> tuple[Case, Tensors]:
    """The case a file describes, and its tensors. Raises UsageError in one sentence for anything else."""
    try:
        if (found := kind(path)) != "file":
            raise OSError(errno.EINVAL, f"a {found}")
        data = torch.load(Path(path), map_location=device, weights_only=True)
    except Exception as error:  # torch.load raises what it likes for a broken file
        problem = error.strerror if isinstance(error, OSError) else first_line(error).split(". ")[0]
        raise UsageError(
            f"'{path}' must be a file that torch.load can read with weights_only, got: {problem}"
        ) from None
    if not isinstance(data, dict) or not all(isinstance(data.get(name), torch.Tensor) for name in "qkv"):
        raise UsageError(f"'{path}' must hold a dict with the tensors q, k and v, got {_what(data)}")
    if unknown := sorted(set(data) - set(KEYS)):
        raise UsageError(f"'{path}' must hold only the keys {', '.join(KEYS)}, got '{unknown[0]}'")
    return _case(path, data), Tensors(data["q"], data["k"], data["v"], data.get("dO"))


def _case(path: str, data: dict[str, Any]) -> Case:
    q, k, v = data["q"], data["k"], data["v"]
    names = {getattr(torch, t.torch_name): name for name, t in DTYPES.items()}
    if any(x.dim() != 4 for x in (q, k, v)) or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        got = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise UsageError(f"'{path}' must hold {SHAPES}, got {got}")
    if len({x.dtype for x in (q, k, v)}) != 1 or q.dtype not in names:
        raise UsageError(f"'{path}' must hold tensors of one dtype of {', '.join(DTYPES)}, got {q.dtype} and {v.dtype}")
    (batch, heads, Nq, d), (_, kv_heads, Nk, dv) = q.shape, v.shape
    options = {name: data[name] for name in KEYS[4:] if data.get(name) is not None}
    if "window" in options:
        options["window"] = tuple(options["window"])
    direction = "backward" if data.get("dO") is not None else "forward"
    return Case(batch, heads, Nq, Nk, d, kv_heads, dv, names[q.dtype], direction=direction, **options)  # type: ignore[arg-type]


def examine(
    examiner: Examiner, path: str, on_trial: Callable[[Trial], object] = lambda trial: None
) -> Iterator[Result]:
    """The results of the probes that fit given inputs; `on_trial` is told what they are before the kernel is called."""
    case, tensors = load(path, examiner.subject.torch_device)
    trial = Trial(case, PROBES)
    on_trial(trial)
    if all(bool(torch.isfinite(x).all()) for _, x in tensors.items()):
        yield from examiner.run(trial, tensors)
        return
    outputs = examiner.subject.call(case, tensors)
    bad = int((~torch.isfinite(outputs["O"])).sum())
    note = f"the inputs hold NaN or inf; O then has {bad} such elements of {outputs['O'].numel()}"
    yield Result("rho", trial, "passed", note=note)


def _what(data: object) -> str:
    return f"the keys {', '.join(map(str, data))}" if isinstance(data, dict) else f"a {type(data).__name__}"

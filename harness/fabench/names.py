"""The closed vocabularies: each list of allowed words is written here once and used by code, YAML, CLI and records."""

from __future__ import annotations

from typing import Literal, get_args

Alignment = Literal["bottom_right", "top_left"]
Direction = Literal["forward", "backward", "forward_backward"]
Layout = Literal["bhsd", "bshd", "packed"]
Inputs = Literal[
    "normal",
    "std3",
    "std6",
    "outliers",
    "sparse_ints",
    "constant_v",
    "repeated_k",
    "one_hot",
    "sink",
    "neglse",
    "near_overflow",
    "padded",
    "subnormal",
]
Format = Literal["simple", "github", "latex", "html", "csv", "json"]
Regime = Literal["burst", "sustained", "graph", "cpu"]
Status = Literal[
    "ok", "wrong_result", "unsupported", "unavailable", "predicted_oom", "oom", "timeout", "crashed", "error"
]
Flag = Literal[
    "throttled",
    "unstable",
    "partial_cold",
    "short",
    "hot",
    "host_sync",
    "host_late",
    "drift",
    "unchecked",
    "sampled",
    "shared_gpu",
    "wrong_memory",
    "copied",
    "no_telemetry",
    "not_interleaved",
]
Accuracy = Literal["A", "A-tf32", "B"]
Tensor = Literal["O", "LSE", "dQ", "dK", "dV"]
StopReason = Literal["wall", "n_min", "ci", "seconds", "n_max", "interrupted"]

ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
INPUTS: tuple[Inputs, ...] = get_args(Inputs)
REGIMES: tuple[Regime, ...] = get_args(Regime)
FORMATS: tuple[Format, ...] = get_args(Format)
STATUSES: tuple[Status, ...] = get_args(Status)
FLAGS: tuple[Flag, ...] = get_args(Flag)
ACCURACIES: tuple[Accuracy, ...] = get_args(Accuracy)
TENSORS: tuple[Tensor, ...] = get_args(Tensor)

SKIPPED: tuple[Status, ...] = ("unsupported", "unavailable", "predicted_oom")
"""Statuses of a row that was never launched."""
FAILED: tuple[Status, ...] = ("wrong_result", "crashed", "timeout", "error")
"""Statuses that make a run exit with 1 unless --fail-on says otherwise."""
SEVERITY: tuple[Status, ...] = (
    "ok",
    "unsupported",
    "unavailable",
    "predicted_oom",
    "oom",
    "timeout",
    "crashed",
    "error",
    "wrong_result",
)
"""From best to worst: a case's status is the worst of its rounds."""

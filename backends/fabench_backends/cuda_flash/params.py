"""The structs of params.cuh, field by field in the same order; a test compares the two."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar


class ForwardParams(ctypes.Structure):
    """What a forward launch passes, by value."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("q", "k", "v", "o", "lse", "o_partial", "lse_partial")),
        *((f"{t}_{axis}", c_int64) for t in "qkvo" for axis in ("batch", "head", "row")),
        *((name, c_int32) for name in ("batch", "heads", "group", "Nq", "Nk", "d", "dv", "low", "high", "splits")),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class BackwardParams(ctypes.Structure):
    """What the backward's main launch passes, by value."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("q", "k", "v", "dO", "lse2", "delta", "dq", "dk", "dv", "turn")),
        *((f"{t}_{axis}", c_int64) for t in ("q", "k", "v", "dO") for axis in ("batch", "head", "row")),
        *((name, c_int32) for name in ("batch", "heads", "group", "Nq", "Nk", "Nq_padded")),
        *((name, c_int32) for name in ("d_qk", "d_v", "low", "high")),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class PrepareParams(ctypes.Structure):
    """What the launch before the backward passes, by value."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("o", "dO", "lse", "dlse", "lse2", "delta", "dq")),
        *((f"{t}_{axis}", c_int64) for t in ("o", "dO") for axis in ("batch", "head", "row")),
        *((name, c_int32) for name in ("heads", "Nq", "Nq_padded", "d_qk", "d_v")),
    ]


class FinishParams(ctypes.Structure):
    """What the launch after the backward passes, by value."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("sums", c_void_p),
        ("out", c_void_p),
        ("count", c_int64),
        ("scale", c_float),
    ]


class V1ForwardParams(ctypes.Structure):
    """What v1's forward launch passes, by value."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("q", "k", "v", "o", "lse", "o_hbm", "m_hbm", "l_hbm")),
        *((f"{t}_{axis}", c_int64) for t in "qkv" for axis in ("batch", "head", "row")),
        *((name, c_int32) for name in ("heads", "group", "Nq", "Nk", "d", "dv", "low", "high")),
        ("scale", c_float),
    ]

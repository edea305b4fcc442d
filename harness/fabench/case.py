"""The problem: a `Case` says which attention is computed, a `Mask` which keys each query sees. No torch here.

The tensors of a case are always q [batch, heads, Nq, d], k [batch, kv_heads, Nk, d], v [batch, kv_heads, Nk, dv] and
O [batch, heads, Nq, dv]; `layout` is only their order in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fabench.dtypes import DTYPES, RESERVED_DTYPES
from fabench.errors import CaseError
from fabench.names import ALIGNMENTS, DIRECTIONS, INPUTS, LAYOUTS, Alignment, Direction, Inputs, Layout

Window = tuple[int, int]


@dataclass(frozen=True)
class Mask:
    """Which keys each query attends to: causal and/or a sliding window around the aligned diagonal.

    Query i sits on the diagonal at key `i + offset`: offset 0 when aligned top-left, Nk - Nq when bottom-right. Causal
    hides the keys right of it. A window (left, right) keeps the keys from `left` before it to `right` after it, both
    inclusive, -1 meaning unlimited, whether causal or not.
    """

    Nq: int
    Nk: int
    causal: bool = False
    alignment: Alignment = "bottom_right"
    window: Window | None = None

    @property
    def offset(self) -> int:
        """Key index of the diagonal at query 0."""
        return self.Nk - self.Nq if self.alignment == "bottom_right" else 0

    @property
    def left(self) -> int | None:
        """Keys visible before the diagonal, None if unlimited."""
        return None if self.window is None or self.window[0] < 0 else self.window[0]

    @property
    def right(self) -> int | None:
        """Keys visible after the diagonal (0 if causal), None if unlimited."""
        limit = None if self.window is None or self.window[1] < 0 else self.window[1]
        return 0 if self.causal else limit

    @property
    def is_full(self) -> bool:
        """True if no rule hides anything by itself (neither causal nor a window)."""
        return self.left is None and self.right is None

    def keys(self, query: int) -> range:
        """The keys that query index `query` attends to, possibly empty."""
        diagonal = query + self.offset
        low = 0 if self.left is None else max(0, diagonal - self.left)
        high = self.Nk if self.right is None else min(self.Nk, diagonal + self.right + 1)
        return range(low, max(low, high))


@dataclass(frozen=True)
class Case:
    """One problem, canonical: two cases that ask for the same computation are equal and share a key.

    What is filled in or folded: `kv_heads` None -> heads; `dv` None -> d; `scale` equal to 1/sqrt(d) -> None; an
    unlimited window -> None, and causal makes a window's right side 0; alignment -> bottom_right where it changes
    nothing. Raises CaseError, one sentence with both numbers, if no such problem exists.
    """

    batch: int
    heads: int
    Nq: int
    Nk: int
    d: int
    # Never None once built: __post_init__ fills both, so readers see plain ints.
    kv_heads: int = None  # type: ignore[assignment]
    """Key and value heads; query head h reads kv head h // (heads / kv_heads). None is filled with `heads`."""
    dv: int = None  # type: ignore[assignment]
    """Head dim of v and O. None is filled with `d`."""
    dtype: str = "bf16"
    causal: bool = False
    alignment: Alignment = "bottom_right"
    window: Window | None = None
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap) before the mask; 0 is off."""
    scale: float | None = None
    """Softmax scale; None is 1/sqrt(d) with the d of q."""
    direction: Direction = "forward"
    layout: Layout = "bhsd"
    inputs: Inputs = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        fill(self, "dv", self.d if self.dv is None else self.dv)
        self._check()
        fill(self, "softcap", float(self.softcap))
        if self.window is not None:
            left, right = self.window
            fill(self, "window", (left, 0) if self.causal else (left, right))
            if left < 0 and (self.causal or right < 0):
                fill(self, "window", None)
        if self.scale is not None:
            fill(self, "scale", None if math.isclose(self.scale, self.d**-0.5, rel_tol=1e-12) else float(self.scale))
        if self.Nq == self.Nk or self.mask.is_full:
            fill(self, "alignment", "bottom_right")

    def _check(self) -> None:
        for name in ("batch", "heads", "kv_heads", "Nq", "Nk", "d", "dv", "seed"):
            if type(getattr(self, name)) is not int:  # a bool is an int to Python, and 2.0 is not one
                raise CaseError(f"'{name}' must be a whole number, got {getattr(self, name)!r}")
        if not isinstance(self.causal, bool):
            raise CaseError(f"'causal' must be true or false, got {self.causal!r}")
        for name, value in {"softcap": self.softcap, "scale": 0.0 if self.scale is None else self.scale}.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise CaseError(f"'{name}' must be a number, got {value!r}")
        for name in ("batch", "heads", "kv_heads", "d", "dv"):
            if getattr(self, name) < 1:
                raise CaseError(f"'{name}' must be at least 1, got {getattr(self, name)}")
        for name in ("Nq", "Nk"):
            if getattr(self, name) < 0:
                raise CaseError(f"'{name}' must be at least 0, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise CaseError(f"'heads' must be a multiple of 'kv_heads', got {self.heads} and {self.kv_heads}")
        if self.dtype in RESERVED_DTYPES:
            raise CaseError(f"'dtype' {self.dtype} is reserved and not yet measured; use one of {', '.join(DTYPES)}")
        choices: dict[str, tuple[str, ...]] = {
            "dtype": tuple(DTYPES),
            "alignment": ALIGNMENTS,
            "direction": DIRECTIONS,
            "layout": LAYOUTS,
            "inputs": INPUTS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise CaseError(f"'{name}' must be one of {', '.join(allowed)}, got '{getattr(self, name)}'")
        if self.window is not None:
            sides = list(self.window) if isinstance(self.window, tuple | list) else [None]
            if len(sides) != 2 or any(type(side) is not int or side < -1 for side in sides):
                got = sides if isinstance(self.window, tuple | list) else repr(self.window)
                raise CaseError(f"'window' must be [left, right], each -1 (unlimited) or more, got {got}")
        if not (math.isfinite(self.softcap) and self.softcap >= 0):
            raise CaseError(f"'softcap' must be 0 (off) or a positive number, got {self.softcap}")
        if self.scale is not None and not math.isfinite(self.scale):
            raise CaseError(f"'scale' must be a finite number or null, got {self.scale}")
        if self.layout == "packed" and (self.Nq, self.dv, self.heads) != (self.Nk, self.d, self.kv_heads):
            raise CaseError(
                "'layout' packed needs q, k and v of one shape (Nq = Nk, dv = d, kv_heads = heads), got "
                f"Nq {self.Nq} Nk {self.Nk}, d {self.d} dv {self.dv}, heads {self.heads} kv_heads {self.kv_heads}"
            )

    @property
    def softmax_scale(self) -> float:
        """The scale as a number: 1/sqrt(d) unless one was given."""
        return self.d**-0.5 if self.scale is None else self.scale

    @property
    def mask(self) -> Mask:
        """Which keys each query attends to."""
        return Mask(self.Nq, self.Nk, self.causal, self.alignment, self.window)

    @property
    def has_backward(self) -> bool:
        """True if gradients are part of what is asked for."""
        return self.direction != "forward"

    @property
    def key(self) -> dict[str, Any]:
        """The identity of the problem as plain JSON values, the same on every machine and version."""
        return {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in dataclasses.fields(self)
        }

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that name the key."""
        return digest(self.key)

    @classmethod
    def from_key(cls, key: Mapping[str, Any]) -> Case:
        """The case a stored key describes. Raises CaseError on an unknown or missing field."""
        names = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(key) - names):
            raise CaseError(f"'key' must hold the fields of a case, got the unknown field '{unknown[0]}'")
        values = dict(key)
        if isinstance(values.get("window"), list):
            values["window"] = tuple(values["window"])
        try:
            return cls(**values)
        except TypeError as error:
            raise CaseError(f"'key' must hold every field of a case: {error}") from None

    def label(self) -> str:
        """A short name for messages: only what is not a default, in the papers' words."""
        parts = [f"N={self.Nq}" if self.Nq == self.Nk else f"Nq={self.Nq} Nk={self.Nk}", f"d={self.d}"]
        if self.dv != self.d:
            parts.append(f"dv={self.dv}")
        parts.append("causal" if self.causal else "full")
        if self.alignment != "bottom_right":
            parts.append(self.alignment)
        if self.window:
            parts.append(f"window={self.window[0]},{self.window[1]}")
        if self.softcap:
            parts.append(f"softcap={self.softcap:g}")
        if self.scale is not None:
            parts.append(f"scale={self.scale:g}")
        parts += [self.dtype, f"batch={self.batch}", f"heads={self.heads}"]
        if self.kv_heads != self.heads:
            parts.append(f"kv_heads={self.kv_heads}")
        if self.layout != "bhsd":
            parts.append(self.layout)
        if self.inputs != "normal":
            parts.append(f"inputs={self.inputs}")
        return " ".join([*parts, self.direction])


def digest(value: object) -> str:
    """Twelve hex digits of the canonical JSON of `value` (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def row_id(case: Case, backend: str) -> str:
    """The name of one row in every round: a digest of the case's key and the backend's name."""
    return digest({"key": case.key, "backend": backend})


__all__ = ["Case", "Mask", "Window", "digest", "row_id"]

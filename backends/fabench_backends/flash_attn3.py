"""FlashAttention-3 (Shah et al. 2024): `flash_attn_interface` as built from source, or the wheel fa3-fwd.

fa3-fwd 0.0.3 (`fa3_fwd_interface`) is the forward pass alone, built without fp16 and without windows. Layout and masks
are those of flash-attn 2.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fabench.backend import Backend, Facts, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.outcome import first_line

if TYPE_CHECKING:
    import torch

    from fabench.backend import Output

FULL, FORWARD_ONLY = "flash_attn_interface", "fa3_fwd_interface"
BUILT_WITHOUT = ("does not support", "only support", "was built with")
"""How a build that leaves something out says so, in a RuntimeError."""

FACTS = Facts(
    name="flash-attn-3",
    summary="FlashAttention-3: Hopper's wgmma and TMA",
    module=FULL,
    install="pip install fa3-fwd",
    devices=("cuda",),
    min_capability=(9, 0),
    max_capability=(9, 0),
    dtypes=("fp16", "bf16"),
    max_head_dim=512,
    head_dim_multiple=8,
    alignments=("bottom_right",),
    window=True,
    softcap=True,
    empty=False,
    returns_lse=True,
    deterministic=("O", "LSE"),
    kernels=("FlashAttn(Fwd|Bwd)",),
)


class FlashAttention3(Backend):
    """Whichever of the two packages is installed, the full one first."""

    facts = FACTS

    def facts_on(self, device: Device) -> Facts:
        """Those of the package that is installed."""
        if module_name() != FORWARD_ONLY:
            return FACTS
        return replace(FACTS, module=FORWARD_ONLY, dtypes=("bf16",), window=False, directions=("forward",))

    def unavailable(self, device: Device) -> str | None:
        """Why neither package can be imported, or what the device lacks."""
        if reasons := self.facts.device_reasons(device):
            return reasons[0]
        try:
            importlib.import_module(module_name())
        except Exception as error:  # a broken build may raise anything at import
            tried = f"{FULL} or {FORWARD_ONLY}" if module_name() == FULL else FORWARD_ONLY
            return (
                f"cannot import {tried}: {type(error).__name__}: {error}; install it with `{FACTS.install}` "
                "(forward only), or build flash-attention's hopper/ from source"
            )
        return None

    def versions(self) -> dict[str, str]:
        """The distribution's version."""
        from importlib import metadata

        name = "fa3-fwd" if module_name() == FORWARD_ONLY else "flash_attn_3"
        try:
            return {name: metadata.version(name)}
        except metadata.PackageNotFoundError:
            return {name: "unknown"}

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Which d and dv go together: equal ones to 256, and two families of unequal ones."""
        if case.d == case.dv:
            return [f"d = {case.d} > 256"] if case.d > 256 else []
        if (128 < case.d <= 192 and 96 < case.dv <= 128) or (case.d <= 64 and case.dv <= 512):
            return []
        unequal = "d in 129..192 with dv in 97..128, or d <= 64 with dv <= 512"
        return [f"d = {case.d} with dv = {case.dv}, takes them unequal only for {unequal}"]

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Bind the arguments."""
        attention = importlib.import_module(module_name()).flash_attn_func
        options: dict[str, Any] = {
            "softmax_scale": case.scale,
            "causal": case.causal,
            "window_size": case.window or (-1, -1),
            "softcap": case.softcap,
        }
        # Versions before mid-2025 have no such switch and always return (O, LSE).
        if lse and "return_attn_probs" in inspect.signature(attention).parameters:
            options["return_attn_probs"] = True

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Output:
            try:
                out = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
            except RuntimeError as error:
                if any(words in str(error) for words in BUILT_WITHOUT):
                    raise NotImplementedError(first_line(error)) from None
                raise
            O, *rest = out if isinstance(out, tuple) else (out,)
            return (O.transpose(1, 2), rest[0]) if lse else O.transpose(1, 2)

        return Prepared(call)


def module_name() -> str:
    """The package to use: the full one, unless only the forward one is installed."""
    full, forward = (_installed(name) for name in (FULL, FORWARD_ONLY))
    return FORWARD_ONLY if forward and not full else FULL


def _installed(name: str) -> ModuleType | bool:
    import sys

    return sys.modules.get(name) or importlib.util.find_spec(name) is not None


FLASH_ATTN_3 = FlashAttention3()

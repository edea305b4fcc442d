"""The contract a backend keeps: declared facts, from which reasons follow, and one function. No torch at import time.

A backend module holds instances of `Backend` (or functions decorated with `@backend`) as module globals; the registry
finds them, no list is edited. Third-party imports live inside `prepare`, so that a machine without the library can
still say what the backend would need.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fabench.case import Case
from fabench.device import Device
from fabench.names import Accuracy, Alignment, Direction

if TYPE_CHECKING:
    import torch

    from fabench.tiling import Tiling

    Output: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    Call: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Output]


@dataclass(frozen=True)
class Facts:
    """What a backend can do. Every refusal is derived from these, with both numbers."""

    name: str
    summary: str = ""
    """One line for `fabench list backends`."""
    module: str | None = None
    """Importable name whose import decides availability, e.g. 'flash_attn'; None needs nothing beyond torch."""
    install: str = ""
    """What to type if it is missing."""
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    min_capability: tuple[int, int] | None = None
    max_capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    head_dims: tuple[int, ...] | None = None
    """The only head dims it takes, or None for any within the two limits below."""
    max_head_dim: int | None = None
    head_dim_multiple: int = 1
    dv_differs: bool = True
    """dv may differ from d."""
    causal: bool = True
    alignments: tuple[Alignment, ...] = ("bottom_right", "top_left")
    """Alignments it can compute when Nq != Nk under a causal or window mask."""
    window: bool = False
    softcap: bool = False
    scale: bool = True
    gqa: bool = True
    empty: bool = True
    """Nq = 0 or Nk = 0 is computed."""
    empty_rows: bool = True
    """Rows that attend to no key come out as O = 0 and LSE = -inf."""
    directions: tuple[Direction, ...] = ("forward", "backward", "forward_backward")
    returns_lse: bool = False
    accuracy: Accuracy = "A"
    fp32_accuracy: Accuracy | None = None
    """The class for fp32 inputs where it differs, e.g. 'A-tf32'."""
    deterministic: tuple[str, ...] = ()
    """Outputs that are bitwise the same on every run: of O, LSE, dQ, dK, dV."""
    kernels: tuple[str, ...] = ()
    """Regular expressions, one of which must match a profiled kernel's name; none matching is a fallback."""
    cuda_graphs: bool = True
    memory: Literal["standard", "flash"] = "flash"
    """Which memory model it follows: S and P in HBM, or O(N)."""
    matrices: tuple[float, float, float] | None = None
    """What its workspace holds where it is not the textbook's (`cost.TEXTBOOK`); measured, it is what is predicted."""
    keeps_compiled: bool = False
    """What its first call compiles is kept on disk: another process may do so ahead of the row."""
    bare: bool = False
    """An undeclared function: judged as class A, exempt from the fallback check."""

    def accuracy_for(self, dtype: str) -> Accuracy:
        """The declared accuracy class for inputs of `dtype`."""
        return self.fp32_accuracy if dtype == "fp32" and self.fp32_accuracy else self.accuracy

    def reasons(self, case: Case, device: Device) -> list[str]:
        """Every reason this backend refuses `case` on `device`, each with both numbers; empty if it takes it."""
        return [*self.device_reasons(device), *self.case_reasons(case)]

    def device_reasons(self, device: Device) -> list[str]:
        """Why it cannot run on `device` at all."""
        if device.type not in self.devices:
            return [f"device {device.type}, takes {' or '.join(self.devices)}"]
        if device.capability is None:
            return []
        found = "{}.{}".format(*device.capability)
        if self.min_capability and device.capability < self.min_capability:
            return ["compute capability {} < {}.{}".format(found, *self.min_capability)]
        if self.max_capability and device.capability > self.max_capability:
            return ["compute capability {} > {}.{}".format(found, *self.max_capability)]
        return []

    def case_reasons(self, case: Case) -> list[str]:
        """Why it refuses `case` wherever it runs."""
        reasons = []

        def refuse(condition: bool, reason: str) -> None:
            if condition:
                reasons.append(reason)

        refuse(case.dtype not in self.dtypes, f"dtype {case.dtype}, takes {', '.join(self.dtypes)}")
        for name, dim in {"d": case.d, "dv": case.dv}.items():
            if name == "dv" and case.dv == case.d:
                continue
            if self.head_dims is not None:
                refuse(dim not in self.head_dims, f"{name} = {dim}, takes {', '.join(map(str, self.head_dims))}")
            refuse(self.max_head_dim is not None and dim > self.max_head_dim, f"{name} = {dim} > {self.max_head_dim}")
            refuse(dim % self.head_dim_multiple != 0, f"{name} = {dim} is not a multiple of {self.head_dim_multiple}")
        refuse(case.dv != case.d and not self.dv_differs, f"dv = {case.dv} differs from d = {case.d}")
        refuse(case.causal and not self.causal, "causal mask")
        refuse(case.window is not None and not self.window, f"window {case.window}")
        masked_rectangle = case.Nq != case.Nk and not case.mask.is_full
        refuse(
            masked_rectangle and case.alignment not in self.alignments,
            f"alignment {case.alignment} with Nq = {case.Nq} and Nk = {case.Nk}, "
            f"takes {' or '.join(self.alignments) or 'only Nq = Nk'}",
        )
        refuse(case.softcap != 0 and not self.softcap, f"softcap {case.softcap:g}")
        refuse(case.scale is not None and not self.scale, f"scale {case.scale}")
        refuse(
            case.kv_heads != case.heads and not self.gqa,
            f"kv_heads = {case.kv_heads} differs from heads = {case.heads}",
        )
        refuse(min(case.Nq, case.Nk) == 0 and not self.empty, f"empty sequence, Nq = {case.Nq} and Nk = {case.Nk}")
        refuse(not self.empty_rows and has_empty_rows(case), "rows that attend to no key")
        refuse(case.direction not in self.directions, f"direction {case.direction}, takes {', '.join(self.directions)}")
        return reasons

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:
        """The facts `to_json` wrote."""
        names = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names}
        return cls(**values)


def has_empty_rows(case: Case) -> bool:
    """True if some query attends to no key at all. The first and last query are the extremes of a band mask."""
    return case.Nq > 0 and (not case.mask.keys(0) or not case.mask.keys(case.Nq - 1))


@dataclass
class Prepared:
    """A backend made ready for one case: `call(q, k, v)` launches it on the current stream, returns O or (O, LSE)."""

    call: Call
    copied: bool = False
    """The adapter copies its inputs into another layout inside `call`; the row is flagged."""
    tuned: Callable[[], dict[str, Any] | None] | None = None
    """Asked after the first launch: the configuration an autotuner or a dispatcher chose."""


class Backend:
    """One backend: its facts and how to launch it. Subclasses override `prepare`, and what the facts cannot say."""

    facts: Facts

    @property
    def name(self) -> str:
        """The name used in suites and tables."""
        return self.facts.name

    def facts_on(self, device: Device) -> Facts:
        """The facts as they are on `device`, for a library that can do other things on a CPU than on a GPU."""
        return self.facts

    def unavailable(self, device: Device) -> str | None:
        """Why it cannot run here (the import error, or what the device lacks), or None if it can."""
        if reasons := self.facts_on(device).device_reasons(device):
            return reasons[0]
        if self.facts.module is not None:
            try:
                importlib.import_module(self.facts.module)
            except Exception as error:  # a broken library may raise anything at import
                hint = f"; install it with `{self.facts.install}`" if self.facts.install else ""
                return f"cannot import {self.facts.module}: {type(error).__name__}: {error}{hint}"
        return None

    def versions(self) -> dict[str, str]:
        """Versions of the libraries it runs, for the environment record."""
        return {}

    def more_reasons(self, case: Case, device: Device) -> Sequence[str]:
        """Refusals that the facts cannot express."""
        return ()

    def reasons(self, case: Case, device: Device) -> list[str]:
        """Every reason it refuses `case`, empty if it takes it."""
        return [*self.facts_on(device).reasons(case, device), *self.more_reasons(case, device)]

    def supports(self, case: Case, device: Device) -> bool:
        """True if there is no reason to refuse."""
        return not self.reasons(case, device)

    def tiling(self, case: Case, device: Device) -> Tiling | None:
        """How its kernels cut `case` on `device`, for `fabench explain`; None if it does not say.

        Asked only of cases it takes, with no torch and perhaps no GPU: `device` may be a card that is not here.
        """
        return None

    def prepare(self, case: Case, device: Device, *, lse: bool = False) -> Prepared:
        """Make ready for `case`: import, build, compile, make masks. Timed apart from the launches.

        With `lse` the call returns (O, LSE); it is asked for only where `facts.returns_lse`. Under autograd the O that
        `call` returns must carry a grad_fn if the facts declare a backward direction.
        """
        raise NotImplementedError

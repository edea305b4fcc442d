"""What is expected of a correct kernel: values, and how far from them each accuracy class may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from fabench.case import Case
from fabench.names import Accuracy


@dataclass
class Expected:
    """One output. Rows [batch, heads, rows]: of dK and dV the heads are kv heads and the rows keys."""

    value: torch.Tensor
    """T* in fp64 [batch, heads, rows, dim]; LSE has no dim."""
    tolerance: dict[Accuracy, torch.Tensor]
    """N_r of the rule by class [batch, heads, rows]; for LSE the largest |error| allowed."""
    empty: torch.Tensor
    """Contract zeros, bool [batch, heads, rows]: queries without keys, keys without queries. LSE is -inf there."""
    share: torch.Tensor | None = None
    """Largest part of a row's error that one element may have, fp32 [batch, heads, rows, dim]: A_rc / A_r, at least
    D^-1/2. Where one channel of K is large, dQ's rounding error lies in that channel."""
    model_error: dict[Accuracy, float] = field(default_factory=dict)
    """max |T^m - T*| of the emulated kernel of each class."""
    rows: torch.Tensor | None = None
    """Which rows these are [batch, heads, rows], or None for all."""

    def select(self, output: torch.Tensor) -> torch.Tensor:
        """The rows of a kernel's output that are expected here, in fp64 on this device."""
        output = output.detach().to(self.value.device)
        if self.rows is not None:
            index = self.rows if output.dim() == 3 else self.rows[..., None].expand(*self.rows.shape, output.shape[-1])
            output = output.gather(2, index)
        return output.to(torch.float64)

    def _rolled(self, shift: int, sign: int) -> Expected:
        def roll(x: torch.Tensor) -> torch.Tensor:
            return x.roll(shift, dims=1) if shift else x

        return replace(
            self,
            value=roll(self.value) if sign > 0 else -roll(self.value),
            tolerance={name: roll(x) for name, x in self.tolerance.items()},
            empty=roll(self.empty),
            share=None if self.share is None else roll(self.share),
            rows=None if self.rows is None else roll(self.rows),
        )


@dataclass
class Reference:
    """The expected outputs of one case: O and LSE, and dQ, dK, dV if it has a backward."""

    case: Case
    outputs: dict[str, Expected]
    sampled: bool
    """Only some rows of each head are held (`Expected.rows`)."""
    seconds: float
    """What it took to compute."""

    def __getitem__(self, tensor: str) -> Expected:
        return self.outputs[tensor]

    @property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """The classes it has tolerances for."""
        return tuple(self.outputs["O"].tolerance)

    def rotated(self, index: int) -> Reference:
        """What `fabench.inputs.rotate(tensors, index)` must give: signs follow V's, heads are rolled."""
        group = self.case.heads // self.case.kv_heads
        roll = index // 2
        sign = -1 if index % 2 else 1
        signs: Mapping[str, int] = {"O": sign, "LSE": 1, "dQ": sign, "dK": sign, "dV": 1}
        shifts: Mapping[str, int] = {"O": group, "LSE": group, "dQ": group, "dK": 1, "dV": 1}
        outputs = {name: x._rolled(roll * shifts[name], signs[name]) for name, x in self.outputs.items()}
        return replace(self, outputs=outputs)

    def of_negated_dO(self) -> Reference:
        """The same with dO negated: gradients are linear in it, O and LSE know nothing of it."""
        signs = {"O": 1, "LSE": 1}
        return replace(self, outputs={name: x._rolled(0, signs.get(name, -1)) for name, x in self.outputs.items()})

"""Kernels with a right forward and a wrong backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from mutants.kernel import Call, Kernel


class GradientStridesIgnored(Kernel):
    def read_do(self, dO: torch.Tensor) -> torch.Tensor:
        flat = torch.empty(0, dtype=dO.dtype).set_(dO.untyped_storage())[dO.storage_offset() :]
        read = torch.zeros(dO.numel(), dtype=dO.dtype)
        n = min(len(flat), dO.numel())
        read[:n] = flat[:n]
        return read.view(dO.shape)


class DeltaOmitted(Kernel):
    def delta(self, O: torch.Tensor, dO: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(O[..., :1], dtype=torch.float32)


class BackwardUnmasked(Kernel):
    def hidden_backward(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return torch.zeros(len(i), len(j), dtype=torch.bool)


class DkWithoutScale(Kernel):
    def dk_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return x


class DqTwice(Kernel):
    def dq_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return 2 * super().dq_tile(x, call)


class LastHeadOfGroup(Kernel):
    def group(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], like.shape[1], x.shape[1] // like.shape[1], *x.shape[2:])[:, :, -1].to(like.dtype)


class BackwardTailUnmasked(Kernel):
    """The last key tile is zero-filled and not masked: exp(0 - LSE) is inf when LSE is far below 0: NaN in dQ."""

    def backward(self, q: Any, k: Any, v: Any, O: Any, LSE: Any, dO: Any, call: Call) -> Any:
        pad = -k.shape[2] % self.block_k
        padded = [torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (k, v)]
        dQ, dK, dV = super().backward(q, *padded, O, LSE, dO, call)
        n = k.shape[2]
        return dQ, dK[:, :, :n], dV[:, :, :n]


class SoftcapSlopeForgotten(Kernel):
    """dS is taken as if S were the uncapped score."""

    def backward(self, q: Any, k: Any, v: Any, O: Any, LSE: Any, dO: Any, call: Call) -> Any:
        self.capped = call.softcap
        gradients = super().backward(q, k, v, O, LSE, dO, dataclasses.replace(call, softcap=0.0))
        self.capped = 0.0
        return gradients

    def cap(self, s: torch.Tensor, call: Call) -> torch.Tensor:
        cap = call.softcap or getattr(self, "capped", 0.0)
        return cap * torch.tanh(s / cap) if cap else s


class GradientsDoubledWithLse(Kernel):
    """The path that returns LSE adds a gradient of its own."""

    def __call__(self, *args: Any, return_lse: bool = False, **kwargs: Any) -> Any:
        if not return_lse:
            return super().__call__(*args, **kwargs)
        O, LSE = super().__call__(*args, return_lse=True, **kwargs)
        return O + (O - O.detach()), LSE


class GivenScaleForgotten(Kernel):
    """dQ and dK are multiplied by 1/sqrt(d) whatever scale was asked for."""

    def dq_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return x * self.usual

    def dk_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        return x * self.usual

    def backward(self, q: Any, *args: Any) -> Any:
        self.usual = q.shape[-1] ** -0.5
        return super().backward(q, *args)


class DqWithoutTile(Kernel):
    """The second key tile's part of dQ is lost."""

    def backward(self, q: Any, k: Any, *args: Any) -> Any:
        self.tiles = 0
        return super().backward(q, k, *args)

    def dq_tile(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        self.tiles += 1
        return super().dq_tile(x, call) * (self.tiles != 2)


class LastTileOfDv(Kernel):
    """dK and dV of the keys after the last whole tile are never written."""

    def group(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        out = super().group(x, like)
        out[:, :, max(self.block_k, like.shape[2] // self.block_k * self.block_k) :] = 0
        return out

"""Kernels whose arithmetic is wrong, or too coarse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from mutants.kernel import Call, Kernel


class NoScale(Kernel):
    def make_call(self, *args: Any) -> Call:
        return dataclasses.replace(super().make_call(*args), scale=1.0)


class ScaleFivePercent(Kernel):
    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        return dataclasses.replace(call, scale=call.scale * 1.05)


class Base2Softmax(Kernel):
    """exp2 without the factor log2 e."""

    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        return dataclasses.replace(call, scale=call.scale * math.log(2))


class ScaleRoundedInQ(Kernel):
    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        return (q * call.scale).to(q.dtype).float() @ k.float().transpose(-1, -2)


class SoftcapForgotten(Kernel):
    def make_call(self, *args: Any) -> Call:
        return dataclasses.replace(super().make_call(*args), softcap=0.0)


class NoRescaleOfO(Kernel):
    def rescale_o(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(factor)


class NoRescale(NoRescaleOfO):
    def rescale_l(self, l: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return l


class Fp8Weights(Kernel):
    def to_p(self, p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return p.to(torch.float8_e4m3fn).float()


class Fp16Accumulator(Kernel):
    def accumulate(self, acc: torch.Tensor, factor: torch.Tensor, pv: torch.Tensor) -> torch.Tensor:
        return super().accumulate(acc, factor, pv).to(torch.float16).float()


class Bf16Accumulator(Kernel):
    def accumulate(self, acc: torch.Tensor, factor: torch.Tensor, pv: torch.Tensor) -> torch.Tensor:
        return super().accumulate(acc, factor, pv).to(torch.bfloat16).float()


class LowPrecisionScores(Kernel):
    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        return super().score(q, k, call).to(torch.bfloat16).float()


class Tf32(Kernel):
    """fp32 inputs lose 13 bits before every GEMM."""

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        return super().forward(*(self.cut(x) for x in (q, k, v)), call)

    @staticmethod
    def cut(x: torch.Tensor) -> torch.Tensor:
        return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


class MaximumFromZero(Kernel):
    def first_max(self) -> float:
        return 0.0


class NotDivided(Kernel):
    def store(self, O: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        super().store(O, rows, out * self.l)

    def rows(self, *args: Any) -> Any:
        m, l, acc = super().rows(*args)
        self.l = l
        return m, l, acc


class MaskBeforeSoftcap(Kernel):
    """The cap makes a finite number of -inf."""

    def update(self, m: Any, l: Any, acc: Any, s: Any, V: Any, dtype: torch.dtype) -> Any:
        return super().update(m, l, acc, s.clamp(min=-self.softcap) if self.softcap else s, V, dtype)

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.softcap = call.softcap
        return super().forward(q, k, v, call)


class ScaleInBf16(Kernel):
    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        return dataclasses.replace(call, scale=float(torch.tensor(call.scale).to(torch.bfloat16)))


class ScaleOfPaddedD(Kernel):
    """1/sqrt of the power of two that d is padded to."""

    def make_call(self, q: torch.Tensor, k: torch.Tensor, causal: bool, scale: Any, *args: Any) -> Call:
        padded = (1 << (q.shape[-1] - 1).bit_length()) ** -0.5
        return super().make_call(q, k, causal, padded if scale is None else scale, *args)


class WeightsInBf16(Kernel):
    def to_p(self, p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return p.to(torch.bfloat16).float()


class SecondBatchEntryScaled(Kernel):
    """3 % too large a scale in one batch entry."""

    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        s = super().score(q, k, call)
        if len(s) > 1:
            s[1] *= 1.03
        return s


class EpsilonInDivision(Kernel):
    """Guards the division, and is felt where one key rules a row."""

    def rows(self, *args: Any) -> Any:
        m, l, acc = super().rows(*args)
        return m, l, acc * l / (l + 1e-3)

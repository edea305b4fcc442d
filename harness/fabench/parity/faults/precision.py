"""Wrong precision: P in fp8, scores or sums in 16 bits, fp32 through tf32. Their errors are rounding, not formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fabench.case import Case
from fabench.parity.faults.dense import Attention, Fault, fault
from fabench.reference.rounding import to_dtype, to_tf32

TILES = (16, 32, 64, 128)
Round = Callable[[torch.Tensor], torch.Tensor]


def faults(case: Case) -> Iterator[Fault]:
    """Emulations of every loss of precision; matched by the correlation of their errors, see `matching.py`."""
    half = to_dtype(case.dtype)
    yield fault("precision", "P rounded to fp8 e4m3", softmax=_rounded_weights(_fp8(torch.float8_e4m3fn)))
    yield fault("precision", "P rounded to fp8 e5m2", softmax=_rounded_weights(_fp8(torch.float8_e5m2)))
    for name in ("bf16", "fp16"):
        if name != case.dtype:
            yield fault("precision", f"P rounded to {name}", softmax=_rounded_weights(to_dtype(name)))
    if case.dtype == "fp32":
        yield fault(
            "precision",
            "fp32 inputs multiplied as tf32",
            queries=lambda s: to_tf32(s.p.q),
            keys=_low_keys(to_tf32),
            values=_low_values(to_tf32),
        )
        yield fault(
            "precision",
            "fp32 inputs cut to tf32",
            queries=lambda s: cut(s.p.q),
            keys=_low_keys(cut),
            values=_low_values(cut),
        )
        for name in ("bf16", "fp16"):
            low = to_dtype(name)
            yield fault(
                "precision",
                f"fp32 inputs rounded to {name}",
                queries=lambda s, low=low: low(s.p.q),
                keys=_low_keys(low),
                values=_low_values(low),
            )
    else:
        yield fault("precision", f"scores rounded to {case.dtype}", scores=_rounded_scores(half))
        yield fault("precision", f"the scale folded into q and rounded to {case.dtype}", queries=_scaled_queries(half))
        yield fault(
            "precision",
            f"scores and weights rounded to {case.dtype}",
            scores=_rounded_scores(half),
            softmax=_rounded_weights(half),
        )
    for name in ("fp16", "bf16"):
        for tile in TILES:
            if case.Nk > tile:
                words = f"O accumulated in {name} over tiles of {tile} keys"
                yield fault("precision", words, output=_accumulated(to_dtype(name), tile))


def _fp8(dtype: torch.dtype) -> Round:
    return lambda x: x.to(torch.float32).to(dtype).to(torch.float64)


def _rounded_weights(rounded: Round):  # type: ignore[no-untyped-def]  # a method of Attention
    """P relative to its row's maximum, rounded; l from the unrounded P."""

    def softmax(self: Attention, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        P, lse = Attention.softmax(self, S)
        top = P.amax(-1, keepdim=True) if P.shape[-1] else P.sum(-1, keepdim=True)
        top = torch.where(top > 0, top, 1.0)
        return rounded(P / top) * top, lse

    return softmax


def _rounded_scores(rounded: Round):  # type: ignore[no-untyped-def]
    return lambda self: rounded(Attention.scores(self))


def _scaled_queries(rounded: Round):  # type: ignore[no-untyped-def]
    def queries(self: Attention) -> torch.Tensor:
        scale = self.scale()
        return rounded(self.p.q * scale) / scale if scale else self.p.q

    return queries


def _accumulated(rounded: Round, tile: int):  # type: ignore[no-untyped-def]
    """An online softmax whose accumulator is rounded after each tile."""

    def output(self: Attention, P: torch.Tensor) -> torch.Tensor:
        S, V = self.scores(), self.values
        m = S.new_full((*S.shape[:-1], 1), -torch.inf)
        l, acc = torch.zeros_like(m), S.new_zeros(*S.shape[:-1], V.shape[-1])
        for start in range(0, S.shape[-1], tile):
            part = S[..., start : start + tile]
            top = torch.maximum(m, part.amax(-1, keepdim=True))
            shift = torch.where(top == -torch.inf, 0.0, top)
            E, factor = torch.exp(part - shift), torch.exp(m - shift)
            l = l * factor + E.sum(-1, keepdim=True)
            acc = rounded(acc * factor + E @ V[..., start : start + tile, :])
            m = top
        return acc / torch.where(l > 0, l, 1.0)

    return output


def cut(x: torch.Tensor) -> torch.Tensor:
    """Truncated to tf32, as tensor cores read an fp32 register."""
    return (x.to(torch.float32).view(torch.int32) & -0x2000).view(torch.float32).to(torch.float64)


def _low_keys(rounded: Round) -> property:
    return property(lambda self: rounded(self.p.k[self.batches()][:, self.heads()]))


def _low_values(rounded: Round) -> property:
    return property(lambda self: rounded(self.p.v[self.batches()][:, self.heads()]))

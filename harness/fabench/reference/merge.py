"""The online softmax state (m, l, O~) and its merge: any split of the keys, merged in any order, gives the whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class State:
    """Softmax over some of the keys: row maximum m and sum l = Σ exp(S - m) [..., rows], O~ = Σ exp(S - m) V.

    A state of no keys is m = -inf, l = 0, O~ = 0. O~ [..., rows, dv] may have dv = 0 where only LSE is wanted.
    """

    m: torch.Tensor
    l: torch.Tensor
    O: torch.Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], dv: int, like: torch.Tensor) -> State:
        """The state of no keys for rows of `shape`."""
        m = torch.full(shape, -torch.inf, dtype=like.dtype, device=like.device)
        return cls(m, torch.zeros_like(m), m.new_zeros((*shape, dv)))

    @classmethod
    def of(cls, S: torch.Tensor, V: torch.Tensor | None = None) -> State:
        """The state of the scores S [..., rows, keys], -inf where masked, and values V [..., keys, dv]."""
        if S.shape[-1] == 0:
            return cls.empty(S.shape[:-1], 0 if V is None else V.shape[-1], S)
        m = S.amax(-1)
        E = torch.exp(S - finite(m)[..., None])
        return cls(m, E.sum(-1), E.new_zeros((*m.shape, 0)) if V is None else E @ V)

    @classmethod
    def from_output(cls, O: torch.Tensor, lse: torch.Tensor) -> State:
        """The state that a finished (O, LSE) stands for."""
        return cls(lse, torch.isfinite(lse).to(lse.dtype), O)

    @property
    def lse(self) -> torch.Tensor:
        """m + ln l, natural logarithm; -inf for a row without keys."""
        return self.m + torch.log(self.l)

    def output(self) -> torch.Tensor:
        """O~ / l; zero for a row without keys."""
        return self.O / torch.where(self.l > 0, self.l, 1.0)[..., None]


def merge(a: State, b: State) -> State:
    """The state of the union of two disjoint sets of keys (Milakov and Gimelshein 2018, 1805.02867, eq. 4)."""
    m = torch.maximum(a.m, b.m)
    weight_a, weight_b = (torch.exp(x.m - finite(m)) for x in (a, b))
    return State(m, a.l * weight_a + b.l * weight_b, a.O * weight_a[..., None] + b.O * weight_b[..., None])


def finite(m: torch.Tensor) -> torch.Tensor:
    """m with -inf replaced by 0, for use inside an exponent only: exp(-inf - 0) = 0, and never NaN."""
    return torch.where(m == -torch.inf, 0.0, m)

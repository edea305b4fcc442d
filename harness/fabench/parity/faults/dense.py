"""Attention in plain fp64, step by step, each step a method: a fault is this class with one step done wrong.

Dense and slow on purpose: it runs on cases small enough to be looked at, to say what a wrong kernel behaves like.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from fabench.case import Case
from fabench.inputs import Tensors
from fabench.parity.bench import shown_pairs


@dataclass(frozen=True)
class Problem:
    """A case with its inputs in fp64."""

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dO: torch.Tensor | None
    low: Tensors
    """The inputs as the kernel got them."""

    @classmethod
    def of(cls, case: Case, tensors: Tensors) -> Problem:
        """Widen the inputs."""
        wide = {name: x.detach().to(torch.float64) for name, x in tensors.items()}
        return cls(case, wide["q"], wide["k"], wide["v"], wide.get("dO"), tensors)

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.case.heads // self.case.kv_heads


class Attention:
    """The right one. Subclasses override a step."""

    def __init__(self, problem: Problem) -> None:
        self.p, self.case = problem, problem.case

    def heads(self) -> torch.Tensor:
        """The kv head each query head reads."""
        return torch.arange(self.case.heads, device=self.p.q.device) // self.p.group

    def batches(self) -> torch.Tensor:
        """The batch entry of K and V each batch entry reads."""
        return torch.arange(self.case.batch, device=self.p.q.device)

    def scale(self) -> float:
        """The softmax scale."""
        return self.case.softmax_scale

    def softcap(self) -> float:
        """The cap of the scores, 0 for none."""
        return self.case.softcap

    @cached_property
    def mask(self) -> torch.Tensor:
        """Bool [Nq, Nk] (or with heads) of the attended pairs."""
        return self.shown()

    def shown(self) -> torch.Tensor:
        """The pairs the mask shows."""
        return shown_pairs(self.case, self.p.q.device)

    def queries(self) -> torch.Tensor:
        """Q as the scores see it."""
        return self.p.q

    @cached_property
    def keys(self) -> torch.Tensor:
        """K by query head."""
        return self.p.k[self.batches()][:, self.heads()]

    @cached_property
    def values(self) -> torch.Tensor:
        """V by query head."""
        return self.p.v[self.batches()][:, self.heads()]

    @cached_property
    def uncapped(self) -> torch.Tensor:
        """scale · q kᵀ."""
        return self.queries() @ self.keys.transpose(-1, -2) * self.scale()

    def scores(self) -> torch.Tensor:
        """S, -inf where masked."""
        S = self.uncapped
        if cap := self.softcap():
            S = cap * torch.tanh(S / cap)
        return S.masked_fill(~self.mask, -torch.inf)

    def softmax(self, S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(P, LSE): rows without keys are 0 and -inf."""
        lse = torch.logsumexp(S, -1) if S.shape[-1] else S.new_full(S.shape[:-1], -torch.inf)
        return torch.exp(S - torch.where(lse == -torch.inf, 0.0, lse)[..., None]), lse

    def output(self, P: torch.Tensor) -> torch.Tensor:
        """O."""
        return P @ self.values

    def backward_weights(self, P: torch.Tensor) -> torch.Tensor:
        """P as the backward pass recomputes it."""
        return P

    def gradient(self) -> torch.Tensor:
        """DO as the backward pass reads it."""
        assert self.p.dO is not None
        return self.p.dO

    def delta(self, O: torch.Tensor) -> torch.Tensor:
        """delta = Σ dO O."""
        return (self.gradient() * O).sum(-1, keepdim=True)

    def slope(self) -> torch.Tensor | float:
        """dS / d(scale · qk)."""
        cap = self.softcap()
        return 1.0 - torch.tanh(self.uncapped / cap).square() if cap else 1.0

    def dQ(self, dS: torch.Tensor) -> torch.Tensor:
        """dQ of dS."""
        return dS @ self.keys * self.scale()

    def dK(self, dS: torch.Tensor) -> torch.Tensor:
        """dK of dS, one a query head."""
        return dS.transpose(-1, -2) @ self.queries() * self.scale()

    def over_group(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the heads of a group into their kv head."""
        return self.by_group(x).sum(2)

    def by_group(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, ...] -> [batch, kv_heads, group, ...]."""
        return x.reshape(x.shape[0], self.case.kv_heads, self.p.group, *x.shape[2:])

    def outputs(self, *, backward: bool = True) -> dict[str, torch.Tensor]:
        """O, LSE and, where there is a dO and `backward`, dQ, dK, dV."""
        P, lse = self.softmax(self.scores())
        O = self.output(P)
        found = {"O": O, "LSE": lse}
        if backward and self.p.dO is not None:
            P = self.backward_weights(P)
            dP = self.gradient() @ self.values.transpose(-1, -2)
            dS = P * (dP - self.delta(O)) * self.slope()
            found["dQ"] = self.dQ(dS)
            found["dK"] = self.over_group(self.dK(dS))
            found["dV"] = self.over_group(P.transpose(-1, -2) @ self.gradient())
        return found


@dataclass(frozen=True)
class Fault:
    """One wrong attention: how it is described, and the class that computes it."""

    kind: str
    sentence: str
    """Completes 'O matches ...'."""
    attention: type[Attention]

    def outputs(self, problem: Problem, *, backward: bool = True) -> dict[str, torch.Tensor]:
        """What a kernel with this fault returns."""
        return self.attention(problem).outputs(backward=backward)


def fault(kind: str, sentence: str, **steps: object) -> Fault:
    """A fault from the steps it does otherwise: name of a method -> its replacement."""
    return Fault(kind, sentence, type(f"Fault_{kind}", (Attention,), dict(steps)))

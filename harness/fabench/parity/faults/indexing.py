"""Wrong addresses: heads, batch entries, rows and channels that are not the ones asked for."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fabench.case import Case
from fabench.parity.faults.dense import Attention, Fault, Problem, fault

DIMS = (8, 16, 32, 64, 128)


def faults(case: Case) -> Iterator[Fault]:
    """Every wrong address that can show in `case`."""
    kv, group = case.kv_heads, case.heads // case.kv_heads
    if kv > 1:
        if group > 1:
            yield fault("heads", "a kernel that reads kv head = h % kv_heads", heads=lambda s: _range(s) % kv)
            if group != kv:
                words = "a kernel that reads kv head = h // kv_heads instead of h // (heads / kv_heads)"
                yield fault("heads", words, heads=lambda s: (_range(s) // kv).clamp(max=kv - 1))
            if group & (group - 1):
                words = f"a kernel that takes the {group} heads of a group for {1 << (group.bit_length() - 1)}"
                yield fault("heads", words, heads=lambda s: (_range(s) >> (group.bit_length() - 1)).clamp(max=kv - 1))
        yield fault("heads", "a kernel that reads kv head 0 for all heads", heads=lambda s: _range(s) * 0)
        yield fault(
            "heads", "a kernel that reads the last kv head for all heads", heads=lambda s: _range(s) * 0 + kv - 1
        )
        yield fault("heads", "a kernel that reads the next kv head", heads=lambda s: (_range(s) // group + 1) % kv)
    if case.heads > 1:
        yield fault(
            "heads", "a kernel that uses q of head 0 for all heads", queries=lambda s: s.p.q[:, :1].expand_as(s.p.q)
        )
    if case.batch > 1:
        yield fault("batch", "a kernel that reads K and V of batch entry 0 for all", batches=lambda s: _batches(s) * 0)
        yield fault(
            "batch", "a kernel that uses q of batch entry 0 for all", queries=lambda s: s.p.q[:1].expand_as(s.p.q)
        )
        yield fault(
            "batch",
            "a kernel that reads K and V of the next batch entry",
            batches=lambda s: (_batches(s) + 1) % case.batch,
        )
    for whole in (16, 32, 64):
        if case.d > whole and case.d % whole:
            words = f"a kernel that leaves out the channels of q and K after the last whole {whole}"
            yield fault("channels", words, queries=_first_channels(case.d // whole * whole))
    for d in DIMS:
        if d < case.d:
            words = f"a kernel that multiplies only the first {d} of {case.d} channels of q and K"
            yield fault("channels", words, queries=_first_channels(d))
        if d < case.dv:
            yield _shaped(f"a kernel that writes only the first {d} of {case.dv} channels of O", _keep_channels(d))
    if case.Nq > 1:
        for by in (1, -1):
            yield _shaped(f"rows shifted by {by}", lambda x, by=by: x.roll(by, 2))
    if case.heads > 1 and case.Nq > 1:
        yield _shaped("O laid out as [batch, N, heads, d] and read as [batch, heads, N, d]", _other_layout)
    if case.Nk > 1:
        yield fault(
            "rows", "a kernel that pairs V with the next key's weight", output=lambda s, P: P @ s.values.roll(-1, 2)
        )


def _range(self: Attention) -> torch.Tensor:
    return torch.arange(self.case.heads, device=self.p.q.device)


def _batches(self: Attention) -> torch.Tensor:
    return torch.arange(self.case.batch, device=self.p.q.device)


def _first_channels(d: int):  # type: ignore[no-untyped-def]  # a method of Attention
    def queries(self: Attention) -> torch.Tensor:
        q = self.p.q.clone()
        q[..., d:] = 0.0
        return q

    return queries


class _Reshaped(Attention):
    """The right O, put in the wrong place."""

    @staticmethod
    def place(O: torch.Tensor) -> torch.Tensor:
        """Where it goes instead."""
        return O

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)

    def outputs(self, *, backward: bool = True) -> dict[str, torch.Tensor]:
        """O moved, the rest as it is."""
        found = super().outputs(backward=backward)
        return {**found, "O": self.place(found["O"])}


def _shaped(sentence: str, place: object) -> Fault:
    return Fault("rows", sentence, type("Fault_rows", (_Reshaped,), {"place": staticmethod(place)}))  # type: ignore[arg-type]


def _keep_channels(d: int):  # type: ignore[no-untyped-def]
    def place(O: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros_like(O)
        kept[..., :d] = O[..., :d]
        return kept

    return place


def _other_layout(O: torch.Tensor) -> torch.Tensor:
    B, H, N, d = O.shape
    return O.transpose(1, 2).reshape(B, H, N, d)

"""The tensors of a case as the passes read them: kv heads in front, the query heads of a group as further rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fabench.case import Case
from fabench.inputs import Tensors
from fabench.reference.positions import Positions, spans
from fabench.reference.repeats import repeats

CPU_TILE, CUDA_TILE = (128, 1024), (1024, 4096)
"""Rows and keys of one tile: on a CPU a tile of fp64 scores stays in the cache, on a GPU it fills the machine."""


@dataclass
class Problem:
    """q, dO [kv, group, Nq, ·] and k, v [kv, Nk, ·] with kv = batch·kv_heads.

    A group's query heads read one kv head, so they are folded into its rows: a block of R positions is group·R rows,
    and what a GEMM sums over rows is summed over the group, as dK and dV are.
    """

    case: Case
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dO: torch.Tensor | None
    row_tile: int
    key_tile: int

    @functools.cached_property
    def row_copies(self) -> torch.Tensor | None:
        """How many rows of the group have the same q and dO [kv, group, Nq, 1]; None if each is the only one."""
        assert self.dO is not None
        found = repeats(self.q.flatten(1, 2), self.dO.flatten(1, 2))
        return None if found is None else found.view(*self.q.shape[:3], 1)

    @functools.cached_property
    def key_copies(self) -> torch.Tensor | None:
        """How many keys of the head have the same k and v [kv, Nk, 1]; None if each is the only one."""
        return repeats(self.k, self.v)

    @classmethod
    def of(cls, case: Case, tensors: Tensors, device: torch.device) -> Problem:
        """Fold `tensors`, moved to `device`."""
        group = case.heads // case.kv_heads
        kv = case.batch * case.kv_heads

        def rows(x: torch.Tensor) -> torch.Tensor:
            return x.detach().to(device).reshape(kv, group, case.Nq, x.shape[-1])

        def keys(x: torch.Tensor) -> torch.Tensor:
            return x.detach().to(device).reshape(kv, case.Nk, x.shape[-1])

        row_tile, key_tile = CUDA_TILE if device.type == "cuda" else CPU_TILE
        dO = None if tensors.dO is None else rows(tensors.dO)
        return cls(case, rows(tensors.q), keys(tensors.k), keys(tensors.v), dO, max(1, row_tile // group), key_tile)

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.q.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the passes run."""
        return self.q.device

    def chunks(self) -> Iterator[slice]:
        """Slices of kv heads whose tiles together stay within one tile's budget."""
        rows = max(1, min(self.case.Nq, self.row_tile)) * self.group
        keys = max(1, min(self.case.Nk, self.key_tile))
        size = max(1, self.row_tile * self.group * self.key_tile // (rows * keys))
        for start in range(0, self.q.shape[0], size):
            yield slice(start, min(start + size, self.q.shape[0]))

    def key_tiles(self) -> Iterator[Positions]:
        """All keys, in tiles."""
        return spans(self.case.Nk, self.key_tile, self.device)

    def row_tiles(self) -> Iterator[Positions]:
        """All query positions, in tiles; each stands for group times as many rows."""
        return spans(self.case.Nq, self.row_tile, self.device)


def take(x: torch.Tensor, heads: slice, positions: Positions) -> torch.Tensor:
    """Rows `positions` of x [kv, ..., N, ·] for some kv heads, in fp64, the group folded: [heads, rows, ·]."""
    part = x[heads]
    if positions.index.dim() == 1:
        part = part[..., positions.slice, :]
    else:
        index = positions.index.view(*part.shape[:-2], -1)[..., None].expand(*(-1,) * (part.dim() - 1), part.shape[-1])
        part = part.gather(-2, index)
    return part.reshape(part.shape[0], -1, part.shape[-1]).to(torch.float64)


def copies(counts: torch.Tensor | None, heads: slice, positions: Positions) -> torch.Tensor | float:
    """`take` of how often rows occur; 1 where none has a copy."""
    return 1.0 if counts is None else take(counts, heads, positions)


def most(counts: torch.Tensor | None) -> float:
    """How often the most frequent row occurs."""
    return 1.0 if counts is None else float(counts.max())


def folded(positions: Positions, group: int) -> Positions:
    """Positions of a block of rows repeated for each query head of the group; per-head ones are folded already."""
    if positions.index.dim() == 2 or group == 1:
        return positions
    return Positions(positions.index.repeat(group), positions.first, positions.last)

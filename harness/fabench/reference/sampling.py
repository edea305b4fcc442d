"""Which rows are checked where the whole reference would take too long."""

from __future__ import annotations

import torch

from fabench.reference_time import SAMPLE

ENDS, TILE, EDGE = 8, 128, 64


def sampled_rows(length: int, heads: int, seed: int) -> torch.Tensor:
    """Sorted row indices [heads, 512], each head its own: all rows if there are no more than that.

    First and last 8; a whole 128-row tile; both sides of tile edges (multiples of 64, as many as fit in a third); the
    rest spread evenly with a random place in each stratum. Draws differ by head, so that heads cover for each other.
    """
    if length <= SAMPLE:
        return torch.arange(length).expand(heads, length)
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([_head_rows(length, generator) for _ in range(heads)])


def _head_rows(length: int, generator: torch.Generator) -> torch.Tensor:
    def draw(high: int, n: int) -> torch.Tensor:
        return torch.randint(high, (n,), generator=generator)

    tile = int(draw(length // TILE, 1)) * TILE
    edges = torch.arange(EDGE, length, EDGE)
    most = SAMPLE // 9
    if len(edges) > most:
        edges = edges[torch.randperm(len(edges), generator=generator)[:most]]
    around = torch.cat([edges - 1, edges, (edges + 1).clamp(max=length - 1)])
    ends = torch.cat([torch.arange(ENDS), torch.arange(length - ENDS, length)])
    taken = torch.zeros(length, dtype=torch.bool)
    taken[torch.cat([ends, torch.arange(tile, tile + TILE), around])] = True
    free = (~taken).nonzero().flatten()
    missing = SAMPLE - (length - len(free))
    edges_of_strata = torch.linspace(0, len(free), missing + 1).long()
    width = (edges_of_strata[1:] - edges_of_strata[:-1]).clamp(min=1)
    place = edges_of_strata[:-1] + (torch.rand(missing, generator=generator) * width).long()
    taken[free[place]] = True
    return taken.nonzero().flatten()

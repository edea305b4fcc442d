"""How often a row of the inputs occurs: an arithmetic rounds its copies as it rounds the row itself."""

from __future__ import annotations

import torch

CHUNK = 1 << 24
"""Elements hashed at a time."""
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def repeats(*parts: torch.Tensor) -> torch.Tensor | None:
    """For rows made of `parts` [heads, n, ·], how many of the head's rows equal each: fp64 [heads, n, 1].

    None if no row has a copy. Rows are compared by a linear hash of their bits modulo 2^64.
    """
    heads, n = parts[0].shape[:2]
    if heads * n == 0:
        return None
    size = max(1, CHUNK // max(1, n * max(part.shape[-1] for part in parts)))
    counts = [_counts([part[i : i + size] for part in parts]) for i in range(0, heads, size)]
    found = torch.cat(counts)
    return found.to(torch.float64)[..., None] if bool((found > 1).any()) else None


def _counts(parts: list[torch.Tensor]) -> torch.Tensor:
    hashes = sum((_hash(part, seed) for seed, part in enumerate(parts)), torch.zeros((), dtype=torch.int64))
    assert isinstance(hashes, torch.Tensor)
    ordered = hashes.sort(dim=-1).values
    return torch.searchsorted(ordered, hashes, right=True) - torch.searchsorted(ordered, hashes)


def _hash(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Sum of the elements' bits times random odd numbers: integers, so that the order of summation does not matter."""
    odd = torch.randint(-(1 << 62), 1 << 62, (x.shape[-1],), generator=torch.Generator().manual_seed(seed)) | 1
    bits = (x + 0.0).contiguous().view(BITS[x.element_size()]).to(torch.int64)  # + 0 makes -0 equal to 0
    total: torch.Tensor = (bits * odd.to(x.device)).sum(-1)
    return total

"""Which queries and keys a tile holds, and which of its pairs the mask shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fabench.case import Mask


@dataclass(frozen=True)
class Positions:
    """Indices into the sequence, [n] or one set a head [heads, n], and their extremes as plain ints."""

    index: torch.Tensor
    first: int
    last: int

    @classmethod
    def span(cls, start: int, stop: int, device: torch.device) -> Positions:
        """Consecutive positions."""
        return cls(torch.arange(start, stop, device=device), start, stop - 1)

    @property
    def slice(self) -> slice:
        """The span as a slice (only of consecutive positions)."""
        return slice(self.first, self.last + 1)


def spans(length: int, tile: int, device: torch.device) -> Iterator[Positions]:
    """Consecutive tiles that cover [0, length)."""
    for start in range(0, length, tile):
        yield Positions.span(start, min(start + tile, length), device)


def hides_all(mask: Mask, rows: Positions, keys: Positions) -> bool:
    """True if no pair of the tile is attended, by its corners."""
    above = mask.right is not None and rows.last + mask.offset + mask.right < keys.first
    return above or (mask.left is not None and rows.first + mask.offset - mask.left > keys.last)


def visible(mask: Mask, rows: Positions, keys: Positions) -> torch.Tensor | None:
    """Bool [rows, keys] (or [heads, rows, keys]) of the attended pairs, None if all are."""
    right_open = mask.right is None or rows.first + mask.offset + mask.right >= keys.last
    left_open = mask.left is None or rows.last + mask.offset - mask.left <= keys.first
    if right_open and left_open:
        return None
    distance = keys.index[..., None, :] - rows.index[..., :, None] - mask.offset
    shown = torch.ones_like(distance, dtype=torch.bool)
    if mask.right is not None:
        shown &= distance <= mask.right
    if mask.left is not None:
        shown &= distance >= -mask.left
    return shown

"""Where a tensor is largest, and where a mask is first True."""

from __future__ import annotations

import numpy as np
import torch


def where_largest(x: torch.Tensor) -> tuple[int, ...]:
    """Index of the largest element, of equal ones the first.

    Not by torch.unravel_index, which on its first call imports sympy: half a second in every worker.
    """
    return tuple(int(i) for i in np.unravel_index(int(x.flatten().argmax()), tuple(x.shape)))


def first_index(mask: torch.Tensor) -> tuple[int, ...]:
    """Index of the first True of a mask that has one."""
    return where_largest(mask.to(torch.uint8))

"""Where a tensor is largest."""

from __future__ import annotations

import numpy as np
import torch


def where_largest(x: torch.Tensor) -> tuple[int, ...]:
    """Index of the largest element, of equal ones the first.

    Not by torch.unravel_index, which on its first call imports sympy: half a second in every worker.
    """
    return tuple(int(i) for i in np.unravel_index(int(x.flatten().argmax()), tuple(x.shape)))

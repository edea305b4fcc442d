"""How many input sets a case is rotated over, and how much is flushed: so that no call finds its inputs in L2."""

from __future__ import annotations

from fabench.case import Case
from fabench.cost import input_bytes, saved_bytes
from fabench.measure.engine import Engine

MEMORY_SHARE = 0.4
"""Share of the free memory that the input sets may take."""
MOST_SETS = 512
"""Sets of a few KiB are not worth more: within one flushed span each is read once anyway."""
LEAST_FLUSH = 64 << 20


def rotation_count(case: Case, engine: Engine) -> tuple[int, bool]:
    """Input sets to make, max(2, ceil(3·L2 / bytes of a set) + 1), and whether free memory allowed fewer.

    A backward pass keeps what its forward saved for each set, which counts towards the memory but not the cache.
    """
    set_bytes = max(1, input_bytes(case))
    held = set_bytes + (saved_bytes(case, "flash") if case.direction == "backward" else 0)
    return sets(engine.l2_bytes, set_bytes, held, engine.free_bytes())


def sets(l2_bytes: int | None, set_bytes: int, held_bytes: int, free_bytes: int) -> tuple[int, bool]:
    """The same in plain numbers: `set_bytes` pass through the cache, `held_bytes` stay in memory."""
    wanted = 2 if l2_bytes is None else min(MOST_SETS, max(2, -(-3 * l2_bytes // set_bytes) + 1))
    allowed = max(1, int(free_bytes * MEMORY_SHARE) // held_bytes)
    return min(wanted, allowed), allowed < wanted


def flush_bytes(l2_bytes: int | None, free_bytes: int) -> int:
    """clamp(2·L2, 64 MiB, 10 % of free memory)."""
    return min(max(2 * (l2_bytes or 0), LEAST_FLUSH), free_bytes // 10)

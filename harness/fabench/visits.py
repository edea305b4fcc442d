"""How many tiles a tiled kernel visits under a mask, in closed form: any N takes the same time. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from fabench.case import Mask


@dataclass(frozen=True)
class Visits:
    """What one head touches when Br queries at a time meet Bc keys at a time, where a tile holds an attended pair."""

    pairs: int
    """Pairs of a query tile and a key tile."""
    keys_read: int
    """Keys over all query tiles: what an outer loop over Q reads of K."""
    queries_read: int
    """Queries over all key tiles: what an outer loop over K and V reads of Q."""
    keys: int
    """Keys in any visited tile: what is read of K if each tile is read once."""


def visits(mask: Mask, Br: int, Bc: int) -> Visits:
    """Count the visits.

    The mask is a band, so the key tiles of a query tile are contiguous, from that of its first query's first key to
    that of its last query's last key, and both ends run along a diagonal until they stop at 0 and Nk.
    """
    tiles = -(-mask.Nq // Br)
    first, end = _attending(mask, Br, tiles)
    if first >= end:
        return Visits(0, 0, 0, 0)
    left, right = mask.left, mask.right
    low = 0 if left is None else mask.offset - left  # of query 0; may be negative
    reach = mask.Nk if right is None else mask.offset + right  # a query tile's last key is below min(end + reach, Nk)
    last_tile = -(-mask.Nk // Bc)

    def low_tile(i: int) -> int:
        return max(0, i * Br + low) // Bc if left is not None else 0

    def high_tile(i: int) -> int:
        return -(-min(mask.Nk, min((i + 1) * Br, mask.Nq) + reach) // Bc)

    # All query tiles but the last are whole. Of those, the lower ends are positive from `rises` on, and the upper ends
    # are below the last key tile before `stops`.
    whole = min(end, tiles - 1)
    rises = first if left is None else min(max(first, -(low // Br)), end)
    lows = 0 if left is None else _floor_sum(end - rises, Br, rises * Br + low, Bc)
    stops = first if right is None else min(max(first, ((last_tile - 1) * Bc - reach) // Br), whole)
    highs = _floor_sum(stops - first, Br, (first + 1) * Br + reach + Bc - 1, Bc) + (whole - stops) * last_tile
    at_the_end = whole - stops  # query tiles that reach the last, perhaps partial, key tile
    if end == tiles:
        highs += high_tile(tiles - 1)
        at_the_end += high_tile(tiles - 1) == last_tile
    missing = last_tile * Bc - mask.Nk  # keys that the last key tile lacks
    pairs = highs - lows
    lacking = tiles * Br - mask.Nq  # queries that the last query tile lacks
    of_last = high_tile(tiles - 1) - low_tile(tiles - 1) if end == tiles else 0
    return Visits(
        pairs=pairs,
        keys_read=pairs * Bc - at_the_end * missing,
        queries_read=pairs * Br - of_last * lacking,
        keys=min(high_tile(end - 1) * Bc, mask.Nk) - low_tile(first) * Bc,
    )


def _attending(mask: Mask, Br: int, tiles: int) -> tuple[int, int]:
    """[first, end) of the query tiles that attend to anything: neither before the first key nor after the last."""
    if not mask.Nk or not mask.Nq:
        return 0, 0
    first, end = 0, tiles
    if mask.right is not None:  # the first query that sees key 0 or more
        first = max(0, -mask.offset - mask.right) // Br
        if first * Br >= mask.Nq or -mask.offset - mask.right >= mask.Nq:
            return 0, 0
    if mask.left is not None:  # the last query that sees a key before Nk
        end = min(tiles, (mask.Nk - 1 - mask.offset + mask.left) // Br + 1)
    return first, max(first, end)


def _floor_sum(count: int, step: int, start: int, divisor: int) -> int:
    """The sum of (start + i·step) // divisor for i in 0..count-1, start not negative, as Euclid divides."""
    total = 0
    while count > 0:
        total += (step // divisor) * (count * (count - 1) // 2) + (start // divisor) * count
        step, start = step % divisor, start % divisor
        top = step * count + start
        if top < divisor:
            break
        count, start = divmod(top, divisor)
        step, divisor = divisor, step
    return total

"""How kernels cut a case into tiles: what a backend says of its own, what the papers chose. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fabench import tiled_steps
from fabench.case import Case
from fabench.dtypes import DTYPES
from fabench.roofline import Tile, ctas
from fabench.steps import Step, Transfer

Loop = Literal["v1", "v2"]
"""v1: the forward's outer loop is over K and V (2022). v2: it is over Q (2023)."""

LOOPS: tuple[Loop, ...] = ("v1", "v2")
PAPER = "the paper's"


@dataclass(frozen=True)
class Launch:
    """One kernel of a call that works in tiles."""

    kernel: str
    """As a profiler names it."""
    tile: Tile
    ctas: int
    """CTAs of its grid."""
    ctas_per_sm: int | None = None
    """The most that its registers, as compiled, are known to leave room for; None if that is not known."""


@dataclass(frozen=True)
class Tiling:
    """How one call cuts a case: its tiled kernels, and everything the call moves between HBM and the chip."""

    loop: Loop
    source: str
    """Who cuts it so: a backend's name."""
    launches: tuple[Launch, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """'tiled v2, 128 x 64 (cuda-v2)'; without the tile where the kernels of a call differ in theirs."""
        tiles = {f", {launch.tile.Br} x {launch.tile.Bc}" for launch in self.launches}
        return f"tiled {self.loop}{tiles.pop() if len(tiles) == 1 else ''} ({self.source})"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tiling:
        """The tiling `to_json` wrote."""
        launches = (Launch(**{**launch, "tile": Tile(**launch["tile"])}) for launch in data["launches"])
        steps = (
            Step(**{**step, "transfers": tuple(Transfer(**transfer) for transfer in step["transfers"])})
            for step in data["steps"]
        )
        return cls(data["loop"], data["source"], tuple(launches), tuple(steps))


def plain(loop: Loop, case: Case, tile: Tile, source: str) -> Tiling:
    """A kernel that does what its paper says with `tile` in every pass; its backward's outer loop is over K and V."""
    forward = tiled_steps.forward_v1 if loop == "v1" else tiled_steps.forward_v2
    launches, steps = [], []
    if case.direction != "backward":
        grid = ctas(loop, case.batch * case.heads, case.Nq, tile.Br)
        launches.append(Launch("forward", tile, grid))
        steps += forward(case, tile.Br, tile.Bc)
    if case.has_backward:
        grid = ctas(loop, case.batch * case.heads, case.Nk, tile.Bc)
        launches.append(Launch("backward", tile, grid))
        steps += tiled_steps.backward(case, tile.Br, tile.Bc)
    return Tiling(loop, source, tuple(launches), tuple(steps))


def paper(loop: Loop, case: Case, on_chip: int | None) -> Tiling:
    """The tile of the papers, where no kernel says its own, for a card with `on_chip` bytes of shared memory a CTA.

    v1: Bc = ceil(M/4d) and Br = min(Bc, d) with M elements on chip (2022, algorithm 1), rounded down to multiples of
    16, the rows of a matrix instruction. v2: 128 x 64 with two stages (2023, §3.3 has 64 or 128 for either).
    """
    e = DTYPES[case.dtype].bytes
    if loop == "v2":
        return plain("v2", case, Tile(128, 64, case.d, case.dv, e, stages=2), PAPER)
    rows = -(-(on_chip or 96 * 1024) // e // (4 * max(case.d, case.dv)))
    Bc = max(16, rows // 16 * 16)
    Br = max(16, min(Bc, case.d) // 16 * 16)
    return plain("v1", case, Tile(Br, Bc, case.d, case.dv, e, threads=256), PAPER)

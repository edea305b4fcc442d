"""HBM traffic, step by step, of the standard algorithm and of the tiled ones: what `explain` sets beside a measurement.

Each algorithm is a list of steps, each step a list of transfers between HBM and the chip, for all batches and heads of
a case. The models ignore L2, so for the tiled algorithms they are an upper bound of what reaches HBM (`ideal_bytes` is
the lower one), and k and v count once for each query head, as if GQA expanded them. Sources: Dao et al. 2022 (arXiv
2205.14135, algorithms 0, 1 and 4) and Dao 2023 (arXiv 2307.08691, algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fabench.case import Case, Mask
from fabench.dtypes import DTYPES

Way = Literal["read", "write"]
FP32 = 4
SOFTMAX_FLOPS = 3
"""Subtract, exponentiate, divide: the FLOPs an element of softmax costs. Shown in step tables, never in a rate."""


@dataclass(frozen=True)
class Transfer:
    """Elements of one tensor that cross between HBM and the chip."""

    tensor: str
    way: Way
    elements: int
    element_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes that cross."""
        return self.elements * self.element_bytes


@dataclass(frozen=True)
class Step:
    """One step of an algorithm, with the FLOPs it does by the problem's full matrices."""

    name: str
    flops: int
    transfers: tuple[Transfer, ...]
    counted: bool = True
    """False for softmax and its gradient, whose FLOPs no rate counts."""

    def _sum(self, way: str) -> tuple[int, int]:
        chosen = [t for t in self.transfers if t.way == way]
        return sum(t.elements for t in chosen), sum(t.bytes for t in chosen)

    @property
    def read_elements(self) -> int:
        """Elements read from HBM."""
        return self._sum("read")[0]

    @property
    def written_elements(self) -> int:
        """Elements written to HBM."""
        return self._sum("write")[0]

    @property
    def read_bytes(self) -> int:
        """Bytes read from HBM."""
        return self._sum("read")[1]

    @property
    def written_bytes(self) -> int:
        """Bytes written to HBM."""
        return self._sum("write")[1]

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte; 0 where nothing moves."""
        return self.flops / self.bytes if self.bytes else 0.0


def total_bytes(steps: Sequence[Step]) -> int:
    """HBM bytes of all the steps."""
    return sum(step.bytes for step in steps)


def total_intensity(steps: Sequence[Step]) -> float:
    """FLOPs of all the steps per byte they move, softmax left out as in every rate; 0 where nothing moves."""
    moved = total_bytes(steps)
    return sum(step.flops for step in steps if step.counted) / moved if moved else 0.0


class _Tensors:
    """Builds transfers for a case: sizes by the names of the papers, one line a step."""

    def __init__(self, case: Case) -> None:
        self.e = DTYPES[case.dtype].bytes
        self.heads = case.batch * case.heads
        Nq, Nk, d, dv = case.Nq, case.Nk, case.d, case.dv
        self.sizes = {"Q": Nq * d, "K": Nk * d, "V": Nk * dv, "O": Nq * dv}
        self.sizes |= {f"d{name}": size for name, size in self.sizes.items()}
        self.sizes |= dict.fromkeys(("S", "P", "dP", "dS"), Nq * Nk)

    def step(self, name: str, flops_per_head: int, reads: str, writes: str, counted: bool = True) -> Step:
        read = [self.transfer(tensor, "read", self.sizes[tensor]) for tensor in reads.split()]
        written = [self.transfer(tensor, "write", self.sizes[tensor]) for tensor in writes.split()]
        return Step(name, flops_per_head * self.heads, (*read, *written), counted)

    def transfer(self, tensor: str, way: Way, per_head: int, element_bytes: int | None = None) -> Transfer:
        return Transfer(tensor, way, per_head * self.heads, element_bytes or self.e)


def standard_forward(case: Case) -> list[Step]:
    """S = QKᵀ, softmax, O = PV, each reading its operands from HBM and writing its result: 4N² + 4Nd elements a head.

    A mask saves nothing: the matrices are full. The scale is folded into the first product (a pass of its own would
    add 2N²).
    """
    t, product = _Tensors(case), 2 * case.Nq * case.Nk
    return [
        t.step("S = QKᵀ", product * case.d, "Q K", "S"),
        t.step("softmax", SOFTMAX_FLOPS * case.Nq * case.Nk, "S", "P", counted=False),
        t.step("O = PV", product * case.dv, "P V", "O"),
    ]


def standard_backward(case: Case) -> list[Step]:
    """dV, dP, dS, dQ, dK from the stored P: reads 5N² + 5Nd, writes 2N² + 3Nd elements a head."""
    t, product = _Tensors(case), 2 * case.Nq * case.Nk
    return [
        t.step("dV = PᵀdO", product * case.dv, "P dO", "dV"),
        t.step("dP = dO Vᵀ", product * case.dv, "dO V", "dP"),
        t.step("dS = P∘(dP - delta)", SOFTMAX_FLOPS * case.Nq * case.Nk, "P dP", "dS", counted=False),
        t.step("dQ = dS K", product * case.d, "dS K", "dQ"),
        t.step("dK = dSᵀQ", product * case.d, "dS Q", "dK"),
    ]


def standard(case: Case) -> list[Step]:
    """The standard algorithm in the case's direction."""
    forward = [] if case.direction == "backward" else standard_forward(case)
    return forward + (standard_backward(case) if case.has_backward else [])


def tiles(mask: Mask, Br: int, Bc: int) -> Iterator[tuple[range, range]]:
    """For each tile of Br queries, its queries and the key tiles of Bc keys that hold an attended pair.

    The mask is a band, so a tile's key tiles are contiguous, and its first and last query decide which.
    """
    for start in range(0, mask.Nq, Br):
        queries = range(start, min(start + Br, mask.Nq))
        low = 0 if mask.left is None else max(0, queries[0] + mask.offset - mask.left)
        high = mask.Nk if mask.right is None else min(mask.Nk, queries[-1] + mask.offset + mask.right + 1)
        yield queries, range(low // Bc, math.ceil(high / Bc)) if low < high else range(0)


def _visits(mask: Mask, Br: int, Bc: int) -> tuple[int, int, int, int]:
    """What a head touches: keys over all query tiles, queries over all key tiles, keys at all, pairs of tiles."""
    keys_read = queries_visited = visits = 0
    visited: set[int] = set()
    for queries, key_tiles in tiles(mask, Br, Bc):
        if key_tiles:
            keys_read += min(key_tiles.stop * Bc, mask.Nk) - key_tiles.start * Bc
            queries_visited += len(queries) * len(key_tiles)
            visits += len(key_tiles)
            visited.update(key_tiles)
    return keys_read, queries_visited, sum(min(Bc, mask.Nk - tile * Bc) for tile in visited), visits


def tiled_v2_forward(case: Case, Br: int, Bc: int) -> list[Step]:
    """Outer loop over Q (2023): Q once, K and V once for each query tile, O and LSE written once.

    A head moves Nd + 2Nd·ceil(N/Br) + Nd + N elements; under a mask only tiles that hold an attended pair are read.
    """
    t = _Tensors(case)
    keys_read, _, _, visits = _visits(case.mask, Br, Bc)
    return [
        Step(
            "for each Q tile: K, V tiles",
            _tile_flops(case, visits, Br, Bc),
            (
                t.transfer("Q", "read", t.sizes["Q"]),
                t.transfer("K", "read", keys_read * case.d),
                t.transfer("V", "read", keys_read * case.dv),
                t.transfer("O", "write", t.sizes["O"]),
                t.transfer("LSE", "write", case.Nq, FP32),
            ),
        )
    ]


def tiled_v1_forward(case: Case, Br: int, Bc: int, accumulator_bytes: int | None = None) -> list[Step]:
    """Outer loop over K and V (2022): K and V once; Q, O, m, l read, and O, m, l written, for each key tile.

    A head moves 2Nd + ceil(N/Bc)·(2Nd + 2N read, Nd + 2N written) elements. O between outer steps has
    `accumulator_bytes` an element (None: the case's dtype).
    """
    t = _Tensors(case)
    _, queries_visited, keys, visits = _visits(case.mask, Br, Bc)
    o = queries_visited * case.dv
    return [
        Step(
            "for each K, V tile: Q tiles",
            _tile_flops(case, visits, Br, Bc),
            (
                t.transfer("K", "read", keys * case.d),
                t.transfer("V", "read", keys * case.dv),
                t.transfer("Q", "read", queries_visited * case.d),
                t.transfer("O", "read", o, accumulator_bytes),
                t.transfer("m, l", "read", 2 * queries_visited, FP32),
                t.transfer("O", "write", o, accumulator_bytes),
                t.transfer("m, l", "write", 2 * queries_visited, FP32),
            ),
        )
    ]


def tiled_backward(case: Case, Br: int, Bc: int) -> list[Step]:
    """Outer loop over K and V, P recomputed: K, V once; Q, dO, O, LSE for each key tile; dQ added to in float32 there.

    dK and dV are written once, whether or not anything attends to them.
    """
    t = _Tensors(case)
    _, queries_visited, keys, visits = _visits(case.mask, Br, Bc)
    products = 2 * visits * Br * Bc * (3 * case.d + 2 * case.dv) * t.heads
    return [
        Step(
            "for each K, V tile: Q, dO tiles",
            products,
            (
                t.transfer("K", "read", keys * case.d),
                t.transfer("V", "read", keys * case.dv),
                t.transfer("Q", "read", queries_visited * case.d),
                t.transfer("dO", "read", queries_visited * case.dv),
                t.transfer("O", "read", queries_visited * case.dv),
                t.transfer("LSE", "read", queries_visited, FP32),
                t.transfer("dQ", "read", queries_visited * case.d, FP32),
                t.transfer("dQ", "write", queries_visited * case.d, FP32),
                t.transfer("dK", "write", t.sizes["K"]),
                t.transfer("dV", "write", t.sizes["V"]),
            ),
        )
    ]


def _tile_flops(case: Case, visits: int, Br: int, Bc: int) -> int:
    """FLOPs of the tiles visited in a forward, masked elements inside a tile included: what the tensor cores do."""
    return 2 * visits * Br * Bc * (case.d + case.dv) * case.batch * case.heads

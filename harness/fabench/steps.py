"""HBM traffic, step by step, of the standard algorithm: what `explain` sets beside a measurement.

An algorithm is a list of steps, a step a list of transfers between HBM and the chip, for all batches and heads of a
case. k and v count once for each query head, as if GQA expanded them. Source: Dao et al. 2022 (arXiv 2205.14135,
algorithms 0 and 3). The tiled algorithms are in `tiled_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fabench.case import Case
from fabench.dtypes import DTYPES

Way = Literal["read", "write"]
FP32 = 4
FLOAT32 = frozenset({"LSE", "m, l", "delta", "sums of O", "parts of O", "parts of LSE", "sums of dQ"})
"""Tensors that are float32 whatever the inputs are."""
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


class Tensors:
    """Builds transfers for a case: sizes by the names of the papers, one line a step."""

    def __init__(self, case: Case) -> None:
        self.e = DTYPES[case.dtype].bytes
        self.heads = case.batch * case.heads
        Nq, Nk, d, dv = case.Nq, case.Nk, case.d, case.dv
        self.sizes = {"Q": Nq * d, "K": Nk * d, "V": Nk * dv, "O": Nq * dv}
        self.sizes |= {f"d{name}": size for name, size in self.sizes.items()}
        self.sizes |= dict.fromkeys(("S", "P", "dP", "dS"), Nq * Nk)

    def whole(self, name: str, flops_per_head: int, reads: str, writes: str, counted: bool = True) -> Step:
        """A step that reads and writes whole tensors, named in one string each."""
        read, written = ({tensor: self.sizes[tensor] for tensor in names.split()} for names in (reads, writes))
        return self.step(name, flops_per_head * self.heads, read, written, counted=counted)

    def step(
        self, name: str, flops: int, reads: Mapping[str, int], writes: Mapping[str, int], *, counted: bool = True
    ) -> Step:
        """A step of `flops` in all that moves so many elements of each tensor a head."""
        ways: tuple[tuple[Way, Mapping[str, int]], ...] = ("read", reads), ("write", writes)
        return Step(
            name,
            flops,
            tuple(
                Transfer(tensor, way, elements * self.heads, FP32 if tensor in FLOAT32 else self.e)
                for way, moved in ways
                for tensor, elements in moved.items()
            ),
            counted,
        )


def standard_forward(case: Case) -> list[Step]:
    """S = QKᵀ, softmax, O = PV, each reading its operands from HBM and writing its result: 4N² + 4Nd elements a head.

    A mask saves nothing: the matrices are full. The scale is folded into the first product (a pass of its own would
    add 2N²).
    """
    t, product = Tensors(case), 2 * case.Nq * case.Nk
    return [
        t.whole("S = QKᵀ", product * case.d, "Q K", "S"),
        t.whole("softmax", SOFTMAX_FLOPS * case.Nq * case.Nk, "S", "P", counted=False),
        t.whole("O = PV", product * case.dv, "P V", "O"),
    ]


def standard_backward(case: Case) -> list[Step]:
    """dV, dP, dS, dQ, dK from the stored P: reads 5N² + 5Nd, writes 2N² + 3Nd elements a head."""
    t, product = Tensors(case), 2 * case.Nq * case.Nk
    return [
        t.whole("dV = PᵀdO", product * case.dv, "P dO", "dV"),
        t.whole("dP = dO Vᵀ", product * case.dv, "dO V", "dP"),
        t.whole("dS = P∘(dP - delta)", SOFTMAX_FLOPS * case.Nq * case.Nk, "P dP", "dS", counted=False),
        t.whole("dQ = dS K", product * case.d, "dS K", "dQ"),
        t.whole("dK = dSᵀQ", product * case.d, "dS Q", "dK"),
    ]


def standard(case: Case) -> list[Step]:
    """The standard algorithm in the case's direction."""
    forward = [] if case.direction == "backward" else standard_forward(case)
    return forward + (standard_backward(case) if case.has_backward else [])

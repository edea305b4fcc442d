"""What a case costs, whoever computes it: attended pairs, FLOPs, ideal HBM bytes, memory. Plain integers, no torch.

The FLOP count belongs to the problem and is the same for every backend. Only the two matrix products are counted
(forward QKᵀ and PV; backward the recomputed QKᵀ, dP = dO Vᵀ, dV, dQ, dK), each multiply-add as two, over the pairs that
the mask lets through; softmax is never counted. Papers halve Nq·Nk under a causal mask instead, which is lower by a
share of 1/N: `paper_flops` gives that figure, for comparing with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fabench.case import Case, Mask
from fabench.dtypes import DTYPES

CONVENTION = "exact_pairs"
"""Name of the FLOP convention, stored with every row."""
PAPER_CONVENTION = "half_causal"
"""4·Nq·Nk·d·heads·batch forward, halved when causal, x2.5 backward (FlashAttention-2, arXiv 2307.08691, §4.1)."""

LSE_BYTES = 4
"""LSE is float32 whatever the inputs are."""

MemoryModel = Literal["standard", "flash"]
Matrices = tuple[float, float, float]
"""Matrices in a call's workspace: of a forward, of a backward, and how many more the backward has under a mask."""
TEXTBOOK: dict[MemoryModel, Matrices] = {"standard": (2.0, 2.0, 0.0), "flash": (0.0, 1.0, 0.0)}
"""Of S's size in the case's dtype if standard: S and P, dP and dS. Of O's or q's size in float32 if flash: dQ."""


@dataclass(frozen=True)
class Cost:
    """Cost of one call of the case's direction, over all batches and heads."""

    pairs: int
    """Attended (query, key) pairs of one head."""
    flops: int
    ideal_bytes: int
    """HBM bytes if each input that matters is read once and each output written once: a lower bound."""
    convention: str = CONVENTION


@dataclass(frozen=True)
class ExtraMemory:
    """Bytes that one call needs beyond its inputs, as the memory model has it."""

    outputs: int
    workspace: int
    saved: int
    """Kept by the forward for the backward, without the inputs themselves."""

    @property
    def total(self) -> int:
        """All three together: what a measured peak above the inputs is compared with."""
        return self.outputs + self.workspace + self.saved


def pairs(mask: Mask) -> int:
    """Attended (query, key) pairs of one head, exact, in closed form.

    Query i sees the keys from i + offset - left to i + offset + right that exist. Each end of that range runs along a
    diagonal and stops at 0 and Nk, so the sum over queries is the difference of two clipped arithmetic series.
    """
    ends = mask.Nq * mask.Nk
    if mask.right is not None:
        ends = _clipped_series(mask.offset + mask.right + 1, mask.Nq, mask.Nk)
    starts = 0
    if mask.left is not None:
        starts = _clipped_series(mask.offset - mask.left, mask.Nq, mask.Nk)
    return ends - starts


def _clipped_series(first: int, count: int, top: int) -> int:
    """The sum of min(max(first + i, 0), top) for i in 0..count-1."""

    def below(x: int) -> int:
        """The sum of min(t, top) for t in 0..x-1."""
        if x <= 0:
            return 0
        ramp = min(x, top + 1)
        return ramp * (ramp - 1) // 2 + (x - ramp) * top

    return below(first + count) - below(first)


def attended_keys(mask: Mask) -> range:
    """The keys that at least one query sees. Contiguous: each query's range is the last one's, shifted."""
    low = 0 if mask.left is None else max(0, mask.offset - mask.left)
    high = mask.Nk if mask.right is None else min(mask.Nk, mask.offset + mask.Nq + mask.right)
    return range(low, max(low, high)) if mask.Nq > 0 else range(0)


def attending_queries(mask: Mask) -> range:
    """The queries that see at least one key."""
    low = 0 if mask.right is None else max(0, -mask.offset - mask.right)
    high = mask.Nq if mask.left is None else min(mask.Nq, mask.Nk - mask.offset + mask.left)
    return range(low, max(low, high)) if mask.Nk > 0 else range(0)


def flops(case: Case) -> int:
    """FLOPs of the case's direction: 2·pairs·batch·heads times d+dv forward, 3d+2dv backward, 4d+3dv both."""
    per_pair = {
        "forward": case.d + case.dv,
        "backward": 3 * case.d + 2 * case.dv,
        "forward_backward": 4 * case.d + 3 * case.dv,
    }[case.direction]
    return 2 * pairs(case.mask) * case.batch * case.heads * per_pair


def paper_flops(case: Case) -> float:
    """FLOPs as the FlashAttention papers count them (`PAPER_CONVENTION`), to stand beside published figures only."""
    forward = 2 * case.Nq * case.Nk * (case.d + case.dv) * case.heads * case.batch
    return (
        forward
        * (0.5 if case.causal else 1.0)
        * {"forward": 1.0, "backward": 2.5, "forward_backward": 3.5}[case.direction]
    )


def ideal_bytes(case: Case) -> int:
    """The least HBM bytes that any exact algorithm moves: a lower bound, so that a faster call is implausible.

    Rows of q that see no key and rows of k and v that no query sees need not be read (a decode step with a window reads
    the window alone), but every output row is written. O and LSE can be recomputed, so a backward need not read them.
    """
    e = DTYPES[case.dtype].bytes
    queries = case.batch * case.heads * len(attending_queries(case.mask))
    keys = case.batch * case.kv_heads * len(attended_keys(case.mask))
    read = queries * case.d + keys * (case.d + case.dv)
    if case.has_backward:
        read += queries * case.dv  # dO
    return read * e + output_bytes(case)


def cost(case: Case) -> Cost:
    """Pairs, FLOPs and ideal bytes of `case`."""
    return Cost(pairs(case.mask), flops(case), ideal_bytes(case))


def intensity(case: Case) -> float:
    """FLOPs per ideal byte: the right-most place the case can have on a roofline. 0 where nothing is moved."""
    moved = ideal_bytes(case)
    return flops(case) / moved if moved else 0.0


def _elements(case: Case) -> tuple[int, int, int, int]:
    """Elements of q, k, v and O."""
    kv = case.batch * case.kv_heads * case.Nk
    queries = case.batch * case.heads * case.Nq
    return queries * case.d, kv * case.d, kv * case.dv, queries * case.dv


def input_bytes(case: Case) -> int:
    """Bytes of one input set: q, k and v, and dO if there is a backward."""
    q, k, v, o = _elements(case)
    return (q + k + v + (o if case.has_backward else 0)) * DTYPES[case.dtype].bytes


def output_bytes(case: Case) -> int:
    """Bytes of the results asked for: O forward, dQ dK dV backward, all four for both."""
    q, k, v, o = _elements(case)
    gradients = q + k + v
    elements = {"forward": o, "backward": gradients, "forward_backward": o + gradients}[case.direction]
    return elements * DTYPES[case.dtype].bytes


def score_bytes(case: Case) -> int:
    """Bytes of one batch·heads·Nq·Nk matrix in the case's dtype: S, P, dP or dS. A mask does not shrink it."""
    return case.batch * case.heads * case.Nq * case.Nk * DTYPES[case.dtype].bytes


def lse_bytes(case: Case) -> int:
    """Bytes of LSE (float32), which is all that a flash kernel keeps beside O."""
    return case.batch * case.heads * case.Nq * LSE_BYTES


def saved_bytes(case: Case, model: MemoryModel) -> int:
    """Bytes the forward keeps for the backward besides q, k and v: P and O if standard, O and LSE if flash."""
    o = _elements(case)[3] * DTYPES[case.dtype].bytes
    return o + (score_bytes(case) if model == "standard" else lse_bytes(case))


def extra_memory_parts(case: Case, model: MemoryModel, matrices: Matrices | None = None) -> ExtraMemory:
    """Bytes beyond the inputs at the peak of the case's direction, split as a measurement splits them.

    Standard forward holds S and P (2·batch·heads·Nq·Nk·e); its backward the saved P with dP and dS. A flash kernel
    holds O(N): LSE forward, and in the backward delta = rowsum(dO·O) (float32) and the float32 accumulator of dQ.
    `matrices` is what an implementation holds where it is not that.
    """
    outputs, backward = output_bytes(case), case.direction != "forward"
    forward_count, backward_count, masked_count = matrices or TEXTBOOK[model]
    count = backward_count + (0.0 if case.mask.is_full else masked_count) if backward else forward_count
    if model == "standard":
        workspace = int(count * score_bytes(case))
    else:
        q, _, _, o = _elements(case)
        workspace = lse_bytes(case) + int(count * 4 * (q if backward else o))
    if not backward:
        return ExtraMemory(outputs, workspace, 0)
    saved = saved_bytes(case, model)
    if case.direction == "forward_backward":
        saved -= _elements(case)[3] * DTYPES[case.dtype].bytes  # O is among the outputs
    return ExtraMemory(outputs, workspace, saved)


def extra_memory(case: Case, model: MemoryModel) -> int:
    """Bytes beyond the inputs that one call needs: outputs, workspace and what is saved for the backward."""
    return extra_memory_parts(case, model).total

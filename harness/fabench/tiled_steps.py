"""HBM traffic, step by step, of the tiled algorithms, as the papers have them and as kernels vary them.

The models ignore L2, so they are an upper bound of what reaches HBM (`cost.ideal_bytes` is the lower one); k and v
count once for each query head. Under a mask only tiles that hold an attended pair are visited; FLOPs are those of whole
tiles, which is what the tensor cores do. Sources: Dao et al. 2022 (arXiv 2205.14135, algorithms 1 and 4), Dao 2023
(arXiv 2307.08691, algorithms 1 and 2).
"""

from __future__ import annotations

from fabench.case import Case
from fabench.steps import Step, Tensors
from fabench.visits import visits


def forward_v1(case: Case, Br: int, Bc: int, *, float_O: bool = False) -> list[Step]:
    """Outer loop over K and V (2022): K and V once; Q, O, m, l read, and O, m, l written, for each key tile.

    A head moves 2Nd + ceil(N/Bc)·(2Nd + 2N read, Nd + 2N written) elements. With `float_O` O travels as float32, which
    is set to 0 before and rounded to the dtype after; without, it travels in the dtype, and its start is not counted.
    """
    t, seen, O = Tensors(case), visits(case.mask, Br, Bc), "sums of O" if float_O else "O"
    moved = {O: seen.queries_read * case.dv, "m, l": 2 * seen.queries_read}
    loop = t.step(
        "for each K, V tile: Q tiles",
        2 * seen.pairs * Br * Bc * (case.d + case.dv) * t.heads,
        {"K": seen.keys * case.d, "V": seen.keys * case.dv, "Q": seen.queries_read * case.d, **moved},
        moved,
    )
    if not float_O:
        return [loop]
    sums = {O: t.sizes["O"], "m, l": 2 * case.Nq}
    return [
        t.step("O = 0, m = -inf, l = 0", 0, {}, sums, counted=False),
        loop,
        t.step("O rounded, LSE", 0, sums, {"O": t.sizes["O"], "LSE": case.Nq}, counted=False),
    ]


def forward_v2(case: Case, Br: int, Bc: int, *, splits: int = 1) -> list[Step]:
    """Outer loop over Q (2023): Q once, K and V once for each query tile, O and LSE written once.

    A head moves Nd + 2Nd·ceil(N/Br) + Nd + N elements. `splits` CTAs share the keys of a query tile: each reads Q and
    writes a float32 part of O and its LSE, and a second step merges the parts.
    """
    t, seen = Tensors(case), visits(case.mask, Br, Bc)
    results = {"O": t.sizes["O"], "LSE": case.Nq}
    parts = {"parts of O": splits * t.sizes["O"], "parts of LSE": splits * case.Nq}
    loop = t.step(
        "for each Q tile: K, V tiles" if splits == 1 else f"for each Q tile, {splits} splits: K, V tiles",
        2 * seen.pairs * Br * Bc * (case.d + case.dv) * t.heads,
        {"Q": splits * t.sizes["Q"], "K": seen.keys_read * case.d, "V": seen.keys_read * case.dv},
        results if splits == 1 else parts,
    )
    return [loop] if splits == 1 else [loop, t.step("splits merged", 0, parts, results, counted=False)]


def backward(case: Case, Br: int, Bc: int, *, apart: bool = False) -> list[Step]:
    """Outer loop over K and V, P recomputed: K, V once; Q, dO, O, LSE for each key tile; dQ added to in float32 there.

    With `apart` delta = rowsum(O∘dO) is taken in a step before, which also sets the sums of dQ to 0, and they are
    rounded to the dtype in one after. dK and dV are written once, whether or not anything attends to them.
    """
    t, seen = Tensors(case), visits(case.mask, Br, Bc)
    queries, sums = seen.queries_read, {"sums of dQ": seen.queries_read * case.d}
    rows = {"LSE": queries, "delta": queries} if apart else {"O": queries * case.dv, "LSE": queries}
    loop = t.step(
        "for each K, V tile: Q, dO tiles",
        2 * seen.pairs * Br * Bc * (3 * case.d + 2 * case.dv) * t.heads,
        {"K": seen.keys * case.d, "V": seen.keys * case.dv,
         "Q": queries * case.d, "dO": queries * case.dv, **rows, **sums},
        {**sums, "dK": t.sizes["K"], "dV": t.sizes["V"]},
    )  # fmt: skip
    if not apart:
        return [loop]
    start = {"sums of dQ": t.sizes["Q"]}
    return [
        t.step("delta, dQ = 0", 0, {"O": t.sizes["O"], "dO": t.sizes["O"], "LSE": case.Nq},
               {"LSE": case.Nq, "delta": case.Nq, **start}, counted=False),
        loop,
        t.step("dQ rounded", 0, start, {"dQ": t.sizes["Q"]}, counted=False),
    ]  # fmt: skip


def backward_dQ(case: Case, Br: int, Bc: int) -> list[Step]:
    """Half of a backward, outer loop over Q: Q, dO, O, LSE once, K, V for each query tile; dQ, delta written once."""
    t, seen = Tensors(case), visits(case.mask, Br, Bc)
    return [
        t.step(
            "dQ, for each Q tile: K, V tiles",
            2 * seen.pairs * Br * Bc * (2 * case.d + case.dv) * t.heads,
            {"Q": t.sizes["Q"], "dO": t.sizes["O"], "O": t.sizes["O"], "LSE": case.Nq,
             "K": seen.keys_read * case.d, "V": seen.keys_read * case.dv},
            {"dQ": t.sizes["Q"], "delta": case.Nq},
        )
    ]  # fmt: skip


def backward_dK_dV(case: Case, Br: int, Bc: int) -> list[Step]:
    """The other half, outer loop over K and V: K, V once; Q, dO, LSE, delta for each key tile; dK, dV written once."""
    t, seen = Tensors(case), visits(case.mask, Br, Bc)
    queries = seen.queries_read
    return [
        t.step(
            "dK, dV, for each K, V tile: Q, dO tiles",
            2 * seen.pairs * Br * Bc * (2 * case.d + 2 * case.dv) * t.heads,
            {"K": t.sizes["K"], "V": t.sizes["V"],
             "Q": queries * case.d, "dO": queries * case.dv, "LSE": queries, "delta": queries},
            {"dK": t.sizes["K"], "dV": t.sizes["V"]},
        )
    ]  # fmt: skip

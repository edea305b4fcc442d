"""The axes of the battery and the values on them, from docs/parity.md: what kernels have been wrong about.

An axis has classes, and a class members that stand for one another (63, 64 and 65 are 'about one tile'): a design
covers classes, and takes a class's members in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fabench.backend import Facts
from fabench.case import Case
from fabench.errors import CaseError
from fabench.parity.trial import GradientOrder, Order

Member = dict[str, Any]
Axis = list[list[Member]]
"""Classes of members; a member is fields of Case, or `order` and `gradient_order` of Trial."""


def _square(*lengths: int) -> list[Member]:
    return [{"Nq": n, "Nk": n} for n in lengths]


def _rectangle(*shapes: tuple[int, int]) -> list[Member]:
    return [{"Nq": q, "Nk": k} for q, k in shapes]


def _each(name: str, *classes: Sequence[Any]) -> Axis:
    return [[{name: value} for value in members] for members in classes]


SHORT: Axis = [
    _square(65, 64, 63),
    _square(129, 127, 128),
    _square(97, 33, 17, 16),
    _square(257, 193, 320, 192),
    _square(1, 3, 2, 15),
    _rectangle((113, 203), (64, 129), (3, 130)),
    _rectangle((203, 113), (239, 1), (129, 64), (130, 3)),
    _rectangle((1, 239), (1, 64)),
    _rectangle((0, 5), (5, 0), (0, 0)),
]
LONG: Axis = [
    *SHORT[:4],
    _square(1024, 1023, 1025),
    _square(704, 1000, 4097),
    SHORT[4],
    [*SHORT[5], *_rectangle((3, 799), (1023, 1024))],
    [*SHORT[6], *_rectangle((799, 3), (640, 128), (1024, 1023))],
    SHORT[7],
    SHORT[8],
]
"""Sequence lengths: about one tile, two, odd ones, several; more keys than queries, fewer, one query, none."""
DIMS: Axis = [
    [{"d": 64}],
    [{"d": 128}],
    [{"d": 16}, {"d": 8}],
    [{"d": 40}, {"d": 32}],
    [{"d": 80}, {"d": 72}, {"d": 96}],
    [{"d": 192}, {"d": 256}, {"d": 160}],
    [{"d": 64, "dv": 128}, {"d": 128, "dv": 64}, {"d": 192, "dv": 128}],
]
DTYPES: Axis = _each("dtype", ["bf16"], ["fp16"], ["fp32"])
HEADS: Axis = [
    [{"batch": 2, "heads": 4, "kv_heads": 2}, {"batch": 2, "heads": 8, "kv_heads": 2}],
    [{"batch": 1, "heads": 1, "kv_heads": 1}],
    [{"batch": 3, "heads": 2, "kv_heads": 2}],
    [{"batch": 1, "heads": 8, "kv_heads": 1}, {"batch": 2, "heads": 3, "kv_heads": 1}],
    [{"batch": 1, "heads": 28, "kv_heads": 4}, {"batch": 1, "heads": 12, "kv_heads": 4}],
    [{"batch": 1, "heads": 9, "kv_heads": 9}, {"batch": 2, "heads": 12, "kv_heads": 12}],
]
"""Group sizes that are not the number of kv heads, more than 8 heads, batch entries that can be mixed up."""
MASKS: Axis = [
    [{}],
    [{"causal": True}],
    [{"causal": True, "alignment": "top_left"}],
    [{"window": (17, 5)}, {"window": (-1, 7)}, {"window": (20, -1)}, {"window": (0, 0)}, {"window": (64, 63)}],
    [{"causal": True, "window": (33, 0)}, {"causal": True, "window": (127, 0)}],
    [{"window": (20, 9), "alignment": "top_left"}],
]
SCORES: Axis = [
    [{}],
    [{"scale": 1.0}, {"scale": 0.3}],
    [{"scale": -0.1}, {"scale": 0.0}],
    [{"softcap": 5.0}, {"softcap": 30.0}],
]
INPUTS: Axis = _each(
    "inputs",
    ["normal"],
    ["std3", "std6"],
    ["outliers"],
    ["sparse_ints", "one_hot"],
    ["constant_v", "repeated_k"],
    ["sink"],
    ["neglse"],
    ["near_overflow", "subnormal"],
    ["padded"],
)
MEMORY: Axis = [
    [{}],
    [{"layout": "bshd"}],
    [{"layout": "packed"}],
    [{"order": "sliced"}],
    [{"order": "offset1"}],
    [{"order": "offset8"}],
    [{"order": "expanded_kv"}],
    [{"order": "odd_strides"}],
    [{"order": "mixed"}],
]
GRADIENTS: Axis = _each("gradient_order", ["plain"], ["transposed"], ["expanded"], ["sliced"])

AXES: dict[str, Axis] = {
    "N": SHORT,
    "d": DIMS,
    "dtype": DTYPES,
    "heads": HEADS,
    "mask": MASKS,
    "scores": SCORES,
    "inputs": INPUTS,
    "memory": MEMORY,
    "dO": GRADIENTS,
}


ANCHORS: list[Member] = [
    {},
    {"Nq": 129, "Nk": 129, "d": 128, "dtype": "fp16", "causal": True, "alignment": "bottom_right"},
    {"Nq": 257, "Nk": 257, "dtype": "fp32", "window": (17, 5), "batch": 3, "heads": 2, "kv_heads": 2},
    {"Nq": 113, "Nk": 203, "causal": True, "batch": 1, "heads": 8, "kv_heads": 1, "layout": "bshd"},
    {"Nq": 203, "Nk": 113, "dtype": "fp16", "causal": True, "alignment": "top_left", "gradient_order": "transposed"},
    {"Nq": 97, "Nk": 97, "d": 40, "dtype": "fp32", "softcap": 5.0, "batch": 1, "heads": 9, "kv_heads": 9},
    {"Nq": 129, "Nk": 129, "d": 80, "inputs": "std3", "scale": 1.0, "gradient_order": "expanded"},
]
"""What a battery begins with: plain cases, in which a bug is easy to name."""


@dataclass(frozen=True)
class Point:
    """A case and its memory orders, made of one member an axis."""

    case: Case
    order: Order
    gradient_order: GradientOrder


def point(members: Sequence[Mapping[str, Any]], *, backward: bool, seed: int) -> Point | None:
    """The point of these members, None if there is no such problem (packed tensors of different shapes)."""
    fields: dict[str, Any] = {}
    for member in members:
        fields.update(member)
    order, gradient_order = fields.pop("order", "plain"), fields.pop("gradient_order", "plain")
    try:
        case = Case(**fields, direction="backward" if backward else "forward", seed=seed)
    except CaseError:
        return None
    return Point(case, order, gradient_order if backward else "plain")


def plain(facts: Facts) -> Member:
    """The smallest member of every axis at once: what the others are tried on."""
    d = facts.head_dims[0] if facts.head_dims else max(facts.head_dim_multiple, 1)
    return {"batch": 1, "heads": 1, "kv_heads": 1, "Nq": 8, "Nk": 8, "dtype": facts.dtypes[0], "d": d}


def supported(axis: Axis, facts: Facts) -> Axis:
    """The classes of an axis with the members the facts allow by themselves; a class without any goes."""
    kept = []
    for members in axis:
        able = []
        for member in members:
            made = point([plain(facts), member], backward=False, seed=0)
            if made is not None and not facts.case_reasons(made.case):
                able.append(member)
        if able:
            kept.append(able)
    return kept

"""Hypothesis strategies for masks and cases, small enough for brute force."""

from __future__ import annotations

from hypothesis import strategies as st

from fabench.case import Case, Mask

sides = st.integers(-1, 12)
masks = st.builds(
    Mask,
    Nq=st.integers(0, 14),
    Nk=st.integers(0, 14),
    causal=st.booleans(),
    alignment=st.sampled_from(["bottom_right", "top_left"]),
    window=st.none() | st.tuples(sides, sides),
)


@st.composite
def cases(draw):
    """Any case with few elements."""
    kv_heads = draw(st.integers(1, 3))
    d = draw(st.integers(1, 9))
    return Case(
        batch=draw(st.integers(1, 3)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        Nq=draw(st.integers(0, 12)),
        Nk=draw(st.integers(0, 12)),
        d=d,
        dv=draw(st.none() | st.integers(1, 9)),
        dtype=draw(st.sampled_from(["fp16", "bf16", "fp32"])),
        causal=draw(st.booleans()),
        alignment=draw(st.sampled_from(["bottom_right", "top_left"])),
        window=draw(st.none() | st.tuples(sides, sides)),
        softcap=draw(st.sampled_from([0.0, 30.0])),
        scale=draw(st.sampled_from([None, 1.0, 0.0, -0.1, d**-0.5])),
        direction=draw(st.sampled_from(["forward", "backward", "forward_backward"])),
    )

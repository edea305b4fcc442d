"""The online softmax merge: associative, commutative, any split."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from fabench.reference import State, merge

scores = st.lists(st.one_of(st.floats(-700, 700, allow_nan=False), st.just(-math.inf)), min_size=1, max_size=12)


def state(values: list[float]) -> State:
    S = torch.tensor([values], dtype=torch.float64)
    V = torch.arange(len(values), dtype=torch.float64)[:, None].expand(-1, 2) + torch.tensor([0.0, -3.0])
    return State.of(S, V)


def close(a: State, b: State) -> bool:
    (O_a, O_b), (lse_a, lse_b) = (a.output(), b.output()), (a.lse, b.lse)
    return torch.allclose(O_a, O_b, rtol=1e-12, atol=1e-12) and torch.allclose(lse_a, lse_b, rtol=1e-12, atol=1e-12)


@given(scores, scores, scores)
def test_merging_is_associative_and_commutative(a: list[float], b: list[float], c: list[float]) -> None:
    x, y, z = state(a), state(b), state(c)
    assert close(merge(merge(x, y), z), merge(x, merge(y, z)))
    assert close(merge(x, y), merge(y, x))


@given(scores, st.data())
def test_any_split_of_the_keys_gives_the_whole(values: list[float], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    S = torch.tensor([values], dtype=torch.float64)
    V = torch.randn(len(values), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    merged = State.empty((1,), 3, S)
    for part in parts:
        merged = merge(merged, State.of(S[:, part], V[part]))
    assert close(merged, State.of(S, V))


def test_the_textbook_example_of_two_tiles() -> None:
    first, second = (State.of(torch.tensor([s], dtype=torch.float64)) for s in ([3.0, 1.0], [5.0, 2.0]))
    merged = merge(first, second)
    assert float(merged.m) == 5.0
    assert abs(float(merged.l) - 1.2034) < 1e-4


def test_no_keys_is_the_neutral_element() -> None:
    x = state([1.0, 2.0])
    assert close(merge(State.empty((1,), 2, x.m), x), x)
    nothing = merge(State.empty((1,), 2, x.m), State.empty((1,), 2, x.m))
    assert float(nothing.lse) == -math.inf
    assert nothing.output().eq(0).all()


def test_finished_outputs_merge_by_their_lse() -> None:
    a, b = state([1.0, -4.0, 3.0]), state([0.5, 9.0])
    rebuilt = merge(State.from_output(a.output(), a.lse), State.from_output(b.output(), b.lse))
    assert close(rebuilt, merge(a, b))

"""The state of an online softmax merges associatively, in any order and any split."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabench.online_softmax import State

scores = st.floats(-200, 200) | st.just(-math.inf)
pairs = st.lists(st.tuples(scores, st.floats(-10, 10)), max_size=12)


def state(items) -> State:
    return State.of([s for s, _ in items], [(v,) for _, v in items])


def close(a: State, b: State) -> bool:
    width = max(len(a.O), len(b.O))
    outputs = [s.output or (0.0,) * width for s in (a, b)]
    return a.m == b.m and a.l == pytest.approx(b.l) and outputs[0] == pytest.approx(outputs[1], abs=1e-9)


def test_the_worked_example():
    merged = State.of([3, 1]).merge(State.of([5, 2]))
    assert (merged.m, merged.l) == (5, pytest.approx(1.2034, abs=5e-5))
    assert merged.lse == pytest.approx(math.log(sum(map(math.exp, (3, 1, 5, 2)))))


@given(pairs, pairs, pairs)
def test_merge_is_associative_and_commutative(a, b, c):
    x, y, z = state(a), state(b), state(c)
    assert close(x.merge(y).merge(z), x.merge(y.merge(z)))
    assert close(x.merge(y), y.merge(x))


@given(pairs, st.lists(st.integers(0, 12), max_size=4))
def test_any_split_gives_the_softmax_of_the_whole(items, cuts):
    bounds = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
    merged = State()
    for low, high in itertools.pairwise(bounds):
        merged = merged.merge(state(items[low:high]))
    assert close(merged, state(items))


@given(pairs)
def test_the_output_is_the_mean_of_the_values_weighted_by_softmax(items):
    seen = [(s, v) for s, v in items if s > -math.inf]
    if seen:
        top = max(s for s, _ in seen)
        total = sum(math.exp(s - top) for s, _ in seen)
        expected = sum(math.exp(s - top) * v for s, v in seen) / total
        assert state(items).output == pytest.approx((expected,), abs=1e-9)
        assert state(items).lse == pytest.approx(top + math.log(total))


def test_a_query_that_sees_no_key_has_output_zero_and_lse_minus_infinity():
    empty = State.of([-math.inf, -math.inf], [(1.0, 2.0), (3.0, 4.0)])
    assert (empty.l, empty.output, empty.lse) == (0, (0, 0), -math.inf)
    assert empty.merge(State.of([1.0], [(5.0, 6.0)])).output == (5, 6)
    assert State().merge(State()).lse == -math.inf

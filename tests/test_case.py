"""A case canonicalises itself, names itself, and refuses what is no problem."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given

from case_strategies import cases, masks
from fabench.case import Case, Mask, digest, row_id
from fabench.errors import CaseError

SHAPE = {"batch": 2, "heads": 8, "Nq": 16, "Nk": 16, "d": 64}


def seen(mask: Mask, query: int) -> list[int]:
    """The keys of one query by the rule as it is written, one key at a time."""
    diagonal = query + (mask.Nk - mask.Nq if mask.alignment == "bottom_right" else 0)
    left, right = mask.window or (-1, -1)
    return [
        key
        for key in range(mask.Nk)
        if (not mask.causal or key <= diagonal)
        and (left < 0 or key >= diagonal - left)
        and (right < 0 or key <= diagonal + right)
    ]


@given(masks)
def test_a_mask_shows_each_query_the_keys_that_the_rule_names(mask):
    for query in range(mask.Nq):
        assert list(mask.keys(query)) == seen(mask, query)


@given(masks)
def test_a_full_mask_hides_nothing(mask):
    if mask.is_full:
        assert all(len(mask.keys(query)) == mask.Nk for query in range(mask.Nq))


@given(cases())
def test_canonical_form_is_the_same_problem_and_a_fixed_point(case):
    again = Case(**{**case.key, "window": case.window})
    assert (again, again.id) == (case, case.id)
    assert Case.from_key(json.loads(json.dumps(case.key))) == case


@given(masks)
def test_canonical_mask_shows_the_same_keys(mask):
    case = Case(
        batch=1, heads=1, d=8, Nq=mask.Nq, Nk=mask.Nk, causal=mask.causal, alignment=mask.alignment, window=mask.window
    )
    assert [list(case.mask.keys(i)) for i in range(mask.Nq)] == [list(mask.keys(i)) for i in range(mask.Nq)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({}, {"kv_heads": 8, "dv": 64, "scale": 0.125, "window": (-1, -1), "softcap": 0}),
        ({"scale": 64**-0.5}, {"scale": None}),
        ({"alignment": "top_left", "causal": True}, {"causal": True}),
        ({"alignment": "top_left", "Nk": 32}, {"Nk": 32}),
        ({"causal": True, "window": (-1, 5)}, {"causal": True}),
        ({"causal": True, "window": (4, -1)}, {"causal": True, "window": (4, 0)}),
        ({"causal": True, "window": (4, 9)}, {"causal": True, "window": (4, 0)}),
    ],
)
def test_spellings_of_one_problem_are_equal_and_share_a_key(left, right):
    a, b = Case(**{**SHAPE, **left}), Case(**{**SHAPE, **right})
    assert (a, a.key, a.id) == (b, b.key, b.id)


@pytest.mark.parametrize(
    "change",
    [
        {"alignment": "top_left", "causal": True, "Nk": 32},
        {"alignment": "top_left", "window": (4, 4), "Nk": 32},
        {"kv_heads": 2},
        {"dv": 32},
        {"scale": 1.0},
        {"scale": 0.0},
        {"window": (4, -1)},
        {"softcap": 30.0},
        {"seed": 1},
        {"layout": "bshd"},
        {"inputs": "sink"},
        {"direction": "backward"},
        {"dtype": "fp16"},
    ],
)
def test_what_changes_the_problem_changes_the_key(change):
    assert Case(**{**SHAPE, **change}).id != Case(**SHAPE).id


def test_the_key_is_a_name_that_must_never_drift():
    case = Case(batch=2, heads=16, Nq=1024, Nk=1024, d=64, causal=True)

    assert case.key == {
        "batch": 2,
        "heads": 16,
        "Nq": 1024,
        "Nk": 1024,
        "d": 64,
        "kv_heads": 16,
        "dv": 64,
        "dtype": "bf16",
        "causal": True,
        "alignment": "bottom_right",
        "window": None,
        "softcap": 0.0,
        "scale": None,
        "direction": "forward",
        "layout": "bhsd",
        "inputs": "normal",
        "seed": 0,
    }
    assert (case.id, row_id(case, "naive")) == ("220d308713b1", "2cfcc438f1e4")


def test_row_ids_differ_by_case_and_by_backend():
    a, b = Case(**SHAPE), Case(**{**SHAPE, "causal": True})
    assert len({row_id(a, "x"), row_id(a, "y"), row_id(b, "x"), row_id(b, "y")}) == 4


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [2, None]}) == digest({"b": [2, None], "a": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "'heads' must be a multiple of 'kv_heads', got 8 and 3"),
        ({"heads": 0}, "'heads' must be at least 1, got 0"),
        ({"Nq": -1}, "'Nq' must be at least 0, got -1"),
        ({"dtype": "fp8_e4m3"}, "'dtype' fp8_e4m3 is reserved and not yet measured; use one of fp16, bf16, fp32"),
        ({"dtype": "fp64"}, "'dtype' must be one of fp16, bf16, fp32, got 'fp64'"),
        ({"direction": "sideways"}, "'direction' must be one of forward, backward, forward_backward, got 'sideways'"),
        ({"window": (-2, 0)}, "'window' must be [left, right], each -1 (unlimited) or more, got [-2, 0]"),
        ({"softcap": -1.0}, "'softcap' must be 0 (off) or a positive number, got -1.0"),
        ({"softcap": math.inf}, "'softcap' must be 0 (off) or a positive number, got inf"),
        ({"scale": math.nan}, "'scale' must be a finite number or null, got nan"),
        (
            {"layout": "packed", "kv_heads": 2},
            (
                "'layout' packed needs q, k and v of one shape (Nq = Nk, dv = d, kv_heads = heads), "
                "got Nq 16 Nk 16, d 64 dv 64, heads 8 kv_heads 2"
            ),
        ),
    ],
)
def test_what_is_no_problem_is_one_sentence_with_both_numbers(change, message):
    with pytest.raises(CaseError) as caught:
        Case(**{**SHAPE, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "'key' must hold the fields of a case, got the unknown field 'colour'"),
        ({"heads": None}, "'heads' must be a whole number, got None"),
        ({"heads": True}, "'heads' must be a whole number, got True"),
        ({"Nq": 16.0}, "'Nq' must be a whole number, got 16.0"),
        ({"d": "64"}, "'d' must be a whole number, got '64'"),
        ({"causal": 1}, "'causal' must be true or false, got 1"),
        ({"softcap": True}, "'softcap' must be a number, got True"),
        ({"scale": "1"}, "'scale' must be a number, got '1'"),
        ({"window": [True, 0]}, r"'window' must be \[left, right\], each -1 \(unlimited\) or more, got \[True, 0\]"),
        ({"window": 3}, r"'window' must be \[left, right\], each -1 \(unlimited\) or more, got 3"),
        ({"layout": ["bhsd"]}, r"'layout' must be one of bhsd, bshd, packed, got '\['bhsd'\]'"),
    ],
)
def test_a_stored_key_that_is_no_case_is_an_error(change, message):
    with pytest.raises(CaseError, match=message):
        Case.from_key({**Case(**SHAPE).key, **change})


def test_a_stored_key_without_a_field_it_needs_is_an_error():
    key = Case(**SHAPE).key
    del key["Nq"]
    with pytest.raises(CaseError, match="'key' must hold every field of a case"):
        Case.from_key(key)


def test_a_label_names_only_what_is_not_a_default():
    assert Case(**SHAPE).label() == "N=16 d=64 full bf16 batch=2 heads=8 forward"
    odd = Case(
        **{**SHAPE, "Nk": 32, "dv": 32, "causal": True, "alignment": "top_left", "window": (4, 0), "kv_heads": 2},
        softcap=30.0,
        scale=0.5,
        layout="bshd",
        inputs="sink",
        direction="backward",
    )
    assert odd.label() == (
        "Nq=16 Nk=32 d=64 dv=32 causal top_left window=4,0 softcap=30 scale=0.5 bf16 batch=2 heads=8 kv_heads=2 bshd "
        "inputs=sink backward"
    )

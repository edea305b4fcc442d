"""The one condition grammar: what it selects, and how it says no."""

from __future__ import annotations

import operator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from case_strategies import cases
from fabench.case import Case
from fabench.errors import WhereError
from fabench.where import KEYS, Condition

CASE = Case(
    batch=2, heads=8, kv_heads=2, Nq=128, Nk=4096, d=64, dv=128, dtype="bf16", causal=True, window=(1024, 0),
    softcap=30.0, alignment="top_left", direction="backward",
)  # fmt: skip
SQUARE = Case(batch=1, heads=1, Nq=4096, Nk=4096, d=64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("backend=naive", True),
        ("backend=sdpa-*", False),
        ("backend=n*", True),
        ("backend!=naive", False),
        ("backend!=sdpa-*", True),
        ("d=64", True),
        ("d=128", False),
        ("d=64|128", True),
        ("d!=64|128", False),
        ("dv>64,d<=64", True),
        ("dv>64,d<64", False),
        (" d = 64 , dv = 128 ", True),
        ("causal=true", True),
        ("causal=false", False),
        ("causal=yes", True),
        ("causal=no", False),
        ("causal!=false", True),
        ("window=1024:0", True),
        ("window!=null", True),
        ("window=null", False),
        ("window=null|1024:0", True),
        ("softcap=30", True),
        ("softcap>0", True),
        ("scale=null", True),
        ("scale=0.125", True),
        ("scale>0.1", True),
        ("dtype=bf16|fp16", True),
        ("dtype=?p16", False),
        ("dtype=*16", True),
        ("alignment=top_left", True),
        ("direction=*backward", True),
        ("kv_heads=2,heads=8,batch=2,seed=0,layout=bhsd,inputs=normal", True),
        ("Nq=128", True),
        ("Nk>=4096", True),
    ],
)
def test_a_condition_holds_if_all_its_comparisons_do(text, expected):
    assert Condition.parse(text).matches(CASE, "naive") is expected


@pytest.mark.parametrize(
    ("text", "square", "rectangle"),
    [
        ("N=4096", True, False),
        ("N!=4096", False, True),
        ("N>=4096", True, False),
        ("N>=128", True, True),
        ("N<=4096", True, True),
        ("N<4096", False, False),
        ("N=128|4096", True, False),
    ],
)
def test_n_stands_for_both_sequence_lengths(text, square, rectangle):
    condition = Condition.parse(text)
    assert (condition.matches(SQUARE, "x"), condition.matches(CASE, "x")) == (square, rectangle)


@given(cases(), st.sampled_from(["Nq", "Nk", "d", "dv", "heads", "kv_heads", "batch"]), st.integers(0, 13))
def test_numbers_compare_as_numbers_do(case, key, limit):
    for symbol, compare in {
        "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
    }.items():  # fmt: skip
        assert Condition.parse(f"{key}{symbol}{limit}").matches(case, "x") is compare(getattr(case, key), limit)


@given(cases())
def test_every_field_of_a_case_selects_that_case(case):
    def spelled(value: object) -> str:
        if isinstance(value, tuple):
            return f"{value[0]}:{value[1]}"
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    fields = {key: getattr(case, key) for key in KEYS if key not in ("backend", "N")}
    condition = Condition.parse(",".join(f"{key}={spelled(value)}" for key, value in fields.items()))
    assert condition.matches(case, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a condition must hold at least one comparison such as 'd=128', got nothing"),
        ("  ", "a condition must hold at least one comparison such as 'd=128', got nothing"),
        ("d", "a comparison must be KEY=VALUE (or != < <= > >=), such as 'N>=4096', got 'd'"),
        ("d=", "a comparison must be KEY=VALUE (or != < <= > >=), such as 'N>=4096', got 'd='"),
        ("d=64,", "a comparison must be KEY=VALUE (or != < <= > >=), such as 'N>=4096', got ''"),
        ("d==64", "'d' must be compared with a whole number, got '=64'"),
        ("dtpye=bf16", "unknown key 'dtpye' in 'dtpye=bf16'; did you mean 'dtype'?"),
        ("causal>=true", "'causal' has no order: use = or !=, got 'causal>=true'"),
        ("backend<naive", "'backend' has no order: use = or !=, got 'backend<naive'"),
        ("d>=64|128", "alternatives ('|') go with = and != only, got 'd>=64|128'"),
        ("N>=4k", "'N' must be compared with a whole number, got '4k'"),
        ("d=64.0", "'d' must be compared with a whole number, got '64.0'"),
        ("d=64|", "'d' must be compared with a whole number, got ''"),
        ("backend=a|", "'backend' must be compared with a name or a glob, got ''"),
        ("causal=1", "'causal' must be compared with true or false, got '1'"),
        ("softcap=nan", "'softcap' must be compared with a number, got 'nan'"),
        ("softcap=null", "'softcap' must be compared with a number, got 'null'"),
        ("scale>null", "'scale' must be compared with a number, got 'null'"),
        ("window=1024", "'window' must be compared with null or left:right, such as 1024:0, got '1024'"),
        ("window=1024:-2", "'window' must be compared with null or left:right, such as 1024:0, got '1024:-2'"),
        ("dtype=bf61", "'dtype' must be compared with one of fp16, bf16, fp32, got 'bf61'"),
        ("dtype=x*", "'dtype' must be compared with one of fp16, bf16, fp32, got 'x*'"),
    ],
)
def test_what_does_not_parse_is_one_sentence(text, message):
    with pytest.raises(WhereError) as caught:
        Condition.parse(text)
    assert str(caught.value) == message


def test_a_key_like_no_other_lists_the_keys():
    with pytest.raises(WhereError, match=r"unknown key 'zzz' in 'zzz=1'; known: backend, N, batch, heads, Nq, Nk"):
        Condition.parse("zzz=1")


@given(st.text(max_size=30))
@example("d=" + "9" * 5000)
def test_any_text_parses_or_is_a_where_error(text):
    try:
        condition = Condition.parse(text)
    except WhereError:
        return
    assert isinstance(condition.matches(CASE, "naive"), bool)
    assert str(condition) == text

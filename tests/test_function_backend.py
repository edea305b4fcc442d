"""A function's keywords declare what it supports; the decorator adds facts and leaves it callable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import fabench
from fabench.errors import BackendError
from fabench.function_backend import FunctionBackend, bare
from plain_attention import CPU, SHAPE, WIDE, attention, check


def only_qkv(q, k, v):
    """Takes no mask at all."""
    return attention(q.double(), k.double(), v.double(), SHAPE)[0].to(q.dtype)


def everything(q, k, v, causal=False, scale=None, window=None, softcap=0.0, alignment="bottom_right", return_lse=False):
    case = replace(
        fabench.Case(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], k.shape[1], v.shape[3], "fp32"),
        causal=causal,
        scale=scale,
        window=window,
        softcap=softcap,
        alignment=alignment,
    )
    O, LSE = attention(q.double(), k.double(), v.double(), case)
    return (O.to(q.dtype), LSE.float()) if return_lse else O.to(q.dtype)


def keywords_passed(function: Any, case: fabench.Case, *, lse: bool = False) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    backend = bare(function)
    backend.function = lambda q, k, v, **keywords: seen.update(keywords)
    backend.prepare(case, CPU, lse=lse).call(None, None, None)  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(SHAPE, causal=True), "causal mask"),
        (replace(SHAPE, window=(3, 3)), "window (3, 3)"),
        (replace(SHAPE, softcap=2.0), "softcap 2"),
        (replace(SHAPE, scale=1.0), "scale 1.0"),
    ],
)
def test_what_a_bare_function_has_no_keyword_for_is_refused(case: fabench.Case, reason: str) -> None:
    assert bare(only_qkv).reasons(case, CPU) == [reason]
    assert bare(everything).reasons(case, CPU) == []


def test_without_alignment_only_square_masks_are_taken() -> None:
    def attention(q, k, v, causal=False): ...

    backend = bare(attention)
    assert backend.reasons(replace(SHAPE, causal=True), CPU) == []
    assert backend.reasons(replace(WIDE, causal=True), CPU) == [
        "alignment bottom_right with Nq = 9 and Nk = 40, takes only Nq = Nk"
    ]
    assert backend.reasons(WIDE, CPU) == []


def test_a_bare_function_is_tried_on_every_dtype_and_judged_as_class_a() -> None:
    facts = bare(only_qkv).facts
    assert facts.bare
    assert facts.dtypes == ("fp16", "bf16", "fp32")
    assert facts.accuracy == "A"
    assert facts.deterministic == ()
    assert facts.summary == "Takes no mask at all."
    assert facts.gqa
    assert not facts.returns_lse


@pytest.mark.parametrize("lse", [False, True])
def test_a_function_with_every_keyword_computes_every_kind_of_case(lse: bool) -> None:
    for case in (
        SHAPE,
        replace(WIDE, causal=True, alignment="top_left", direction="backward"),
        replace(WIDE, kv_heads=2, window=(3, 1), softcap=2.0, scale=0.5, direction="backward"),
    ):
        check(bare(everything), case, lse=lse)


def test_only_what_differs_from_the_functions_own_defaults_is_passed() -> None:
    assert keywords_passed(everything, SHAPE) == {}
    assert keywords_passed(everything, replace(WIDE, causal=True, alignment="top_left", scale=1.0), lse=True) == {
        "causal": True,
        "scale": 1.0,
        "alignment": "top_left",
        "return_lse": True,
    }


def test_defaults_that_are_not_the_contracts_are_overridden() -> None:
    def attention(q, k, v, causal=True, scale=1.0, window=(-1, -1), softcap=None): ...

    assert keywords_passed(attention, SHAPE) == {"causal": False, "scale": SHAPE.d**-0.5}
    assert keywords_passed(attention, replace(SHAPE, causal=True, scale=1.0)) == {}
    assert keywords_passed(attention, replace(SHAPE, window=(1, 2), softcap=3.0, causal=True, scale=1.0)) == {
        "window": (1, 0),
        "softcap": 3.0,
    }


def test_a_required_keyword_gets_the_number() -> None:
    def attention(q, k, v, causal, scale): ...

    assert keywords_passed(attention, SHAPE) == {"causal": False, "scale": SHAPE.d**-0.5}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lambda q, k: 0", "must take q, k and v as its first three parameters"),
        ("lambda q, k, v, table: 0", "got the parameter 'table' without a default; give it one"),
        ("lambda q, k, v, *, table: 0", "got the keyword 'table' without a default; give it one"),
    ],
)
def test_a_function_that_cannot_be_called_is_a_sentence(source: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        bare(eval(source))


@pytest.mark.parametrize("source", ["lambda *args: 0", "lambda q, k, v, tile=64: 0", "lambda q, k, v, **options: 0"])
def test_other_parameters_do_not_matter_if_they_can_be_left_out(source: str) -> None:
    assert not bare(eval(source)).facts.causal


def test_the_decorator_adds_facts_and_the_function_stays_callable() -> None:
    @fabench.backend(name="mine", dtypes=["bf16"], head_dims=(64, 128), accuracy="B", deterministic=("O",))
    def attention(q, k, v, causal=False):
        """My kernel."""
        return (q, causal)

    assert isinstance(attention, FunctionBackend)
    assert attention(1, 2, 3, causal=True) == (1, True)
    assert attention.__name__ == "attention"
    assert attention.__doc__ == "My kernel."
    assert attention.name == "mine"
    assert not attention.facts.bare
    assert attention.facts.dtypes == ("bf16",)
    assert attention.facts.accuracy == "B"
    case = fabench.Case(1, 1, 8, 8, 96, window=(1, 1))
    assert attention.reasons(case, CPU) == ["d = 96, takes 64, 128", "window (1, 1)"]


def test_the_decorator_works_without_parentheses() -> None:
    @fabench.backend
    def fast(q, k, v):
        return q

    assert fast.name == "fast"
    assert fast(1, 2, 3) == 1


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"head_dim": (64,)},
            "'head_dim' must be a field of fabench.Facts, got an unknown one; did you mean 'head_dims'",
        ),
        ({"window": True}, "'mine' declares window but its function has no keyword 'window'; add it or drop the fact"),
        ({"returns_lse": True}, "has no keyword 'return_lse'"),
        ({"deterministic": "O"}, r"'deterministic' must be a tuple, got the string 'O'; write \('O',\)"),
        ({"bare": True}, "'bare' must be a field"),
    ],
)
def test_a_fact_that_cannot_be_is_a_sentence(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):

        @fabench.backend(name="mine", **facts)
        def attention(q, k, v, causal=False): ...


class OutOfMemoryError(RuntimeError): ...


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (
            RuntimeError("sizes 4 and 2 differ\nat x"),
            (NotImplementedError, "kv_heads = 2 with heads = 4: RuntimeError: sizes"),
        ),
        (IndexError("head 3"), (NotImplementedError, "kv_heads = 2 with heads = 4: IndexError: head 3")),
        (OutOfMemoryError("full"), (OutOfMemoryError, "full")),
        (RuntimeError("CUDA error: an illegal memory access"), (RuntimeError, "illegal memory access")),
    ],
)
def test_whatever_a_bare_function_raises_on_grouped_heads_is_a_refusal(error: Exception, seen: tuple[Any, str]) -> None:
    def attention(q, k, v):
        raise error

    grouped = replace(SHAPE, kv_heads=2)
    with pytest.raises(seen[0], match=seen[1]):
        bare(attention).prepare(grouped, CPU).call(None, None, None)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        bare(attention).prepare(SHAPE, CPU).call(None, None, None)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        fabench.backend(name="declared")(attention).prepare(grouped, CPU).call(None, None, None)  # type: ignore[arg-type]

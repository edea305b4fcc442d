"""Names by votes, and what failing cases have in common."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fabench.case import Case
from fabench.parity.diagnose import BY_PROBE
from fabench.parity.memory_words import of_memory
from fabench.parity.naming import Name, names
from fabench.parity.pattern import pattern
from fabench.parity.probes.repeats import FICKLE
from fabench.parity.probes.stale import LATE
from fabench.parity.trial import Ending, ProbeName, Result, Trial
from fabench.parity.verdict import Finding, findings, merged

CASE = Case(1, 2, 64, 64, 64)


def result(
    probe: ProbeName = "rho", ending: Ending = "failed", named: str | None = None, rho: float = 0.5, **changes: Any
) -> Result:
    diagnosis = None if named is None else {"named": f"O matches {named} (rho {rho})", "fault": named, "rho": rho}
    trial = Trial(dataclasses.replace(CASE, **changes), (probe,))
    return Result(probe, trial, ending, f"'{probe}' is wrong", diagnosis=diagnosis)


def test_the_name_with_most_votes_comes_first_and_chance_ones_are_dropped() -> None:
    found = names([result(named="a"), result("mask", named="a"), result(named="b"), result("addr", named="a")])
    assert [n.fault for n in found] == ["a"]
    assert found[0].votes == 3
    assert found[0].probes == ["rho", "mask", "addr"]


def test_the_sentence_comes_from_the_plainest_case() -> None:
    found = names([result(named="a", rho=0.01, inputs="std6"), result(named="a", rho=0.4)])
    assert found[0].sentence == "O matches a (rho 0.4)"


def test_looks_are_a_name_only_where_no_fault_is() -> None:
    looks = "0 throughout"
    strong = names([result(named=looks), result(named=looks), result(named="a kernel that drops a tile")])
    assert strong[0].fault == "a kernel that drops a tile"
    assert names([result(named=looks)])[0].fault == looks


@pytest.mark.parametrize("unsteady", [FICKLE, LATE])
def test_where_answers_change_by_themselves_that_comes_before_what_they_match(unsteady: str) -> None:
    by_chance = [result(named="rows shifted by -1", seed=seed) for seed in range(5)]
    found = names([*by_chance, result("repeat", named=unsteady)])
    assert [n.fault for n in found] == [unsteady, "rows shifted by -1"]


def test_what_was_in_memory_before_matches_by_chance_where_nothing_was_written() -> None:
    unwritten = BY_PROBE["poison"]
    found = names([result(named="causal attention, which was not asked for"), result("poison", named=unwritten)])
    assert found[0].fault == unwritten


def test_a_failure_without_a_name_is_still_a_finding() -> None:
    (found,) = findings([result()])
    assert found.name.sentence == "'rho' is wrong"


def test_crashes_and_hangs_are_findings_of_their_own() -> None:
    results = [
        result(ending="crashed", dtype="fp32"),
        result(ending="crashed", dtype="fp32", Nq=32),
        result(ending="timeout"),
        *(result(ending="passed", seed=seed) for seed in range(3)),
    ]
    sentences = [f.name.sentence for f in findings(results)]
    assert any("ends its process" in s and "only where dtype = fp32" in s for s in sentences)
    assert any("hangs" in s for s in sentences)


def test_what_failing_cases_share_and_passing_ones_lack_is_said() -> None:
    bad = [result(causal=True), result(causal=True, Nq=32)]
    good = [result(ending="passed", seed=seed) for seed in range(3)]
    assert pattern([*bad, *good]) == "only with causal"
    assert pattern([*bad, *good, result(ending="passed", causal=True, seed=9)]) is None
    assert pattern(bad) is None
    assert pattern([*bad, *good[:2]]) is None


def several(*faults: tuple[str, float], **changes: Any) -> Result:
    """A failure that several faults fit, the best first."""
    found = result(named=faults[0][0], rho=faults[0][1], **changes)
    assert found.diagnosis is not None
    found.diagnosis["faults"] = [[name, f"O matches {name}", rho] for name, rho in faults]
    return found


def test_a_failure_votes_for_every_fault_that_fits_it() -> None:
    small = [several(("chance", 0.1), ("true", 0.2), seed=seed) for seed in range(2)]
    large = [several(("true", 0.3), Nq=128, seed=seed) for seed in range(3)]
    (found,) = names([*small, *large])
    assert (found.fault, found.votes) == ("true", 5)


def test_findings_that_shrink_to_one_case_are_one() -> None:
    a, b, c = (Finding(Name(sentence, sentence, 2, ["rho"])) for sentence in "abc")
    a.smallest = Trial(CASE, ("rho",))
    b.smallest = Trial(dataclasses.replace(CASE, seed=7), ("mask",))
    c.smallest = Trial(dataclasses.replace(CASE, heads=1, kv_heads=1), ("rho",))
    kept = merged([a, b, c])
    assert [f.name.sentence for f in kept] == ["a", "c"]
    assert kept[0].name.votes == 4


def test_a_few_failures_without_a_name_beside_a_named_fault_are_not_a_finding() -> None:
    named = [result(named="a", seed=seed) for seed in range(3)]
    nameless = [
        Result("rho", Trial(dataclasses.replace(CASE, Nq=n), ("rho",)), "failed", "?", diagnosis={}) for n in (1, 2, 3)
    ]
    assert len(findings([*named, *nameless[:2]])) == 1
    assert len(findings([*named, *nameless])) == 2


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (Trial(CASE, ("rho",), order="mixed"), "with the strides of another"),
        (Trial(CASE, ("rho",), order="offset1"), "ignores the offset"),
        (Trial(dataclasses.replace(CASE, layout="bshd"), ("rho",)), "[batch, N, heads, d]"),
        (Trial(CASE, ("rho",), gradient_order="expanded"), "dO is expanded"),
    ],
)
def test_what_fails_only_in_one_memory_order_is_called_so(trial: Trial, words: str) -> None:
    sentence = of_memory(trial, result())
    assert sentence is not None
    assert words in sentence
    assert of_memory(trial, result(named="a")) is None
    assert of_memory(trial, result(ending="crashed")) is None
    assert of_memory(Trial(CASE, ("rho",)), result()) is None

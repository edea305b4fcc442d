"""Names by votes, and what failing cases have in common."""

from __future__ import annotations

import dataclasses
from typing import Any

from fabench.case import Case
from fabench.parity.naming import names
from fabench.parity.pattern import pattern
from fabench.parity.trial import Ending, ProbeName, Result, Trial
from fabench.parity.verdict import findings

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

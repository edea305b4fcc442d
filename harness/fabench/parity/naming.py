"""From many failures to the few names of what is wrong: each failure's name is a vote. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fabench.parity.trial import ProbeName, Result

FEWEST_VOTES = 2
"""A second name needs this many failures that the first does not explain."""
WEAK_WORDS = ("wrong in ", "times the right value", "throughout", "the constant", "NaN in ")
"""How an output looks: a name only where no fault gives one."""


@dataclass
class Name:
    """One thing that is wrong, and what says so."""

    sentence: str
    """Of the clearest failure: 'O matches attention without the 1/sqrt(d) scale (rho 0.4)'."""
    fault: str
    votes: int
    probes: list[ProbeName] = field(default_factory=list)
    example: Result | None = None


def names(results: Sequence[Result]) -> list[Name]:
    """What is wrong, by how many failures say so; looks count only where nothing better is known."""
    found: dict[str, Name] = {}
    best_rho: dict[str, float] = {}
    for result in results:
        diagnosis = result.diagnosis or {}
        fault, sentence = diagnosis.get("fault"), diagnosis.get("named")
        if not result.bad or not fault or not sentence:
            continue
        name = found.setdefault(fault, Name(sentence, fault, 0, [], result))
        name.votes += 1
        if result.probe not in name.probes:
            name.probes.append(result.probe)
        rank = diagnosis.get("rho", 4.0) + _plainness(result)
        if rank < best_rho.get(fault, 1e9):
            best_rho[fault], name.sentence, name.example = rank, sentence, result
    ordered = sorted(found.values(), key=lambda n: (_is_weak(n), -n.votes))
    if not ordered:
        return []
    first, *rest = ordered
    return [first, *(n for n in rest if n.votes >= FEWEST_VOTES and _is_weak(n) <= _is_weak(first))]


def _plainness(result: Result) -> float:
    """Less for the numeric rule on plain inputs in plain memory: the evidence that is easiest to follow."""
    trial = result.trial
    odd = (result.probe != "rho") * 3 + (trial.case.inputs != "normal") + (trial.order != "plain")
    odd += (trial.case.scale is not None) + bool(trial.case.softcap) + (trial.gradient_order != "plain")
    return 4.0 * odd


def _is_weak(name: Name) -> bool:
    return any(words in name.fault for words in WEAK_WORDS)

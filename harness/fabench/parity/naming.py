"""From many failures to the few names of what is wrong: each failure's name is a vote. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fabench.parity.trial import ProbeName, Result, Trial

MOST_NAMES = 4
CHANCE_VOTES = 2
"""A name after the first needs this many failures of its own, or a probe that speaks for itself."""
WEAK = 0.25
"""What a vote counts that says only how an output looks."""
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
    trials: set[Trial] = field(default_factory=set)
    """The failing cases it explains."""


def names(results: Sequence[Result]) -> list[Name]:
    """What is wrong, by how many failing cases each name explains: the best first, then what it leaves unexplained."""
    found: dict[str, Name] = {}
    best_rank: dict[str, float] = {}
    trials: dict[str, set[Trial]] = {}
    for result in results:
        diagnosis = result.diagnosis or {}
        fault, sentence = diagnosis.get("fault"), diagnosis.get("named")
        if not result.bad or not fault or not sentence:
            continue
        name = found.setdefault(fault, Name(sentence, fault, 0, [], result))
        name.votes += 1
        trials.setdefault(fault, set()).add(result.trial)
        if result.probe not in name.probes:
            name.probes.append(result.probe)
        rank = diagnosis.get("rho", 4.0) + _plainness(result)
        if rank < best_rank.get(fault, 1e9):
            best_rank[fault], name.sentence, name.example = rank, sentence, result
    chosen: list[Name] = []
    explained: set[Trial] = set()
    while len(chosen) < MOST_NAMES:
        left = {f: trials[f] - explained for f in found}
        worth = {f: (len(t) * (WEAK if _is_weak(found[f]) else 1.0), found[f].votes) for f, t in left.items() if t}
        if not worth:
            break
        best = max(worth, key=lambda f: worth[f])
        if chosen and found[best].votes < CHANCE_VOTES:
            break
        chosen.append(found.pop(best))
        chosen[-1].trials = trials[best]
        explained |= trials[best]
    return chosen


def _plainness(result: Result) -> float:
    """Less for the numeric rule on plain inputs in plain memory: the evidence that is easiest to follow."""
    trial = result.trial
    odd = (result.probe != "rho") * 3 + (trial.case.inputs != "normal") + (trial.order != "plain")
    odd += (trial.case.scale is not None) + bool(trial.case.softcap) + (trial.gradient_order != "plain")
    return 4.0 * odd


def _is_weak(name: Name) -> bool:
    return any(words in name.fault for words in WEAK_WORDS)

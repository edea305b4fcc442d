"""From many failures to the few names of what is wrong: each failure's name is a vote. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fabench.parity.trial import ProbeName, Result, Trial

MOST_NAMES = 4
CHANCE_VOTES = 2
"""A name after the first needs this many failures of its own, or a probe that speaks for itself."""
NO_RHO = 4.0
"""In the place of the rho of a name that is no fault's."""
WEAK = 0.25
"""What a vote counts that says only how an output looks."""
WEAK_WORDS = (
    "wrong in ",
    "times the right value",
    "throughout",
    "the constant",
    "NaN in ",
    "NaN is lost",
    "NaN spreads",
)
"""How an output looks: a name only where no fault gives one. (A wrong mask or address moves NaN as well.)"""

UNSTEADY, UNSTEADY_WORDS = 100.0, ("equal calls give different answers", "its answer changes after the call")
"""Where the answers are no function of the inputs, what else they match is chance: such a name comes first."""
UNWRITTEN, UNWRITTEN_WORDS = 2.0, "memory that it never wrote"
"""So it is of rows that hold what was in memory before, but a kernel that keeps a state may only seem to have those."""


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
    """What is wrong, by how many failing cases each name explains: the best first, then what it leaves unexplained.

    A failure votes for every fault that fits it, for several are the same in a small case; between equals the one that
    fits best most often wins.
    """
    found: dict[str, Name] = {}
    best_rank: dict[str, float] = {}
    firsts: Counter[str] = Counter()
    for result in results:
        if not result.bad:
            continue
        for place, (fault, sentence, rho) in enumerate(_faults(result)):
            name = found.setdefault(fault, Name(sentence, fault, 0, [], result))
            name.votes += 1
            name.trials.add(result.trial)
            firsts[fault] += place == 0
            if result.probe not in name.probes:
                name.probes.append(result.probe)
            rank = rho + _plainness(result)
            if rank < best_rank.get(fault, 1e9):
                best_rank[fault], name.sentence, name.example = rank, sentence, result
    chosen: list[Name] = []
    explained: set[Trial] = set()
    while len(chosen) < MOST_NAMES:
        left = {f: name.trials - explained for f, name in found.items()}
        worth = {f: (len(t) * _weight(found[f]), firsts[f], found[f].votes) for f, t in left.items() if t}
        if not worth:
            break
        best = max(worth, key=lambda f: worth[f])
        if chosen and found[best].votes < CHANCE_VOTES:
            break
        chosen.append(found.pop(best))
        explained |= chosen[-1].trials
    return chosen


def _faults(result: Result) -> list[tuple[str, str, float]]:
    """The names that fit a failure, the best first: fault, sentence, rho."""
    diagnosis = result.diagnosis or {}
    if diagnosis.get("faults"):
        return [(fault, sentence, rho) for fault, sentence, rho in diagnosis["faults"]]
    fault, sentence = diagnosis.get("fault"), diagnosis.get("named")
    return [(fault, sentence, diagnosis.get("rho", NO_RHO))] if fault and sentence else []


def _plainness(result: Result) -> float:
    """Less for the numeric rule on plain inputs in plain memory: the evidence that is easiest to follow."""
    trial = result.trial
    odd = (result.probe != "rho") * 3 + (trial.case.inputs != "normal") + (trial.order != "plain")
    odd += (trial.case.scale is not None) + bool(trial.case.softcap) + (trial.gradient_order != "plain")
    return 4.0 * odd


def _weight(name: Name) -> float:
    if any(words in name.fault for words in UNSTEADY_WORDS):
        return UNSTEADY
    if UNWRITTEN_WORDS in name.fault:
        return UNWRITTEN
    return WEAK if any(words in name.fault for words in WEAK_WORDS) else 1.0

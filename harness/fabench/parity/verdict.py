"""What a whole battery says of a kernel: counts by probe, accuracy by tensor and dtype, names, exit code. No torch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabench.parity.naming import Name, names
from fabench.parity.pattern import pattern
from fabench.parity.session import Left
from fabench.parity.trial import PROBES, ProbeName, Result, Trial

NOTHING_RAN, FAILED, PASSED = 2, 1, 0
MOST_FINDINGS = 5
WORTH_SAYING = 3
"""Failures without a name, of a probe that a named fault fails too, that make a finding of their own."""
RECORD_FIELDS = {"O": "O", "LSE": "lse", "dQ": "dQ", "dK": "dK", "dV": "dV"}


@dataclass
class Finding:
    """One thing that is wrong, with the smallest case that shows it."""

    name: Name
    smallest: Trial | None = None
    repro: str | None = None
    """Path of the script."""
    repro_note: str | None = None


@dataclass
class Accuracy:
    """The worst of one tensor and dtype over all trials of the numeric rule."""

    tensor: str
    dtype: str
    accuracy: str
    max_rho: float = 0.0
    rms_rho: float = 0.0
    two_x: float = 0.0
    max_abs: float = 0.0
    allclose: int = 0
    trials: int = 0
    unbounded: bool = False
    """NaN, inf or a contract zero broken: rho is no number."""


@dataclass
class Verdict:
    """A kernel's report."""

    target: str
    device: str
    profile: str
    results: list[Result]
    left: Left
    seconds: float
    compile_s: float
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Result]:
        """The failures."""
        return [r for r in self.results if r.bad]

    @property
    def trials(self) -> int:
        """Cases that the kernel answered (being refused a malformed call is no answer)."""
        return len(self._answered())

    @property
    def refused(self) -> int:
        """Cases that the kernel refused."""
        return len({r.trial for r in self.results if r.ending == "unsupported"} - self._answered())

    def _answered(self) -> set[Trial]:
        return {
            r.trial for r in self.results if r.probe != "refusal" and r.ending not in ("unsupported", "skipped", "oom")
        }

    @property
    def exit_code(self) -> int:
        """1 if anything failed, 2 if nothing ran, else 0."""
        if self.failed:
            return FAILED
        return PASSED if self.trials else NOTHING_RAN

    def counts(self) -> dict[ProbeName, Counter[str]]:
        """How the trials of each probe ended."""
        found: dict[ProbeName, Counter[str]] = {}
        for probe in PROBES:
            endings = Counter(r.ending for r in self.results if r.probe == probe)
            if endings:
                found[probe] = Counter(endings)
        return found

    def accuracy(self, of: Callable[[Trial], bool] = lambda trial: True) -> list[Accuracy]:
        """The numeric rule's worst numbers, of all trials or those asked for."""
        rows: dict[tuple[str, str], Accuracy] = {}
        for result in self.results:
            if result.probe != "rho" or result.parity is None or not of(result.trial):
                continue
            for tensor, field_name in RECORD_FIELDS.items():
                numbers = result.parity.get(field_name)
                if numbers is None:
                    continue
                key = (tensor, result.trial.case.dtype)
                row = rows.setdefault(key, Accuracy(*key, result.parity["class"]))
                row.trials += 1
                row.unbounded |= numbers["max_rho"] is None
                for name in ("max_rho", "rms_rho", "two_x", "max_abs"):
                    setattr(row, name, max(getattr(row, name), numbers.get(name) or 0.0))
                row.allclose += bool(result.numbers.get(f"allclose {tensor}"))
        order = {name: i for i, name in enumerate(RECORD_FIELDS)}
        return sorted(rows.values(), key=lambda r: (r.dtype, order[r.tensor]))

    def notes(self) -> list[str]:
        """Things reported that are no failure, each with how often."""
        counts = Counter(_general(note) for r in self.results if r.note for note in r.note.split("; "))
        return [f"{note} ({n} times)" if n > 1 else note for note, n in counts.most_common(6)]

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return {
            "target": self.target,
            "device": self.device,
            "profile": self.profile,
            "passed": self.exit_code == PASSED,
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "compile_s": self.compile_s,
            "left_out": {"trials": self.left.trials, "probes": self.left.probes, "why": self.left.why},
            "warnings": self.warnings,
            "findings": [
                {
                    "named": f.name.sentence,
                    "votes": f.name.votes,
                    "probes": f.name.probes,
                    "smallest": None if f.smallest is None else f.smallest.to_json(),
                    "repro": f.repro,
                }
                for f in self.findings
            ],
            "results": [r.to_json() for r in self.results],
        }


def _general(note: str) -> str:
    """A note without its numbers, so that equal ones are counted together."""
    return "".join("#" if c.isdigit() else c for c in note).replace("##", "#").replace("##", "#").replace("##", "#")


def findings(results: Sequence[Result]) -> list[Finding]:
    """The names of what is wrong; crashes, hangs, and failures that no name explains get findings of their own."""
    found = [Finding(name) for name in names(results)]
    bad = [r for r in results if r.bad]
    explained = {trial for f in found for trial in f.name.trials}
    for ending, words in (("crashed", "it ends its process"), ("timeout", "it hangs")):
        of_kind = [r for r in bad if r.ending == ending]
        if of_kind:
            where = pattern([r for r in results if r.ending == "passed" or r.ending == ending])
            sentence = f"{words}: {of_kind[0].message}" + (f"; {where}" if where else "")
            found.append(Finding(_plain(sentence, of_kind)))
            explained |= {r.trial for r in of_kind}
    for probe in PROBES:
        unexplained = [r for r in bad if r.probe == probe and r.trial not in explained and _is_nameless(r, found)]
        covered = any(
            probe in f.name.probes and "rho" in ((f.name.example and f.name.example.diagnosis) or {}) for f in found
        )
        if covered and len(unexplained) < WORTH_SAYING:
            continue  # most likely what a named fault does where it is hard to recognise
        if unexplained and len(found) < MOST_FINDINGS:
            where = pattern([r for r in results if r.ending == "passed" or r in unexplained])
            sentence = unexplained[0].message.split("; '")[0] + (f"; {where}" if where else "")
            found.append(Finding(_plain(sentence, unexplained)))
            explained |= {r.trial for r in unexplained}
    return found


def merged(found: Sequence[Finding]) -> list[Finding]:
    """Findings that shrank to the same case are one bug, seen twice: the first keeps its name."""
    kept: list[Finding] = []
    for finding in found:
        same = next(
            (f for f in kept if f.smallest is not None and finding.smallest is not None and _same(f, finding)), None
        )
        if same is None:
            kept.append(finding)
            continue
        same.name.votes += finding.name.votes
        same.name.trials |= finding.name.trials
        same.name.probes += [p for p in finding.name.probes if p not in same.name.probes]
    return kept


def _same(a: Finding, b: Finding) -> bool:
    """Whether two smallest trials are one but for the probe and the seed."""
    assert a.smallest is not None
    assert b.smallest is not None
    one, other = (
        dataclasses.replace(t, probes=(), case=dataclasses.replace(t.case, seed=0)) for t in (a.smallest, b.smallest)
    )
    return one == other


def _is_nameless(result: Result, found: Sequence[Finding]) -> bool:
    """True if it was looked at and no name fits; what was not looked at is nameless only if nothing has a name."""
    if result.diagnosis is None:
        return not found
    faults = {result.diagnosis.get("fault"), *(fault for fault, *_ in result.diagnosis.get("faults", ()))}
    return not any(f.name.fault in faults for f in found)


def _plain(sentence: str, results: Sequence[Result]) -> Name:
    """A finding without a name: its first failure, and how many there are."""
    probes = list(dict.fromkeys(r.probe for r in results))
    return Name(sentence, sentence, len(results), probes, results[0], {r.trial for r in results})

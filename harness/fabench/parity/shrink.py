"""The smallest trial that still fails: one thing at a time made plainer or smaller while it fails. No torch here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from fabench.case import Case
from fabench.errors import CaseError
from fabench.parity.trial import ProbeName, Trial

LENGTHS = (1, 2, 3, 5, 8, 16, 17, 32, 33, 48, 64, 65, 97, 128, 129, 192, 193, 256, 257)
SMALL = 64
DIMS = (8, 16, 32, 64, 128)
TIMES = 2
"""A trial must fail in a row to be taken for one that fails."""
HEADS = ((1, 1), (2, 1), (2, 2), (4, 2))
MOST_TESTS = 100


def shrink(
    trial: Trial,
    probe: ProbeName,
    fails: Callable[[Trial], bool],
    *,
    most_tests: int = MOST_TESTS,
    seconds: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """The smallest failing trial found; `trial` itself, with only its probe, if nothing smaller fails.

    A smaller trial must fail twice in a row: the first time, a kernel that keeps state between its calls may fail for
    what it was called with before, and from a trial that fails no more nothing smaller would be found.
    """
    best = dataclasses.replace(trial, probes=(probe,), stress=False)
    deadline = clock() + seconds
    tested, tests = {best}, 0

    def out_of_tests() -> bool:
        return tests >= most_tests or clock() > deadline

    progress = True
    while progress:
        progress = False
        for candidate in smaller(best):
            if candidate in tested:
                continue
            tested.add(candidate)
            for _ in range(TIMES):
                if out_of_tests():
                    return best
                tests += 1
                if not fails(candidate):
                    break
            else:
                best, progress = candidate, True
                break
    return best


def smaller(trial: Trial) -> Iterator[Trial]:
    """Simpler trials, the largest steps first: what makes every later test cheap, plain memory and inputs, no options.

    Then sizes from the smallest up.
    """
    case = trial.case
    for changes in _cheaper(case):
        made = _with(case, changes)
        if made is not None and made != case:
            yield dataclasses.replace(trial, case=made)
    for change in ({"order": "plain"}, {"gradient_order": "plain"}):
        changed = dataclasses.replace(trial, **change)  # type: ignore[arg-type]
        if changed != trial:
            yield changed
    for changes in _changes(case):
        made = _with(case, changes)
        if made is not None and made != case:
            yield dataclasses.replace(trial, case=made)


def _cheaper(case: Case) -> Iterator[dict[str, Any]]:
    if max(case.Nq, case.Nk) > SMALL:
        yield {"Nq": min(case.Nq, SMALL), "Nk": min(case.Nk, SMALL)}
    yield {"batch": 1}


def _changes(case: Case) -> Iterator[dict[str, Any]]:
    yield {"layout": "bhsd"}
    yield {"inputs": "normal"}
    yield {"softcap": 0.0}
    yield {"scale": None}
    yield {"window": None}
    if case.causal:
        yield {"causal": False, "window": None}
    yield {"alignment": "bottom_right"}
    if case.has_backward:
        yield {"direction": "forward"}
    if case.dv != case.d:
        yield {"dv": case.d}
        yield {"d": case.dv}
    if case.batch > 2:
        yield {"batch": 2}
    for heads, kv_heads in HEADS:
        if heads < case.heads or (heads == case.heads and kv_heads < case.kv_heads):
            yield {"heads": heads, "kv_heads": kv_heads}
    for n in LENGTHS:
        if n < max(case.Nq, case.Nk):
            yield {"Nq": min(n, case.Nq), "Nk": min(n, case.Nk)} if case.Nq != case.Nk else {"Nq": n, "Nk": n}
    for n in LENGTHS:
        if case.Nq != case.Nk and n < case.Nq:
            yield {"Nq": n}
        if case.Nq != case.Nk and n < case.Nk:
            yield {"Nk": n}
    for d in DIMS:
        if d < case.d:
            yield {"d": d, "dv": d if case.dv == case.d else case.dv}
        if d < case.dv and case.dv != case.d:
            yield {"dv": d}
    if case.dtype != "fp32":
        yield {"dtype": "fp32"}
    if case.seed:
        yield {"seed": 0}


def _with(case: Case, changes: dict[str, Any]) -> Case | None:
    try:
        return dataclasses.replace(case, **changes)
    except CaseError:
        return None

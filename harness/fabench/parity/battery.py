"""Which trials a profile is made of: a covering design over what the kernel declares, with every probe. No torch here.

quick   at most 120 cases, any two axes' values together, N <= 320
full    at most 1200 cases, any three, N <= 4097 (on a CPU 1025: see `LARGEST`)
stress  full, and the races: many repetitions under load
Each has a dozen cases more for the probe neglse, N <= 704; on CUDA full has two of 65536 heads.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fabench.backend import Facts
from fabench.case import Case
from fabench.parity import axes
from fabench.parity.covering import Row, design
from fabench.parity.trial import PROBES, ProbeName, Trial
from fabench.where import Condition

Profile = Literal["quick", "full", "stress"]
PROFILES: tuple[Profile, ...] = get_args(Profile)

MOST = {"quick": 120, "full": 1200, "stress": 1200}
STRENGTH = {"quick": 2, "full": 3, "stress": 3}
LARGEST = {
    ("quick", "cpu"): 1 << 19,
    ("quick", "cuda"): 1 << 22,
    ("full", "cpu"): 1 << 22,
    ("full", "cuda"): 1 << 27,
}
"""Most query-key pairs of a case, over batch and heads: what keeps a profile inside its time."""
EXACT: tuple[ProbeName, ...] = ("mask", "count", "addr", "one", "nan", "equivariance")
HYGIENE: tuple[ProbeName, ...] = ("poison", "guard", "mutate", "stale", "repeat", "stream", "capture")
EVERYWHERE: tuple[ProbeName, ...] = ("rho", "type", *EXACT)
HYGIENE_CASES = 8
FIRST_HYGIENE, HYGIENE_EVERY = 2, 5
"""Hygiene comes early and spread, so that a prefix of the battery has all of it."""
NEGLSE_SHAPES = ((64, 64), (192, 192), (1, 128), (97, 97), (704, 704), (1, 1))
MANY_HEADS = 256
"""Batch and heads: B·H = 65536 is one past the largest gridDim.y and .z."""


@dataclass(frozen=True)
class Request:
    """What narrows a battery."""

    profile: Profile = "quick"
    device_type: Literal["cpu", "cuda"] = "cpu"
    dtypes: tuple[str, ...] = ()
    probes: tuple[ProbeName, ...] = ()
    where: Condition | None = None
    forward_only: bool = False
    big: bool = False
    """Also N of 65537 and 131072, and row strides past 2^31 elements."""


def build(facts: Facts, request: Request) -> list[Trial]:
    """The trials for a kernel with these facts, in an order in which any prefix is useful."""
    if request.dtypes:
        facts = dataclasses.replace(facts, dtypes=tuple(t for t in request.dtypes if t in facts.dtypes))
    if not facts.dtypes:
        return []
    trials = _designed(facts, request)
    trials = _with_hygiene(trials, request)
    extra = _neglse(facts, request)
    trials = [t for pair in itertools.zip_longest(trials, _spaced(extra, len(trials))) for t in pair if t is not None]
    if request.device_type == "cuda" and request.profile != "quick":
        trials += _many_heads(facts, request)
    if request.big:
        trials += _big(facts, request)
    return _narrowed(trials, facts, request)


def _designed(facts: Facts, request: Request) -> list[Trial]:
    """The covering design: one trial a row."""
    backward = wants_backward(facts, request)
    table = dict(axes.AXES)
    if request.profile != "quick":
        table["N"] = axes.LONG
    if not backward:
        del table["dO"]
    if request.device_type == "cpu":
        table["memory"] = [c for c in table["memory"] if c != [{"order": "far_rows"}]]
    kept = [axes.supported(axis, facts) for axis in table.values()]
    if not all(kept):
        return []
    largest = LARGEST["quick" if request.profile == "quick" else "full", request.device_type]

    def good(made: axes.Point | None) -> bool:
        if made is None or facts.case_reasons(dataclasses.replace(made.case, direction="forward")):
            return False
        return made.case.batch * made.case.heads * made.case.Nq * made.case.Nk <= largest

    anchors = [_row(kept, anchor) for anchor in axes.ANCHORS]
    used: Counter[tuple[int, int, int]] = Counter()
    """How often each member of each class of each axis has been taken."""

    def fitting(row: Row, seed: int = 0, *, take: bool = False) -> axes.Point | None:
        """The first point of a row's classes that exists and is not too large, the least used members first.

        Anchors are taken at their word: the first members.
        """
        classes = [axis[value] for axis, value in zip(kept, row, strict=True)]
        first = [
            0 if row in anchors else min(range(len(members)), key=lambda m: (used[axis, row[axis], m], m))
            for axis, members in enumerate(classes)
        ]
        for turn in range(MOST_TURNS):
            places = [start + (turn + axis if turn else 0) for axis, start in enumerate(first)]
            members = [members[place % len(members)] for place, members in zip(places, classes, strict=True)]
            made = axes.point(members, backward=backward, seed=seed)
            if good(made):
                if take:
                    used.update((i, row[i], place % len(classes[i])) for i, place in enumerate(places))
                return made
        return None

    def pair_possible(a: int, i: int, b: int, j: int) -> bool:
        pairs = itertools.product(kept[a][i], kept[b][j])
        return any(good(axes.point([plain, *pair], backward=backward, seed=0)) for pair in pairs)

    plain = axes.plain(facts)
    rows = design(
        [len(axis) for axis in kept],
        STRENGTH[request.profile],
        functools.cache(lambda row: fitting(row) is not None),
        MOST[request.profile],
        pair_possible=pair_possible,
        first=anchors,
        candidates=4 if request.profile == "quick" else 2,
    )
    trials = []
    for seed, row in enumerate(rows):
        made = fitting(row, seed, take=True)
        if made is not None:
            trials.append(Trial(made.case, EVERYWHERE, made.order, made.gradient_order))
    return trials


def _row(kept: list[axes.Axis], anchor: axes.Member) -> Row:
    """The row whose classes hold the anchor's members; the first class of an axis the anchor is silent about."""

    def held(members: list[axes.Member]) -> int:
        """The most fields of a member that are all the anchor's."""
        return max((len(m) for m in members if m.items() <= anchor.items()), default=0)

    return tuple(max(range(len(axis)), key=lambda i: (held(axis[i]), -i)) for axis in kept)


MOST_TURNS = 12
"""Points of one row of classes that are tried: members of every class recur within as many."""


def _with_hygiene(trials: list[Trial], request: Request) -> list[Trial]:
    """Hygiene on about eight cases that have queries and keys, and the refusal probe on the first."""
    places = [
        i
        for i, t in enumerate(trials)
        if t.case.Nq > 1 and t.case.Nk > 1 and t.order != "expanded_kv" and t.gradient_order != "expanded"
    ]
    chosen = set(places[FIRST_HYGIENE::HYGIENE_EVERY][:HYGIENE_CASES] or places[:HYGIENE_CASES])
    stress = request.profile == "stress"
    changed = []
    for i, trial in enumerate(trials):
        probes = trial.probes + (HYGIENE if i in chosen else ())
        if places and i == places[0]:
            probes += ("refusal",)
        changed.append(dataclasses.replace(trial, probes=probes, stress=stress and i in chosen))
    return changed


def _neglse(facts: Facts, request: Request) -> list[Trial]:
    """The lengths at which zero-filled tails have been exponentiated, each dtype in turn."""
    d = facts.head_dims[0] if facts.head_dims else 64
    trials = []
    for i, ((Nq, Nk), causal) in enumerate(itertools.product(NEGLSE_SHAPES, (False, True))):
        dtype = facts.dtypes[i % len(facts.dtypes)]
        case = Case(
            1, 2, Nq, Nk, d, dtype=dtype, causal=causal, inputs="neglse", direction=_direction(facts, request), seed=i
        )
        if Nq > 320 and request.profile == "quick" and request.device_type == "cpu":
            case = dataclasses.replace(case, heads=1, kv_heads=1)
        trials.append(Trial(case, ("neglse", "type")))
    return trials


def _many_heads(facts: Facts, request: Request) -> list[Trial]:
    B, dtype, direction = MANY_HEADS, facts.dtypes[0], _direction(facts, request)
    return [Trial(Case(B, B, N, N, 16, dtype=dtype, direction=direction), ("rho", "type")) for N in (1, 3)]


def _big(facts: Facts, request: Request) -> list[Trial]:
    """Offsets past 32 bits: long sequences, and rows far apart."""
    d, dtype = (facts.head_dims[0] if facts.head_dims else 64), facts.dtypes[0]
    direction = _direction(facts, request)
    long = [
        Trial(Case(1, 1, N, N, d, dtype=dtype, causal=causal, direction=direction), ("rho", "type"))
        for N, causal in ((65537, False), (131072, True))
    ]
    far = Trial(Case(1, 2, 257, 257, d, dtype=dtype, direction=direction), ("rho", "addr", "type"), "far_rows")
    return [*long, far]


def wants_backward(facts: Facts, request: Request) -> bool:
    """True if gradients are checked."""
    return not request.forward_only and any(d != "forward" for d in facts.directions)


def _direction(facts: Facts, request: Request) -> Literal["forward", "backward"]:
    return "backward" if wants_backward(facts, request) else "forward"


def _spaced(extra: Sequence[Trial], length: int) -> list[Trial | None]:
    """Spread `extra` over `length` places, from the front."""
    if not extra:
        return []
    step = max(1, length // len(extra))
    places: list[Trial | None] = []
    for trial in extra:
        places += [trial, *[None] * (step - 1)]
    return places


def _narrowed(trials: list[Trial], facts: Facts, request: Request) -> list[Trial]:
    """What --probe, --where and the facts leave."""
    wanted = set(request.probes or PROBES)
    narrowed = []
    for trial in trials:
        probes = tuple(p for p in trial.probes if p in wanted)
        if not any(p != "type" for p in probes) and "type" not in request.probes:
            continue
        if request.where is not None and not request.where.matches(trial.case, facts.name):
            continue
        if facts.case_reasons(dataclasses.replace(trial.case, direction="forward")):
            continue
        narrowed.append(dataclasses.replace(trial, probes=probes))
    return narrowed

"""What a picture says of itself, for it may leave its page: the device, the regime, and what all its problems share."""

from __future__ import annotations

from collections.abc import Sequence

from fabench.names import REGIMES
from fabench.views.axes import AXES, named, shape_of, sort_key, varies
from fabench.views.outcomes import Outcome
from fabench.views.plots.style import length_text

MOST = 4
"""Numbers on an axis that are listed; of more the first and the last are named."""


def caption(outcomes: Sequence[Outcome], *, mixed: bool) -> list[str]:
    """Lines: what is the same for all, then for each suite if there are several; what differs if panels are `mixed`."""
    suites: dict[str, list[Outcome]] = {}
    for outcome in [o for o in outcomes if o.ours] or outcomes:
        suites.setdefault(outcome.suite, []).append(outcome)
    words = {suite: _same(group) for suite, group in suites.items()}
    shared = [word for word in next(iter(words.values()), []) if all(word in own for own in words.values())]
    lines = [", ".join(shared)]
    for suite, group in suites.items():
        own = [word for word in words[suite] if word not in shared]
        texts = [", ".join(own), "; ".join(_different(group)) if mixed else ""]
        if any(texts):
            name = f"{suite}: " if len(suites) > 1 else ""
            lines.append(name + "; ".join(filter(None, texts)))
    return list(filter(None, lines))


def _same(outcomes: Sequence[Outcome]) -> list[str]:
    regimes = [regime for regime in REGIMES if any(outcome.regime == regime for outcome in outcomes)]
    device = [] if varies("device", outcomes) else [outcomes[0].device]
    return [*device, *([" and ".join(regimes)] if regimes else []), *shape_of(outcomes).fixed]


def _different(outcomes: Sequence[Outcome]) -> list[str]:
    return [_several(name, {AXES[name](outcome) for outcome in outcomes}) for name in shape_of(outcomes).varying]


def _several(name: str, values: set[object]) -> str:
    """'forward and backward', 'd 64, 128, 256', 'N 512 to 16k'."""
    found = sorted(values, key=lambda value: sort_key((value,)))
    words = [named(name, value) for value in found]
    if name == "causal":
        return "causal and not"
    if name in ("direction", "dtype", "layout", "alignment"):
        return " and ".join(words)
    if name in ("N", "Nq", "Nk"):
        texts = [length_text(value) if isinstance(value, int) else str(value) for value in found]
    else:
        texts = [word.removeprefix(f"{name} ") for word in words]
    return f"{name} {', '.join(texts) if len(texts) <= MOST else f'{texts[0]} to {texts[-1]}'}"

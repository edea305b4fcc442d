"""How two envs relate: the same hardware or not, one session or two, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fabench.records import Env, Identity

Kind = Literal["interleaved", "session", "device"]
"""Measured in one session; in two sessions on one card; on two cards of one model."""

MEMORY_TOLERANCE = 0.01
"""Total memory may differ by this share on one card: a driver keeps a little for itself."""


@dataclass(frozen=True)
class Relation:
    """What two rows' envs have to do with each other."""

    kind: Kind
    difference: str | None
    """The first way in which the hardware differs, in words; None if it does not."""


def relate(old: Iterable[Env], new: Iterable[Env]) -> Relation:
    """The relation of the envs a row was measured in, old and new."""
    old, new = list(old), list(new)
    difference = next((text for a in old for b in new if (text := identity_difference(a.identity, b.identity))), None)
    if {env.session_id for env in old} == {env.session_id for env in new}:
        return Relation("interleaved", difference)
    cards = [{env.session.gpu_uuid_hash or env.session.host_hash for env in envs} for envs in (old, new)]
    return Relation("session" if cards[0] == cards[1] else "device", difference)


def identity_difference(old: Identity, new: Identity) -> str | None:
    """`model NVIDIA H200 -> NVIDIA H100`, or None if the hardware is the same."""
    for field, was in old:
        is_ = getattr(new, field)
        if was == is_ or (field == "memory_bytes" and was and is_ and abs(was - is_) <= MEMORY_TOLERANCE * was):
            continue
        return f"{field} {_text(was)} -> {_text(is_)}"
    return None


def changes(old: Iterable[Env], new: Iterable[Env]) -> list[str]:
    """Every difference of hardware and software between two files, for the report's notes.

    `changed: torch 2.11.0 -> 2.12.0`, a line each, and one line a side of what the other does not have.
    """
    before, after = _values(old), _values(new)
    both = [name for name in before if name in after and before[name] != after[name]]
    out = [f"changed: {name} {_joined(before[name])} -> {_joined(after[name])}" for name in both]
    for which, ours, theirs in (("old", before, after), ("new", after, before)):
        if alone := [f"{name} {_joined(values)}" for name, values in ours.items() if name not in theirs]:
            out.append(f"only in {which}: {', '.join(alone)}")
    return out


def _values(envs: Iterable[Env]) -> Mapping[str, set[str]]:
    """Name -> its values over the envs of a file."""
    out: dict[str, set[str]] = {}
    for env in envs:
        software = env.software.model_dump()
        flat: dict[str, Any] = {**env.identity.model_dump(), **software.pop("backends"), **software.pop("variables")}
        for name, value in {**flat, **software}.items():
            if value is not None:
                out.setdefault(name, set()).add(_text(value))
    return out


def _joined(values: set[str]) -> str:
    return " and ".join(sorted(values))


def _text(value: object) -> str:
    if isinstance(value, tuple | list):
        return ".".join(map(str, value))
    return "not known" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

"""What a failure looks like: the fault it behaves like, where it lies, a map of it. Plain data, made in the worker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from fabench.inputs import Tensors
from fabench.outcome import Failure
from fabench.parity import heatmap
from fabench.parity.bench import Bench, Failed
from fabench.parity.extent import bad_rows, looks, place, row_rho, tiles
from fabench.parity.largest import where_largest
from fabench.parity.matching import Match, matches
from fabench.parity.probes.repeats import FICKLE
from fabench.parity.thresholds import row_limits
from fabench.parity.trial import ProbeName
from fabench.reference import Reference

BY_PROBE: dict[ProbeName, str] = {
    "poison": "it returns memory that it never wrote, or reads a workspace before writing it",
    "guard": "it reads or writes outside its tensors",
    "mutate": "it writes into its inputs",
    "stale": "it remembers an earlier call: something is cached by shape or by address",
    "repeat": FICKLE,
    "stream": "it works on another stream than the current one",
    "capture": "its CUDA graph replays old values: something is computed on the host, or on another stream",
    "refusal": "it answers calls that have no answer",
}
"""What a failure of these probes means by itself."""
NAN_LOST = "NaN is lost: a maximum that ignores NaN, or a guard such as l > 0 that takes NaN for an empty row"
NAN_SPREADS = "NaN spreads: rows, heads or batch entries share data"
SURE_BY_PROBE: tuple[ProbeName, ...] = ("poison", "guard", "mutate", "repeat", "refusal")
"""These say what they say whatever else is wrong; the others may fail because the formula is wrong."""
CAUSE = re.compile(
    r"\((in base 2[^)]*|rounded to [^)]*|negated|off by the constant [^)]*|\+inf for [^)]*|finite for [^)]*)\)"
)
CONSTANT = re.compile(r"off by the constant \S+$")
CHANNELS = re.compile(r"wrong in (\d+ of \d+ )?channel")
MOST_ALTERNATIVES = 5


def diagnose(bench: Bench, failed: Failed, probe: ProbeName) -> dict[str, Any]:
    """`named`, `fault`, `faults`, `where`, `looks`, `tiles`, `histogram`, `heat`, `alternatives`: what there is to say.

    `fault` is the part of the name that stays the same from case to case, by which names are counted; `faults` are
    those of all names that fit, each with its sentence and rho.
    """
    diagnosis: dict[str, Any] = {}
    sure = failed.named or (BY_PROBE[probe] if probe in SURE_BY_PROBE else None)
    if sure is not None:
        diagnosis["named"] = diagnosis["fault"] = sure
    material = _material(bench, failed)
    if material is None:
        return diagnosis
    tensors, outputs, expected = material
    found = matches(bench.case, tensors, outputs, expected, bench.accuracy)
    diagnosis |= _picture(bench, outputs, expected)
    if "named" not in diagnosis:
        diagnosis |= _name(found, "" if bench.already_wrong else _meaning(probe, failed), diagnosis, failed.message)
        diagnosis["alternatives"] = [_sentence(m) for m in found[1:MOST_ALTERNATIVES]]
        if "rho" in diagnosis:
            diagnosis["faults"] = [[m.fault, _sentence(m), m.rho] for m in found]
    return diagnosis


def label(bench: Bench, failed: Failed, probe: ProbeName) -> dict[str, Any] | None:
    """The name that needs no look at the outputs: of a probe that speaks for itself, on a call that is right else."""
    if failed.named is not None:
        return {"named": failed.named, "fault": failed.named}
    meaning = _meaning(probe, failed)
    if meaning and (probe in SURE_BY_PROBE or not bench.already_wrong):
        return {"named": meaning, "fault": meaning}
    return None


def _meaning(probe: ProbeName, failed: Failed) -> str:
    """What a failure of the probe means by itself; empty if that depends on the outputs."""
    if probe == "nan":
        return NAN_LOST if "does not reach" in failed.message else NAN_SPREADS
    return BY_PROBE.get(probe, "")


def _name(found: list[Match], by_probe: str, picture: dict[str, Any], message: str) -> dict[str, Any]:
    """The best name there is: a matching fault, a known mistake in LSE, what the probe means, how it looks."""
    looks = picture.get("looks") or []
    blank = bool(looks) and looks[0] in ("0 throughout", "NaN throughout")
    if found and (found[0].whole or not blank):
        return {"named": _sentence(found[0]), "fault": found[0].fault, "rho": found[0].rho}
    if "'LSE'" in message and message.startswith("'LSE'") and (cause := CAUSE.search(message)):
        return {"named": f"LSE is {cause[1]}", "fault": f"LSE is {CONSTANT.sub('off by a constant', cause[1])}"}
    if by_probe:
        return {"named": by_probe, "fault": by_probe}
    if looks:
        return {"named": f"{picture['where']}: {', '.join(looks)}", "fault": ", ".join(map(_kind, looks))}
    return {}


def _kind(look: str) -> str:
    """How an output looks, without the channels and counts of this one case."""
    for words in ("wrong in scattered elements", "NaN in"):
        if look.startswith(words):
            return f"{words} some"
    return "wrong in some channels" if CHANNELS.match(look) else look


def _sentence(match: Match) -> str:
    return match.sentence if match.correlation is not None else f"{match.sentence} (rho {match.rho:.2g})"


def _material(bench: Bench, failed: Failed) -> tuple[Tensors, Mapping[str, torch.Tensor], Reference] | None:
    """Inputs, outputs and reference to look at: those of the failure, else of the case's own inputs."""
    if failed.tensors is not None and failed.outputs is not None and failed.expected is not None:
        return failed.tensors, failed.outputs, failed.expected
    tensors = failed.tensors if failed.tensors is not None else bench.tensors
    backward = bench.backward and tensors.dO is not None
    try:
        outputs = bench.subject.call(bench.case, _copied(tensors), backward=backward)
        if bench.lse:
            outputs["LSE"] = bench.subject.call(bench.case, _copied(tensors), lse=True)["LSE"]
    except (Failure, RuntimeError):
        return None
    return tensors, outputs, bench.reference(tensors)


def _copied(t: Tensors) -> Tensors:
    return Tensors(**{name: x.detach().clone() for name, x in t.items()})


def _picture(bench: Bench, outputs: Mapping[str, torch.Tensor], expected: Reference) -> dict[str, Any]:
    """Where the first wrong tensor is wrong."""
    for name in expected.outputs:
        if name not in outputs or name == "LSE":
            continue
        e = expected[name]
        got, tolerance = e.select(outputs[name]), e.tolerance[bench.accuracy]
        bad = bad_rows(e, got, tolerance, row_limits(name, bench.case.dtype, bench.accuracy))
        if not bool(bad.any()):
            continue
        rho = row_rho(got, e.value, tolerance)
        b, h, row = where_largest(rho.nan_to_num(posinf=1e30))
        down = "key" if name in ("dK", "dV") else "row"
        limit = tolerance[b, h][:, None] * (e.share[b, h] if e.share is not None else 1.0)
        error = (got[b, h] - e.value[b, h]).abs()
        relative = torch.where(error == 0, 0.0, error / limit.clamp(min=torch.finfo(torch.float64).tiny))
        where = place(bad, down)
        if bool(e.empty.any()) and torch.equal(bad, e.empty):
            where = "the queries that attend to no key" if down == "row" else "the keys that no query attends to"
        return {
            "where": f"{name} is wrong in {where}",
            "looks": looks(got, e.value, bad),
            "tiles": f"worst {down} {row} of b {b}, h {h}: {tiles(row)}",
            "histogram": heatmap.row_bins(rho),
            "heat": {
                "title": f"{name}, b {b}, h {h}",
                "down": down,
                "across": "channel",
                "rows": got.shape[2],
                "columns": got.shape[3],
                "cells": heatmap.pooled(relative),
            },
        }
    return {}

"""The profiles: sizes, shapes, probes, and what the kernel's facts leave out."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import pytest

from fabench.backend import Facts
from fabench.interpreter import HERE
from fabench.parity import axes
from fabench.parity.battery import Request, build
from fabench.parity.trial import PROBES, Trial
from fabench.where import Condition

EVERYTHING = Facts("x", window=True, softcap=True, returns_lse=True)


@pytest.fixture(scope="module")
def quick() -> list[Trial]:
    return build(EVERYTHING, Request())


def test_quick_is_small_and_has_every_probe(quick: list[Trial]) -> None:
    assert 80 <= len(quick) <= 120
    designed = [t for t in quick if t.probes != ("neglse", "type")]
    assert all(max(t.case.Nq, t.case.Nk) <= 320 for t in designed)
    assert {p for t in quick for p in t.probes} == set(PROBES)
    assert 6 <= sum("poison" in t.probes for t in quick) <= 8
    assert sum("refusal" in t.probes for t in quick) == 1


def test_the_first_tenth_already_has_every_probe_and_dtype(quick: list[Trial]) -> None:
    first = quick[:12]
    assert {p for t in first for p in t.probes} == set(PROBES)
    assert {t.case.dtype for t in first} == {"fp16", "bf16", "fp32"}


def test_quick_takes_any_two_values_together(quick: list[Trial]) -> None:
    """Every pair of two axes that can go together occurs: dtype, mask, heads, inputs, memory, dO."""

    def value(t: Trial, axis: str) -> object:
        c = t.case
        return {
            "dtype": c.dtype,
            "mask": (c.causal, c.window is not None),
            "group": c.heads // c.kv_heads > 1,
            "inputs": c.inputs,
            "order": t.order,
            "dO": t.gradient_order,
        }[axis]

    names = ("dtype", "mask", "group", "order", "dO")
    for a, b in itertools.combinations(names, 2):
        have = {(value(t, a), value(t, b)) for t in quick}
        wanted = itertools.product({value(t, a) for t in quick}, {value(t, b) for t in quick})
        assert set(wanted) <= have, (a, b)
    assert {value(t, "inputs") for t in quick} >= {"normal", "std6", "outliers", "neglse", "sink", "padded"}


def test_quick_has_every_member_of_every_axis(quick: list[Trial]) -> None:
    fields = ("Nq", "Nk", "d", "dv", "dtype", "batch", "heads", "kv_heads", "causal", "alignment", "window", "scale")
    have = [
        {f: getattr(t.case, f) for f in (*fields, "softcap", "inputs", "layout")}
        | {"order": t.order, "gradient_order": t.gradient_order}
        for t in quick
    ]
    for name, axis in axes.AXES.items():
        for members in axis:
            for member in members:
                assert any(member.items() <= values.items() for values in have), (name, member)


def test_full_is_three_wise_and_reaches_4097() -> None:
    full = build(EVERYTHING, Request("full", "cuda"))
    assert 800 <= len(full) <= 1240
    assert max(t.case.Nq for t in full) == 4097
    assert any(t.case.batch * t.case.heads == 65536 for t in full)


def test_stress_repeats_under_load() -> None:
    stress = build(EVERYTHING, Request("stress", "cuda"))
    assert sum(t.stress for t in stress) == 8
    assert not any(t.stress for t in build(EVERYTHING, Request("full", "cuda")))


def test_big_reaches_past_32_bits() -> None:
    trials = build(EVERYTHING, Request(big=True))
    assert {t.case.Nq for t in trials} >= {65537, 131072}
    assert any(t.order == "far_rows" for t in trials)


def test_only_what_the_facts_allow_is_tried() -> None:
    facts = Facts(
        "x",
        dtypes=("bf16",),
        head_dims=(64, 128),
        dv_differs=False,
        gqa=False,
        empty=False,
        empty_rows=False,
        alignments=(),
        scale=False,
        directions=("forward",),
    )
    trials = build(facts, Request())
    assert len(trials) > 30
    for t in trials:
        assert not facts.case_reasons(t.case), t.label()
    assert {t.case.d for t in trials} == {64, 128}
    assert all(t.case.direction == "forward" for t in trials)


def test_options_narrow_the_battery() -> None:
    where = Condition.parse("causal=true,d=64")
    trials = build(EVERYTHING, Request(dtypes=("fp16",), probes=("mask", "addr"), where=where))
    assert trials
    for t in trials:
        assert t.case.dtype == "fp16"
        assert t.case.causal
        assert t.case.d == 64
        assert set(t.probes) <= {"mask", "addr"}
    assert all(t.case.direction == "forward" for t in build(EVERYTHING, Request(forward_only=True)))
    assert build(EVERYTHING, Request(dtypes=("fp16",), where=Condition.parse("dtype=bf16"))) == []


def test_trials_travel_as_json(quick: list[Trial]) -> None:
    for trial in quick[:20]:
        assert Trial.from_json(trial.to_json()) == trial


def test_a_member_that_exists_nowhere_is_no_point() -> None:
    assert axes.point([{**axes.plain(EVERYTHING), "layout": "packed", "Nk": 9}], backward=True, seed=0) is None
    point = axes.point([{**axes.plain(EVERYTHING), "order": "sliced"}], backward=False, seed=3)
    assert point is not None
    assert (point.order, point.case.seed) == ("sliced", 3)


def test_the_supervising_side_imports_no_torch() -> None:
    modules = "battery, session, shrink, naming, report, verdict, runner, junit, calibration, calibrator, progress"
    code = f"import sys; from fabench.parity import {modules}; import fabench.cli.parity; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, env=HERE.environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_a_shape_without_a_member_that_fits_is_dropped() -> None:
    facts = dataclasses.replace(EVERYTHING, max_head_dim=64)
    assert all(m["d"] <= 64 and m.get("dv", 64) <= 64 for members in axes.supported(axes.DIMS, facts) for m in members)

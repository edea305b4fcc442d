"""The GPU proof's bookkeeping, which needs no GPU."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path

PATH = Path(__file__).parents[1] / "gpu" / "diff_proof.py"


def proof():
    import sys

    spec = importlib.util.spec_from_file_location("diff_proof", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["diff_proof"] = module
    spec.loader.exec_module(module)
    return module


def test_two_pairs_without_a_change_are_run_for_each_kind_of_change():
    module = proof()
    names = [kind.name for kind in itertools.islice(module.turns(module.GPU_KINDS, None), 9)]
    assert names == ["A/A", "+2 %", "A/A", "+3 %", "A/A", "+5 %", "A/A", "-5 %", "A/A"]
    assert {kind.name for kind in itertools.islice(module.turns(module.GPU_KINDS, "A/A"), 5)} == {"A/A"}


def test_the_report_gives_the_bound_that_was_reached():
    def line(kind, truth, verdict, d):
        return {
            "kind": kind,
            "truth": truth,
            "rounds": 10,
            "exit": 0,
            "rows": [{"verdict": verdict, "case": "c", "d": d}],
        }

    lines = [line("A/A", 0.0, "SAME", 0.001)] * 20 + [line("+5 %", 0.05, "REGRESSED", math.log(1.052))]
    text = proof().report(lines)
    assert "| A/A    | 20      | 20 SAME     | 0.10%" in text
    assert "0 (at most 14%)" in text
    assert "| 1 REGRESSED | 0.19%" in text


def test_the_suite_it_writes_is_a_suite(tmp_path):
    from fabench import suite

    module = proof()
    for cases, count in ((module.GPU_CASES, 4), (module.CPU_CASES, 2)):
        path = tmp_path / "s.yaml"
        path.write_text(module.SUITE.format(cases=cases, seconds=0.1))
        assert len(suite.load(str(path)).cases) == count

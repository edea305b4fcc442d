"""What --dry-run prints, against golden files."""

from __future__ import annotations

import pytest
import yaml

from fabench import plan, suite
from fabench.views.dryrun import product, render
from fabench.where import Condition
from fake_probe import ALL_BACKENDS, CPU, H200, fake_probe
from golden_files import assert_golden

MIXED = """
name: mixed
description: everything a dry run has to say
axes:
  Nq: [1, 4096]
  Nk: [4096, 131072]
  causal: [false, true]
  alignment: [bottom_right, top_left]
  window: [null, [1024, 0]]
  dtype: [bf16, fp32]
  kv_heads: 4
backends: [naive, flash-attn, sdpa-overrideable]
baseline: sdpa-flash
exclude: ['window=1024:0,causal=false', 'N=7']
measure: {rounds: 3}
"""


def planned(text: str, backends=ALL_BACKENDS, device=H200, **options) -> tuple[suite.Suite, plan.Plan]:
    loaded = suite.from_bytes(text.encode(), "suite.yaml")
    return loaded, plan.make(loaded, fake_probe(loaded.cases, backends, device), **options)


def test_a_dry_run_of_everything():
    text = render(*planned(MIXED, where=Condition.parse("Nk=131072")))
    assert_golden("dryrun_mixed.txt", text + "\n")


def test_a_dry_run_of_smoke_on_a_cpu():
    loaded = suite.load("smoke")
    made = plan.make(loaded, fake_probe(loaded.cases, ALL_BACKENDS, CPU))
    assert_golden("dryrun_smoke.txt", render(loaded, made) + "\n")


@pytest.mark.parametrize("width", [60, 80])
def test_in_a_narrow_terminal_nothing_but_the_suite_is_wider_than_it_and_no_row_loses_a_column(width: int) -> None:
    loaded, made = planned(MIXED, where=Condition.parse("Nk=131072"))
    blocks, plain = render(loaded, made, width).split("\n\n"), render(loaded, made).split("\n\n")
    assert blocks[1] == plain[1]
    assert max(len(line) for block in (blocks[0], *blocks[2:]) for line in block.splitlines()) <= width
    assert set(" ".join(blocks[2:]).split()) - {"-" * n for n in range(40)} >= set(plain[2].split()) - {
        "-" * n for n in range(40)
    }


@pytest.mark.parametrize(
    ("axes", "options", "expected"),
    [
        ("{N: [1, 2], d: [8, 16], causal: [false, true]}", {},
         "2 N x 2 d x 2 causal = 8 cases x 2 backends = 16 rows x 1 round"),
        ("{N: 1}", {}, "1 case x 2 backends = 2 rows x 1 round"),
        ("{N: [1, 2]}", {"where": Condition.parse("N=1,backend=naive")},
         "2 N = 2 cases x 2 backends = 4 rows, less 3 filtered out = 1 row x 1 round"),
        ("{N: [1, 2], alignment: [bottom_right, top_left]}", {},
         "2 N x 2 alignment = 4 combinations, merged to 2 cases x 2 backends = 4 rows x 1 round"),
    ],
)  # fmt: skip
def test_the_product_is_written_out(axes, options, expected):
    assert product(*planned(f"name: x\naxes: {axes}\nbackends: [naive, online]", **options)) == expected


@pytest.mark.parametrize("name", suite.shipped())
def test_what_is_printed_as_resolved_is_the_suite_again(name):
    loaded = suite.load(name)
    made = plan.make(loaded, fake_probe(loaded.cases, ALL_BACKENDS, H200), backends=["naive"])
    printed = render(loaded, made).split("\n\n")[1]
    again = suite.from_bytes(f"name: {name}\n{printed}".encode(), "printed.yaml")
    assert (again.cases, again.hash) == (loaded.cases, loaded.hash)
    assert yaml.safe_load(printed)["axes"]["d"] == yaml.safe_load(suite.shipped()[name].read_text())["axes"]["d"]

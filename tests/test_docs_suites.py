"""docs/suites.md shows what is so: its suite loads, its output and errors are real, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fabench import plan, suite
from fabench.device import Device
from fabench.errors import SuiteError
from fabench.suite_schema import Axes, Measure, Parity
from fabench.views.dryrun import render
from fabench.where import KEYS, Condition
from fake_probe import fake_probe, report

TEXT = (Path(__file__).parents[1] / "docs" / "suites.md").read_text()
(EXAMPLE,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
DRY_RUN, ERRORS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)


def test_the_dry_run_shown_is_that_of_the_suite_shown():
    loaded = suite.from_bytes(EXAMPLE.encode(), "example.yaml")
    free = float(re.search(r"([\d.]+) GiB free", DRY_RUN)[1])
    device = Device("cpu", "AMD EPYC", free_bytes=round(free * 2**30))
    cudnn = ("sdpa-cudnn", report("sdpa-cudnn", unavailable="device cpu, takes cuda"))
    made = plan.make(loaded, fake_probe(loaded.cases, ["naive", "online", "sdpa-flash", cudnn], device))
    assert DRY_RUN.partition("\n")[2] == render(loaded, made) + "\n"


@pytest.mark.parametrize(
    ("shown", "typed"),
    [("dtype: bf16", "dtpye: bf16"), ("kv_heads: 2", "kv_heads: 3"), ("N>=4096", "N>=4k")],
)
def test_the_errors_shown_are_those_of_a_slip_in_that_suite(shown, typed):
    with pytest.raises(SuiteError) as caught:
        suite.from_bytes(EXAMPLE.replace(shown, typed).encode(), "example.yaml")
    assert f"Error: {caught.value}\n" in ERRORS


def spelled(value: object) -> str:
    """A default as YAML has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_key_and_its_default_is_in_a_table():
    for name, field in Axes.model_fields.items():
        default = field.get_default()
        shown = "" if default is None else spelled(default[0])
        assert f"| `{name}` | {shown} | {field.description} |" in TEXT
    for section, model in (("measure", Measure), ("parity", Parity)):
        for name, field in model.model_fields.items():
            assert f"| `{section}.{name}` | {field.get_default()} | {field.description} |" in TEXT


def test_every_condition_shown_parses_and_every_key_is_named():
    table = TEXT.split("## Conditions")[1].split("## ")[0]
    conditions = [c for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for c in re.findall(r"`(.*?)`", row)]
    assert len(conditions) == 8
    for text in conditions:
        Condition.parse(text.replace("\\|", "|"))
    assert set(KEYS) <= set(re.findall(r"\w+", table))


def test_every_shipped_suite_is_listed_with_its_size():
    for name in suite.shipped():
        loaded = suite.load(name)
        assert f"| [{name}](../suites/{name}.yaml) | {len(loaded.cases)} | {loaded.description} |" in TEXT

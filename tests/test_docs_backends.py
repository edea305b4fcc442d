"""docs/backends.md shows what is so: its listing is real, its tables are complete, its example works."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fabench import probe, registry
from fabench.backend import Facts
from fabench.function_backend import KEYWORDS
from fabench.views import capabilities
from plain_attention import CPU, SHAPE, TALL, check

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "backends.md").read_text()
EXAMPLE = str(ROOT / "examples" / "my_kernel.py")
(LISTING,) = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)


def test_the_listing_shown_is_that_of_the_example() -> None:
    command, _, shown = LISTING.partition("\n")
    assert command.split()[:5] == ["$", "fabench", "list", "backends", "naive"]
    answer = probe.ask("cpu", [EXAMPLE, f"{EXAMPLE}:attention"], backends=["naive", "flash-attn"])
    here = dataclasses.replace(answer, device=dataclasses.replace(answer.device, name="AMD EPYC"))
    assert shown == capabilities.backends(here, 120) + "\n"


def test_the_signature_shown_has_every_keyword() -> None:
    signature = re.search(r"def attention\(q, k, v, (.*)\): \.\.\.", TEXT)
    assert signature is not None
    assert tuple(part.split("=")[0] for part in signature[1].split(", ")) == KEYWORDS


def test_every_fact_is_in_the_table() -> None:
    table = TEXT.split("## What can be declared")[1].split("## ")[0]
    assert {f.name for f in dataclasses.fields(Facts)} - {"name"} <= set(re.findall(r"`(\w+)`", table))


def test_every_backend_is_listed_with_its_summary() -> None:
    table = TEXT.split("## The backends that come with fabench")[1]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*?) \|$", table, re.M))
    assert rows == {name: backend.facts.summary for name, backend in registry.shipped().items()}


@pytest.mark.parametrize("spec", [EXAMPLE, f"{EXAMPLE}:attention"])
def test_the_example_is_right(spec: str) -> None:
    (backend,) = registry.from_file(spec)
    for case in (SHAPE, TALL, dataclasses.replace(SHAPE, causal=True), dataclasses.replace(TALL, causal=True)):
        if not backend.reasons(case, CPU):
            check(backend, dataclasses.replace(case, direction="backward"), lse=backend.facts.returns_lse)

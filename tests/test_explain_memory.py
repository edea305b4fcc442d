"""`fabench explain` says what of its prediction the card has no room for."""

from __future__ import annotations

import json
from dataclasses import replace

from click.testing import CliRunner

from fabench import gpus
from fabench.case_text import parse
from fabench.cli import main
from fabench.explain import explain
from fabench.views.explain import in_full, in_lines

H200 = gpus.named("nvidia-h200")


def test_what_the_card_has_no_room_for_is_said_of_one_case() -> None:
    """N = 65536 with 32 heads: S and P are 2 · 32 · 65536² · 2 B = 512 GiB, and a flash kernel needs 2.5 GiB."""
    case = parse("N=65536,d=128,heads=32")
    text, small = (in_full(explain(case, gpus.named(name))) for name in ("nvidia-h200", "a100-40gb"))

    line = "more than the 141 GiB of the card: S and P alone (512 GiB), standard with its inputs (514 GiB)\n"
    assert line in text
    assert line.replace("141", "40.0") in small
    assert "more than" not in in_full(explain(parse("N=8192,d=128,heads=32"), H200))


def test_what_fits_only_without_its_inputs_does_not_fit() -> None:
    """S and P are 39 GiB, and 39 GiB and 12 of inputs and outputs are more than 40."""
    found = explain(parse("N=512,d=1024,heads=32,batch=1248"), gpus.named("a100-40gb"))

    assert (found.exceeds_memory(found.score_bytes), found.exceeds_memory(found.needed_bytes["standard"])) == (
        False,
        True,
    )


def test_a_suites_cases_without_room_are_named_below_the_table() -> None:
    cases = [parse(f"N={N},d=128,heads=32") for N in (8192, 65536, 131072)]
    last = in_lines([explain(case, H200) for case in cases]).splitlines()[-1]

    assert last == "standard with its inputs needs more than the 141 GiB of the card: N=65536; N=131072"


def test_json_says_what_exceeds_the_cards_memory_or_that_it_is_not_known() -> None:
    case = parse("N=65536,d=128,heads=32")
    done = CliRunner().invoke(main, ["explain", "--case", "N=65536,d=128,heads=32", "--format", "json"])
    (known,) = json.loads(done.stdout)
    unknown = explain(case, replace(H200, memory_bytes=None)).to_json()

    assert known["exceeds_memory"] == {"scores": True, "standard": True, "flash": False}
    assert known["needed_bytes"]["flash"] == known["inputs_bytes"] + known["extra_bytes"]["flash"]
    assert unknown["exceeds_memory"] == {"scores": None, "standard": None, "flash": None}

"""`fabench explain`: what a case costs and what a card allows, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fabench.cli.stdout import say
from fabench.errors import UsageError

if TYPE_CHECKING:
    from fabench.case import Case
    from fabench.gpus import Gpu
    from fabench.tiling import Tiling


@click.command()
@click.argument("suite", required=False)
@click.option("--case", "case_text", metavar="KEYS", help="One case: 'N=8192,d=128,dtype=bf16,batch=1,heads=32'.")
@click.option("--where", metavar="COND", help="Only the suite's cases that match, e.g. 'd=128,N>=4096'.")
@click.option(
    "--gpu",
    "slug",
    default="nvidia-h200",
    show_default=True,
    metavar="NAME",
    help="A card of the table (--gpu list prints it), or 'this': the device here, its peaks measured.",
)
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(suite: str | None, case_text: str | None, where: str | None, slug: str, style: str) -> None:
    """Explain SUITE, or one --case: FLOPs, HBM bytes by step, intensity, roofline, memory, CTAs and tiles.

    Nothing is run, and no GPU is needed, unless --gpu is 'this'. A suite of several cases is a line a case; json has
    everything, in base units.
    """  # fmt: skip
    from fabench import gpus
    from fabench.explain import explain
    from fabench.views.explain import in_cards, in_full, in_lines
    from fabench.views.show import terminal_width

    width = terminal_width()
    if slug == "list":
        cards = [gpus.named(name) for name in gpus.slugs()]
        say(json.dumps([card.to_json() for card in cards], indent=1) if style == "json" else in_cards(cards, width))
        return
    cases = _cases(suite, case_text, where)
    gpu = _gpu(slug, cases)
    tilings = _tilings(cases, gpu)
    explanations = [explain(case, gpu, tilings[case.id]) for case in cases]
    if style == "json":
        say(json.dumps([explanation.to_json() for explanation in explanations], indent=1, ensure_ascii=False))
    else:
        say(in_full(explanations[0], width) if len(cases) == 1 else in_lines(explanations, width))


def _cases(suite: str | None, case_text: str | None, where: str | None) -> list[Case]:
    from fabench.case_text import parse
    from fabench.suite import load
    from fabench.where import Condition

    if (suite is None) == (case_text is None):
        raise UsageError("'explain' must get a suite or --case, one of them, such as --case 'N=8192,d=128'")
    if case_text is not None:
        if where is not None:
            raise UsageError("'--where' narrows a suite; leave it out beside --case")
        return [parse(case_text)]
    condition = None if where is None else Condition.parse(where)
    cases = [case for case in load(str(suite)).cases if condition is None or condition.matches(case, "")]
    if not cases:
        raise UsageError(f"no case of suite '{suite}' matches '{where}'")
    return cases


def _gpu(slug: str, cases: Sequence[Case]) -> Gpu:
    from fabench import gpus, probe

    if slug != "this":
        return gpus.named(slug)
    device, reading = probe.canary("auto", sorted({case.dtype for case in cases}))
    return gpus.measured(device, reading["gemm_flops"], reading["copy_bandwidth"])


def _tilings(cases: Sequence[Case], gpu: Gpu) -> dict[str, list[Tiling]]:
    from fabench import probe
    from fabench.tiling import Tiling

    found = probe.tilings(cases, gpu.device)
    return {case.id: [Tiling.from_json(data) for data in found[case.id]] for case in cases}

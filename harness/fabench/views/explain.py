"""What `fabench explain` prints: one case in full, or a line a case for a suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fabench.explain import Explanation, Occupancy, Traffic
from fabench.gpus import Gpu
from fabench.steps import Step
from fabench.text import bytes_text, counted
from fabench.tiling import LOOPS, PAPER
from fabench.views.axes import axis_text
from fabench.views.render import plain_table, wrapped
from fabench.views.values import significant

Row = list[str]


@dataclass(frozen=True)
class Unit:
    """A unit that all numbers of some columns share, so that they can be compared at a glance."""

    name: str
    size: float

    def text(self, value: float | None) -> str:
        """The number in this unit, without its name; `-` if it is not known."""
        return "-" if value is None else significant(value / self.size)


BYTES = (Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3), Unit("B", 1))
SECONDS = (Unit("ms", 1e-3), Unit("us", 1e-6), Unit("ns", 1e-9))
FLOPS = (Unit("TFLOP", 1e12), Unit("GFLOP", 1e9), Unit("MFLOP", 1e6), Unit("FLOP", 1))


def unit_of(units: Sequence[Unit], values: Iterable[float | None]) -> Unit:
    """The largest of the units that the largest of the values holds: one decoded token is in MB and us."""
    largest = max((value for value in values if value is not None), default=0)
    return next((unit for unit in units if largest >= unit.size), units[-1] if largest else units[0])


def in_full(explanation: Explanation, width: int | None = None) -> str:
    """Everything about one case: traffic by algorithm and step, memory, CTAs and tiles. `width` is the terminal's."""
    cost, text = explanation.cost, explanation.case.label()
    flops = unit_of(FLOPS, [cost.flops])
    pairs = counted(cost.pairs, "attended pair")
    work = f"{flops.text(cost.flops)} {flops.name}: {pairs} a head, softmax not counted"
    parts = [
        f"{wrapped(text, width)}\n{_card([explanation], width)}",
        wrapped(work, width),
        _traffic_table(explanation, width),
        "\n".join(wrapped(line, width) for line in _memory(explanation)),
        _occupancy_table(explanation, width),
    ]
    return "\n\n".join(parts)


def in_lines(explanations: Sequence[Explanation], width: int | None = None) -> str:
    """A line a case: FLOPs, bytes by algorithm, intensity, what bounds the ideal one, and the least times.

    Of the tiled algorithms of one loop order the first stands for all; the text above the table says whose it is.
    """
    labels = [explanation.case.label().split() for explanation in explanations]
    shared = [word for word in labels[0] if all(word in label for label in labels)]
    shown = [_shown(explanation) for explanation in explanations]
    flops = unit_of(FLOPS[1:], (explanation.cost.flops for explanation in explanations))
    moved = unit_of(BYTES, (item.bytes for items in shown for item in items))
    time = unit_of(SECONDS, (item.least_s for items in shown for item in items[:2]))
    rows = [
        [
            " ".join(word for word in label if word not in shared),
            flops.text(explanation.cost.flops),
            *(moved.text(item.bytes) for item in items),
            *(significant(item.intensity) for item in items),
            items[0].bound or "-",
            *(time.text(item.least_s) for item in items[:2]),
        ]
        for label, explanation, items in zip(labels, explanations, shown, strict=True)
    ]
    algorithms = ["ideal", "standard", *(f"tiled {loop}" for loop in LOOPS)]
    names = ["case", flops.name, *(f"{name} {moved.name}" for name in algorithms)]
    names += [*(f"{name} FLOP/B" for name in algorithms), "bound", *(f"{name} {time.name}" for name in algorithms[:2])]
    head = [_card(explanations, width), *(_whose(loop, explanations) for loop in LOOPS), f"all: {' '.join(shared)}"]
    foot = [wrapped(line, width, "  ") for line in _too_large([row[0] for row in rows], explanations)]
    table = "\n\n".join([plain_table(names, rows, width), *(["\n".join(foot)] if foot else [])])
    return "\n".join(head if shared else head[:-1]) + "\n\n" + table


def _shown(explanation: Explanation) -> list[Traffic]:
    """The algorithms of a line: ideal, standard, and the first of each loop order."""
    ideal, standard, *_ = explanation.traffic
    return [ideal, standard, *(_first(explanation, f"tiled {loop}") for loop in LOOPS)]


def _first(explanation: Explanation, name: str) -> Traffic:
    return next(item for item in explanation.traffic if item.algorithm.startswith(name))


def _whose(loop: str, explanations: Sequence[Explanation]) -> str:
    """ "tiled v1: cuda-v1's tiles, else the paper's"."""
    firsts = (next(item.tiling for item in e.occupancy if item.tiling.loop == loop) for e in explanations)
    sources = sorted({tiling.source for tiling in firsts}, key=lambda source: (source == PAPER, source))
    first, *others = (source if source == PAPER else f"{source}'s" for source in sources)
    return f"tiled {loop}: {', else '.join([f'{first} tiles', *others])}"


def _card(explanations: Sequence[Explanation], width: int | None) -> str:
    """The card, with its peak and ridge for each dtype that occurs, and where its figures come from."""
    gpu, parts = explanations[0].gpu, []
    for explanation in {explanation.case.dtype: explanation for explanation in explanations}.values():
        if explanation.peak_flops:
            parts.append(f"{_given(explanation.peak_flops)} TFLOP/s in {explanation.case.dtype}")
        if explanation.ridge:
            parts[-1] += f" (ridge {significant(explanation.ridge, 4)} FLOP/B)"
    if gpu.peaks.bandwidth:
        parts.append(f"{_given(gpu.peaks.bandwidth)} TB/s")
    if gpu.sms:
        parts.append(f"{gpu.sms} SMs")
    name = f"{gpu.name}: {', '.join(parts) or 'no peaks known'}"
    return f"{wrapped(name, width, '  ')}\n{wrapped(f'  {gpu.sources}', width, '  ')}"


def _traffic_table(explanation: Explanation, width: int | None) -> str:
    rows: list[Row] = []
    parts: list[Traffic | Step] = [*explanation.traffic]
    parts += [step for traffic in explanation.traffic for step in traffic.steps]
    moved = unit_of(BYTES, (count for part in parts for count in (part.read_bytes, part.written_bytes)))
    time = unit_of(SECONDS, (traffic.least_s for traffic in explanation.traffic))
    for traffic in explanation.traffic:
        rows.append(_traffic_row(traffic, moved, time))
        if len(traffic.steps) > 1:
            rows += [_step_row(step, moved) for step in traffic.steps]
    names = ["HBM traffic", "read", "written", "FLOP/B", "bound", "TFLOP/s", f"least {time.name}"]
    return plain_table(names, rows, width)


def _traffic_row(traffic: Traffic, moved: Unit, time: Unit) -> Row:
    return [
        traffic.algorithm,
        *_moved(traffic, moved),
        significant(traffic.intensity),
        traffic.bound or "-",
        "-" if traffic.attainable_flops is None else _tera(traffic.attainable_flops),
        time.text(traffic.least_s),
    ]


def _step_row(step: Step, moved: Unit) -> Row:
    return [f"- {step.name}", *_moved(step, moved), significant(step.intensity), "", "", ""]


def _moved(part: Traffic | Step, unit: Unit) -> Row:
    return [f"{unit.text(count)} {unit.name}" for count in (part.read_bytes, part.written_bytes)]


def _memory(explanation: Explanation) -> list[str]:
    extra = explanation.extra_bytes
    lines = [
        f"S and P: {bytes_text(explanation.score_bytes)}; LSE in their place: {bytes_text(explanation.lse_bytes)}",
        f"memory beyond the inputs: standard {bytes_text(extra['standard'])}, flash {bytes_text(extra['flash'])}",
    ]
    if excess := _excess(explanation):
        lines.append(f"more than the {bytes_text(explanation.gpu.memory_bytes or 0)} of the card: {', '.join(excess)}")
    if explanation.read_ratio is not None:
        lines.append(
            f"d²/M = {significant(explanation.read_ratio)}: reads of K and V by a tile that fills the "
            f"{bytes_text(explanation.gpu.shared_per_cta or 0)} on chip, over the N² of the standard algorithm"
        )
    return lines


def _excess(explanation: Explanation) -> list[str]:
    """What of the prediction the card has no room for."""
    parts = []
    if explanation.exceeds_memory(explanation.score_bytes):
        parts.append(f"S and P alone ({bytes_text(explanation.score_bytes)})")
    for model, needed in explanation.needed_bytes.items():
        if explanation.exceeds_memory(needed):
            parts.append(f"{model} with its inputs ({bytes_text(needed)})")
    return parts


def _too_large(labels: Sequence[str], explanations: Sequence[Explanation]) -> list[str]:
    """A line for each model that some cases of a table have no room for."""
    lines, memory = [], bytes_text(explanations[0].gpu.memory_bytes or 0)
    for model in explanations[0].extra_bytes:
        pairs = zip(labels, explanations, strict=True)
        if cases := [label for label, one in pairs if one.exceeds_memory(one.needed_bytes[model])]:
            lines.append(f"{model} with its inputs needs more than the {memory} of the card: {'; '.join(cases)}")
    return lines


def _occupancy_table(explanation: Explanation, width: int | None) -> str:
    rows = [_occupancy_row(item) for item in explanation.occupancy]
    names = ["kernel", "tile", "threads", "stages", "CTAs", "CTAs/SM", "waves", "SMs used", "shared/CTA", "sums/thread",
             "fits"]  # fmt: skip
    reasons = [
        f"{_kernel(item)} does not fit: {reason}" for item in explanation.occupancy for reason in item.infeasible
    ]
    table = plain_table(names, rows, width)
    return "\n".join([table, *([""] if reasons else []), *(wrapped(reason, width) for reason in reasons)])


def _kernel(item: Occupancy) -> str:
    whose = item.tiling.source if item.tiling.source != PAPER else f"{PAPER} {item.tiling.loop}"
    return f"{whose}: {item.launch.kernel}"


def _occupancy_row(item: Occupancy) -> Row:
    tile = item.launch.tile
    return [
        _kernel(item),
        f"{tile.Br} x {tile.Bc}",
        str(tile.threads),
        str(tile.stages),
        str(item.launch.ctas),
        axis_text(item.ctas_per_sm),
        "-" if item.waves is None else significant(item.waves),
        "-" if item.sm_share is None else f"{item.sm_share:.0%}",
        bytes_text(tile.shared_bytes),
        str(tile.accumulator_registers),
        "no" if item.infeasible else "yes",
    ]


def in_cards(cards: Sequence[Gpu], width: int | None = None) -> str:
    """The table of cards, and under it the sources of each."""
    rows = [
        [
            card.slug,
            card.name,
            _given(card.peaks.flops["bf16"]),
            _given(card.peaks.bandwidth or 0),
            axis_text(card.sms),
            bytes_text(card.shared_per_sm or 0),
            bytes_text(card.l2_bytes or 0),
        ]
        for card in cards
    ]
    names = ["--gpu", "name", "bf16 TFLOP/s", "TB/s", "SMs", "on chip/SM", "L2"]
    sources = [wrapped(f"{card.slug}: {card.sources}", width, "  ") for card in cards]
    return "\n".join([plain_table(names, rows, width, labels=2), "", *sources])


def _tera(value: float) -> str:
    return significant(value / 1e12)


def _given(value: float) -> str:
    """A datasheet's figure with the four digits it may have, 4.80 or 1.555: what follows from it can be checked."""
    digits = 3 if float(f"{value:.3g}") == float(f"{value:.4g}") else 4
    return significant(value / 1e12, digits)

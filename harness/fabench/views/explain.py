"""What `fabench explain` prints: one case in full, or a line a case for a suite."""

from __future__ import annotations

from collections.abc import Sequence

from fabench.explain import Explanation, Occupancy, Traffic
from fabench.gpus import Gpu
from fabench.steps import Step
from fabench.text import bytes_text
from fabench.tiling import LOOPS, PAPER
from fabench.views.axes import axis_text
from fabench.views.render import plain_table, wrapped
from fabench.views.values import significant

Row = list[str]


def in_full(explanation: Explanation, width: int | None = None) -> str:
    """Everything about one case: traffic by algorithm and step, memory, CTAs and tiles. `width` is the terminal's."""
    cost, text = explanation.cost, explanation.case.label()
    counted = f"{_tera(cost.flops)} TFLOP: {cost.pairs} attended pairs a head, softmax not counted"
    parts = [
        f"{wrapped(text, width)}\n{_card([explanation], width)}",
        wrapped(counted, width),
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
    rows = [
        [" ".join(word for word in label if word not in shared), *_line(explanation)]
        for label, explanation in zip(labels, explanations, strict=True)
    ]
    algorithms = ["ideal", "standard", *(f"tiled {loop}" for loop in LOOPS)]
    moved, intensities = [f"{name} GB" for name in algorithms], [f"{name} FLOP/B" for name in algorithms]
    names = ["case", "GFLOP", *moved, *intensities, "bound", "ideal ms", "standard ms"]
    head = [_card(explanations, width), *(_whose(loop, explanations) for loop in LOOPS), f"all: {' '.join(shared)}"]
    return "\n".join(head if shared else head[:-1]) + "\n\n" + plain_table(names, rows, width)


def _line(explanation: Explanation) -> Row:
    ideal, standard, *_ = explanation.traffic
    shown = [ideal, standard, *(_first(explanation, f"tiled {loop}") for loop in LOOPS)]
    return [
        significant(explanation.cost.flops / 1e9),
        *(significant(item.bytes / 1e9) for item in shown),
        *(significant(item.intensity) for item in shown),
        ideal.bound or "-",
        *(_ms(item.least_s) for item in (ideal, standard)),
    ]


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
            parts.append(f"{_tera(explanation.peak_flops)} TFLOP/s in {explanation.case.dtype}")
        if explanation.ridge:
            parts[-1] += f" (ridge {significant(explanation.ridge, 4)} FLOP/B)"
    if gpu.peaks.bandwidth:
        parts.append(f"{_tera(gpu.peaks.bandwidth)} TB/s")
    if gpu.sms:
        parts.append(f"{gpu.sms} SMs")
    name = f"{gpu.name}: {', '.join(parts) or 'no peaks known'}"
    return f"{wrapped(name, width, '  ')}\n{wrapped(f'  {gpu.sources}', width, '  ')}"


def _traffic_table(explanation: Explanation, width: int | None) -> str:
    rows: list[Row] = []
    for traffic in explanation.traffic:
        rows.append(_traffic_row(traffic))
        if len(traffic.steps) > 1:
            rows += [_step_row(step) for step in traffic.steps]
    return plain_table(["HBM traffic", "read", "written", "FLOP/B", "bound", "TFLOP/s", "least ms"], rows, width)


def _traffic_row(traffic: Traffic) -> Row:
    return [
        traffic.algorithm,
        _gb(traffic.read_bytes),
        _gb(traffic.written_bytes),
        significant(traffic.intensity),
        traffic.bound or "-",
        "-" if traffic.attainable_flops is None else _tera(traffic.attainable_flops),
        _ms(traffic.least_s),
    ]


def _step_row(step: Step) -> Row:
    return [f"- {step.name}", _gb(step.read_bytes), _gb(step.written_bytes), significant(step.intensity), "", "", ""]


def _memory(explanation: Explanation) -> list[str]:
    extra = explanation.extra_bytes
    lines = [
        f"S and P: {bytes_text(explanation.score_bytes)}; LSE in their place: {bytes_text(explanation.lse_bytes)}",
        f"memory beyond the inputs: standard {bytes_text(extra['standard'])}, flash {bytes_text(extra['flash'])}",
    ]
    if explanation.read_ratio is not None:
        lines.append(
            f"d²/M = {significant(explanation.read_ratio)}: reads of K and V by a tile that fills the "
            f"{bytes_text(explanation.gpu.shared_per_cta or 0)} on chip, over the N² of the standard algorithm"
        )
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
            _tera(card.peaks.flops["bf16"]),
            _tera(card.peaks.bandwidth or 0),
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


def _gb(count: int) -> str:
    return f"{significant(count / 1e9)} GB"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else significant(seconds * 1e3)

"""What `fabench explain` prints: one case in full, or a line a case for a suite."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from fabench.explain import Explanation, Occupancy, Traffic
from fabench.steps import Step
from fabench.text import bytes_text
from fabench.views.axes import axis_text
from fabench.views.values import significant

Row = list[str]


def in_full(explanation: Explanation) -> str:
    """Everything about one case: traffic by algorithm and step, memory, CTAs and tiles."""
    return "\n\n".join(
        [_head(explanation), _traffic_table(explanation), _memory(explanation), _occupancy_table(explanation)]
    )


def in_lines(explanations: Sequence[Explanation]) -> str:
    """A line a case: FLOPs, bytes by algorithm, intensity, what bounds the ideal one, and the least times."""
    first = explanations[0]
    rows = [_line(explanation) for explanation in explanations]
    algorithms = [traffic.algorithm.split(",")[0] for traffic in first.traffic]
    moved, intensities = [f"{name} GB" for name in algorithms], [f"{name} FLOP/B" for name in algorithms]
    names = ["case", "TFLOP", *moved, *intensities, "bound", "ideal ms", "standard ms"]
    return _card(first) + "\n\n" + _draw(names, rows)


def _line(explanation: Explanation) -> Row:
    traffic = explanation.traffic
    return [
        explanation.case.label(),
        significant(explanation.cost.flops / 1e12),
        *(significant(item.bytes / 1e9) for item in traffic),
        *(significant(item.intensity) for item in traffic),
        traffic[0].bound or "-",
        *(_ms(item.least_s) for item in traffic[:2]),
    ]


def _card(explanation: Explanation) -> str:
    gpu, parts = explanation.gpu, []
    if explanation.peak_flops:
        parts.append(f"{significant(explanation.peak_flops / 1e12)} TFLOP/s in {explanation.case.dtype}")
    if explanation.bandwidth:
        parts.append(f"{significant(explanation.bandwidth / 1e12)} TB/s")
    if explanation.ridge:
        parts.append(f"ridge {significant(explanation.ridge, 4)} FLOP/B")
    if gpu.sms:
        parts.append(f"{gpu.sms} SMs")
    return f"{gpu.name}: {', '.join(parts) or 'no peaks known'}\n  {gpu.sources}"


def _head(explanation: Explanation) -> str:
    cost = explanation.cost
    return (
        f"{explanation.case.label()}\n{_card(explanation)}\n\n"
        f"{significant(cost.flops / 1e12)} TFLOP: {cost.pairs} attended pairs a head, softmax not counted"
    )


def _traffic_table(explanation: Explanation) -> str:
    rows: list[Row] = []
    for traffic in explanation.traffic:
        rows.append(_traffic_row(traffic))
        if len(traffic.steps) > 1:
            rows += [_step_row(step) for step in traffic.steps]
    return _draw(["HBM traffic", "read", "written", "FLOP/B", "bound", "TFLOP/s", "least ms"], rows, left=1)


def _traffic_row(traffic: Traffic) -> Row:
    return [
        traffic.algorithm,
        _gb(traffic.read_bytes),
        _gb(traffic.written_bytes),
        significant(traffic.intensity),
        traffic.bound or "-",
        "-" if traffic.attainable_flops is None else significant(traffic.attainable_flops / 1e12),
        _ms(traffic.least_s),
    ]


def _step_row(step: Step) -> Row:
    return [f"- {step.name}", _gb(step.read_bytes), _gb(step.written_bytes), significant(step.intensity), "", "", ""]


def _memory(explanation: Explanation) -> str:
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
    return "\n".join(lines)


def _occupancy_table(explanation: Explanation) -> str:
    rows = [_occupancy_row(item) for item in explanation.occupancy]
    names = ["forward kernel", "CTAs", "CTAs/SM", "waves", "SMs used", "shared/CTA", "regs/thread", "fits"]
    reasons = [
        f"{item.tiling.loop} of {item.tiling.source}: {reason}"
        for item in explanation.occupancy
        for reason in item.infeasible
    ]
    return "\n".join([_draw(names, rows, left=1), *([""] if reasons else []), *reasons])


def _occupancy_row(item: Occupancy) -> Row:
    tile = item.tiling.tile
    return [
        f"{item.tiling.loop}, {tile.Br} x {tile.Bc} ({item.tiling.source})",
        str(item.ctas),
        axis_text(item.ctas_per_sm),
        "-" if item.waves is None else significant(item.waves),
        "-" if item.sm_share is None else f"{item.sm_share:.0%}",
        bytes_text(tile.shared_bytes),
        str(tile.accumulator_registers),
        "no" if item.infeasible else "yes",
    ]


def _gb(count: int) -> str:
    return f"{significant(count / 1e9)} GB"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else significant(seconds * 1e3)


def _draw(names: Sequence[str], rows: Sequence[Row], left: int = 1) -> str:
    sides = ["left"] * left + ["right"] * (len(names) - left)
    text = tabulate(rows, names, "simple", disable_numparse=True, colalign=sides)
    return "\n".join(line.rstrip() for line in text.splitlines())

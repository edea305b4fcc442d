"""The report of a battery as text: what is wrong, a table by probe, accuracy by tensor. No torch here."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator

from tabulate import tabulate

from fabench.parity import heatmap
from fabench.parity.pattern import pattern
from fabench.parity.thresholds import (
    BETTER,
    EXPLAINED,
    FP32_FACTOR,
    MAX_EL,
    MAX_RHO,
    RIGHT,
    RMS_RHO,
)
from fabench.parity.trial import Result
from fabench.parity.verdict import Finding, Verdict
from fabench.text import counted

WIDTH = 110
COLUMNS = ("passed", "failed", "crashed", "timeout", "oom", "unsupported", "skipped")


def render(verdict: Verdict, *, explain: bool = False, width: int | None = None) -> str:
    """The whole report, prose at most `width` wide; `explain` adds the evidence behind each name."""
    width = min(WIDTH, width or WIDTH)
    parts = [_filled(_headline(verdict), width) if width < WIDTH else _headline(verdict)]
    if verdict.findings:
        parts.append("\n".join(_findings(verdict, explain, width)))
    parts += [_probes(verdict, width), _accuracy(verdict, width)]
    parts.append("\n".join(_filled(line, width) for line in _footnotes(verdict)))
    if explain:
        parts.append(EVIDENCE)
    return "\n\n".join(part for part in parts if part)


def _headline(v: Verdict) -> str:
    word = {0: "passed", 1: "FAILED", 2: "nothing ran"}[v.exit_code]
    word += " as far as it went" if v.left.interrupted and v.exit_code == 0 else ""
    compiling = f", {v.compile_s:.1f} s of it compiling and first calls" if v.compile_s >= 1 else ""
    passed = sum(r.ending == "passed" for r in v.results)
    return (
        f"{v.target} on {v.device}, {v.profile}: {word}. "
        f"{counted(v.trials, 'case')}, {counted(passed, 'check')} passed, {len(v.failed)} failed, "
        f"in {v.seconds:.1f} s{compiling}"
    )


def _filled(text: str, width: int, indent: str = "") -> str:
    """A paragraph; what cannot be broken, such as a path or a command, stays whole."""
    after = indent.replace("*", " ") or "  "
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )


def _findings(v: Verdict, explain: bool, width: int) -> Iterator[str]:
    yield "What is wrong"
    for i, finding in enumerate(v.findings):
        yield from _finding(v, finding, width, first=i == 0, explain=explain)


def _finding(v: Verdict, finding: Finding, width: int, *, first: bool, explain: bool) -> Iterator[str]:
    name = finding.name
    yield _filled(name.sentence, width, "  * ")
    yield f"    seen in {counted(name.votes, 'failure')} of {', '.join(name.probes)}"
    example = name.example
    diagnosis = (example.diagnosis if example else None) or {}
    if example is not None:
        yield f"    for instance {example.trial.label()}:"
        yield _filled(_first(example.message), width, "      ")
    if diagnosis.get("where"):
        looks = f": {', '.join(diagnosis['looks'])}" if diagnosis.get("looks") else ""
        yield _filled(f"{diagnosis['where']}{looks}", width, "    ")
        yield _filled(diagnosis["tiles"], width, "    ")
    if first and (common := pattern(v.results)):
        yield f"    {common}"
    if finding.smallest is not None:
        yield f"    smallest failing case: {finding.smallest.label()}"
    if finding.repro:
        yield f"    shown without fabench by: python {shlex.quote(finding.repro)}"
    if finding.repro_note:
        yield _filled(finding.repro_note, width, "    ")
    if explain and diagnosis.get("alternatives"):
        yield _filled("it also behaves like: " + "; ".join(diagnosis["alternatives"]), width, "    ")
    if (first or explain) and diagnosis.get("histogram"):
        yield _filled("largest rho by rows: " + "  ".join(_bin(b) for b in diagnosis["histogram"]), width, "    ")
    if (first or explain) and diagnosis.get("heat", {}).get("cells"):
        yield textwrap.indent(heatmap.text(diagnosis["heat"]), "    ")


def _first(message: str) -> str:
    """The first of the sentences about each tensor, and how many follow."""
    first, *rest = message.split("; '")
    return first + (f"; and {', '.join(r.split(chr(39))[0] for r in rest)}" if rest else "")


def _number(x: float) -> str:
    return f"{x:.2f}" if x < 1000 else f"{x:.2g}"


def _bin(b: list[float]) -> str:
    rows = f"{int(b[0])}" if b[0] == b[1] else f"{int(b[0])}-{int(b[1])}"
    return f"{rows}: {'inf' if b[2] >= 1e30 else f'{b[2]:.3g}'}"


def _probes(v: Verdict, width: int) -> str:
    counts = v.counts()
    shown = [c for c in COLUMNS if c in ("passed", "failed") or any(n[c] for n in counts.values())]
    rows = []
    for probe, endings in counts.items():
        rows.append([probe, *(endings[c] or "" for c in shown), _remark(v, probe, max(20, width - WIDTH + 70))])
    return tabulate(rows, headers=["probe", *shown, ""], tablefmt="simple", disable_numparse=True)


def _remark(v: Verdict, probe: str, width: int) -> str:
    """The first failure, else the kernel's own reason for refusing, else why it was skipped."""
    for wanted in (("failed", "crashed", "timeout"), ("unsupported",), ("skipped",)):
        for result in v.results:
            if result.probe == probe and result.ending in wanted and result.message:
                return textwrap.shorten(result.message, width, placeholder=" …")
    return ""


def _accuracy(v: Verdict, width: int) -> str:
    rows = [
        [
            a.tensor,
            a.dtype,
            a.accuracy,
            "unbounded" if a.unbounded else _number(a.max_rho),
            _number(a.rms_rho) if a.tensor != "LSE" else "",
            _number(a.two_x) if a.two_x else "",
            f"{a.allclose} of {a.trials}" if a.tensor != "LSE" else "",
            f"{a.max_abs:.2e}",
        ]
        for a in v.accuracy()
    ]
    if not rows:
        return ""
    headers = ["tensor", "dtype", "class", "max rho", "rms rho", "2x", "allclose", "max abs"]
    table = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)
    rms = f"rms rho up to {RMS_RHO:g}, in fp32 without TF32 {RMS_RHO * FP32_FACTOR:g}"
    how = f"(rho decides: max rho is {RIGHT}; {rms}. 2x, allclose, max abs stand beside it.)"
    return f"{table}\n{_filled(how, width)}"


def _footnotes(v: Verdict) -> Iterator[str]:
    yield from (f"Warning: {w}" for w in v.warnings)
    yield from (f"Note: {n}" for n in v.notes())
    reasons = {r.message for r in v.results if r.ending == "unsupported"}
    if v.refused and reasons:
        yield f"Refused by the kernel: {counted(v.refused, 'case')} ({'; '.join(sorted(reasons)[:4])})"
    cases = counted(v.left.trials, "case") if v.left.trials else ""
    probes = f"{counted(v.left.probes, 'probe')} of {'another' if cases else 'a case'}" if v.left.probes else ""
    if cases or probes:
        yield f"Left out: {' and '.join(filter(None, (cases, probes)))}, because {v.left.why}"


def progress_line(result: Result) -> str:
    """One failure, as it happens."""
    return f"{result.ending}: {result.probe} · {result.trial.label()} · {textwrap.shorten(result.message, 120)}"


EVIDENCE = f"""\
How it is judged
  rho    each row's error against an fp64 reference of the exact inputs, over what an emulated kernel of the declared
         class is off by, plus half a rounding of the output, a quarter of a rounding of every term, fp32 score errors
         and underflow. A tensor passes if NaN and inf are where they must be, contract zeros hold,
         max rho <= {MAX_RHO:g}, rms rho <= {RMS_RHO:g}, and no element takes more than {MAX_EL:g} times its share
         (in fp32 without TF32 each {FP32_FACTOR:g} times as much).
  2x     the largest error over twice that of plain low-precision math: flash-attention's own tests ask for at most 1.
  names  the output is compared row by row with what each shipped fault computes: one that explains
         {EXPLAINED * 100:g} % of the wrong rows with a rho that passes, and is {1 / BETTER:g} times as
         close to them as the right answer, is a match. docs/parity.md has the rest."""

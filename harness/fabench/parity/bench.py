"""What a probe works with: the kernel, one case in one memory order, the reference, and ways to say what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from fabench import inputs
from fabench.case import Case
from fabench.inputs import Tensors, torch_dtype
from fabench.names import Accuracy
from fabench.parity.extent import row_rho
from fabench.parity.orders import arrange
from fabench.parity.rule import Judgement, judge
from fabench.parity.subject import Subject
from fabench.parity.thresholds import limits
from fabench.parity.trial import Trial, Witness
from fabench.reference import Reference, Rows, compute, estimate_seconds


class Failed(Exception):  # a verdict, not an accident
    """A probe's verdict: the kernel is wrong, in one sentence."""

    def __init__(
        self,
        message: str,
        *,
        named: str | None = None,
        witness: Witness | None = None,
        parity: dict[str, Any] | None = None,
        tensors: Tensors | None = None,
        outputs: Mapping[str, torch.Tensor] | None = None,
        expected: Reference | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.witness, self.parity = message, witness, parity
        self.named = named
        """What is wrong, where the probe knows it."""
        self.tensors, self.outputs, self.expected = tensors, outputs, expected
        """What it was called with, what it returned and what was right, for the diagnosis."""
        self.numbers: dict[str, float] = {}


@dataclasses.dataclass
class Passed:
    """What a probe that found nothing wrong has to say."""

    parity: dict[str, Any] | None = None
    note: str | None = None
    warn: bool = False
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class NotApplicable:
    """The probe does not fit this case or kernel."""

    reason: str


Verdict = Passed | NotApplicable


class Bench:
    """One trial's workplace."""

    def __init__(self, subject: Subject, trial: Trial) -> None:
        self.subject, self.trial, self.case = subject, trial, trial.case
        self.device = subject.torch_device
        self.backward = trial.case.has_backward and subject.backward_reason(trial.case) is None
        self.lse = subject.facts.returns_lse
        self.diagnosed = 0
        self.wrong_outputs: Mapping[str, torch.Tensor] | None = None
        """What the plain call gives, where that is already wrong."""

    @property
    def accuracy(self) -> Accuracy:
        """The class the kernel is judged as."""
        return self.subject.facts.accuracy_for(self.case.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The inputs' dtype."""
        return torch_dtype(self.case)

    @property
    def unit(self) -> float:
        """Distance from 1 to the next larger number of the dtype: one ulp of 1."""
        return float(torch.finfo(self.dtype).eps)

    @cached_property
    def tensors(self) -> Tensors:
        """The case's own inputs in the trial's memory order. Never hand these to the kernel: see `call`."""
        case = self.case if self.backward else dataclasses.replace(self.case, direction="forward")
        return self.arranged(inputs.make(case, self.device))

    @cached_property
    def expected(self) -> Reference:
        """The reference of `tensors`; probes ask for it after the kernel has run."""
        return self.reference(self.tensors)

    def arranged(self, tensors: Tensors) -> Tensors:
        """Tensors of a probe's own in the trial's memory order."""
        return arrange(tensors, self.trial.order, self.trial.gradient_order)

    def laid_out(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dO: torch.Tensor | None = None) -> Tensors:
        """A probe's own values, cast to the dtype, in the case's layout and the trial's memory order."""
        cast = {n: x.to(self.dtype) for n, x in (("q", q), ("k", k), ("v", v), ("dO", dO)) if x is not None}
        return self.arranged(inputs.lay_out(self.case, Tensors(**cast)))

    def in_order(self, values: Mapping[str, torch.Tensor]) -> Tensors:
        """Other values in the memory order of `tensors`."""
        return Tensors(**{n: inputs.copy_in_order(values[n], like) for n, like in self.tensors.items() if n in values})

    def reference(self, tensors: Tensors) -> Reference:
        """The expected outputs for `tensors`, for the kernel's class, A and B; sampled where a full one takes long."""
        classes: dict[Accuracy, None] = dict.fromkeys((self.accuracy, "A", "B"))
        seconds = estimate_seconds(self.case, self.subject.device)
        rows: Rows = "full" if seconds < FULL_REFERENCE_S else "sampled"
        case = dataclasses.replace(self.case, direction="forward" if tensors.dO is None else "backward")
        return compute(case, tensors, accuracy=tuple(classes), rows=rows)

    def call(self, tensors: Tensors, *, lse: bool = False, backward: bool = False) -> dict[str, torch.Tensor]:
        """The kernel's outputs, in memory of their own, on copies of `tensors`: what it does to either stays there."""
        outputs = self.subject.call(self.case, inputs.rotate(tensors, 0), lse=lse, backward=backward)
        return {name: x.clone() for name, x in outputs.items()}

    @property
    def already_wrong(self) -> bool:
        """True if the plain call is wrong: then a probe of hygiene asks whether its call differs from that."""
        return self.wrong_outputs is not None

    def judge_again(self, outputs: Mapping[str, torch.Tensor], when: str) -> None:
        """Judge another call on the case's own inputs; one that is as wrong as the plain call is not worse."""
        if self.wrong_outputs is None:
            self.judge(self.expected, outputs, self.tensors, when)
            return
        for name, before in self.wrong_outputs.items():
            if name not in outputs or name == "LSE":
                continue
            e = self.expected[name]
            rho = row_rho(e.select(outputs[name]), e.select(before), 2 * e.tolerance[self.accuracy])
            if bool((rho > limits(self.case.dtype, self.accuracy)[0]).any()):
                raise Failed(f"{when}'{name}' is another than that of the plain call, which is wrong too")

    def judge(
        self, expected: Reference, outputs: Mapping[str, torch.Tensor], tensors: Tensors, when: str = ""
    ) -> Judgement:
        """Judge by the rule; raises Failed with the worst element as the witness."""
        judgement = judge(self.case, expected, outputs, self.accuracy)
        if not judgement.passed:
            raise Failed(
                when + judgement.message,
                witness=witness_of(self.case, judgement, expected, self.accuracy),
                parity=judgement.parity.model_dump(mode="json", by_alias=True),
                tensors=tensors,
                outputs=outputs,
                expected=expected,
            )
        return judgement


FULL_REFERENCE_S = 5.0


def allowing(reference: Reference, name: str, error: torch.Tensor) -> Reference:
    """`reference` with `error` [batch, heads, rows] more in the tolerance of one output: what a probe itself adds."""
    e = reference[name]
    tolerance = {accuracy: torch.where(e.empty, 0.0, N + error) for accuracy, N in e.tolerance.items()}
    return dataclasses.replace(
        reference, outputs={**reference.outputs, name: dataclasses.replace(e, tolerance=tolerance)}
    )


def witness_of(case: Case, judgement: Judgement, expected: Reference, accuracy: Accuracy) -> Witness | None:
    """The worst element of a judgement as something a script can assert."""
    worst = judgement.worst
    if worst is None:
        return None
    name = worst["tensor"]
    index = [worst[k] for k in ("b", "h", "row", "col") if k in worst]
    e = expected[name]
    row = index[:3]
    if e.rows is not None:
        row = [*row[:2], int((e.rows[row[0], row[1]] == row[2]).nonzero()[0])]
    tolerance = float(e.tolerance[accuracy][tuple(row)])
    got, right = worst["got"], worst["expected"]
    if name == "LSE":
        return Witness(name, index, got, right, tolerance)
    top_rho, top_rms, top_el = limits(case.dtype, accuracy)
    numbers = getattr(judgement.parity, name)
    if numbers.max_rho is not None and numbers.max_rho <= top_rho and (numbers.max_el or 0.0) > top_el:
        assert e.share is not None
        return Witness(name, index, got, right, tolerance * top_el * float(e.share[(*row, index[3])]))
    # Where all rows together are too far off, the worst one is further off than the rows may be together.
    factor = top_rms if numbers.max_rho is not None and numbers.max_rho <= top_rho else top_rho
    return Witness(name, index, got, right, tolerance * factor, row=True)


def element(name: str, index: Sequence[int], got: torch.Tensor, expected: float, limit: float) -> Witness:
    """A witness of one element of `got`."""
    value = float(got[tuple(index)])
    return Witness(name, list(index), value if math.isfinite(value) else None, expected, limit)


def shown_pairs(case: Case, device: torch.device) -> torch.Tensor:
    """Bool [Nq, Nk] of the attended pairs: the specification that exact probes compare with."""
    mask = case.mask
    distance = torch.arange(case.Nk, device=device) - torch.arange(case.Nq, device=device)[:, None] - mask.offset
    shown = torch.ones(case.Nq, case.Nk, dtype=torch.bool, device=device)
    if mask.right is not None:
        shown &= distance <= mask.right
    if mask.left is not None:
        shown &= distance >= -mask.left
    return shown

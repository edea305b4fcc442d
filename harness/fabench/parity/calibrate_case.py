"""One case of a calibration inside the worker: one reference, every backend judged by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fabench import inputs, reference
from fabench.backend import Backend
from fabench.case import Case
from fabench.device import Device
from fabench.names import Accuracy
from fabench.outcome import classify
from fabench.parity.rule import judge
from fabench.parity.subject import Subject


def measure(
    case: Case, backends: Sequence[Backend], device: Device, entering: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """A reading a backend: its numbers, or why there are none. `entering(i)` is called before backend i runs."""
    tensors = inputs.make(case, device.torch_name)
    expected: reference.Reference | None = None
    for i, backend in enumerate(backends):
        subject = Subject(backend, device)
        reasons = subject.reasons(case)
        if reasons:
            yield _reading(backend, None, False, reasons[0])
            continue
        backward = subject.backward_reason(case) is None
        entering(i)
        try:
            outputs = subject.call(case, inputs.rotate(tensors, 0), backward=backward)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            yield _reading(backend, None, False, classify(error, before_output=True).message)
            continue
        accuracy = subject.facts.accuracy_for(case.dtype)
        if expected is None or accuracy not in expected.accuracy:
            classes: dict[Accuracy, None] = dict.fromkeys(("A", "B", accuracy))
            expected = reference.compute(case, tensors, accuracy=tuple(classes))
        judgement = judge(case, expected, outputs, accuracy)
        numbers = judgement.parity.model_dump(mode="json", by_alias=True)
        yield _reading(backend, numbers, judgement.passed, "" if judgement.passed else judgement.message)
        del outputs
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _reading(backend: Backend, parity: dict[str, Any] | None, passed: bool, reason: str) -> dict[str, Any]:
    return {"backend": backend.name, "parity": parity, "passed": passed, "reason": reason}

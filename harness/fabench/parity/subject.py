"""The kernel under test: called the way the harness calls it, its answers checked for their form every time."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

import torch

from fabench.backend import Backend, Prepared
from fabench.case import Case
from fabench.device import Device
from fabench.inputs import Tensors
from fabench.outcome import REFUSALS, Failure, first_line, split_output
from fabench.parity.budget import CALL, FIRST_CALL, PREPARING

GRADIENTS = ("dQ", "dK", "dV")
COMPILE_ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "UnsupportedLanguageConstruct")
"""Class names of compilers' errors: of a bare function they are refusals, raised before any output."""
MOST_PREPARED = 32
Watch = Callable[[bool], None]


class Subject:
    """One backend on one device. `call` gives outputs by name, or raises `Failure` for what is not an answer."""

    def __init__(self, backend: Backend, device: Device, watch: Watch | None = None) -> None:
        """`watch(True)` is called before each call of the kernel, `watch(False)` after it."""
        self.backend, self.device, self.watch = backend, device, watch or (lambda running: None)
        self.facts = backend.facts_on(device)
        self.torch_device = torch.device(device.torch_name)
        self.compile_s = 0.0
        """Seconds of preparing and of first calls so far."""
        self.stage = CALL
        """What `watch` is told of: a call, the first of its shape, or what is done before it."""
        self._interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
        """Nothing is compiled: a first call is as slow as any other."""
        self.no_backward: str | None = None
        """Why it has no gradients at all, once known."""
        self.no_backward_here: str | None = None
        """Why the last call asked for gradients gave none."""
        self._prepared: dict[tuple[Case, bool], Prepared] = {}
        self._answered: set[tuple[Case, bool]] = set()

    def reasons(self, case: Case) -> Sequence[str]:
        """Why it refuses `case`, by its facts; the direction is looked at call by call."""
        return self.backend.reasons(dataclasses.replace(case, direction="forward"), self.device)

    def backward_reason(self, case: Case) -> str | None:
        """Why there are no gradients of `case`, by facts or by what was seen."""
        if self.no_backward is not None:
            return self.no_backward
        reasons = self.backend.reasons(dataclasses.replace(case, direction="backward"), self.device)
        return reasons[0] if reasons else None

    def call(
        self,
        case: Case,
        tensors: Tensors,
        *,
        lse: bool = False,
        backward: bool = False,
        between: Callable[[], object] | None = None,
    ) -> dict[str, torch.Tensor]:
        """O, with `lse` LSE, and with `backward` dQ, dK and dV of one call on `tensors` as they are, no copies made.

        `between` is what happens after the forward pass and before the backward pass.
        Raises Failure('wrong_result') for an answer of the wrong form, Failure('unsupported') for a refusal.
        """
        key = (_shape_of(case), lse)
        started = time.perf_counter()
        first = key not in self._answered and not self._interpreted
        self.stage = PREPARING if key not in self._prepared else FIRST_CALL if first else CALL
        self.watch(True)
        try:
            prepared = self._prepare(key, case)
            if self.stage == PREPARING:
                self.stage = FIRST_CALL if first else CALL
                self.watch(True)
            outputs = self._run(prepared, case, tensors, lse, backward, between)
        except Exception as error:
            if self.facts.bare and key not in self._answered and type(error).__name__ in COMPILE_ERRORS:
                raise Failure("unsupported", f"{type(error).__name__}: {first_line(error)}") from error
            raise
        finally:
            self.watch(False)
            if first:
                self.compile_s += time.perf_counter() - started
        self._answered.add(key)
        return outputs

    def answered(self, case: Case, lse: bool = False) -> bool:
        """True if a call of this shape has already returned: from then on an exception is no refusal."""
        return (_shape_of(case), lse) in self._answered

    def prepared(self, case: Case, lse: bool = False) -> Prepared:
        """The backend made ready for `case`."""
        return self._prepare((_shape_of(case), lse), case)

    def synchronize(self) -> None:
        """Wait for the device, so that an asynchronous error belongs to the call that made it."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def _prepare(self, key: tuple[Case, bool], case: Case) -> Prepared:
        if key not in self._prepared:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[key] = self.backend.prepare(case, self.device, lse=key[1])
        return self._prepared[key]

    def _run(
        self,
        prepared: Prepared,
        case: Case,
        tensors: Tensors,
        lse: bool,
        backward: bool,
        between: Callable[[], object] | None,
    ) -> dict[str, torch.Tensor]:
        if not backward:
            with torch.no_grad():
                output = prepared.call(tensors.q, tensors.k, tensors.v)
            self.synchronize()
            return self._named(output, case, tensors, lse)
        self.no_backward_here = None
        leaves = [x.detach().requires_grad_() for x in (tensors.q, tensors.k, tensors.v)]
        with torch.enable_grad():
            output = prepared.call(*leaves)
        outputs = self._named(output, case, tensors, lse)
        O = outputs["O"]
        if O.grad_fn is None:
            self.no_backward_here = "the output carries no grad_fn"
            if not lse:  # with LSE it may be the answer of another path
                self.no_backward = self.no_backward_here
            return {name: x.detach() for name, x in outputs.items()}
        if between is not None:
            between()
            self.watch(True)
        try:
            gradients = torch.autograd.grad(O, leaves, tensors.dO, allow_unused=True)
        except REFUSALS as error:
            self.no_backward_here = f"{type(error).__name__}: {first_line(error)}"
            return {name: x.detach() for name, x in outputs.items()}
        self.synchronize()
        for name, gradient in zip(GRADIENTS, gradients, strict=True):
            if gradient is None:
                raise Failure("wrong_result", f"{name} must be a tensor, got None: the output does not depend on it")
        named = dict(zip(GRADIENTS, gradients, strict=True))
        return {name: x.detach() for name, x in {**outputs, **named}.items() if x is not None}

    def _named(self, output: object, case: Case, tensors: Tensors, lse: bool) -> dict[str, torch.Tensor]:
        outputs = split_output(output, case, self.torch_device, lse=lse)
        inputs = {x.untyped_storage().data_ptr(): name for name, x in tensors.items() if x.numel()}
        for name, x in outputs.items():
            alias = inputs.get(x.untyped_storage().data_ptr()) if x.numel() else None
            if alias is not None:
                raise Failure("wrong_result", f"{name} must have memory of its own, got a view of the input {alias}")
        return outputs


def _shape_of(case: Case) -> Case:
    """The case without what only changes the values of its inputs."""
    return dataclasses.replace(case, inputs="normal", seed=0, direction="forward")

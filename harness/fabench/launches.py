"""The launches that are timed: input sets to rotate over, graphs kept for a backward pass, outputs by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fabench.backend import Prepared
from fabench.case import Case
from fabench.cost import output_bytes, saved_bytes
from fabench.inputs import Tensors, rotate
from fabench.measure.rotation import rotation_count
from fabench.outcome import Failure, split_output

if TYPE_CHECKING:
    from fabench.measure.engine import Engine

T = TypeVar("T")
GRADIENTS = ("dQ", "dK", "dV")


def gradients_of(prepared: Prepared, tensors: Tensors, case: Case) -> dict[str, torch.Tensor]:
    """Forward and backward once: O, dQ, dK and dV, the gradients in the shapes of q, k and v."""
    leaves, O = forward_with_graph(prepared, tensors, case)
    grads = torch.autograd.grad(O, leaves, tensors.dO)
    return {"O": O.detach(), **dict(zip(GRADIENTS, grads, strict=True))}


def forward_with_graph(
    prepared: Prepared, tensors: Tensors, case: Case
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """The leaves and O with its graph; raises Failure('unsupported') if O carries no grad_fn."""
    leaves = tuple(t.detach().requires_grad_() for t in (tensors.q, tensors.k, tensors.v))
    with torch.enable_grad():
        output = prepared.call(*leaves)
    O = split_output(output, case, tensors.q.device, lse=False)["O"]
    if O.grad_fn is None:
        raise Failure("unsupported", f"direction {case.direction}: the output carries no grad_fn")
    return leaves, O


def poison_free_blocks(case: Case, device: torch.device, copies: int = 3) -> None:
    """Fill the free blocks an output is likely to be given with NaN, so that one never written cannot look right.

    The allocators hand freed blocks out again: without this, a kernel that writes nothing may return the correct
    output of the backend before it.
    """
    from fabench.dtypes import DTYPES

    dtype = getattr(torch, DTYPES[case.dtype].torch_name)
    shapes = [(case.batch, case.heads, case.Nq, case.dv), (case.batch, case.heads, case.Nq, case.d)]
    shapes += [(case.batch, case.kv_heads, case.Nk, case.d), (case.batch, case.kv_heads, case.Nk, case.dv)]
    with contextlib.suppress(torch.OutOfMemoryError, RuntimeError):  # no room to poison is no room to be stale
        blocks = [torch.full(s, torch.nan, dtype=dtype, device=device) for s in shapes for _ in range(copies)]
        del blocks


class Launches:
    """Every candidate's launch over the same rotated input sets of one case."""

    def __init__(self, case: Case, tensors: Tensors, engine: Engine) -> None:
        self.case = case
        self.engine = engine
        self.rotation, self.capped = rotation_count(case, engine)
        self.sets = [tensors, *(rotate(tensors, i) for i in range(1, self.rotation))]
        self._graphs: dict[str, list[tuple[tuple[torch.Tensor, ...], torch.Tensor]]] = {}
        self._prepared: dict[str, Prepared] = {}

    def groups(self, items: Sequence[tuple[Prepared, T]]) -> list[list[tuple[Prepared, T]]]:
        """Split the candidates so that the graphs each group keeps alive fit into half of the free memory."""
        if self.case.direction != "backward":
            return [list(items)]
        each = max(1, self.rotation * (saved_bytes(self.case, "standard") + output_bytes(self.case)))
        size = max(1, int(self.engine.free_bytes() // 2 // each))
        return [list(items[i : i + size]) for i in range(0, len(items), size)]

    def open(self, name: str, prepared: Prepared) -> None:
        """Make ready what one candidate's launches need; a backward candidate runs its forward here, untimed."""
        self._prepared[name] = prepared
        if self.case.direction == "backward":
            self._graphs[name] = [forward_with_graph(prepared, s, self.case) for s in self.sets]

    def close(self, name: str) -> None:
        """Free what `open` kept."""
        self._graphs.pop(name, None)
        self._prepared.pop(name, None)

    def launcher(self, name: str) -> Callable[[int], Any]:
        """`launch(i)` on input set i for the case's direction.

        It has views of its own: requires_grad_ or resize_ on them is not seen by other candidates.
        """
        prepared, sets = self._prepared[name], [tensors.detached() for tensors in self.sets]

        def forward(index: int) -> Any:
            s = sets[index]
            return prepared.call(s.q, s.k, s.v)

        def backward(index: int) -> Any:
            leaves, O = self._graphs[name][index]
            return torch.autograd.grad(O, leaves, sets[index].dO, retain_graph=True)

        def forward_backward(index: int) -> Any:
            s = sets[index]
            leaves = tuple(t.detach().requires_grad_() for t in (s.q, s.k, s.v))
            O = prepared.call(*leaves)
            return (O, *torch.autograd.grad(O, leaves, s.dO))

        if self.case.direction == "forward":
            return torch.no_grad()(forward)
        return {"backward": backward, "forward_backward": forward_backward}[self.case.direction]

    def named(self, output: Any) -> dict[str, torch.Tensor]:
        """A launch's return value as outputs by name."""
        if self.case.direction == "forward":
            return {"O": output[0] if isinstance(output, tuple) else output}
        names = GRADIENTS if self.case.direction == "backward" else ("O", *GRADIENTS)
        return {name: t.detach() for name, t in zip(names, output, strict=True)}

    @contextlib.contextmanager
    def negated(self, name: str, index: int) -> Iterator[Tensors]:
        """Set `index`, one tensor negated in place (a call that caches by pointer cannot know); undone after."""
        changed = self.sets[index]
        tensor: torch.Tensor = getattr(changed, name)
        tensor.neg_()
        try:
            yield changed
        finally:
            tensor.neg_()

    def poison(self, output: Any, index: int) -> None:
        """Fill an output with NaN, unless it is a view of the input set `index` it was made from."""
        inputs = {tensor.untyped_storage().data_ptr() for _, tensor in self.sets[index].items()}
        for part in output if isinstance(output, tuple | list) else (output,):
            if isinstance(part, torch.Tensor) and part.untyped_storage().data_ptr() not in inputs:
                with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written
                    part.detach().fill_(torch.nan)

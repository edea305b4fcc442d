"""What became of a backend's call: an exception or a bad output turned into a row's status and one sentence."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabench.case import Case
from fabench.names import Status

if TYPE_CHECKING:
    import torch

REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError)
"""Raised before any output, these mean 'I do not take this case'."""


@dataclass(eq=False)
class Failure(Exception):
    """A row's end before its numbers. `fatal` says that the process can no longer be trusted with the device."""

    status: Status
    message: str
    traceback: str | None = None
    worst: dict[str, Any] | None = None
    fatal: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of the row known all the same, e.g. the parity numbers of a wrong result."""

    def row_fields(self) -> dict[str, Any]:
        """The fields of the row record this failure fills."""
        detail = {"message": self.message, "worst": self.worst, "traceback": self.traceback}
        return {"status": self.status, "detail": detail, **self.extra}


def classify(error: BaseException, *, before_output: bool) -> Failure:
    """The status an exception out of a backend stands for; `before_output`: no call of this case has returned yet."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, SystemExit):
        return Failure("crashed", f"the backend called sys.exit({error.code!r})")
    text = sentence(error)
    if is_out_of_memory(error):
        return Failure("oom", text)
    if poisoned_device():
        return Failure("crashed", f"{text}; the CUDA context is lost", own_frames(error), fatal=True)
    if before_output and isinstance(error, REFUSALS):
        return Failure("unsupported", text)
    return Failure("error", text, own_frames(error))


def is_ctrl_c(error: BaseException) -> bool:
    """True if the user wants to stop. A worker hears no SIGINT: there a backend has raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def is_out_of_memory(error: BaseException) -> bool:
    """True for what Python, torch and torch's allocator on the CPU raise when there is none left."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(("OutOfMemoryError", "MemoryError")) or "can't allocate memory" in message_of(error)


def sentence(error: BaseException) -> str:
    """An exception's name and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of the message: what an exception says before it goes into particulars."""
    return (message_of(error).strip().splitlines() or ["(no message)"])[0][:300]


def message_of(error: BaseException) -> str:
    """`str(error)`, which is the author's own code and may itself raise."""
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"


def poisoned_device() -> bool:
    """True if an earlier error has made the CUDA context unusable (an illegal access is sticky)."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def own_frames(error: BaseException) -> str:
    """The traceback without fabench's own frames: what the author of the backend needs."""
    here = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(here)]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(lines)[-4000:]


def split_output(output: object, case: Case, device: torch.device, *, lse: bool) -> dict[str, torch.Tensor]:
    """The outputs by name, {'O': ..., 'LSE': ...}; raises Failure('wrong_result') if one has not the contract's form.

    O is a plain tensor [batch, heads, Nq, dv] of the inputs' dtype; LSE is float32 [batch, heads, Nq].
    """
    import torch

    if lse:
        if not (isinstance(output, tuple) and len(output) == 2):
            raise Failure("wrong_result", f"the output must be (O, LSE), got {describe(output)}")
        O, LSE = output
    else:
        O, LSE = output, None
    from fabench.dtypes import DTYPES

    shape = (case.batch, case.heads, case.Nq, case.dv)
    check_form("O", O, shape, getattr(torch, DTYPES[case.dtype].torch_name), device)
    if not lse:
        return {"O": O}
    check_form("LSE", LSE, shape[:3], torch.float32, device)
    return {"O": O, "LSE": LSE}


def check_form(name: str, tensor: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Raise Failure('wrong_result') unless `tensor` is a plain tensor of this shape and dtype on this device."""
    import torch

    if type(tensor) is not torch.Tensor:
        raise Failure("wrong_result", f"{name} must be a plain torch.Tensor, got {describe(tensor)}")
    for what, wanted, got in (
        ("shape", shape, tuple(tensor.shape)),
        ("dtype", dtype, tensor.dtype),
        ("layout", torch.strided, tensor.layout),
        ("device", device.type, tensor.device.type),
    ):
        if got != wanted:
            raise Failure("wrong_result", f"{name} must have {what} {wanted}, got {got}")


def describe(value: object) -> str:
    """What something is, in a few words."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"

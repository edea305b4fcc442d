"""From tensors to launches: strides, descriptors, grids, and the configuration of each kernel.

The tensors were checked (`checks.py`). Outputs are allocated here, contiguous as [batch, heads, N, d].
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from fabench_backends.triton_flash import interpreter, tuner
from fabench_backends.triton_flash.backward_dkdv import triton_flash_backward_dkdv
from fabench_backends.triton_flash.backward_dq import triton_flash_backward_dq
from fabench_backends.triton_flash.checks import Band, Factors, factors, require
from fabench_backends.triton_flash.configs import Config, Kernel, width
from fabench_backends.triton_flash.forward import triton_flash_forward

Choices = dict[Kernel, Config]
MAX_PROGRAMS = 2**31 - 1

if interpreter.INTERPRETED:
    interpreter.repair()


def strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and row; a dimension of size 1 is never stepped over, so its stride is as good as 0."""
    batch, head, row = (
        0 if size == 1 else step for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return batch, head, row


def alignment(tensors: Sequence[torch.Tensor], steps: Sequence[int]) -> int:
    """Elements, up to 16 bytes of them, that every row of every tensor starts on a multiple of."""
    size = tensors[0].element_size()
    return math.gcd(16 // size, *steps, *(tensor.data_ptr() // size for tensor in tensors))


def takes_descriptor(tensor: torch.Tensor) -> bool:
    """True if the copy engine can address the tensor: 16-byte rows and strides, none of them 0 or beyond 2**40."""
    size = tensor.element_size()
    steps = [step * size for step, extent in zip(tensor.stride()[:3], tensor.shape[:3], strict=True) if extent > 1]
    return tensor.data_ptr() % 16 == 0 and all(0 < step < 2**40 and step % 16 == 0 for step in steps)


def descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor whose loads are tiles of `rows` rows of one head, as wide as the padded head dim."""
    # The stride of a dimension of size 1 may be anything, but the copy engine still wants it well formed.
    steps = [step if extent > 1 else 16 for step, extent in zip(tensor.stride()[:3], tensor.shape[:3], strict=True)]
    return TensorDescriptor(tensor, list(tensor.shape), [*steps, 1], [1, 1, rows, width(tensor.shape[3])])


class Launcher:
    """One attention problem on given tensors, ready to launch any of its kernels in any configuration."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, band: Band, scale: float, softcap: float
    ) -> None:
        self.q, self.k, self.v, self.band, self.scale = q, k, v, band, scale
        self.batch, self.heads, self.Nq, self.d = q.shape
        self.kv_heads, self.Nk, self.dv = v.shape[1:]
        self.factors: Factors = factors(scale, softcap)

    @property
    def empty(self) -> bool:
        """True if there is no score at all; there is then nothing to launch."""
        return 0 in (self.batch, self.heads, self.Nq, self.Nk)

    def constants(self, config: Config, align: int, tma: bool) -> dict[str, Any]:
        """The compile-time arguments and launch options that all three kernels share."""
        return {
            "D": self.d,
            "DV": self.dv,
            "BLOCK_M": config.BLOCK_M,
            "BLOCK_N": config.BLOCK_N,
            "BLOCK_D": width(self.d),
            "BLOCK_DV": width(self.dv),
            "HAS_LEFT": self.band.left >= 0,
            "HAS_RIGHT": self.band.right >= 0,
            "RESCALE": self.factors.rescale,
            "SOFTCAP": self.factors.softcap,
            "ALIGN": align,
            "TMA": tma,
            **config.options,
        }

    def launch(
        self,
        kernel: Any,
        config: Config,
        pointers: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        streamed: tuple[int, int],
        rows: int,
        programs: int,
        heads_total: int,
        scalars: Sequence[float],
        **constants: Any,
    ) -> None:
        """Launch `kernel` on the current stream of q's device.

        `pointers` are its tensor arguments in order, those at the indices `streamed` read in tiles of `rows` rows;
        `tensors` are the strided ones, in the order of the stride arguments.
        """
        require(programs <= MAX_PROGRAMS, f"the grid must have at most {MAX_PROGRAMS} programs, got {programs}")
        tma = config.tma and all(takes_descriptor(pointers[i]) for i in streamed)
        steps = [step for tensor in tensors for step in strides(tensor)]
        align = alignment(tensors, steps)
        arguments: list[Any] = list(pointers)
        if tma:
            for i in streamed:
                arguments[i] = descriptor(pointers[i], rows)
        group = self.heads // self.kv_heads
        guard = torch.cuda.device(self.q.device) if self.q.is_cuda else contextlib.nullcontext()
        with guard:
            kernel[(programs,)](
                *arguments, *(step // align for step in steps), self.heads, heads_total, group, self.Nq, self.Nk,
                *self.band, self.factors.score_scale, self.factors.exp2_scale, *scalars,
                **self.constants(config, align, tma), **constants,
            )  # fmt: skip

    def choose(self, kernel: Kernel, launch: Callable[[Config], None], choices: Choices | None) -> None:
        """Launch in the configuration `choices` names, else in the tuner's."""
        if choices is not None and kernel in choices:
            launch(choices[kernel])
            return
        key = tuner.Key(
            kernel, self.q.device, self.q.dtype, max(width(self.d), width(self.dv)),
            self.band.left >= 0, self.band.right >= 0, self.factors.softcap,
            max(self.Nq, self.Nk).bit_length(), self.batch * self.heads * self.Nq * self.Nk * (self.d + self.dv),
        )  # fmt: skip
        launch(tuner.choose(key, launch))

    def forward(self, choices: Choices | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """O in the dtype of q, and LSE in fp32 (natural logarithm, -inf for a query without keys)."""
        q, k, v = self.q, self.k, self.v
        o = q.new_empty(self.batch, self.heads, self.Nq, self.dv)
        lse = q.new_empty(self.batch, self.heads, self.Nq, dtype=torch.float32)
        if self.empty:
            return o.zero_(), lse.fill_(-math.inf)
        heads_total = self.batch * self.heads

        def launch(config: Config) -> None:
            programs = heads_total * triton.cdiv(self.Nq, config.BLOCK_M)
            self.launch(
                triton_flash_forward, config, (q, k, v, o, lse), (q, k, v, o), (1, 2), config.BLOCK_N,
                programs, heads_total, (),
            )  # fmt: skip

        self.choose("forward", launch, choices)
        return o, lse

    def backward(
        self,
        o: torch.Tensor,
        lse: torch.Tensor,
        do: torch.Tensor,
        dlse: torch.Tensor | None,
        choices: Choices | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dQ, dK and dV, from the returned O and LSE; `dlse` is the gradient that reached LSE, if any did."""
        q, k, v = self.q, self.k, self.v
        dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
        if self.empty:
            return dq.zero_(), dk.zero_(), dv.zero_()
        if do.stride(3) != 1:
            do = do.contiguous()
        delta = torch.empty_like(lse)
        dlse = None if dlse is None else dlse.float().contiguous()
        heads_total, kv_total = self.batch * self.heads, self.batch * self.kv_heads

        def launch_dq(config: Config) -> None:
            programs = heads_total * triton.cdiv(self.Nq, config.BLOCK_M)
            self.launch(
                triton_flash_backward_dq, config, (q, k, v, o, do, lse, lse if dlse is None else dlse, delta, dq),
                (q, k, v, o, do, dq), (1, 2), config.BLOCK_N, programs, heads_total, (self.scale,),
                HAS_DLSE=dlse is not None,
            )  # fmt: skip

        def launch_dkdv(config: Config) -> None:
            programs = kv_total * triton.cdiv(self.Nk, config.BLOCK_N)
            self.launch(
                triton_flash_backward_dkdv, config, (q, k, v, do, lse, delta, dk, dv), (q, k, v, do, dk, dv),
                (0, 3), config.BLOCK_M, programs, kv_total, (self.scale,),
            )  # fmt: skip

        self.choose("backward_dq", launch_dq, choices)  # first: it writes delta
        self.choose("backward_dkdv", launch_dkdv, choices)
        return dq, dk, dv

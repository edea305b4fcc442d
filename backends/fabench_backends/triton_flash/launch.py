"""From tensors to launches: strides, descriptors, grids, and the configuration of each kernel.

A plan holds what follows from the layouts of q, k and v, and each kernel's launch once it was made: all arguments but
the tensors. So a call that was made before costs the host little. Nothing is remembered by an address. Outputs are
allocated here, contiguous as [batch, heads, N, d].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from fabench.attention_op import Layout, on
from fabench.launch_order import side_by_side
from fabench_backends.triton_flash import interpreter, tuner
from fabench_backends.triton_flash.backward_dkdv import triton_flash_backward_dkdv
from fabench_backends.triton_flash.backward_dq import triton_flash_backward_dq
from fabench_backends.triton_flash.checks import Band, Factors, check_device, check_tensors, factors, require
from fabench_backends.triton_flash.configs import Config, Kernel, width
from fabench_backends.triton_flash.forward import triton_flash_forward

Choices = dict[Kernel, Config]
MAX_PROGRAMS = 2**31 - 1
INTERPRETED_L2_BYTES = 1 << 17

if interpreter.INTERPRETED:
    interpreter.repair()


class Role(NamedTuple):
    """What a kernel does with its tensor arguments, by their index, and what its grid runs over."""

    function: Any
    strided: tuple[int, ...]
    """Those whose strides it is given, in that order; the first three are q, k and v."""
    streamed: tuple[int, int]
    """Those it reads tile by tile: through the copy engine where strides allow it."""
    by_queries: bool
    """A program owns a tile of queries and streams keys; else it owns keys and streams queries."""


ROLES: dict[Kernel, Role] = {
    "forward": Role(triton_flash_forward, (0, 1, 2, 3), (1, 2), True),
    "backward_dq": Role(triton_flash_backward_dq, (0, 1, 2, 3, 4, 8), (1, 2), True),
    "backward_dkdv": Role(triton_flash_backward_dkdv, (0, 1, 2, 3, 6, 7), (0, 3), False),
}


def strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and row; a dimension of size 1 is never stepped over, so its stride is as good as 0."""
    batch, head, row = (
        0 if size == 1 else step for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return batch, head, row


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


def rebased(facts: dict[str, Any], tensor: torch.Tensor) -> TensorDescriptor:
    """The descriptor of another tensor of the same layout, without the checks that the first one has passed."""
    made = object.__new__(TensorDescriptor)
    made.__dict__.update(facts, base=tensor)
    return made


@cache
def l2_bytes(device: torch.device) -> int:
    """The size of L2; the interpreter has none, and takes that of a small card."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else INTERPRETED_L2_BYTES


@dataclass
class Launch:
    """One kernel in one configuration, with all of its arguments but the tensors."""

    function: Any
    config: Config
    grid: tuple[int, int, int]
    rows: int
    """Rows of a streamed tile."""
    streamed: tuple[int, ...]
    """The tensors that go as descriptors."""
    numbers: tuple[int | float, ...]
    constants: dict[str, Any]
    compiled: Any = None
    _facts: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Launch on the current stream. The first time goes by Triton's front end, which compiles or finds the kernel.

        The same layouts and numbers give the same kernel, so all other times go to it directly.
        """
        arguments: list[Any] = list(tensors)
        if self.compiled is not None:
            for i in self.streamed:
                arguments[i] = rebased(self._facts[i], tensors[i])
            self.compiled[self.grid](*arguments, *self.numbers, *self.constants.values())
            return
        for i in self.streamed:
            arguments[i] = descriptor(tensors[i], self.rows)
            self._facts[i] = {name: fact for name, fact in vars(arguments[i]).items() if name != "base"}
        found = self.function[self.grid](*arguments, *self.numbers, **self.constants, **self.config.options)
        self.compiled = None if interpreter.INTERPRETED else found


class Plan:
    """One attention problem: how to launch any of its kernels in any configuration."""

    def __init__(self, q: Layout, k: Layout, v: Layout, band: Band, scale: float, softcap: float) -> None:
        self.q, self.k, self.v, self.band, self.scale = q, k, v, band, scale
        self.batch, self.heads, self.Nq, self.d = q.shape
        self.kv_heads, self.Nk, self.dv = v.shape[1:]
        self.group = self.heads // max(1, self.kv_heads)
        self.factors: Factors = factors(scale, softcap)
        self.ready: dict[Any, Launch] = {}

    @property
    def empty(self) -> bool:
        """True if there is no score at all; there is then nothing to launch."""
        return 0 in (self.batch, self.heads, self.Nq, self.Nk)

    def launch(self, kernel: Kernel, config: Config, tensors: Sequence[torch.Tensor], **constants: Any) -> Launch:
        """The launch of `kernel` in `config` for tensors of these layouts."""
        role = ROLES[kernel]
        own, rows, N = ("BLOCK_M", config.BLOCK_N, self.Nq) if role.by_queries else ("BLOCK_N", config.BLOCK_M, self.Nk)
        heads_total = self.batch * (self.heads if role.by_queries else self.kv_heads)
        programs = heads_total * triton.cdiv(N, getattr(config, own))
        require(programs <= MAX_PROGRAMS, f"the grid must have at most {MAX_PROGRAMS} programs, got {programs}")
        size = tensors[0].element_size()
        wide = heads_total
        if self.band.left < 0 and self.band.right < 0:  # tiles of equal work
            # What passes by a tile: K and V, which a group of heads shares, or Q and dO of a group.
            shared, streamed = (self.group, self.Nk) if role.by_queries else (1, self.Nq * self.group)
            wide = side_by_side(heads_total, shared, streamed * (self.d + self.dv) * size, l2_bytes(self.q.device))
        tma = config.tma and all(takes_descriptor(tensors[i]) for i in role.streamed)
        steps = [step for i in role.strided for step in strides(tensors[i])]
        # Elements, up to 16 bytes of them, that every row of every tensor starts on a multiple of.
        align = math.gcd(16 // size, *steps, *(tensors[i].data_ptr() // size for i in role.strided))
        constants = {
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
            **constants,
        }
        scalars = (self.scale,) if kernel != "forward" else ()
        return Launch(
            role.function, config, (programs, 1, 1), rows, role.streamed if tma else (),
            (
                *(step // align for step in steps), self.heads, heads_total, wide, self.group,
                self.Nq, self.Nk, *self.band, self.factors.score_scale, self.factors.exp2_scale, *scalars,
            ),
            {name: constants[name] for name in role.function.arg_names if name in constants},
        )  # fmt: skip

    def run(self, kernel: Kernel, tensors: Sequence[torch.Tensor], choices: Choices | None, **constants: Any) -> None:
        """Launch in the configuration `choices` names, else in the tuner's."""
        if choices is not None and kernel in choices:
            with on(self.q.device):
                self.launch(kernel, choices[kernel], tensors, **constants)(tensors)
            return
        addresses = 0
        for tensor in tensors:
            addresses |= tensor.data_ptr()
        # Triton compiles a kernel for which addresses are multiples of 16; nearly always all of them are.
        offsets = tuple(tensor.data_ptr() % 16 for tensor in tensors) if addresses % 16 else ()
        more = ROLES[kernel].strided[3:]
        key = (kernel, offsets, *(tensors[i].stride() for i in more), *constants.values())
        launch = self.ready.get(key)
        with on(self.q.device):
            if launch is None:
                prepared = cache(lambda config: self.launch(kernel, config, tensors, **constants))
                config, settled = tuner.choose(self.key(kernel), lambda config: prepared(config)(tensors))
                launch = prepared(config)
                if settled:
                    self.ready[key] = launch
            tuner.last[kernel] = launch.config
            launch(tensors)

    def key(self, kernel: Kernel) -> tuner.Key:
        """What the tuner remembers its choice by."""
        return tuner.Key(
            kernel, self.q.device, self.q.dtype, max(width(self.d), width(self.dv)),
            self.band.left >= 0, self.band.right >= 0, self.factors.softcap,
            max(self.Nq, self.Nk).bit_length(), self.batch * self.heads * self.Nq * self.Nk * (self.d + self.dv),
        )  # fmt: skip

    def new(self, like: Layout, *shape: int) -> torch.Tensor:
        """An output like q, k or v."""
        return torch.empty(shape or like.shape, dtype=like.dtype, device=like.device)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, choices: Choices | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """O in the dtype of q, and LSE in fp32 (natural logarithm, -inf for a query without keys)."""
        o = self.new(self.q, self.batch, self.heads, self.Nq, self.dv)
        lse = torch.empty((self.batch, self.heads, self.Nq), dtype=torch.float32, device=self.q.device)
        if self.empty:
            return o.zero_(), lse.fill_(-math.inf)
        self.run("forward", (q, k, v, o, lse), choices)
        return o, lse

    def backward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor,
        dlse: torch.Tensor | None, choices: Choices | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """dQ, dK and dV, from the returned O and LSE; `dlse` is the gradient that reached LSE, if any did."""
        dq, dk, dv = self.new(self.q), self.new(self.k), self.new(self.v)
        if self.empty:
            return dq.zero_(), dk.zero_(), dv.zero_()
        if do.stride(3) != 1:
            do = do.contiguous()
        delta = torch.empty(lse.shape, dtype=torch.float32, device=self.q.device)
        dlse = None if dlse is None else dlse.float().contiguous()
        self.run(  # first: it writes delta
            "backward_dq", (q, k, v, o, do, lse, lse if dlse is None else dlse, delta, dq), choices,
            HAS_DLSE=dlse is not None,
        )  # fmt: skip
        self.run("backward_dkdv", (q, k, v, do, lse, delta, dk, dv), choices)
        return dq, dk, dv


@lru_cache(maxsize=1024)
def plan(q: Layout, k: Layout, v: Layout, band: Band, scale: float, softcap: float) -> Plan:
    """The plan, made once. Raises ValueError for tensors that do not fit, or where they lie."""
    check_tensors(q, k, v)
    check_device(q, max(q.shape[3], v.shape[3]))
    return Plan(q, k, v, band, scale, softcap)

"""Kernels with a wrong mask or a wrong tail."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from mutants.kernel import NEG, Call, Kernel


class DiagonalExcluded(Kernel):
    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        out = super().hidden(i, j, call)
        return out | (j[None, :] >= i[:, None] + call.offset) if call.causal else out


class NextKeyLeaked(Kernel):
    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        out = super().hidden(i, j, call)
        return out & (j[None, :] != i[:, None] + call.offset + 1) if call.causal else out


class TopLeft(Kernel):
    """Aligns top-left whatever it is asked."""

    def make_call(self, *args: Any) -> Call:
        return dataclasses.replace(super().make_call(*args), offset=0)


class WindowOneWider(Kernel):
    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        left, right = call.window
        return dataclasses.replace(call, window=(left + 1 if left >= 0 else left, right))


class WindowOneNarrower(Kernel):
    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        left, right = call.window
        return dataclasses.replace(call, window=(left, right - 1 if right > 0 else right))


class LastKeyDropped(Kernel):
    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return super().hidden(i, j, call) | (j == self.Nk - 1)[None, :]

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.Nk = k.shape[2]
        return super().forward(q, k, v, call)


class PadKeysCounted(Kernel):
    """The last tile is filled up with zero keys, whose exp(0 - m) stays in l."""

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        tile = super().read_kv(x, start, heads)
        missing = self.block_k - tile.shape[2]
        return torch.nn.functional.pad(tile, (0, 0, 0, missing)) if missing and self.padding else tile

    padding = True

    def backward(self, *args: Any) -> Any:
        self.padding = False
        try:
            return super().backward(*args)
        finally:
            self.padding = True


class TailRead(Kernel):
    """V's last tile is read past the end, as a load without a bound does; P is 0 there, and 0·NaN is NaN."""

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        tile = super().read_kv(x, start, heads)
        missing = self.block_k - tile.shape[2]
        if not missing or not x.numel():
            return tile
        flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        after = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
        beyond = flat[after : after + missing * x.shape[-1]]
        tail = torch.zeros(missing * x.shape[-1], dtype=x.dtype)
        tail[: len(beyond)] = beyond
        tail = tail.view(missing, x.shape[-1]).expand(*tile.shape[:2], -1, -1)
        return torch.cat([tile, tail], 2)

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return super().hidden(i, j, call) | (j >= self.Nk)[None, :]

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.Nk = k.shape[2]
        return super().forward(q, k, v, call)

    def backward(self, q: Any, k: Any, v: Any, O: Any, LSE: Any, dO: Any, call: Call) -> Any:
        return Kernel().backward(q, k, v, O, LSE, dO, call)


class TilesOnly(Kernel):
    """Masks whole tiles and nothing inside the diagonal ones."""

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        out = super().hidden(i, j, call)
        return out if bool(out.all()) else torch.zeros_like(out)


class TileSkippedInLateRows(Kernel):
    """Query tiles from the third on never visit key tile 1."""

    def key_tiles(self, Nk: int, first_row: int) -> list[int]:
        tiles = super().key_tiles(Nk, first_row)
        return [j for j in tiles if j != self.block_k] if first_row >= 128 else tiles


class MaskIgnored(Kernel):
    def make_call(self, *args: Any) -> Call:
        return dataclasses.replace(super().make_call(*args), causal=False, window=(-1, -1))


class FirstTileClamped(Kernel):
    """A first tile that is all masked leaves 0 as the running maximum (keys are visited last to first)."""

    reverse = True

    def update(self, m: Any, l: Any, acc: Any, s: Any, V: Any, dtype: torch.dtype) -> Any:
        top, l, acc = super().update(m, l, acc, s, V, dtype)
        return torch.where(top == NEG, 0.0, top), l, acc


class FiniteSentinel(Kernel):
    """-3e4 in the place of -inf, for the mask and for the first maximum."""

    def masked_value(self) -> float:
        return -3e4

    def first_max(self) -> float:
        return -3e4


class UnlimitedSideAsZero(Kernel):
    """A side of -1 beside a given one is clamped to 0."""

    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        left, right = call.window
        return dataclasses.replace(call, window=(max(left, 0), max(right, 0)) if max(left, right) >= 0 else (-1, -1))


class ZeroSideUnlimited(Kernel):
    """`if left:` asks whether there is a left side, and a side of 0 is false."""

    def make_call(self, *args: Any) -> Call:
        call = super().make_call(*args)
        left, right = call.window
        return dataclasses.replace(call, window=(left or -1, right or -1))


class WindowNotAligned(Kernel):
    """The window is centred on i, whatever the alignment."""

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        left, right = call.window
        by_window = dataclasses.replace(call, causal=False, offset=0)
        by_causal = dataclasses.replace(call, window=(-1, -1))
        out = super().hidden(i, j, by_causal)
        return out | super().hidden(i, j, by_window) if max(left, right) >= 0 else out


class SingleQueryUnmasked(Kernel):
    """The decode path drops the causal mask, which is right bottom-right only."""

    def make_call(self, q: torch.Tensor, *args: Any) -> Call:
        call = super().make_call(q, *args)
        return dataclasses.replace(call, causal=call.causal and q.shape[2] > 1)


class LastKeyTwice(Kernel):
    """Where Nk is no multiple of 64, the last tile begins one key too early."""

    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        s = super().score(q, k, call)
        if self.Nk % 64 and k.shape[2] < self.block_k:
            s[..., -1] += math.log(2)
        return s

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.Nk = k.shape[2]
        return super().forward(q, k, v, call)


class FirstKeyTwice(Kernel):
    """The tile that the accumulators begin with has its first key in them already."""

    def read_kv(self, x: torch.Tensor, start: int, heads: torch.Tensor) -> torch.Tensor:
        self.start = start
        return super().read_kv(x, start, heads)

    def counted_twice(self) -> bool:
        return self.start == 0

    def score(self, q: torch.Tensor, k: torch.Tensor, call: Call) -> torch.Tensor:
        s = super().score(q, k, call)
        if self.counted_twice():
            s[..., 0] += math.log(2)
        return s


class TilesOverlap(FirstKeyTwice):
    """Every tile but the first begins with the last tile's end."""

    def counted_twice(self) -> bool:
        return self.start > 0


class FirstNqKeys(Kernel):
    """The loop over keys ends at Nq."""

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return super().hidden(i, j, call) | (j >= self.Nq)[None, :]

    def forward(self, q: Any, k: Any, v: Any, call: Call) -> Any:
        self.Nq = q.shape[2]
        return super().forward(q, k, v, call)


class LastKeyOfTiles(Kernel):
    """j < end - 1 in every whole tile of 32."""

    def hidden(self, i: torch.Tensor, j: torch.Tensor, call: Call) -> torch.Tensor:
        return super().hidden(i, j, call) | (j % self.block_k == self.block_k - 1)[None, :]


class EmptyRowsNan(Kernel):
    """0 / 0 for queries that attend to no key."""

    def store(self, O: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        super().store(O, rows, torch.where(self.empty, torch.nan, out))

    def rows(self, *args: Any) -> Any:
        m, l, acc = super().rows(*args)
        self.empty = l == 0
        return m, l, acc

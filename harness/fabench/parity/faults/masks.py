"""Wrong masks: one key too many or too few, the other alignment, a tile that is never visited."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch

from fabench.case import Case, Mask
from fabench.parity.bench import shown_pairs
from fabench.parity.faults.dense import Attention, Fault, fault
from fabench.text import counted

TILES = (16, 32, 64, 128)
Shown = Callable[[Attention], torch.Tensor]


def faults(case: Case) -> Iterator[Fault]:
    """Every wrong mask that differs from the right one in `case`."""
    for sentence, change in _other_masks(case):
        yield fault("mask", sentence, shown=_of_mask(change))
    last = case.Nk - 1
    if case.Nk > 1:
        yield fault("mask", "attention that drops the last key", shown=_without(slice(last, None)))
        yield fault("mask", "attention that drops the first key", shown=_without(slice(0, 1)))
    if case.Nq and case.Nk > case.Nq:
        words = "a kernel that visits only the first Nq of the Nk keys"
        yield fault("mask", words, shown=_without(slice(case.Nq, None)))
    for tile in TILES:
        if case.Nk > tile:
            words = f"a kernel that drops the last key of every tile of {tile}"
            yield fault("mask", words, shown=_without(slice(tile - 1, None, tile)))
            words = f"a kernel that drops the last key of every tile of {tile} but the last"
            yield fault("mask", words, shown=_without(slice(tile - 1, case.Nk - 1, tile)))
            if case.Nk % tile:
                start = case.Nk // tile * tile
                tail = counted(case.Nk - start, "key")
                words = f"attention that drops the tail of {tail} after the last whole tile of {tile}"
                yield fault("mask", words, shown=_without(slice(start, None)))
            for index in sorted({0, 1, (case.Nk - 1) // tile}):
                where = slice(index * tile, (index + 1) * tile)
                yield fault("mask", f"a kernel that skips key tile {index} of {tile}", shown=_without(where))
            yield fault(
                "mask", f"a kernel that visits only the first tile of {tile} keys", shown=_without(slice(tile, None))
            )
    if not case.mask.is_full:
        for tile in TILES:
            if min(case.Nq, case.Nk) > tile:
                yield fault("mask", f"a mask applied only by whole tiles of {tile} x {tile}", shown=_by_tiles(tile))


def _other_masks(case: Case) -> Iterator[tuple[str, Callable[[Mask], Mask]]]:
    """Masks that are again a Mask: shifted, of the other alignment, or of another window."""
    mask = case.mask
    if mask.window is not None:
        yield from _misread_windows(mask)
    if not mask.is_full:
        yield "attention that ignores its mask", lambda m: Mask(m.Nq, m.Nk)
    if not mask.causal:
        yield "causal attention, which was not asked for", lambda m: dataclasses.replace(m, causal=True)
    else:
        yield "attention without the causal mask", lambda m: dataclasses.replace(m, causal=False)
        yield "causal attention that leaves out the diagonal key", _shifted_right(-1)
        yield "causal attention that lets one key past the diagonal through", _shifted_right(1)
    if mask.Nq != mask.Nk and not mask.is_full:
        other = "top_left" if mask.alignment == "bottom_right" else "bottom_right"
        words = f"a mask aligned {other.replace('_', '-')} instead of {mask.alignment.replace('_', '-')}"
        yield words, lambda m: dataclasses.replace(m, alignment=other)  # type: ignore[arg-type]
    if mask.window is not None:
        yield "attention that ignores the window", lambda m: dataclasses.replace(m, window=None)
        left, right = mask.window
        if left >= 0 and (right >= 0 or mask.causal):
            yield (
                "attention that ignores the left side of the window",
                functools.partial(dataclasses.replace, window=(-1, right)),
            )
        if left >= 0 <= right and not mask.causal:
            yield (
                "attention that ignores the right side of the window",
                functools.partial(dataclasses.replace, window=(left, -1)),
            )
        for name, low, high in (
            ("one key wider on the left", left + 1 if left >= 0 else left, right),
            ("one key narrower on the left", left - 1, right),
            ("one key wider on the right", left, right + 1 if right >= 0 else right),
            ("one key narrower on the right", left, right - 1),
        ):
            if (low, high) != (left, right) and low >= -1 and high >= -1 and not (left < 0 <= low):
                yield f"a window that is {name}", functools.partial(dataclasses.replace, window=(low, high))


def _misread_windows(mask: Mask) -> Iterator[tuple[str, Callable[[Mask], Mask]]]:
    """A side of -1 (unlimited) or 0 (no key) taken for the other, and a window that does not follow the alignment."""
    assert mask.window is not None
    sides = mask.window if not mask.causal else (mask.window[0], 0)
    if -1 in sides:
        words = "a window whose unlimited side (-1) is taken for 0"
        yield words, functools.partial(dataclasses.replace, window=tuple(max(side, 0) for side in sides))
    if 0 in mask.window and not (mask.causal and mask.window[0]):
        words = "a window whose side of 0 keys is taken for unlimited"
        yield words, functools.partial(dataclasses.replace, window=tuple(side or -1 for side in mask.window))
    if mask.offset:
        yield "a window centred on the query's own index instead of the aligned diagonal", _centred


def _centred(m: Mask) -> Mask:
    """The window moved back by the alignment's offset; the causal limit stays."""
    assert m.window is not None
    return _Shifted(m.Nq, m.Nk, m.causal, m.alignment, m.window, 0 if m.causal else -m.offset, m.offset)


def _shifted_right(by: int) -> Callable[[Mask], Mask]:
    """The causal limit moved, as a window whose right side is `by` (a negative one needs the shifted pair set)."""

    def change(m: Mask) -> Mask:
        return _Shifted(m.Nq, m.Nk, m.causal, m.alignment, m.window, by)

    return change


@dataclasses.dataclass(frozen=True)
class _Shifted(Mask):
    """A mask whose right limit lies `by` keys further right, and whose left one `left_by` further left."""

    by: int = 0
    left_by: int = 0

    @property
    def right(self) -> int | None:
        """The causal or the window's limit, moved."""
        limit = super().right
        return None if limit is None else limit + self.by

    @property
    def left(self) -> int | None:
        """The window's other limit, moved."""
        limit = super().left
        return None if limit is None else limit + self.left_by


def _of_mask(change: Callable[[Mask], Mask]) -> Shown:
    def shown(self: Attention) -> torch.Tensor:
        return pairs(change(self.case.mask), self.p.q.device)

    return shown


def pairs(mask: Mask, device: torch.device) -> torch.Tensor:
    """Bool [Nq, Nk] of the pairs `mask` shows."""
    distance = torch.arange(mask.Nk, device=device) - torch.arange(mask.Nq, device=device)[:, None] - mask.offset
    shown = torch.ones(mask.Nq, mask.Nk, dtype=torch.bool, device=device)
    if mask.right is not None:
        shown &= distance <= mask.right
    if mask.left is not None:
        shown &= distance >= -mask.left
    return shown


def _without(keys: slice) -> Shown:
    def shown(self: Attention) -> torch.Tensor:
        left = shown_pairs(self.case, self.p.q.device)
        left[:, keys] = False
        return left

    return shown


def _by_tiles(tile: int) -> Shown:
    """A tile that shows any pair shows all of them: the diagonal tiles are not masked inside."""

    def shown(self: Attention) -> torch.Tensor:
        right = shown_pairs(self.case, self.p.q.device)
        Nq, Nk = right.shape
        padded = torch.zeros(-(-Nq // tile) * tile, -(-Nk // tile) * tile, dtype=torch.bool, device=right.device)
        padded[:Nq, :Nk] = right
        rows, columns = (n // tile for n in padded.shape)
        any_shown = padded.view(rows, tile, columns, tile).any(3).any(1)
        return any_shown.repeat_interleave(tile, 0).repeat_interleave(tile, 1)[:Nq, :Nk]

    return shown

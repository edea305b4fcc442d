"""Calls replayed from a CUDA graph: how cases are timed that would otherwise be mostly launching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fabench.measure.engine import Engine


@dataclass
class Replay:
    """K captured calls, on the input sets in turn; each replay reads and writes the same memory again."""

    run: Callable[[], None]
    index: int
    """The input set of the call whose output is at hand."""
    output: Any
    """That call's output: its memory belongs to the graph, and every replay writes it anew."""


def capture(engine: Engine, launch: Callable[[int], Any], rotation: int, K: int, pick: int) -> Replay:
    """Capture K calls, on input sets 0, 1, ... in turn, and keep the output of call `pick`.

    The other outputs are let go during the capture, so that the graph's pool reuses their memory as eager calls would.
    Raises what the capture raises: a call that waits for the device, or queues work elsewhere, cannot be captured.
    """

    def body() -> Any:
        kept = None
        for k in range(K):
            output = launch(k % rotation)
            if k == pick:
                kept = output
            del output
        return kept

    engine.synchronize()
    replay, output = engine.capture(body)
    return Replay(replay, pick % rotation, output)


def loops(rotation: int, t_ns: float, span_ns: float) -> int:
    """K: the least with K·t >= `span_ns`; beyond the number of input sets the least multiple of it.

    A span is flushed before it starts, so K <= `rotation` calls, each on a set of its own, find no input in cache.
    """
    K = max(1, -int(-span_ns // max(t_ns, 1.0)))
    return K if rotation >= K else rotation * -(-K // rotation)
